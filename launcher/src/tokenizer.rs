//! Tokenizers without tokenizer.json: `python -m penstock.tokenizer` converts them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::Deserialize;

use crate::error::{Failure, Outcome};
use crate::interpreter::Interpreter;
use crate::terminal;

/// What `python -m penstock.tokenizer` prints.
#[derive(Deserialize)]
#[serde(untagged)]
enum Reply {
    Failed {
        error: String,
    },
    Found {
        folder: PathBuf,
        source: Option<String>,
    },
}

/// Returns the model's directory with tokenizer.json. If `directory` has none, this is one in the
/// cache with a converted tokenizer and links to the model's files; `directory` itself if there is
/// nothing to convert.
///
/// # Errors
/// If the tokenizer cannot be converted.
pub fn with_tokenizer(
    directory: PathBuf,
    interpreter: impl FnOnce() -> Outcome<Interpreter>,
) -> Outcome<PathBuf> {
    let complete = directory.join("tokenizer.json").exists();
    // Without config.json there is no model, whose error is reported later.
    if complete || !directory.join("config.json").exists() || !has_source(&directory) {
        return Ok(directory);
    }
    let interpreter = interpreter()?;
    let shown = interpreter.path.display();
    let child = interpreter
        .leased("penstock.tokenizer")
        .arg(&directory)
        .stdout(Stdio::piped())
        .spawn();
    let output = child.and_then(|mut child| {
        let _lease = child.stdin.take();
        child.wait_with_output()
    });
    let output =
        output.map_err(|error| Failure::runtime(format!("cannot start {shown}: {error}")))?;
    match serde_json::from_slice(&output.stdout) {
        Ok(Reply::Found { folder, source }) => {
            if let Some(source) = source {
                let note = format!(
                    "note: the model has no tokenizer.json; {source} is converted, in {}",
                    folder.display()
                );
                terminal::print_note(&note);
            }
            Ok(folder)
        }
        Ok(Reply::Failed { error }) => Err(Failure::runtime(error)),
        Err(_) => {
            let status = output.status;
            let message =
                format!("the conversion of the tokenizer ended without a result ({status})");
            Err(Failure::runtime(message))
        }
    }
}

/// Whether the folder has a tokenizer that can be converted.
fn has_source(directory: &Path) -> bool {
    let Ok(entries) = directory.read_dir() else {
        return false;
    };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        match name.as_ref() {
            "tekken.json" | "tiktoken.model" => true,
            "vocab.json" => directory.join("merges.txt").exists(),
            name => name.starts_with("tokenizer.model") || name.ends_with(".tiktoken"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_needs_no_conversion_stays_as_it_is() {
        let folder = std::env::temp_dir().join(format!("penstock-t-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let refused = || Err(Failure::runtime("no Python".to_owned()));
        assert_eq!(with_tokenizer(folder.clone(), refused), Ok(folder.clone()));
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        let converts = || match with_tokenizer(folder.clone(), refused) {
            Ok(same) => same != folder,
            Err(needed) => needed.message == "no Python",
        };
        write("tokenizer.model", "");
        assert!(!converts(), "without config.json");
        write("config.json", "{}");
        assert!(converts());
        std::fs::remove_file(folder.join("tokenizer.model")).unwrap();
        write("vocab.json", "{}");
        assert!(!converts(), "without merges.txt");
        write("merges.txt", "");
        assert!(converts());
        std::fs::remove_file(folder.join("merges.txt")).unwrap();
        for name in ["tekken.json", "tiktoken.model", "hy.tiktoken"] {
            write(name, "");
            assert!(converts(), "{name}");
            std::fs::remove_file(folder.join(name)).unwrap();
        }
        write("tokenizer.model", "");
        write("tokenizer.json", "{}");
        assert_eq!(with_tokenizer(folder.clone(), refused), Ok(folder.clone()));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
