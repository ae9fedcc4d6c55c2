//! The activation of a SwiGLU feed-forward layer.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::element::{Bf16, DType, Element};
use super::memory::{Memory, Views};
use super::tape::{self, Op};
use super::tensor::Tensor;
use super::vectors::{self, Kernel, exp};
use super::views::{Rows, RowsMut};

/// Computes out [T, I] = silu(gate) * up, where x [T, 2 I] = (gate | up).
#[pyfunction]
pub(super) fn silu_mul(x: Tensor, out: Tensor) -> PyResult<()> {
    tape::launch(Call { x, out }).map(drop)
}

struct Call {
    x: Tensor,
    out: Tensor,
}

impl Op for Call {
    fn run(&self, memory: &mut Memory) -> PyResult<bool> {
        match self.x.kind {
            DType::Bfloat16 => silu_mul_as::<Bf16>(self, memory),
            _ => silu_mul_as::<f32>(self, memory),
        }?;
        Ok(true)
    }
}

fn silu_mul_as<T: Element>(call: &Call, memory: &mut Memory) -> PyResult<()> {
    let mut views = Views::new(memory);
    let (x, out) = (views.rows::<T>(&call.x)?, views.rows_mut::<T>(&call.out)?);
    if x.width() != 2 * out.width() || x.count() != out.count() {
        return Err(PyValueError::new_err(
            "x and out of silu_mul do not fit together",
        ));
    }
    vectors::run(SiluMul { x, out });
    Ok(())
}

struct SiluMul<'a, T> {
    x: Rows<'a, T>,
    out: RowsMut<'a, T>,
}

impl<T: Element> Kernel for SiluMul<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        for index in 0..self.x.count() {
            let (gate, up) = self.x.row(index).split_at(self.out.width());
            for ((out, gate), up) in self.out.row_mut(index).iter_mut().zip(gate).zip(up) {
                let gate = gate.wide();
                *out = T::narrow(gate / (1.0 + exp(-gate)) * up.wide());
            }
        }
    }
}
