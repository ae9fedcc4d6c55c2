//! Kernels for tensors in host memory: `penstock._core.cpu`, called by `penstock.cpu`.
//!
//! The kernels are safe Rust over slices. Unsafe code is in five modules: `memory` turns a tensor's
//! memory into slices, `views` splits them for threads, `team` shares a job with threads, `vectors`
//! selects the widest instructions of this CPU, and `element` declares the element types. Each
//! kernel computes a row from that row alone, in one fixed order: a sequence's values do not depend
//! on the rest of the batch.

mod attention;
mod element;
mod gate;
mod greedy;
mod linear;
pub(crate) mod memory;
mod norm;
mod rope;
mod rows;
mod tape;
mod team;
pub(crate) mod tensor;
mod threads;
mod vectors;
mod views;

use pyo3::prelude::*;

/// Adds the module `cpu` to the extension.
pub(crate) fn register(parent: &Bound<'_, PyModule>) -> PyResult<()> {
    let module = PyModule::new(parent.py(), "cpu")?;
    module.add_function(wrap_pyfunction!(vectors::fast, &module)?)?;
    module.add_function(wrap_pyfunction!(attention::paged_attention, &module)?)?;
    module.add_function(wrap_pyfunction!(gate::silu_mul, &module)?)?;
    module.add_function(wrap_pyfunction!(greedy::greedy, &module)?)?;
    module.add_function(wrap_pyfunction!(linear::pack, &module)?)?;
    module.add_function(wrap_pyfunction!(linear::linear, &module)?)?;
    module.add_function(wrap_pyfunction!(norm::rms_norm, &module)?)?;
    module.add_function(wrap_pyfunction!(rope::rope_kv_write, &module)?)?;
    module.add_function(wrap_pyfunction!(rows::copy, &module)?)?;
    module.add_function(wrap_pyfunction!(rows::gather, &module)?)?;
    module.add_function(wrap_pyfunction!(rows::less, &module)?)?;
    module.add_function(wrap_pyfunction!(rows::pick, &module)?)?;
    module.add_function(wrap_pyfunction!(rows::scatter, &module)?)?;
    module.add_class::<tape::Tape>()?;
    parent.add_submodule(&module)
}
