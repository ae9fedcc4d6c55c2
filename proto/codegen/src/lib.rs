//! Generates the protocol code of the Rust side with a pure-Rust protobuf compiler: no protoc.

use std::{
    error::Error,
    path::{Path, PathBuf},
};

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The protocol files.
const FILES: [&str; 2] = ["penstock/v1/shard.proto", "kserve/v2/inference.proto"];
/// What is made of them, a file per package.
pub const MADE: [&str; 2] = ["penstock.v1.rs", "inference.rs"];

/// Writes messages, clients and server traits of all protocol files into `out`.
/// Fails when a file does not compile or cannot be written.
pub fn generate(out: &Path) -> Result<(), Box<dyn Error>> {
    let descriptors = protox::compile(FILES, [root().join("proto")])?;
    std::fs::create_dir_all(out)?;
    tonic_prost_build::configure()
        .build_transport(false)
        .out_dir(out)
        .compile_fds(descriptors)?;
    Ok(())
}
