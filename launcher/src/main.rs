//! The launcher as a separate program. The wheel's console script calls the same function.

use std::process::ExitCode;

/// Returns memory to the system soon after loading; glibc's allocator does not for threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let argv: Vec<_> = std::env::args_os().collect();
    ExitCode::from(penstock::command::run(&argv, None))
}
