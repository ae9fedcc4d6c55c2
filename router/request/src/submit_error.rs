//! The engine's refusal of a request.

use std::time::Duration;

use crate::error::{ApiError, ErrorKind};

/// Why a request was refused. Nothing has been sent to the client yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full.
    #[error("Model is overloaded")]
    Overloaded {
        /// Retry-after hint, estimated from the backlog.
        retry_after: Duration,
    },
    /// No worker can step now (loading, restarting).
    #[error("{reason}")]
    Unavailable {
        /// Explanation for people.
        reason: String,
        /// Retry-after hint.
        retry_after: Duration,
    },
    /// The server is draining.
    #[error("server is shutting down")]
    Draining,
    /// The worker or the scheduler rejected the request itself.
    #[error("{0}")]
    Invalid(String),
    /// Preparing the request failed, and the request is not to blame.
    #[error("{0}")]
    Internal(String),
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Overloaded { retry_after } => {
                Self::new(ErrorKind::Overloaded, message).retry(retry_after)
            }
            SubmitError::Unavailable { retry_after, .. } => {
                Self::new(ErrorKind::Unavailable, message).retry(retry_after)
            }
            SubmitError::Draining => {
                Self::new(ErrorKind::Unavailable, message).retry(Duration::from_secs(5))
            }
            SubmitError::Invalid(_) => Self::new(ErrorKind::Validation, message),
            SubmitError::Internal(_) => Self::new(ErrorKind::Internal, message),
        }
    }
}
