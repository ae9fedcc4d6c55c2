//! Prints the OpenAPI description of all routes; `make openapi` keeps it in `docs/openapi.json`.

use std::io::{self, Write};

fn main() -> io::Result<()> {
    io::stdout().write_all(penstock_http::openapi_json().as_bytes())
}
