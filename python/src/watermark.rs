//! The watermark detector, for Python.

use penstock_request::sampling_params::Watermark;
use penstock_text::watermark;
use pyo3::prelude::*;

/// Returns (pairs, green, z, p) for token ids.
#[allow(
    clippy::needless_pass_by_value,
    reason = "PyO3 extracts a Python list by value"
)]
#[pyfunction]
pub(crate) fn watermark_score(ids: Vec<u32>, gamma: f64, key: u64) -> (u64, u64, f64, f64) {
    let mark = Watermark {
        gamma,
        key,
        ..Watermark::default()
    };
    let found = watermark::score(&ids, &mark);
    (found.pairs, found.green, found.z, found.p)
}
