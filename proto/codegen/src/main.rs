//! Writes `router/src/generated/penstock.v1.rs` from `proto/penstock/v1/shard.proto`, without protoc.

use std::{error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let descriptors = protox::compile(["penstock/v1/shard.proto"], [root.join("proto")])?;
    let out = root.join("router/src/generated");
    std::fs::create_dir_all(&out)?;
    tonic_prost_build::configure()
        .build_transport(false)
        .out_dir(&out)
        .compile_fds(descriptors)?;
    Ok(())
}
