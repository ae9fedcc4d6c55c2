//! Writes `router/src/generated/penstock.v1.rs`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    penstock_proto_codegen::generate(&penstock_proto_codegen::root().join("router/src/generated"))
}
