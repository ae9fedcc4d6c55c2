//! Attention over the paged KV cache, one query at a time: scores, softmax, weighted sum of values.

use std::ops::Range;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use super::element::{Bf16, DType, Element};
use super::memory::{Memory, Views};
use super::tape::{self, Op};
use super::tensor::Tensor;
use super::threads;
use super::vectors::{self, Kernel, dot, exp};
use super::views::{Along, Blocks, End, Rows, RowsMut};

/// Multiplications per additional thread.
const THREAD_WORK: usize = 256 << 10;

/// Computes out = softmax(scale q K^T) V for queries q [T, Hq, D] over cache [blocks, 2, Hkv,
/// block_tokens, D]. `sequences` are (block tables of all slots, slots, query_start or None,
/// kv_len). Without query_start, each sequence has one query, its last token, and a kv_len of 0
/// gives zeros. `rule` is (scale, window, max threads). Same semantics as
/// `penstock_kernels.paged_decode_attention` and `paged_prefill_attention`.
#[pyfunction]
pub(super) fn paged_attention(
    py: Python<'_>,
    q: Tensor,
    cache: Tensor,
    sequences: (Tensor, Tensor, Option<Tensor>, Tensor),
    rule: (f32, usize, usize),
    out: Tensor,
) -> PyResult<()> {
    let (tables, slots, query_start, kv_len) = sequences;
    let (scale, window, threads) = rule;
    let op = Call {
        q,
        cache,
        tables,
        slots,
        query_start,
        kv_len,
        scale,
        window,
        threads,
        out,
    };
    tape::launch_detached(py, op).map(drop)
}

struct Call {
    q: Tensor,
    cache: Tensor,
    tables: Tensor,
    slots: Tensor,
    query_start: Option<Tensor>,
    kv_len: Tensor,
    scale: f32,
    window: usize,
    /// Maximum number of threads.
    threads: usize,
    out: Tensor,
}

impl Op for Call {
    fn run(&self, memory: &mut Memory) -> PyResult<bool> {
        let mut views = Views::new(memory);
        let queries = queries(self, &mut views)?;
        match self.q.kind {
            DType::Bfloat16 => attend_as::<Bf16>(self, views, &queries),
            _ => attend_as::<f32>(self, views, &queries),
        }?;
        Ok(true)
    }
}

fn attend_as<'m, T: Element>(
    call: &'m Call,
    mut views: Views<'m>,
    queries: &[Query],
) -> PyResult<()> {
    let cache = &call.cache;
    let tables = views.rows::<i32>(&call.tables)?;
    let &[blocks, 2, heads, block_tokens, size] = cache.shape() else {
        return Err(PyValueError::new_err(
            "the cache is not [blocks, 2, Hkv, block_tokens, D]",
        ));
    };
    let (q, out) = (views.rows::<T>(&call.q)?, views.rows_mut::<T>(&call.out)?);
    if q.width() == 0
        || !q.width().is_multiple_of(heads * size)
        || (q.count(), q.width()) != (out.count(), out.width())
    {
        return Err(PyValueError::new_err(
            "q, cache and out do not fit together",
        ));
    }
    let cache = Cache {
        keys_and_values: views.slice::<T>(cache)?,
        heads,
        block_tokens,
        size,
    };
    for query in queries.iter().filter(|query| !query.seen.is_empty()) {
        let columns = query.seen.start / block_tokens..query.seen.end.div_ceil(block_tokens);
        let known = |&block: &i32| usize::try_from(block).is_ok_and(|block| block < blocks);
        let inside = query.slot < tables.count() && columns.end <= tables.width();
        if !inside || !tables.row(query.slot)[columns].iter().all(known) {
            return Err(PyIndexError::new_err(
                "a block table or a block of it is out of range",
            ));
        }
    }
    let keys: usize = queries.iter().map(|query| query.seen.len()).sum();
    let threads = call.threads.min(1 + 2 * keys * q.width() / THREAD_WORK);
    let work = Attention {
        q,
        cache,
        tables,
        scale: call.scale,
        queries,
    };
    work.run(out, threads);
    Ok(())
}

/// One query and its visible keys.
struct Query {
    row: usize,
    /// Row of the block tables.
    slot: usize,
    /// Positions of the visible keys; empty for a padding row.
    seen: Range<usize>,
}

/// Returns the queries in row order, at most one per row.
fn queries<'m>(call: &'m Call, views: &mut Views<'m>) -> PyResult<Vec<Query>> {
    let slots = views.slice::<i32>(&call.slots)?;
    let kv_len = views.slice::<i32>(&call.kv_len)?;
    let starts = call.query_start.as_ref();
    let starts = starts
        .map(|starts| views.slice::<i32>(starts))
        .transpose()?;
    let rows = call.q.shape().first().copied().unwrap_or(0);
    let window = call.window;
    let mut queries = Vec::with_capacity(rows);
    for (sequence, (&length, &slot)) in kv_len.iter().zip(slots).enumerate() {
        let range = match starts {
            None => sequence as i32..sequence as i32 + 1,
            Some(starts) if starts.len() == kv_len.len() + 1 => {
                starts[sequence]..starts[sequence + 1]
            }
            Some(_) => return Err(PyValueError::new_err("query_start does not fit kv_len")),
        };
        let padding = starts.is_none() && length == 0;
        let ordered = 0 <= range.start && range.start <= range.end && range.end as usize <= rows;
        if !ordered || (length < range.len() as i32 && !padding) {
            return Err(PyIndexError::new_err("query_start and kv_len do not fit q"));
        }
        for row in range.clone() {
            let after = (range.end - 1 - row) as usize;
            let end = (length as usize).saturating_sub(after);
            let first = if window > 0 {
                end.saturating_sub(window)
            } else {
                0
            };
            queries.push(Query {
                row: row as usize,
                slot: slot as usize,
                seen: first..end,
            });
        }
    }
    Ok(queries)
}

