//! A step's ops, noted down once and run again as one call: what a CUDA graph is for a GPU.
//!
//! While a thread records, ops that it calls are kept instead of run, with the tensors they are to
//! work on. A replay runs them in that order, on whatever the tensors hold by then, with no Python
//! between them and without the interpreter's lock.

use std::cell::RefCell;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::memory::{self, Memory};

/// An op with its arguments; it owns them, so that it can run whenever and as often as wanted.
pub(super) trait Op: Send + Sync + 'static {
    /// Computes. False, with nothing done, if the numbers found are none that this op is for.
    /// Tensors that do not fit and indices out of range are errors.
    fn run(&self, memory: &mut Memory) -> PyResult<bool>;
}

thread_local! {
    static RECORDING: RefCell<Option<Vec<Box<dyn Op>>>> = const { RefCell::new(None) };
}

/// Runs an op, or keeps it while this thread records; it counts as done then.
pub(super) fn launch(op: impl Op) -> PyResult<bool> {
    match keep(op) {
        None => Ok(true),
        Some(op) => op.run(&mut memory::lock()),
    }
}

/// As `launch`, for ops long enough to let other threads run Python meanwhile.
pub(super) fn launch_detached(py: Python<'_>, op: impl Op) -> PyResult<bool> {
    match keep(op) {
        None => Ok(true),
        Some(op) => py.detach(|| op.run(&mut memory::lock())),
    }
}

/// The op itself if nothing is being recorded.
fn keep<O: Op>(op: O) -> Option<O> {
    RECORDING.with_borrow_mut(|recording| match recording {
        Some(ops) => {
            ops.push(Box::new(op));
            None
        }
        None => Some(op),
    })
}

/// Recorded ops. Nobody may write what they read while `replay` runs.
#[pyclass(frozen, module = "penstock._core")]
pub(super) struct Tape {
    ops: Vec<Box<dyn Op>>,
}

#[pymethods]
impl Tape {
    /// From now on, ops that this thread calls are recorded. RuntimeError if it records already.
    #[staticmethod]
    fn begin() -> PyResult<()> {
        RECORDING.with_borrow_mut(|recording| {
            if recording.is_some() {
                return Err(PyRuntimeError::new_err(
                    "this thread records a tape already",
                ));
            }
            *recording = Some(Vec::new());
            Ok(())
        })
    }

    /// Ends the recording that this thread began, and returns it. RuntimeError without one.
    #[staticmethod]
    fn end() -> PyResult<Self> {
        let ops = RECORDING.take();
        let ops = ops.ok_or_else(|| PyRuntimeError::new_err("this thread records no tape"))?;
        Ok(Self { ops })
    }

    /// Runs the ops in the order of their recording, without the interpreter's lock. False if one
    /// of them is not for the numbers it found: those before it have run, it and the rest have not.
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
