//! Torch tensors: dtype, shape and address. `memory` turns them into slices.
//!
//! A `Tensor` holds a reference to the Python object that owns the memory, so the memory lives as
//! long as the op.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use pyo3::{Borrowed, intern};

use super::element::{DType, Stored};
use super::views::Layout;

/// Maximum number of dimensions.
const RANK: usize = 5;

/// A tensor in host memory.
pub(crate) struct Tensor {
    address: usize,
    shape: [usize; RANK],
    strides: [usize; RANK],
    rank: usize,
    pub(super) kind: DType,
    /// Keeps the memory alive; possibly the only reference.
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

/// Returns the values of a tuple and its length.
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

/// Converts a `torch.dtype`. Torch has one object per dtype.
fn kind(dtype: &Bound<'_, PyAny>) -> PyResult<DType> {
    static DTYPES: PyOnceLock<[(Py<PyAny>, DType); 5]> = PyOnceLock::new();
    let py = dtype.py();
    let kinds = DTYPES.get_or_try_init(py, || {
        let torch = py.import("torch")?;
        let named = |name, kind| Ok::<_, PyErr>((torch.getattr(name)?.unbind(), kind));
        Ok::<_, PyErr>([
            named("float32", DType::Float32)?,
            named("bfloat16", DType::Bfloat16)?,
            named("int32", DType::Int32)?,
            named("int64", DType::Int64)?,
            named("bool", DType::Bool)?,
        ])
    })?;
    let found = kinds.iter().find(|(object, _)| dtype.is(object));
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        PyValueError::new_err(format!("no kernel of this CPU backend takes {dtype}"))
    })
}

impl Tensor {
    /// Returns the size of each dimension.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape[..self.rank]
    }

    fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    /// Returns the layout of a contiguous tensor, as one row.
    pub(super) fn whole<T: Stored>(&self) -> PyResult<Layout<*mut T>> {
        self.expect_kind::<T>()?;
        if !contiguous(self.shape(), self.strides()) {
            return Err(PyValueError::new_err("a tensor is not contiguous"));
        }
        let width = self.shape().iter().product();
        Ok(Layout {
            start: self.pointer(),
            count: 1,
            width,
            stride: width,
        })
    }

    /// Returns the layout of the rows of a tensor [rows, ...]. Each row is contiguous; rows do not
    /// overlap.
    pub(super) fn rows<T: Stored>(&self) -> PyResult<Layout<*mut T>> {
        self.expect_kind::<T>()?;
        let (Some((&count, inner)), Some((&stride, strides))) =
            (self.shape().split_first(), self.strides().split_first())
        else {
            return Err(PyValueError::new_err(
                "expected a tensor of at least one dimension, found a scalar",
            ));
        };
        if !contiguous(inner, strides) {
            return Err(PyValueError::new_err(
                "the rows of a tensor must be contiguous",
            ));
        }
        let width = inner.iter().product();
        if count > 1 && stride < width {
            return Err(PyValueError::new_err(
                "the rows of a tensor must not overlap",
            ));
        }
        Ok(Layout {
            start: self.pointer(),
            count,
            width,
            stride,
        })
    }

    fn expect_kind<T: Stored>(&self) -> PyResult<()> {
        if self.kind == T::DTYPE {
            return Ok(());
        }
        let text = format!("a tensor is {:?}; expected {:?}", self.kind, T::DTYPE);
        Err(PyValueError::new_err(text))
    }

    /// Returns a non-null pointer, as slices require: an empty tensor may have no memory.
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
