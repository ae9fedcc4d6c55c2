//! The ops of a step, recorded once and replayed as one call: the CPU's counterpart of a CUDA
//! graph.
//!
//! While a thread records, the ops that it calls are stored with their tensors instead of run. A
//! replay runs them in that order, on the current contents of the tensors, without Python between
//! them and without the GIL.

use std::cell::RefCell;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::memory::{self, Memory};

/// An op with its arguments. It owns them, so it can run repeatedly.
pub(super) trait Op: Send + Sync + 'static {
    /// Runs the op. Returns false and writes nothing if the op does not support the values found,
    /// such as a temperature above 0 for `greedy`. Tensors that do not fit and indices out of range
    /// are errors.
    fn run(&self, memory: &mut Memory) -> PyResult<bool>;
}

thread_local! {
    static RECORDING: RefCell<Option<Vec<Box<dyn Op>>>> = const { RefCell::new(None) };
}

/// Runs an op, or stores it while this thread records; a stored op returns true.
pub(super) fn launch(op: impl Op) -> PyResult<bool> {
    match keep(op) {
        None => Ok(true),
        Some(op) => op.run(&mut memory::lock()),
    }
}

/// As `launch`, for long ops: releases the GIL while the op runs.
pub(super) fn launch_detached(py: Python<'_>, op: impl Op) -> PyResult<bool> {
    match keep(op) {
        None => Ok(true),
        Some(op) => py.detach(|| op.run(&mut memory::lock())),
    }
}

/// Stores the op if this thread records; else returns it.
fn keep<O: Op>(op: O) -> Option<O> {
    RECORDING.with_borrow_mut(|recording| match recording {
        Some(ops) => {
            ops.push(Box::new(op));
            None
        }
        None => Some(op),
    })
}

/// Recorded ops. Their tensors must not be written by others during `replay`.
#[pyclass(frozen, module = "penstock._core")]
pub(super) struct Tape {
    ops: Vec<Box<dyn Op>>,
}

#[pymethods]
impl Tape {
    /// Starts recording the ops that this thread calls. Raises RuntimeError if it already records.
    #[staticmethod]
    fn begin() -> PyResult<()> {
        RECORDING.with_borrow_mut(|recording| {
            if recording.is_some() {
                return Err(PyRuntimeError::new_err(
                    "this thread already records a tape",
                ));
            }
            *recording = Some(Vec::new());
            Ok(())
        })
    }

    /// Ends this thread's recording and returns it. Raises RuntimeError if it records nothing.
    #[staticmethod]
    fn end() -> PyResult<Self> {
        let ops = RECORDING.take();
        let ops = ops.ok_or_else(|| PyRuntimeError::new_err("this thread records no tape"))?;
        Ok(Self { ops })
    }

    /// Runs the ops in order, without the GIL. Returns false at the first op that does not support
    /// the values it found: the ops before it have run, it and the rest have not.
    fn replay(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| {
            let mut memory = memory::lock();
            for op in &self.ops {
                if !op.run(&mut memory)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    fn __len__(&self) -> usize {
        self.ops.len()
    }
}
