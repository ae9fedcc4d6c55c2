//! `penstock convert`: converts Meta's and Mistral's own checkpoints. `python -m penstock.convert`
//! does the work and writes to the terminal itself.

use std::process::Command;

use crate::cli::ConvertArgs;
use crate::error::{Failure, Outcome};
use crate::interpreter::Interpreter;

/// Converts a checkpoint into a new directory.
///
/// # Errors
/// If the checkpoint is no directory or if the conversion fails; Python has printed the reason then.
pub fn convert(args: &ConvertArgs, host: Option<&Interpreter>) -> Outcome<()> {
    if !args.model.is_dir() {
        let shown = args.model.display();
        return Err(Failure::runtime(format!("{shown} is no directory.")));
    }
    let interpreter = Interpreter::find(args.python.as_deref(), host)?;
    let mut command = Command::new(&interpreter.path);
    command
        .args(["-m", "penstock.convert"])
        .arg(&args.model)
        .arg(&args.out);
    interpreter.run(command, "converting")
}
