//! The launcher as a program of its own; the wheel's console script calls the same function.

use std::process::ExitCode;

/// Gives memory back to the system soon after a load, which glibc's does not do for threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let argv: Vec<_> = std::env::args_os().collect();
    ExitCode::from(penstock::command::run(&argv, None))
}
