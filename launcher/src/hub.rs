//! Resolves --model to a directory: a local one, the shipped model, or one from the hub. `python -m
//! penstock.hub` downloads with huggingface_hub and reports in JSON lines.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::Deserialize;

use crate::error::{Failure, Outcome};
use crate::interpreter::Interpreter;
use crate::progress::Bar;

/// The default of `--model`.
pub const SHIPPED: &str = "brook";

/// The source of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// The model in the package `penstock`.
    Shipped,
    /// A local directory.
    Local(PathBuf),
    /// A repository on the hub.
    Hub {
        /// `name` or `organisation/name`.
        id: String,
        /// Branch, tag or commit.
        revision: String,
    },
}

/// One line of `python -m penstock.hub`.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Event {
    Plan { bytes: u64 },
    Progress { bytes: u64 },
    Done { path: PathBuf },
    Error { message: String },
}

impl ModelSource {
    /// Parses `--model` and `--revision`.
    ///
    /// # Errors
    /// If the model is neither a directory nor a valid hub id.
    pub fn parse(model: Option<&str>, revision: Option<&str>) -> Outcome<Self> {
        let Some(model) = model else {
            return Ok(Self::Shipped);
        };
        let path = Path::new(model);
        if path.is_dir() {
            return match revision {
                None => Ok(Self::Local(path.to_owned())),
                Some(_) => Err(Failure::usage(format!(
                    "--revision applies to hub models, and --model {model} is a directory: leave it \
                     out."
                ))),
            };
        }
        if path.is_file() {
            return Err(Failure::runtime(format!(
                "--model {model} is a file: name the directory that holds config.json and the \
                 *.safetensors files."
            )));
        }
        if model == SHIPPED && revision.is_none() {
            return Ok(Self::Shipped);
        }
        if !is_hub_id(model) {
            return Err(Failure::runtime(format!(
                "--model {model}: no such directory, and it is not a valid hub id \
                 (organisation/name)."
            )));
        }
        let revision = revision.unwrap_or("main").to_owned();
        Ok(Self::Hub {
            id: model.to_owned(),
            revision,
        })
    }

    /// Returns the default of `--served-model-name`.
    pub fn name(&self) -> String {
        match self {
            Self::Shipped => SHIPPED.to_owned(),
            Self::Hub { id, .. } => id.clone(),
            Self::Local(path) => {
                let full = path.canonicalize().unwrap_or_else(|_| path.clone());
                full.file_name()
                    .map_or_else(|| SHIPPED.into(), |n| n.to_string_lossy().into())
            }
        }
    }

    /// Returns the directory of the model's files. Downloads them if necessary, into `cache` or
    /// `huggingface_hub`'s default cache.
    ///
    /// # Errors
    /// A message for the user if the files are not available.
    pub fn fetch(
        &self,
        interpreter: impl FnOnce() -> Outcome<Interpreter>,
        cache: Option<&Path>,
    ) -> Outcome<PathBuf> {
        match self {
            Self::Local(path) => Ok(path.canonicalize().unwrap_or_else(|_| path.clone())),
            Self::Shipped => Ok(interpreter()?.package.join(SHIPPED)),
            Self::Hub { id, revision } => {
                download(&interpreter()?, (id, revision), Purpose::Serving, cache)
            }
        }
    }

    /// Returns the directory of a checkpoint in a layout that is converted. Downloads it if necessary.
    ///
    /// # Errors
    /// A message for the user if the files are not available, or if there is nothing to convert.
    pub fn fetch_to_convert(&self, interpreter: &Interpreter) -> Outcome<PathBuf> {
        match self {
            Self::Hub { id, revision } => {
                download(interpreter, (id, revision), Purpose::Conversion, None)
            }
            _ => self.fetch(|| Ok(interpreter.clone()), None),
        }
    }
}

fn is_hub_id(text: &str) -> bool {
    let part = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && part.len() <= 96 && part.chars().all(plain) && !part.starts_with('.')
    };
    match text.split_once('/') {
        Some((organisation, name)) => part(organisation) && part(name),
        None => part(text),
    }
}

