//! The launcher as a program of its own; the wheel's console script calls the same function.

use std::process::ExitCode;

fn main() -> ExitCode {
    let argv: Vec<_> = std::env::args_os().collect();
    ExitCode::from(penstock::command::run(&argv, None))
}
