//! Generates the protocol code of the Rust side with a pure-Rust protobuf compiler: no protoc.

use std::{
    error::Error,
    path::{Path, PathBuf},
};

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Writes `penstock.v1.rs` (messages, client, server trait) from `shard.proto` into `out`.
/// Fails when the file does not compile or cannot be written.
pub fn generate(out: &Path) -> Result<(), Box<dyn Error>> {
    let descriptors = protox::compile(["penstock/v1/shard.proto"], [root().join("proto")])?;
    std::fs::create_dir_all(out)?;
    tonic_prost_build::configure()
        .build_transport(false)
        .out_dir(out)
        .compile_fds(descriptors)?;
    Ok(())
}
