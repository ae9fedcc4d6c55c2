//! HTTP in, tokens out: validation, tokenization, the engine task, the shard client.

pub mod engine;
pub mod generated;
pub mod shard;
