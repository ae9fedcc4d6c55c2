//! The pyo3 extension penstock._core.
