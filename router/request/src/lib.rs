//! What a client asks for, in terms of every layer: the parameters of a generation, their
//! validation, the engine's requests and token events, and errors.
//!
//! `penstock-text`, `penstock-engine` and `penstock-http` build on this crate; it knows none of
//! them, no HTTP, no tokenizer and no protocol. The text layer and the engine meet in `Backend`.

pub mod backend;
pub mod client;
pub mod error;
pub mod grammar_spec;
pub mod logprobs;
pub mod range;
mod request_limits;
pub mod sampling_params;
pub mod types;
pub mod validate;

pub use backend::{EngineState, Limits};
pub use error::{ApiError, ErrorKind, panic_message};
pub use request_limits::RequestLimits;
