//! Chat templates that clients send, for the process that renders them.

use penstock_router::chat::render_job;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The reply to a job of the router.
#[pyfunction]
pub(crate) fn render_chat(job: &str) -> PyResult<String> {
    render_job(job).map_err(|error| PyValueError::new_err(error.to_string()))
}
