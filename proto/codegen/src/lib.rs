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
/// What is made of each: a file, and its folder in the repository.
pub const MADE: [(&str, &str); 2] = [
    ("penstock.v1.rs", "router/engine/src/generated"),
    ("inference.rs", "router/http/src/kserve/generated"),
];

/// Writes messages, clients and server traits of all protocol files into their folders below `root`.
/// Fails when a file does not compile or cannot be written.
pub fn generate(root: &Path) -> Result<(), Box<dyn Error>> {
    for (file, (_, folder)) in FILES.into_iter().zip(MADE) {
        let descriptors = protox::compile([file], [self::root().join("proto")])?;
        let out = root.join(folder);
        std::fs::create_dir_all(&out)?;
        tonic_prost_build::configure()
            .build_transport(false)
            .out_dir(out)
            .compile_fds(descriptors)?;
    }
    Ok(())
}
