//! The extension `penstock._core`: the launcher and the engine, callable from Python.

#[allow(
    unsafe_code,
    reason = "only this module turns a tensor's memory into slices"
)]
mod cpu;
mod delivery;
mod engine;
mod grammar;
mod render;
mod request;
mod watermark;

use std::ffi::OsString;
use std::path::PathBuf;

use penstock::interpreter::Interpreter;
use pyo3::prelude::*;

use crate::delivery::Event;
use crate::engine::{Engine, Request};

/// Runs the launcher with `argv` (the program's name first) and returns its exit code. Workers run
/// in the interpreter `executable` with the package `penstock` from the directory `package`.
#[pyfunction]
#[pyo3(name = "main")]
fn run(py: Python<'_>, argv: Vec<OsString>, executable: PathBuf, package: PathBuf) -> u8 {
    let host = Interpreter {
        path: executable,
        package,
    };
    py.detach(move || penstock::command::run(&argv, Some(&host)))
}

/// The launcher and the engine of Penstock.
#[pymodule(name = "_core")]
fn core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Engine>()?;
    module.add_class::<Request>()?;
    module.add_class::<Event>()?;
    cpu::register(module)?;
    grammar::register(module)?;
    module.add_function(wrap_pyfunction!(watermark::watermark_score, module)?)?;
    module.add_function(wrap_pyfunction!(render::render_chat, module)?)?;
    module.add_function(wrap_pyfunction!(request::check_params, module)?)?;
    module.add_function(wrap_pyfunction!(run, module)?)
}
