//! Torch tensors as slices: the one place where their memory is touched.
//!
//! A `Tensor` keeps the Python object that holds the memory, so that it lives as long as the op.
//! As with torch's own functions, nobody may write a tensor while a kernel reads or writes it.

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use pyo3::{Borrowed, intern};

use super::element::{Kind, Stored};

/// Dimensions of a tensor, at most.
const RANK: usize = 5;

/// A tensor in host memory.
pub(crate) struct Tensor {
    address: usize,
    shape: [usize; RANK],
    strides: [usize; RANK],
    rank: usize,
    pub(super) kind: Kind,
    /// Holds the memory; nobody else may.
    _owner: Py<PyAny>,
}

impl<'a, 'py> FromPyObject<'a, 'py> for Tensor {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let kind = kind(&object.getattr(intern!(py, "dtype"))?)?;
        if !object.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
            return Err(PyValueError::new_err("a tensor is not in host memory"));
        }
        let (shape, rank) = sizes(&object.getattr(intern!(py, "shape"))?)?;
        let (strides, _) = sizes(&object.call_method0(intern!(py, "stride"))?)?;
        let address = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
        Ok(Self {
            address,
            shape,
            strides,
            rank,
            kind,
            _owner: object.to_owned().unbind(),
        })
    }
}

/// The numbers of a tuple, and how many they are.
fn sizes(tuple: &Bound<'_, PyAny>) -> PyResult<([usize; RANK], usize)> {
    let tuple = tuple.cast::<PyTuple>()?;
    let mut sizes = [0; RANK];
    if tuple.len() > RANK {
        return Err(PyValueError::new_err(format!(
            "a tensor has more than {RANK} dimensions"
        )));
    }
    for (size, number) in sizes.iter_mut().zip(tuple.iter_borrowed()) {
        *size = number.extract()?;
    }
    Ok((sizes, tuple.len()))
}

/// The kind that a `torch.dtype` stands for; torch has one object for each.
fn kind(dtype: &Bound<'_, PyAny>) -> PyResult<Kind> {
    static KINDS: PyOnceLock<[(Py<PyAny>, Kind); 5]> = PyOnceLock::new();
    let py = dtype.py();
    let kinds = KINDS.get_or_try_init(py, || {
        let torch = py.import("torch")?;
        let named = |name, kind| Ok::<_, PyErr>((torch.getattr(name)?.unbind(), kind));
        Ok::<_, PyErr>([
            named("float32", Kind::Float32)?,
            named("bfloat16", Kind::Bfloat16)?,
            named("int32", Kind::Int32)?,
            named("int64", Kind::Int64)?,
            named("bool", Kind::Bool)?,
        ])
    })?;
    let found = kinds.iter().find(|(object, _)| dtype.is(object));
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        PyValueError::new_err(format!("no kernel of this CPU backend takes {dtype}"))
    })
}

impl Tensor {
    /// Elements along each dimension.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape[..self.rank]
    }

    fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// The elements of a contiguous tensor.
    pub(super) fn slice<T: Stored>(&self) -> PyResult<&[T]> {
        self.whole::<T>()?;
        // SAFETY: `whole` has checked kind and layout; the owner outlives the borrow of this tensor.
        Ok(unsafe { slice::from_raw_parts(self.pointer(), self.count()) })
    }

    /// The elements of a contiguous tensor, to be written.
    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is torch's; an op's tensors say what it may write"
    )]
    pub(crate) fn slice_mut<T: Stored>(&self) -> PyResult<&mut [T]> {
        self.whole::<T>()?;
        // SAFETY: as for `slice`; no other argument of an op shares memory that the op writes,
        // but for the rows of `Rows`, which are apart.
        Ok(unsafe { slice::from_raw_parts_mut(self.pointer(), self.count()) })
    }

    /// The rows of a tensor [rows, ...] of which each row is contiguous.
    pub(super) fn rows<T: Stored>(&self) -> PyResult<Rows<'_, T>> {
        self.expect_kind::<T>()?;
        let (Some((&rows, inner)), Some((&stride, strides))) =
            (self.shape().split_first(), self.strides().split_first())
        else {
            return Err(PyValueError::new_err(
                "expected a tensor of rows, found a number",
            ));
        };
        if !contiguous(inner, strides) {
            return Err(PyValueError::new_err(
                "the rows of a tensor must be contiguous",
            ));
        }
        let width = inner.iter().product();
        if rows > 1 && stride < width {
            return Err(PyValueError::new_err(
                "the rows of a tensor must not overlap",
            ));
        }
        Ok(Rows {
            start: self.pointer(),
            count: rows,
            width,
            stride,
            owner: PhantomData,
        })
    }

    fn whole<T: Stored>(&self) -> PyResult<()> {
        self.expect_kind::<T>()?;
        if contiguous(self.shape(), self.strides()) {
            return Ok(());
        }
        Err(PyValueError::new_err("a tensor is not contiguous"))
    }

    fn expect_kind<T: Stored>(&self) -> PyResult<()> {
        if self.kind == T::KIND {
            return Ok(());
        }
        let text = format!("a tensor is {:?}; expected {:?}", self.kind, T::KIND);
        Err(PyValueError::new_err(text))
    }

    fn count(&self) -> usize {
        self.shape().iter().product()
    }

    /// Never null, as slices want it: an empty tensor may have no memory.
    fn pointer<T>(&self) -> *mut T {
        if self.address == 0 {
            return std::ptr::dangling_mut();
        }
        self.address as *mut T
    }
}

fn contiguous(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1;
    for (&size, &stride) in shape.iter().zip(strides).rev() {
        if size == 0 {
            return true;
        }
        if size > 1 && stride != expected {
            return false;
        }
        expected *= size;
    }
    true
}

/// Rows of equal width that do not overlap, at a distance of their own.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, T> {
    start: *mut T,
    pub(super) count: usize,
    pub(super) width: usize,
    stride: usize,
    owner: PhantomData<&'a [T]>,
}

// SAFETY: it stands for slices of `T`, which is Send and Sync.
unsafe impl<T: Stored> Send for Rows<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Stored> Sync for Rows<'_, T> {}

impl<'a, T: Stored> Rows<'a, T> {
    /// Row `index`. Panics if there is none.
    #[inline(always)]
    pub(super) fn row(&self, index: usize) -> &'a [T] {
        assert!(index < self.count, "row {index} of {}", self.count);
        // SAFETY: in bounds, contiguous, and of type T, which `Tensor::rows` has checked.
        unsafe { slice::from_raw_parts(self.start.add(index * self.stride), self.width) }
    }

    /// Row `index`, to be written, which nothing else may refer to meanwhile. Panics if there is none.
    #[inline(always)]
    pub(super) fn row_mut(&mut self, index: usize) -> &mut [T] {
        assert!(index < self.count, "row {index} of {}", self.count);
        // SAFETY: as for `row`; rows do not overlap, and this one is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.add(index * self.stride), self.width) }
    }

    /// A part of row `index`, to be written. Panics if there is none.
    ///
    /// # Safety
    /// Nothing else may refer to this part meanwhile.
    #[inline(always)]
    #[expect(
        clippy::mut_from_ref,
        reason = "threads write disjoint parts of one row"
    )]
    pub(super) unsafe fn part_mut(&self, index: usize, part: Range<usize>) -> &mut [T] {
        assert!(index < self.count && part.start <= part.end && part.end <= self.width);
        // SAFETY: in bounds, and nobody else's as the caller promises.
        unsafe {
            let start = self.start.add(index * self.stride + part.start);
            slice::from_raw_parts_mut(start, part.len())
        }
    }
}
