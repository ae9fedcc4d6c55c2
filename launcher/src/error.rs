//! What the launcher says to a person when something is wrong, and the exit code that goes with it.

use std::fmt;

/// A message for the person at the terminal: what is wrong and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Decides the exit code; read by `main`.
    pub kind: FailureKind,
    /// One or two sentences without a backtrace; printed after `error: `.
    pub message: String,
}

/// Whose turn it is to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// What was typed makes no sense on any host, with any model: exit code 2.
    Usage,
    /// It did not work here: exit code 1.
    Runtime,
}

/// A result whose error is meant for people.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// What was typed makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Usage,
            message: message.into(),
        }
    }

    /// What was asked does not work on this host, with this model, or just now.
    pub fn runtime(message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Runtime,
            message: message.into(),
        }
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            FailureKind::Usage => 2,
            FailureKind::Runtime => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
