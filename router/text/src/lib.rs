//! Text in, text out: chat templates, tokenizer, detokenizer, stop strings, tool-call and reasoning
//! parsers, and the `Generator` that every HTTP route and the Python package use.
//!
//! This crate reaches the engine through `penstock_request::backend::Backend` and knows neither the
//! engine nor HTTP.

pub mod chat;
pub mod config;
pub mod detokenize;
pub mod generation;
mod infill;
pub mod input;
pub mod metrics;
pub mod model_text;
pub mod python_json;
pub mod stop;
pub mod text_bound;
pub mod tokenize;
pub mod tool_parsers;
pub mod watermark;

pub use config::TextConfig;
pub use generation::{Generation, Generator};
pub use input::{Charge, GenerateInput, Prompt};
pub use metrics::TextMetrics;
pub use model_text::{GenerationConfig, ModelText, ModelTextError, TextFiles};
