//! Rotary position embedding, and the write of keys and values to the paged cache.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use super::element::{Bf16, DType, Element};
use super::memory::{Memory, Views};
use super::tape::{self, Op};
use super::tensor::Tensor;
use super::vectors::{self, Kernel};
use super::views::{Rows, RowsMut};

/// Rotates q [T, Hq, D] in place and writes the rotated k, and v [T, Hkv, D], to the cache [blocks,
/// 2, Hkv, block_tokens, D]. Same semantics as `penstock_kernels.rope_kv_write`. `angles` are
/// (cos_sin, positions), `places` are (slot_mapping, kv_len): tokens whose kv_len is 0 are skipped;
/// without kv_len, none is.
#[pyfunction]
#[pyo3(signature = (q, k, v, angles, places, cache))]
pub(super) fn rope_kv_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    angles: (Tensor, Tensor),
    places: (Tensor, Option<Tensor>),
    cache: Tensor,
) -> PyResult<()> {
    let op = Call {
        q,
        k,
        v,
        cos_sin: angles.0,
        positions: angles.1,
        slots: places.0,
        kv_len: places.1,
        cache,
    };
    tape::launch(op).map(drop)
}

struct Call {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    kv_len: Option<Tensor>,
    cache: Tensor,
}

impl Op for Call {
    fn run(&self, memory: &mut Memory) -> PyResult<bool> {
        match self.q.kind {
            DType::Bfloat16 => rope_as::<Bf16>(self, memory),
            _ => rope_as::<f32>(self, memory),
        }?;
        Ok(true)
    }
}

fn rope_as<T: Element>(call: &Call, memory: &mut Memory) -> PyResult<()> {
    let mut views = Views::new(memory);
    let cache = &call.cache;
    let &[blocks, 2, heads, block_tokens, size] = cache.shape() else {
        return Err(PyValueError::new_err(
            "the cache is not [blocks, 2, Hkv, block_tokens, D]",
        ));
    };
    let cos_sin = views.rows::<f32>(&call.cos_sin)?;
    let positions = views.slice::<i32>(&call.positions)?;
    let work = RopeKvWrite {
        q: views.rows_mut::<T>(&call.q)?,
        k: views.rows::<T>(&call.k)?,
        v: views.rows::<T>(&call.v)?,
        cos_sin,
        positions,
        slots: views.slice::<i32>(&call.slots)?,
        kv_len: match &call.kv_len {
            Some(lengths) => Some(views.slice::<i32>(lengths)?),
            None => None,
        },
        cache: views.slice_mut::<T>(cache)?,
        heads,
        block_tokens,
    };
    let tokens = work.q.count();
    let lengths = [
        work.k.count(),
        work.v.count(),
        positions.len(),
        work.slots.len(),
        work.kv_len.map_or(tokens, <[i32]>::len),
    ];
    let widths = [work.k.width(), work.v.width()];
    if lengths != [tokens; 5] || widths != [heads * size; 2] || cos_sin.width() != size {
        return Err(PyValueError::new_err(
            "the arguments of rope_kv_write differ in shape",
        ));
    }
    if size == 0 || size % 2 == 1 || !work.q.width().is_multiple_of(size) {
        return Err(PyValueError::new_err(
            "the head size of rope_kv_write must be even",
        ));
    }
    let known = |&position: &i32| usize::try_from(position).is_ok_and(|p| p < cos_sin.count());
    let fits = |&slot: &i32| slot < 0 || (slot as usize) < blocks * block_tokens;
    if !positions.iter().all(known) || !work.slots.iter().all(fits) {
        return Err(PyIndexError::new_err(
            "a position or a slot is out of range",
        ));
    }
    vectors::run(work);
    Ok(())
}

struct RopeKvWrite<'a, T> {
    q: RowsMut<'a, T>,
    k: Rows<'a, T>,
    v: Rows<'a, T>,
    cos_sin: Rows<'a, f32>,
    positions: &'a [i32],
    slots: &'a [i32],
    kv_len: Option<&'a [i32]>,
    cache: &'a mut [T],
    heads: usize,
    block_tokens: usize,
}

impl<T: Element> Kernel for RopeKvWrite<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        let size = self.cos_sin.width();
        let plane = self.heads * self.block_tokens * size; // the keys, or the values, of a block
        for (token, (&position, &slot)) in self.positions.iter().zip(self.slots).enumerate() {
            if self.kv_len.is_some_and(|lengths| lengths[token] == 0) {
                continue;
            }
            let angles = self.cos_sin.row(position as usize);
            for head in self.q.row_mut(token).chunks_exact_mut(size) {
                let (a, b) = head.split_at_mut(size / 2);
                rotate(a, b, angles);
            }
            let Ok(slot) = usize::try_from(slot) else {
                continue;
            };
            let block = slot / self.block_tokens * 2 * plane;
            let keys = self.k.row(token).chunks_exact(size);
            let values = self.v.row(token).chunks_exact(size);
            for (head, (key, value)) in keys.zip(values).enumerate() {
                let row = (head * self.block_tokens + slot % self.block_tokens) * size;
                let stored = &mut self.cache[block + row..][..size];
                stored.copy_from_slice(key);
                let (a, b) = stored.split_at_mut(size / 2);
                rotate(a, b, angles);
                self.cache[block + plane + row..][..size].copy_from_slice(value);
            }
        }
    }
}

/// Rotates the halves (a | b) of a head by `angles` (cos | sin).
#[inline(always)]
fn rotate<T: Element>(a: &mut [T], b: &mut [T], angles: &[f32]) {
    let (cos, sin) = angles.split_at(a.len());
    for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
        let (x, y) = (a.wide(), b.wide());
        *a = T::narrow(x.mul_add(*cos, -(y * sin)));
        *b = T::narrow(y.mul_add(*cos, x * sin));
    }
}
