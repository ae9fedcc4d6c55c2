//! HTTP in, tokens out: validation, tokenization, the engine task, the shard client.