/// One layer's paged keys and values.
#[derive(Clone, Copy)]
struct Cache<'a, T> {
    keys_and_values: &'a [T],
    heads: usize,
    block_tokens: usize,
    size: usize,
}

/// The half of a block.
#[derive(Clone, Copy)]
enum Half {
    Keys = 0,
    Values = 1,
}

impl<'a, T: Element> Cache<'a, T> {
    /// Yields, block by block, what one head stores for the positions `seen`, as whole rows of
    /// `size`.
    #[inline(always)]
    fn blocks(
        self,
        head: usize,
        half: Half,
        table: &'a [i32],
        seen: &Range<usize>,
    ) -> impl Iterator<Item = &'a [T]> {
        let (start, end, tokens) = (seen.start, seen.end, self.block_tokens);
        (start / tokens..end.div_ceil(tokens)).map(move |column| {
            let plane = (table[column] as usize * 2 + half as usize) * self.heads + head;
            let first = start.saturating_sub(column * tokens);
            let last = (end - column * tokens).min(tokens);
            let rows = plane * tokens + first..plane * tokens + last;
            &self.keys_and_values[rows.start * self.size..rows.end * self.size]
        })
    }
}

#[derive(Clone, Copy)]
struct Attention<'a, T> {
    q: Rows<'a, T>,
    cache: Cache<'a, T>,
    tables: Rows<'a, i32>,
    scale: f32,
    queries: &'a [Query],
}

impl<T: Element> Attention<'_, T> {
    /// Splits the queries among `threads` threads, by the rows of out.
    fn run(self, out: RowsMut<'_, T>, threads: usize) {
        let size = threads::block(out.count(), threads);
        let rows = &out.into_blocks(Along::Rows, size);
        threads::share(threads, rows.count(), &|end| {
            vectors::run(Part {
                attention: self,
                rows,
                end,
            })
        });
    }

    /// Computes the query heads `group` of one KV head; `group` and `out` hold this row's values of
    /// all those heads.
    #[inline(always)]
    fn head(&self, head: usize, query: &Query, group: &[T], out: &mut [T], scratch: &mut Scratch) {
        let size = self.cache.size;
        let table = self.tables.row(query.slot);
        let keys = query.seen.len();
        scratch.q.clear();
        scratch
            .q
            .extend(group.iter().map(|value| value.wide() * self.scale));
        scratch.scores.resize(keys * (group.len() / size), 0.0);
        let mut at = 0;
        for block in self.cache.blocks(head, Half::Keys, table, &query.seen) {
            for key in block.chunks_exact(size) {
                for (q, scores) in scratch
                    .q
                    .chunks_exact(size)
                    .zip(scratch.scores.chunks_exact_mut(keys))
                {
                    scores[at] = dot(q, key);
                }
                at += 1;
            }
        }
        scratch.scores.chunks_exact_mut(keys).for_each(softmax);
        scratch.sums.clear();
        scratch.sums.resize(group.len(), 0.0);
        let mut at = 0;
        for block in self.cache.blocks(head, Half::Values, table, &query.seen) {
            for (g, sums) in scratch.sums.chunks_exact_mut(size).enumerate() {
                let weights = &scratch.scores[g * keys + at..];
                for (value, &weight) in block.chunks_exact(size).zip(weights) {
                    for (sum, value) in sums.iter_mut().zip(value) {
                        *sum = value.wide().mul_add(weight, *sum);
                    }
                }
            }
            at += block.len() / size;
        }
        for (out, sum) in out.iter_mut().zip(&scratch.sums) {
            *out = T::narrow(*sum);
        }
    }
}

/// Per-thread scratch buffers.
#[derive(Default)]
struct Scratch {
    /// Scaled queries of a group.
    q: Vec<f32>,
    /// Their scores, then softmax weights, query by query.
    scores: Vec<f32>,
    /// Their weighted sums of values, in float32.
    sums: Vec<f32>,
}

/// The work of one thread: it takes blocks of rows until none is left.
struct Part<'a, T> {
    attention: Attention<'a, T>,
    rows: &'a Blocks<'a, T>,
    end: End,
}

impl<T: Element> Kernel for Part<'_, T> {
    type Output = usize;

    /// Returns the number of blocks taken.
    #[inline(always)]
    fn run(self) -> usize {
        let Self {
            attention,
            rows,
            end,
        } = self;
        let width = attention.q.width() / attention.cache.heads;
        let mut scratch = Scratch::default();
        let mut done = 0;
        while let Some(mut block) = rows.take(end) {
            let after = |row| attention.queries.partition_point(|query| query.row < row);
            let here = after(block.range.start)..after(block.range.end);
            for query in &attention.queries[here] {
                let q = attention.q.row(query.row);
                let out = block.rows.row_mut(query.row - block.range.start);
                if query.seen.is_empty() {
                    out.fill(T::narrow(0.0));
                    continue;
                }
                let groups = q.chunks_exact(width).zip(out.chunks_exact_mut(width));
                for (head, (group, out)) in groups.enumerate() {
                    attention.head(head, query, group, out, &mut scratch);
                }
            }
            done += 1;
        }
        done
    }
}

/// Computes the softmax in place.
#[inline(always)]
fn softmax(scores: &mut [f32]) {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for score in &mut *scores {
        *score = exp(*score - most);
    }
    let factor = 1.0 / scores.iter().sum::<f32>();
    for score in scores {
        *score *= factor;
    }
}
