//! Greedy sampling.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::element::{Bf16, DType, Element};
use super::memory::{Memory, Views};
use super::tape::{self, Op};
use super::tensor::Tensor;
use super::vectors::{self, Kernel, LANES, each, exp, sum};
use super::views::Rows;

/// Writes ids [S] int64, the index of the largest logit of each row of logits [S, V] (the first of
/// equal ones), and logprobs [S] float32, the log of its softmax probability. Returns false and
/// writes nothing if a `temperature` [S] float32 is not 0.
#[pyfunction]
pub(super) fn greedy(
    logits: Tensor,
    temperature: Tensor,
    ids: Tensor,
    logprobs: Tensor,
) -> PyResult<bool> {
    tape::launch(Call {
        logits,
        temperature,
        ids,
        logprobs,
    })
}

struct Call {
    logits: Tensor,
    temperature: Tensor,
    ids: Tensor,
    logprobs: Tensor,
}

impl Op for Call {
    fn run(&self, memory: &mut Memory) -> PyResult<bool> {
        let mut views = Views::new(memory);
        let temperature = views.slice::<f32>(&self.temperature)?;
        if temperature.iter().any(|&t| t != 0.0) {
            return Ok(false);
        }
        match self.logits.kind {
            DType::Bfloat16 => greedy_as::<Bf16>(self, views),
            _ => greedy_as::<f32>(self, views),
        }?;
        Ok(true)
    }
}

fn greedy_as<'m, T: Element>(call: &'m Call, mut views: Views<'m>) -> PyResult<()> {
    let logits = views.rows::<T>(&call.logits)?;
    let ids = views.slice_mut::<i64>(&call.ids)?;
    let logprobs = views.slice_mut::<f32>(&call.logprobs)?;
    if ids.len() != logits.count() || logprobs.len() != logits.count() || logits.width() == 0 {
        return Err(PyValueError::new_err(
            "logits, ids and logprobs do not fit together",
        ));
    }
    vectors::run(Greedy {
        logits,
        ids,
        logprobs,
    });
    Ok(())
}

struct Greedy<'a, T> {
    logits: Rows<'a, T>,
    ids: &'a mut [i64],
    logprobs: &'a mut [f32],
}

impl<T: Element> Kernel for Greedy<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (index, (id, logprob)) in self.ids.iter_mut().zip(self.logprobs).enumerate() {
            let row = self.logits.row(index);
            let most = largest(row);
            // No element equals `most` only if all are NaN. NaN makes the sum, and so the logprob,
            // NaN, which fails the row.
            let place = row
                .iter()
                .position(|logit| logit.wide() == most)
                .unwrap_or(0);
            *id = place as i64;
            *logprob = -total(row, most).ln();
        }
    }
}

#[inline(always)]
fn largest<T: Element>(row: &[T]) -> f32 {
    let (lanes, rest) = row.as_chunks::<LANES>();
    let mut most = [f32::NEG_INFINITY; LANES];
    for chunk in lanes {
        most = each(|l| {
            if chunk[l].wide() > most[l] {
                chunk[l].wide()
            } else {
                most[l]
            }
        });
    }
    let rest = rest.iter().map(|logit| logit.wide());
    most.into_iter()
        .chain(rest)
        .fold(f32::NEG_INFINITY, f32::max)
}

/// Returns the sum of e^(logit - most).
#[inline(always)]
fn total<T: Element>(row: &[T], most: f32) -> f32 {
    let (lanes, rest) = row.as_chunks::<LANES>();
    let mut total = [0.0; LANES];
    for chunk in lanes {
        total = each(|l| total[l] + exp(chunk[l].wide() - most));
    }
    rest.iter()
        .fold(sum(total), |total, logit| total + exp(logit.wide() - most))
}
