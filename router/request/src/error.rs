//! Errors of requests, before HTTP gives them a status and a shape.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// A failed request. The message is for the client's developer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Category of the error; `http::error` maps it to a status and a type.
    pub kind: ErrorKind,
    /// Message for the client: field, rule and value.
    pub message: String,
    /// The field at fault, if any; OpenAI routes return it as `param`.
    pub param: Option<Cow<'static, str>>,
    /// Time to wait before a retry; becomes the `Retry-After` header.
    pub retry_after: Option<Duration>,
}

/// Categories of errors that clients can distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The body is not JSON, or not UTF-8.
    Syntax,
    /// A field is missing, unknown, of the wrong type or out of range.
    Validation,
    /// Prompt plus output would exceed the context, or the prompt exceeds its own limit.
    ContextLength,
    /// A parameter that Penstock knows but does not support yet.
    Unsupported,
    /// A thread of messages, which Penstock does not store. Anthropic's clients then continue
    /// without one.
    MessageThread,
    /// The chat template refused the messages, or there is none.
    Template,
    /// More prompts in one request than allowed.
    BatchSize,
    /// The API key is missing or wrong.
    Unauthorized,
    /// The server does not accept requests for this host.
    Forbidden,
    /// No such route.
    NotFound,
    /// No such model.
    ModelNotFound,
    /// The response that a request continues is not stored.
    PreviousResponse,
    /// The route exists, but not with this method.
    Method,
    /// The body did not arrive in time.
    Timeout,
    /// The answer was not complete by the request's deadline.
    Deadline,
    /// The body is larger than allowed.
    TooLarge,
    /// The body is not declared as JSON.
    MediaType,
    /// The queue or the tokenizer is full.
    Overloaded,
    /// No worker can step now, or the server is shutting down.
    Unavailable,
    /// The generation failed after it had started.
    Generation,
    /// An internal error.
    Internal,
}

/// An excerpt of a client's text for messages and logs: its beginning and its length.
#[derive(Clone, Copy, Debug)]
pub struct Excerpt<'a> {
    text: &'a str,
    /// Maximum characters shown.
    most: usize,
}

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
    /// The request cannot meet its deadline: the queue takes longer.
    #[error(
        "the request cannot meet its deadline of {} s: requests before it take about {} s",
        .timeout.as_secs_f64(), .wait.as_secs_f64().ceil()
    )]
    TooLate {
        /// The time that the client gave.
        timeout: Duration,
        /// Estimated time until the request could start.
        wait: Duration,
        /// Retry-after hint: when the queue may be short enough.
        retry_after: Duration,
    },
    /// The request's deadline has passed.
    #[error("the request's deadline of {} s has passed", .timeout.as_secs_f64())]
    DeadlinePassed {
        /// The time that the client gave.
        timeout: Duration,
    },
    /// The worker or the scheduler rejected the request itself.
    #[error("{0}")]
    Invalid(String),
    /// Preparing the request failed, and the request is not to blame.
    #[error("{0}")]
    Internal(String),
}

impl ApiError {
    /// Creates an error of `kind` without field or retry time.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            param: None,
            retry_after: None,
        }
    }

    /// Creates an error for a field that breaks a rule.
    pub fn validation(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::new(ErrorKind::Validation, message)
        }
    }

    /// Creates an error for a field that exceeds a token limit.
    pub fn too_many_tokens(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::new(ErrorKind::ContextLength, message)
        }
    }

    /// Creates an error for the field at `path` in the body that breaks a rule.
    pub fn at(path: &str, rule: &str) -> Self {
        Self {
            param: Some(Cow::Owned(path.to_owned())),
            ..Self::new(ErrorKind::Validation, format!("`{path}` {rule}"))
        }
    }

    /// Renames the field `ours` to `theirs`, for an API with another name.
    pub fn renamed(self, ours: &str, theirs: &'static str) -> Self {
        if self.param.as_deref() != Some(ours) {
            return self;
        }
        Self {
            message: self
                .message
                .replace(&format!("`{ours}`"), &format!("`{theirs}`")),
            param: Some(theirs.into()),
            ..self
        }
    }

    /// Creates an error for a known parameter that is not supported yet.
    pub fn unsupported(param: &'static str, neutral: &str) -> Self {
        let message =
            format!("`{param}` is not supported yet. Leave it out or set it to {neutral}");
        Self {
            param: Some(param.into()),
            ..Self::new(ErrorKind::Unsupported, message)
        }
    }

    /// Adds a retry time.
    pub fn retry(self, after: Duration) -> Self {
        Self {
            retry_after: Some(after),
            ..self
        }
    }
}

/// Returns the message of a panic.
pub fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    let fixed = || payload.downcast_ref::<&'static str>().copied();
    owned.or_else(fixed).unwrap_or("a panic without a message")
}

impl<'a> Excerpt<'a> {
    /// Creates an excerpt of a value.
    pub fn new(text: &'a str) -> Self {
        Self { text, most: 64 }
    }

    /// Creates an excerpt of a whole message, which may list all fields of a request.
    pub fn of_message(text: &'a str) -> Self {
        Self { text, most: 2048 }
    }
}

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, most } = self;
        match text.char_indices().nth(*most) {
            None => f.write_str(text),
            Some((end, _)) => write!(f, "{}... ({} bytes in all)", &text[..end], text.len()),
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Overloaded { retry_after } | SubmitError::TooLate { retry_after, .. } => {
                Self::new(ErrorKind::Overloaded, message).retry(retry_after)
            }
            SubmitError::DeadlinePassed { .. } => Self::new(ErrorKind::Deadline, message),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_ends_between_characters_and_shows_the_length() {
        assert_eq!(Excerpt::new("short").to_string(), "short");
        assert_eq!(Excerpt::new(&"é".repeat(64)).to_string(), "é".repeat(64));
        let cut = Excerpt::new(&"é".repeat(65)).to_string();
        assert_eq!(cut, format!("{}... (130 bytes in all)", "é".repeat(64)));
    }
}
