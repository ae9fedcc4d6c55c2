//! User-facing errors of the launcher and their exit codes.

use std::fmt;

/// An error message for the user: what is wrong and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Determines the exit code.
    pub kind: FailureKind,
    /// One or two sentences without a backtrace, printed after `error: `.
    pub message: String,
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The arguments are invalid on any host and with any model: exit code 2.
    Usage,
    /// The command failed on this host: exit code 1.
    Runtime,
    /// A Python command failed and has printed the reason: its exit code, or 128 and the number of
    /// the signal that ended it.
    Command(u8),
}

/// A result whose error is a message for the user.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// Returns a failure of invalid arguments.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Usage,
            message: message.into(),
        }
    }

    /// Returns a failure of valid arguments: it depends on this host, this model or the current
    /// state.
    pub fn runtime(message: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Runtime,
            message: message.into(),
        }
    }

    /// Returns the process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            FailureKind::Usage => 2,
            FailureKind::Runtime => 1,
            FailureKind::Command(code) => code,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