/// What the files of a hub model are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A worker loads them: safetensors.
    Serving,
    /// `penstock convert` reads them: perhaps pickles.
    Conversion,
}

/// Downloads a hub model into `cache` or huggingface_hub's default cache, with a progress bar.
/// Returns its directory.
///
/// # Errors
/// A message for the user, such as: no such model, offline, no space, only pickled weights.
pub fn download(
    interpreter: &Interpreter,
    (id, revision): (&str, &str),
    purpose: Purpose,
    cache: Option<&Path>,
) -> Outcome<PathBuf> {
    let mut child = interpreter
        .leased("penstock.hub")
        .envs(cache.map(|cache| ("HF_HUB_CACHE", cache)))
        .args(["download", id, "--revision", revision])
        .args((purpose == Purpose::Conversion).then_some("--to-convert"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| {
            Failure::runtime(format!("cannot start {}: {e}", interpreter.path.display()))
        })?;
    let _lease = child.stdin.take();
    let stdout = child.stdout.take();
    let outcome = stdout.map_or(Ok(None), |lines| read_progress(BufReader::new(lines), id));
    let status = child
        .wait()
        .map_or_else(|e| e.to_string(), |status| status.to_string());
    outcome?.ok_or_else(|| {
        Failure::runtime(format!(
            "the download of {id} ended without a result ({status})"
        ))
    })
}

fn read_progress(lines: impl BufRead, id: &str) -> Outcome<Option<PathBuf>> {
    let mut bar: Option<Bar> = None;
    for line in lines.lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(Event::Plan { bytes }) => {
                bar = Some(Bar::bytes(&format!("downloading {id}"), bytes));
            }
            Ok(Event::Progress { bytes }) => {
                if let Some(bar) = &mut bar {
                    bar.at(bytes);
                }
            }
            Ok(Event::Done { path }) => return Ok(Some(path)),
            Ok(Event::Error { message }) => return Err(Failure::runtime(message)),
            // Ignore lines that libraries print.
            Err(_) => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_ids_are_distinguished_from_paths() {
        assert!(is_hub_id("gpt2") && is_hub_id("TinyLlama/TinyLlama-1.1B-Chat-v1.0"));
        for wrong in [
            "",
            "/models/llama",
            "./llama",
            "../x",
            "a/b/c",
            "a b",
            "a/",
            "~/llama",
        ] {
            assert!(!is_hub_id(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn model_sources_are_parsed() {
        assert_eq!(ModelSource::parse(None, None), Ok(ModelSource::Shipped));
        assert_eq!(
            ModelSource::parse(Some("brook"), None),
            Ok(ModelSource::Shipped)
        );
        assert!(matches!(
            ModelSource::parse(Some("/"), None),
            Ok(ModelSource::Local(_))
        ));
        let hub = ModelSource::parse(Some("a/b"), Some("v1")).unwrap();
        assert_eq!(
            hub,
            ModelSource::Hub {
                id: "a/b".into(),
                revision: "v1".into()
            }
        );
        for (model, revision, word) in [
            ("/nowhere/m", None, "no such directory"),
            ("/", Some("v1"), "--revision"),
        ] {
            let failure = ModelSource::parse(Some(model), revision).unwrap_err();
            assert!(failure.message.contains(word), "{failure}");
        }
    }

    #[test]
    fn the_download_ends_with_a_path_or_a_message() {
        let done = "noise\n{\"event\":\"plan\",\"bytes\":4}\n{\"event\":\"progress\",\"bytes\":4}\n\
                    {\"event\":\"done\",\"path\":\"/cache/m\"}\n";
        assert_eq!(
            read_progress(done.as_bytes(), "m"),
            Ok(Some("/cache/m".into()))
        );
        let failed = "{\"event\":\"error\",\"message\":\"no space\"}\n";
        assert_eq!(
            read_progress(failed.as_bytes(), "m").unwrap_err().message,
            "no space"
        );
        assert_eq!(read_progress("".as_bytes(), "m"), Ok(None));
    }
}
