//! Writes the protocol code of both crates that use it.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    penstock_proto_codegen::generate(&penstock_proto_codegen::root())
}
