//! Views of rows in memory: `Rows` to read, `RowsMut` to write, `Blocks` to write on several
//! threads.
//!
//! The types guarantee that memory written through one view is in no other view. `RowsMut` is
//! neither `Copy` nor `Clone`, lends a row only while it is borrowed itself, and is consumed by the
//! conversion to `Blocks`. `Blocks` returns each block once. `tests/cpu/test_views.py` compiles
//! this file alone and checks that misuse does not compile.

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

/// The layout of rows of equal width, in elements except for the start.
#[derive(Debug)]
pub(super) struct Layout<P> {
    pub(super) start: P,
    pub(super) count: usize,
    pub(super) width: usize,
    /// Distance between the starts of two rows.
    pub(super) stride: usize,
}

/// Read-only rows.
pub(super) struct Rows<'a, T> {
    layout: Layout<*const T>,
    memory: PhantomData<&'a [T]>,
}

impl<T> Clone for Rows<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Rows<'_, T> {}

impl<P: Copy> Clone for Layout<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Copy> Copy for Layout<P> {}

// SAFETY: `Rows` is equivalent to shared slices of `T`.
unsafe impl<T: Sync> Send for Rows<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Rows<'_, T> {}

impl<'a, T> Rows<'a, T> {
    /// # Safety
    /// All rows must be initialised memory of `T` that is not written during `'a`.
    pub(super) unsafe fn new(layout: Layout<*const T>) -> Self {
        let memory = PhantomData;
        Self { layout, memory }
    }

    pub(super) fn count(&self) -> usize {
        self.layout.count
    }

    pub(super) fn width(&self) -> usize {
        self.layout.width
    }

    /// Returns row `index`. Panics if out of range.
    #[inline(always)]
    pub(super) fn row(&self, index: usize) -> &'a [T] {
        let Layout { start, count, .. } = self.layout;
        assert!(index < count, "row {index} of {count}");
        // SAFETY: in bounds; the caller of `new` guarantees memory of `T` that is not written
        // during 'a.
        unsafe { slice::from_raw_parts(start.add(index * self.layout.stride), self.layout.width) }
    }
}

/// Mutable rows; no other view has their memory.
pub(super) struct RowsMut<'a, T> {
    layout: Layout<*mut T>,
    memory: PhantomData<&'a mut [T]>,
}

// SAFETY: `RowsMut` is equivalent to exclusive slices of `T`.
unsafe impl<T: Send> Send for RowsMut<'_, T> {}
// SAFETY: a shared `RowsMut` only reads.
unsafe impl<T: Sync> Sync for RowsMut<'_, T> {}

impl<'a, T> RowsMut<'a, T> {
    /// # Safety
    /// All rows must be initialised memory of `T` that is not accessed otherwise during `'a`. They must
    /// not overlap: the stride is at least the width unless there is one row.
    pub(super) unsafe fn new(layout: Layout<*mut T>) -> Self {
        let memory = PhantomData;
        Self { layout, memory }
    }

    pub(super) fn count(&self) -> usize {
        self.layout.count
    }

    pub(super) fn width(&self) -> usize {
        self.layout.width
    }

    /// Returns row `index`. Panics if out of range.
    #[inline(always)]
    pub(super) fn row(&self, index: usize) -> &[T] {
        // SAFETY: `at` has checked the bounds; while this view is shared, no row is written.
        unsafe { slice::from_raw_parts(self.at(index), self.layout.width) }
    }

    /// Returns row `index`, mutable. Panics if out of range.
    #[inline(always)]
    pub(super) fn row_mut(&mut self, index: usize) -> &mut [T] {
        // SAFETY: `at` has checked the bounds; this view is borrowed exclusively, so no other slice
        // of its rows exists, and no other view has its memory.
        unsafe { slice::from_raw_parts_mut(self.at(index), self.layout.width) }
    }

    #[inline(always)]
    fn at(&self, index: usize) -> *mut T {
        let Layout { start, count, .. } = self.layout;
        assert!(index < count, "row {index} of {count}");
        // SAFETY: within the memory of the rows.
        unsafe { start.add(index * self.layout.stride) }
    }

    /// Splits the rows into blocks of `size` rows each, or of `size` columns of every row.
    pub(super) fn into_blocks(self, along: Along, size: usize) -> Blocks<'a, T> {
        let extent = match along {
            Along::Rows => self.layout.count,
            Along::Columns => self.layout.width,
        };
        let size = size.max(1);
        // Limits the number of blocks to 32 bits, half of `taken`, for each end.
        let size = size.max(extent.div_ceil(u32::MAX as usize));
        Blocks {
            rows: self,
            along,
            size,
            extent,
            taken: AtomicU64::new(0),
        }
    }
}

/// The axis along which blocks are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Along {
    Rows,
    Columns,
}

