//! Root-mean-square normalisation.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::element::{Bf16, DType, Element};
use super::memory::{Memory, Views};
use super::tape::{self, Op};
use super::tensor::Tensor;
use super::vectors::{self, Kernel, dot};
use super::views::{Rows, RowsMut};

/// Computes out = x / sqrt(mean(x^2) + eps) * weight, row by row. With `residual` (residual, sum),
/// it stores sum = x + residual and normalises that.
#[pyfunction]
pub(super) fn rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: f32,
    residual: Option<(Tensor, Tensor)>,
    out: Tensor,
) -> PyResult<()> {
    let op = Call {
        x,
        weight,
        eps,
        residual,
        out,
    };
    tape::launch(op).map(drop)
}

struct Call {
    x: Tensor,
    weight: Tensor,
    eps: f32,
    /// The tensor added to x, and the destination of the sum.
    residual: Option<(Tensor, Tensor)>,
    out: Tensor,
}

impl Op for Call {
    fn run(&self, memory: &mut Memory) -> PyResult<bool> {
        match self.x.kind {
            DType::Bfloat16 => rms_norm_as::<Bf16>(self, memory),
            _ => rms_norm_as::<f32>(self, memory),
        }?;
        Ok(true)
    }
}

fn rms_norm_as<T: Element>(call: &Call, memory: &mut Memory) -> PyResult<()> {
    let mut views = Views::new(memory);
    let (x, out) = (views.rows::<T>(&call.x)?, views.rows_mut::<T>(&call.out)?);
    let weight = views.slice::<T>(&call.weight)?;
    let residual = match &call.residual {
        None => None,
        Some((residual, sum)) => Some((views.rows::<T>(residual)?, views.rows_mut::<T>(sum)?)),
    };
    let shape = (x.count(), weight.len());
    let others = residual.iter().flat_map(|(residual, sum)| {
        [
            (residual.count(), residual.width()),
            (sum.count(), sum.width()),
        ]
    });
    if others
        .chain([(x.count(), x.width()), (out.count(), out.width())])
        .any(|found| found != shape)
    {
        return Err(PyValueError::new_err(
            "the arguments of rms_norm differ in shape",
        ));
    }
    vectors::run(RmsNorm {
        x,
        weight,
        eps: call.eps,
        residual,
        out,
    });
    Ok(())
}

struct RmsNorm<'a, T> {
    x: Rows<'a, T>,
    weight: &'a [T],
    eps: f32,
    /// The tensor added to x, and the destination of the sum.
    residual: Option<(Rows<'a, T>, RowsMut<'a, T>)>,
    out: RowsMut<'a, T>,
}

impl<T: Element> Kernel for RmsNorm<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        for index in 0..self.x.count() {
            let mut row = self.x.row(index);
            if let Some((residual, sum)) = &mut self.residual {
                let other = residual.row(index);
                for ((sum, a), b) in sum.row_mut(index).iter_mut().zip(row).zip(other) {
                    *sum = T::narrow(a.wide() + b.wide());
                }
                row = sum.row(index);
            }
            let mean = dot(row, row) / row.len() as f32;
            let factor = 1.0 / (mean + self.eps).sqrt();
            let out = self.out.row_mut(index).iter_mut();
            for ((out, value), weight) in out.zip(row).zip(self.weight) {
                *out = T::narrow(value.wide() * factor * weight.wide());
            }
        }
    }
}
