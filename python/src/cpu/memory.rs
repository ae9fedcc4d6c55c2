//! Access to tensor memory, and the views that an op gets. This is the only place that turns an
//! address into a slice.
//!
//! `Memory` exists once per process, behind a lock: one op (or one replay of a tape) holds it at a
//! time. `Views` borrows it for the duration of an op, and refuses a mutable view of memory that
//! the op has another view of. So safe code cannot get two slices of the same memory if one is
//! mutable, however many `Tensor`s refer to it. One condition remains that Rust cannot check, the
//! same as with torch's own functions: Python and torch must not touch a tensor while an op writes
//! it, nor write one that an op reads.

use std::marker::PhantomData;
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::element::Stored;
use super::tensor::Tensor;
use super::views::{Layout, Rows, RowsMut};

/// The token for access to tensor memory; `lock` returns it.
pub(crate) struct Memory(());

static MEMORY: Mutex<Memory> = Mutex::new(Memory(()));

/// Waits until no other op of this process runs, and returns the token.
pub(crate) fn lock() -> MutexGuard<'static, Memory> {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The views of one op on its tensors.
pub(crate) struct Views<'m> {
    spans: Vec<Span>,
    memory: PhantomData<&'m mut Memory>,
}

/// The rows of a view, in bytes.
struct Span {
    rows: Layout<usize>,
    written: bool,
}

impl<'m> Views<'m> {
    /// Creates the views of an op that has exclusive access to the memory while they live.
    pub(crate) fn new(_: &'m mut Memory) -> Self {
        Self {
            spans: Vec::with_capacity(8),
            memory: PhantomData,
        }
    }

    /// Returns the elements of a contiguous tensor.
    pub(super) fn slice<T: Stored>(&mut self, tensor: &'m Tensor) -> PyResult<&'m [T]> {
        let layout = tensor.whole::<T>()?;
        self.claim::<T>(&layout, false)?;
        // SAFETY: the tensor's dtype and layout match `T`, and the memory lives as long as the
        // tensor is borrowed. Nothing writes it: no other op runs, and this op has no mutable view
        // of it.
        Ok(unsafe { slice::from_raw_parts(layout.start, layout.width) })
    }

    /// Returns the elements of a contiguous tensor, mutable.
    #[expect(
        clippy::mut_from_ref,
        reason = "a tensor is only an address; the borrow is that of `Memory` for 'm"
    )]
    pub(crate) fn slice_mut<T: Stored>(&mut self, tensor: &'m Tensor) -> PyResult<&'m mut [T]> {
        let layout = tensor.whole::<T>()?;
        self.claim::<T>(&layout, true)?;
        // SAFETY: as for `slice`; and this op has no other view of this memory.
        Ok(unsafe { slice::from_raw_parts_mut(layout.start, layout.width) })
    }

    /// Returns the rows of a tensor [rows, ...]; each row must be contiguous.
    pub(super) fn rows<T: Stored>(&mut self, tensor: &'m Tensor) -> PyResult<Rows<'m, T>> {
        let Layout {
            start,
            count,
            width,
            stride,
        } = tensor.rows::<T>()?;
        let layout = Layout {
            start: start.cast_const(),
            count,
            width,
            stride,
        };
        self.claim::<T>(&layout, false)?;
        // SAFETY: as for `slice`.
        Ok(unsafe { Rows::new(layout) })
    }

    /// Returns the rows of a tensor [rows, ...], mutable; each row must be contiguous.
    pub(super) fn rows_mut<T: Stored>(&mut self, tensor: &'m Tensor) -> PyResult<RowsMut<'m, T>> {
        let layout = tensor.rows::<T>()?;
        self.claim::<T>(&layout, true)?;
        // SAFETY: as for `slice_mut`; `Tensor::rows` has checked that the rows do not overlap.
        Ok(unsafe { RowsMut::new(layout) })
    }

    /// Records a view. Returns ValueError if it shares memory with another view and either is
    /// mutable.
    fn claim<T>(&mut self, layout: &Layout<impl Address>, written: bool) -> PyResult<()> {
        let size = size_of::<T>();
        let rows = Layout {
            start: layout.start.address(),
            count: layout.count,
            width: layout.width * size,
            stride: layout.stride * size,
        };
        let shared = |span: &Span| (written || span.written) && overlap(&span.rows, &rows);
        if self.spans.iter().any(shared) {
            return Err(PyValueError::new_err(
                "a tensor that an op writes shares memory with another of its tensors; \
                 give it memory of its own",
            ));
        }
        self.spans.push(Span { rows, written });
        Ok(())
    }
}

trait Address {
    fn address(&self) -> usize;
}

impl<T> Address for *const T {
    fn address(&self) -> usize {
        self.addr()
    }
}

impl<T> Address for *mut T {
    fn address(&self) -> usize {
        self.addr()
    }
}

/// Whether two sets of rows share a byte. Conservative: also true where a cheap test cannot exclude
/// it, for interleaved rows of different strides.
fn overlap(a: &Layout<usize>, b: &Layout<usize>) -> bool {
    let empty = |rows: &Layout<usize>| rows.count == 0 || rows.width == 0;
    let end = |rows: &Layout<usize>| rows.start + (rows.count - 1) * rows.stride + rows.width;
    if empty(a) || empty(b) || end(a) <= b.start || end(b) <= a.start {
        return false;
    }
    let stride = match (a.count, b.count) {
        (1, 1) => return true,
        (1, _) => b.stride,
        (_, 1) => a.stride,
        _ if a.stride == b.stride => a.stride,
        _ => return true,
    };
    // Columns of one matrix, such as q, k and v of their joint projection: b's columns begin behind
    // a's and end before a's begin in the next row.
    let (first, second) = if a.start <= b.start { (a, b) } else { (b, a) };
    let distance = (second.start - first.start) % stride;
    distance < first.width || distance + second.width > stride
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(start: usize, count: usize, width: usize, stride: usize) -> Layout<usize> {
        Layout {
            start,
            count,
            width,
            stride,
        }
    }

    /// Lists every byte.
    fn bytes(rows: &Layout<usize>) -> Vec<usize> {
        let row = |index| {
            let start = rows.start + index * rows.stride;
            start..start + rows.width
        };
        (0..rows.count).flat_map(row).collect()
    }

    #[test]
    fn overlap_finds_every_shared_byte() {
        let mut all = Vec::new();
        for start in [0, 1, 2, 3, 6, 8, 13, 40] {
            for count in 0..4 {
                for width in 0..4 {
                    all.extend([4, 6].map(|stride| rows(start, count, width, stride)));
                }
            }
        }
        let mut apart = 0;
        for a in &all {
            let taken = bytes(a);
            for b in &all {
                let shared = bytes(b).iter().any(|byte| taken.contains(byte));
                assert!(overlap(a, b) || !shared, "{a:?} and {b:?}");
                apart += usize::from(!overlap(a, b) && a.count > 1 && b.count > 1);
            }
        }
        assert!(apart > 1000, "{apart} pairs are known to be apart");
    }

    #[test]
    fn columns_of_one_matrix_are_apart() {
        let (q, k, v) = (rows(0, 5, 8, 16), rows(8, 5, 4, 16), rows(12, 5, 4, 16));
        for (a, b) in [(&q, &k), (&k, &q), (&q, &v), (&k, &v)] {
            assert!(!overlap(a, b));
        }
        assert!(overlap(&q, &rows(7, 5, 2, 16)));
        assert!(overlap(&q, &rows(12, 5, 5, 16)));
        assert!(overlap(&q, &q));
    }
}
