//! Types of requests that all layers share: the parameters of a generation, their validation, the
//! engine's requests and token events, and errors.
//!
//! `penstock-text`, `penstock-engine` and `penstock-http` build on this crate; it depends on none
//! of them, and not on HTTP, a tokenizer or the protocol. The text layer calls the engine through
//! `Backend`.

pub mod backend;
pub mod client;
pub mod deadline;
pub mod error;
pub mod generation_defaults;
pub mod grammar_spec;
pub mod logprobs;
pub mod range;
pub mod sampling_params;
pub mod tenant;
pub mod types;
pub mod validate;

pub use backend::{EngineState, Limits};
pub use error::{ApiError, ErrorKind, panic_message};
pub use generation_defaults::GenerationDefaults;
pub use validate::RequestLimits;
