//! SIGTERM and SIGINT, from the moment that an engine runs. Before it, and in Python's `LLM`, the
//! process keeps its own handling.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{Failure, Outcome};

/// The signals that ask a server to end.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over; needs a tokio runtime.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen() -> Outcome<Self> {
        let open = |kind| {
            signal(kind)
                .map_err(|error| Failure::runtime(format!("cannot listen to signals: {error}")))
        };
        let (terminate, interrupt) = (
            open(SignalKind::terminate())?,
            open(SignalKind::interrupt())?,
        );
        Ok(Self {
            terminate,
            interrupt,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
