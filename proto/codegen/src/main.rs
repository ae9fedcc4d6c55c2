//! Writes the protocol code in `router/src/generated/`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    penstock_proto_codegen::generate(&penstock_proto_codegen::root().join("router/src/generated"))
}
