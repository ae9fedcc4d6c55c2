//! Renders chat templates sent by clients, for the sandbox process.

use penstock_text::chat::render_job;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Renders a job of the router and returns the reply.
#[pyfunction]
pub(crate) fn render_chat(job: &str) -> PyResult<String> {
    render_job(job).map_err(|error| PyValueError::new_err(error.to_string()))
}
