//! HTTP in, tokens out: validation, tokenization, the engine's task, the shard client.

pub mod backend;
mod budget;
pub mod chat;
pub mod client;
pub mod config;
pub mod detokenize;
pub mod engine;
pub mod error;
pub mod generated;
pub mod generation;
pub mod http;
mod infill;
pub mod logits_processors;
pub mod logprobs;
pub mod metrics;
pub mod model_text;
pub mod shard;
pub mod stop;
pub mod text_bound;
pub mod tokenize;
pub mod tool_parsers;
pub mod validate;
pub mod watermark;

pub use budget::Charge;
pub use config::{Cors, RouterConfig};
pub use error::{ApiError, ErrorKind, panic_message};
pub use generation::{Generation, Generator};
pub use http::{Listeners, serve};
pub use metrics::Metrics;
pub use model_text::{ModelText, ModelTextError};
