//! The Python interpreter that runs the workers, and its installation of Penstock.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::error::{Failure, Outcome};

/// A Python interpreter with the package `penstock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// The executable.
    pub path: PathBuf,
    /// The directory of the package `penstock`, which contains the shipped model.
    pub package: PathBuf,
}

/// Finds the package without importing it, because an import can take seconds.
const PROBE: &str = r#"
import importlib.util, json, sys
spec = importlib.util.find_spec("penstock")
package = next(iter(spec.submodule_search_locations), None) if spec else None
print(json.dumps({"version": list(sys.version_info[:2]), "package": package}))
"#;

#[derive(Deserialize)]
struct Probe {
    version: (u32, u32),
    package: Option<PathBuf>,
}

impl Interpreter {
    /// Returns the interpreter of --python, else `host` (the interpreter that runs this launcher),
    /// else the one of the virtual environment, else the first one on PATH.
    ///
    /// # Errors
    /// If there is none, or if it is too old or lacks Penstock.
    pub fn find(typed: Option<&Path>, host: Option<&Self>) -> Outcome<Self> {
        match (typed, host) {
            (Some(path), _) => Self::probe(path),
            (None, Some(host)) => Ok(host.clone()),
            (None, None) => Self::probe(&search()?),
        }
    }

    /// Returns the command of a module that ends with this process, however it ends: when the pipe
    /// closes that is the command's standard input. Who starts it must hold the other end.
    pub fn leased(&self, module: &str) -> Command {
        let mut command = Command::new(&self.path);
        command
            .args(["-m", "penstock.leased", module])
            .stdin(Stdio::piped());
        command
    }

    fn probe(path: &Path) -> Outcome<Self> {
        let shown = path.display();
        let output = Command::new(path)
            .args(["-c", PROBE])
            .output()
            .map_err(|error| {
                Failure::runtime(format!(
                    "cannot run the Python {shown}: {error}. Name one with --python."
                ))
            })?;
        let probe: Probe = serde_json::from_slice(&output.stdout).map_err(|_| {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().last().unwrap_or("nothing");
            Failure::runtime(format!(
                "{shown} does not work as a Python interpreter (output: {said}). Name another with \
                 --python."
            ))
        })?;
        if probe.version < (3, 10) {
            let (major, minor) = probe.version;
            return Err(Failure::runtime(format!(
                "{shown} is Python {major}.{minor}; Penstock needs 3.10 or later. Name another with \
                 --python."
            )));
        }
        let package = probe.package.ok_or_else(|| {
            Failure::runtime(format!(
                "{shown} lacks the package penstock, which the workers need. Install it there \
                 (`{shown} -m pip install penstock`), or name another interpreter with --python."
            ))
        })?;
        Ok(Self {
            path: path.to_owned(),
            package,
        })
    }
}

fn search() -> Outcome<PathBuf> {
    let environment = std::env::var_os("VIRTUAL_ENV").map(|root| Path::new(&root).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = environment.into_iter().chain(std::env::split_paths(&path));
    let mut candidates = directories.flat_map(|d| [d.join("python3"), d.join("python")]);
    candidates.find(|candidate| candidate.is_file()).ok_or_else(|| {
        Failure::runtime(
            "no Python found (looked in VIRTUAL_ENV and PATH), and the workers need one. Install \
             Python 3.10 or later and `pip install penstock`, or name an interpreter with --python.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_missing_interpreter_has_a_remedy() {
        let failure = Interpreter::find(Some(Path::new("/nowhere/python")), None).unwrap_err();
        assert_eq!(failure.exit_code(), 1);
        assert!(failure.message.contains("/nowhere/python"), "{failure}");
        assert!(failure.message.contains("--python"), "{failure}");
    }

    #[test]
    fn an_unusable_interpreter_is_named_in_the_error() {
        let failure = Interpreter::find(Some(Path::new("/bin/false")), None).unwrap_err();
        assert!(failure.message.contains("does not work"), "{failure}");
    }

    #[test]
    fn the_host_interpreter_is_preferred() {
        let host = Interpreter {
            path: "/p".into(),
            package: "/k".into(),
        };
        assert_eq!(Interpreter::find(None, Some(&host)), Ok(host));
    }
}
