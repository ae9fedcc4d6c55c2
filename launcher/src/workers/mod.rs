//! The workers of one engine: child processes on this host, started and replaced as a group.

mod process;
mod scratch;

pub use process::WorkerProcess;
pub use scratch::Scratch;