/// The end from which a thread takes blocks. Two threads that start at opposite ends get nearly the
/// same blocks of a matrix each time, which their cores' caches may still hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Front,
    Back,
}

/// Disjoint blocks of rows. Any thread may take one; each is returned once.
pub(super) struct Blocks<'a, T> {
    rows: RowsMut<'a, T>,
    along: Along,
    size: usize,
    /// Total number of rows or columns.
    extent: usize,
    /// Blocks taken from the front (the upper half) and from the back (the lower half).
    taken: AtomicU64,
}

/// A block of rows.
pub(super) struct Block<'a, T> {
    /// Rows or columns of the block.
    pub(super) range: Range<usize>,
    pub(super) rows: RowsMut<'a, T>,
}

// SAFETY: a shared `Blocks` returns exclusive blocks of `T`, each to one thread.
unsafe impl<T: Send> Sync for Blocks<'_, T> {}

impl<T> Blocks<'_, T> {
    /// Returns the number of blocks, taken or not.
    pub(super) fn count(&self) -> usize {
        self.extent.div_ceil(self.size)
    }

    /// Takes the next block from this end. Returns None if all are taken.
    #[inline(always)]
    pub(super) fn take(&self, end: End) -> Option<Block<'_, T>> {
        let count = self.count();
        let both = |taken: u64| ((taken >> 32) as usize, taken as u32 as usize);
        let claim = |taken: u64| {
            let (front, back) = both(taken);
            let one = match end {
                End::Front => 1 << 32,
                End::Back => 1,
            };
            (front + back < count).then_some(taken + one)
        };
        // Relaxed: other threads' writes are read only after all threads have been joined.
        let taken = self
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim);
        let (front, back) = both(taken.ok()?);
        let index = match end {
            End::Front => front,
            End::Back => count - 1 - back,
        };
        let start = index * self.size;
        let range = start..self.extent.min(start + self.size);
        let mut layout = self.rows.layout;
        let before = match self.along {
            Along::Rows => {
                layout.count = range.len();
                start * layout.stride
            }
            Along::Columns => {
                layout.width = range.len();
                start
            }
        };
        // SAFETY: `start` is less than the number of rows or columns, so the result is within them.
        layout.start = unsafe { layout.start.add(before) };
        // SAFETY: each count from the front and from the back is claimed once, and their sum is at
        // most `count`, so no other block has these rows or columns. The rows themselves belong to
        // this object, which lends them only as blocks.
        let rows = unsafe { RowsMut::new(layout) };
        Some(Block { range, rows })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn rows(numbers: &mut [u32], width: usize, stride: usize) -> RowsMut<'_, u32> {
        let layout = Layout {
            count: numbers.len() / stride,
            start: numbers.as_mut_ptr(),
            width,
            stride,
        };
        // SAFETY: within `numbers`, which is borrowed exclusively.
        unsafe { RowsMut::new(layout) }
    }

    #[test]
    fn blocks_are_all_of_the_rows_once() {
        for along in [Along::Rows, Along::Columns] {
            for size in [1, 2, 3, 7, 100] {
                let mut numbers = vec![0; 6 * 10];
                let blocks = rows(&mut numbers, 7, 10).into_blocks(along, size);
                let fill = |end| {
                    while let Some(mut block) = blocks.take(end) {
                        for index in 0..block.rows.count() {
                            block.rows.row_mut(index).iter_mut().for_each(|n| *n += 1);
                        }
                    }
                };
                thread::scope(|scope| {
                    for end in [End::Front, End::Back, End::Front, End::Back] {
                        scope.spawn(move || fill(end));
                    }
                });
                assert!(blocks.take(End::Front).is_none());
                assert!(blocks.take(End::Back).is_none());
                for row in numbers.chunks(10) {
                    assert_eq!(row, [1, 1, 1, 1, 1, 1, 1, 0, 0, 0], "{along:?} of {size}");
                }
            }
        }
    }

    #[test]
    fn blocks_come_in_order_from_either_end() {
        let mut numbers = [0; 10];
        let blocks = rows(&mut numbers, 10, 10).into_blocks(Along::Columns, 4);
        assert_eq!(blocks.count(), 3);
        let range = |end| blocks.take(end).map(|block| block.range);
        assert_eq!(range(End::Back), Some(8..10));
        assert_eq!(range(End::Front), Some(0..4));
        assert_eq!(range(End::Back), Some(4..8));
        assert_eq!(range(End::Front), None);
    }

    #[test]
    fn empty_rows_have_no_blocks() {
        for along in [Along::Rows, Along::Columns] {
            let blocks = rows(&mut [], 0, 1).into_blocks(along, 4);
            assert!(blocks.take(End::Back).is_none());
        }
    }

    #[test]
    #[should_panic(expected = "row 2 of 2")]
    fn rows_are_bounded() {
        rows(&mut [0; 4], 2, 2).row_mut(2);
    }
}
