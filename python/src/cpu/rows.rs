//! Row copies and operations on token ids: the torch operations that a tape needs.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use super::element::{Bf16, DType, Stored};
use super::memory::{Memory, Views};
use super::tape::{self, Op};
use super::tensor::Tensor;

/// Computes out[i] = source[index[i]] for rows of source [N, ...] of any dtype and index [T] int32
/// or int64.
#[pyfunction]
pub(super) fn gather(source: Tensor, index: Tensor, out: Tensor) -> PyResult<()> {
    tape::launch(Gather { source, index, out }).map(drop)
}

/// Computes out[index[i]] = source[i] for rows of out [N, ...] of any dtype; of equal indices the
/// last wins.
#[pyfunction]
pub(super) fn scatter(source: Tensor, index: Tensor, out: Tensor) -> PyResult<()> {
    tape::launch(Scatter { source, index, out }).map(drop)
}

/// Copies source to out, row by row.
#[pyfunction]
pub(super) fn copy(source: Tensor, out: Tensor) -> PyResult<()> {
    tape::launch(Copy { source, out }).map(drop)
}

/// Computes out [T] bool = numbers [T] int32 or int64 < bound.
#[pyfunction]
pub(super) fn less(numbers: Tensor, bound: i64, out: Tensor) -> PyResult<()> {
    let op = Less {
        numbers,
        bound,
        out,
    };
    tape::launch(op).map(drop)
}

/// Computes out [T] int64 = a where condition [T] bool, else b; both int32 or int64.
#[pyfunction]
pub(super) fn pick(condition: Tensor, a: Tensor, b: Tensor, out: Tensor) -> PyResult<()> {
    let op = Pick {
        condition,
        a,
        b,
        out,
    };
    tape::launch(op).map(drop)
}

struct Gather {
    source: Tensor,
    index: Tensor,
    out: Tensor,
}

impl Op for Gather {
    fn run(&self, memory: &mut Memory) -> PyResult<bool> {
        let mut views = Views::new(memory);
        let index = Integers::new(&mut views, &self.index)?;
        if self.out.shape().first() != Some(&index.len()) {
            return Err(mismatch());
        }
        let moves = (0..index.len()).map(|at| (index.get(at), at as i64));
        rows(views, &self.source, moves, &self.out)
    }
}

struct Scatter {
    source: Tensor,
    index: Tensor,
    out: Tensor,
}

impl Op for Scatter {
    fn run(&self, memory: &mut Memory) -> PyResult<bool> {
        let mut views = Views::new(memory);
        let index = Integers::new(&mut views, &self.index)?;
        if self.source.shape().first() != Some(&index.len()) {
            return Err(mismatch());
        }
        let moves = (0..index.len()).map(|at| (at as i64, index.get(at)));
        rows(views, &self.source, moves, &self.out)
    }
}

struct Copy {
    source: Tensor,
    out: Tensor,
}

impl Op for Copy {
    fn run(&self, memory: &mut Memory) -> PyResult<bool> {
        let views = Views::new(memory);
        if self.source.shape() != self.out.shape() {
            return Err(mismatch());
        }
        let count = self.source.shape().first().copied().unwrap_or(0);
        let moves = (0..count as i64).map(|row| (row, row));
        rows(views, &self.source, moves, &self.out)
    }
}

struct Less {
    numbers: Tensor,
    bound: i64,
    out: Tensor,
}

impl Op for Less {
    fn run(&self, memory: &mut Memory) -> PyResult<bool> {
        let mut views = Views::new(memory);
        let numbers = Integers::new(&mut views, &self.numbers)?;
        let out = views.slice_mut::<u8>(&self.out)?;
        if numbers.len() != out.len() {
            return Err(mismatch());
        }
        for (at, out) in out.iter_mut().enumerate() {
            *out = u8::from(numbers.get(at) < self.bound);
        }
        Ok(true)
    }
}

struct Pick {
    condition: Tensor,
    a: Tensor,
    b: Tensor,
    out: Tensor,
}

impl Op for Pick {
    fn run(&self, memory: &mut Memory) -> PyResult<bool> {
        let mut views = Views::new(memory);
        let (a, b) = (
            Integers::new(&mut views, &self.a)?,
            Integers::new(&mut views, &self.b)?,
        );
        let condition = views.slice::<u8>(&self.condition)?;
        let out = views.slice_mut::<i64>(&self.out)?;
        if [a.len(), b.len(), condition.len()] != [out.len(); 3] {
            return Err(mismatch());
        }
        for (at, out) in out.iter_mut().enumerate() {
            *out = if condition[at] == 0 {
                b.get(at)
            } else {
                a.get(at)
            };
        }
        Ok(true)
    }
}

/// Copies rows in the order of `moves`: (row of source, row of out).
fn rows<'m>(
    views: Views<'m>,
    source: &'m Tensor,
    moves: impl Iterator<Item = (i64, i64)>,
    out: &'m Tensor,
) -> PyResult<bool> {
    match source.kind {
        DType::Float32 => rows_as::<f32>(views, source, moves, out),
        DType::Bfloat16 => rows_as::<Bf16>(views, source, moves, out),
        DType::Int32 => rows_as::<i32>(views, source, moves, out),
        DType::Int64 => rows_as::<i64>(views, source, moves, out),
        DType::Bool => rows_as::<u8>(views, source, moves, out),
    }?;
    Ok(true)
}

fn rows_as<'m, T: Stored>(
    mut views: Views<'m>,
    source: &'m Tensor,
    moves: impl Iterator<Item = (i64, i64)>,
    out: &'m Tensor,
) -> PyResult<()> {
    let (source, mut out) = (views.rows::<T>(source)?, views.rows_mut::<T>(out)?);
    if source.width() != out.width() {
        return Err(mismatch());
    }
    for (from, to) in moves {
        let known = |row: i64, count| usize::try_from(row).ok().filter(|&row| row < count);
        let (Some(from), Some(to)) = (known(from, source.count()), known(to, out.count())) else {
            return Err(PyIndexError::new_err("the index of a row is out of range"));
        };
        out.row_mut(to).copy_from_slice(source.row(from));
    }
    Ok(())
}

/// A contiguous int32 or int64 tensor.
#[derive(Clone, Copy)]
enum Integers<'a> {
    Short(&'a [i32]),
    Long(&'a [i64]),
}

impl<'a> Integers<'a> {
    fn new(views: &mut Views<'a>, tensor: &'a Tensor) -> PyResult<Self> {
        match tensor.kind {
            DType::Int32 => Ok(Self::Short(views.slice(tensor)?)),
            _ => Ok(Self::Long(views.slice(tensor)?)),
        }
    }

    fn len(self) -> usize {
        match self {
            Self::Short(numbers) => numbers.len(),
            Self::Long(numbers) => numbers.len(),
        }
    }

    /// Returns element `at`. Panics if out of range.
    fn get(self, at: usize) -> i64 {
        match self {
            Self::Short(numbers) => i64::from(numbers[at]),
            Self::Long(numbers) => numbers[at],
        }
    }
}

fn mismatch() -> PyErr {
    PyValueError::new_err("the tensors do not fit together")
}
