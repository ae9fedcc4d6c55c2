//! Input lines from a terminal or a pipe.

use std::io::{IsTerminal, stdin};

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use tokio::task::spawn_blocking;

use crate::error::{Failure, Outcome};

/// The source of input lines.
pub(super) enum Input {
    /// A terminal, with line editing and history.
    Terminal(Box<DefaultEditor>),
    /// A pipe or a file.
    Pipe,
}

/// One entry of the user.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A line of text.
    Line(String),
    /// Ctrl-C on the prompt.
    Interrupt,
    /// The end of the input.
    End,
}

impl Input {
    pub(super) fn open() -> Outcome<Self> {
        if !stdin().is_terminal() {
            return Ok(Self::Pipe);
        }
        let editor = DefaultEditor::new().map_err(|error| broken(&error.to_string()))?;
        Ok(Self::Terminal(Box::new(editor)))
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// Waits for a line on a blocking thread.
    pub(super) async fn read(self) -> Outcome<(Self, Entry)> {
        spawn_blocking(move || self.read_now())
            .await
            .map_err(|error| broken(&error.to_string()))?
    }

    fn read_now(mut self) -> Outcome<(Self, Entry)> {
        let entry = match &mut self {
            Self::Terminal(editor) => match editor.readline("> ") {
                Ok(line) => {
                    // The conversation goes on even if the history rejects the line.
                    let _ = editor.add_history_entry(&line);
                    Entry::Line(line)
                }
                Err(ReadlineError::Interrupted) => Entry::Interrupt,
                Err(ReadlineError::Eof) => Entry::End,
                Err(error) => return Err(broken(&error.to_string())),
            },
            Self::Pipe => {
                let mut line = String::new();
                match stdin().read_line(&mut line) {
                    Ok(0) => Entry::End,
                    Ok(_) => Entry::Line(line.trim_end_matches(['\r', '\n']).to_owned()),
                    Err(error) => return Err(broken(&error.to_string())),
                }
            }
        };
        Ok((self, entry))
    }
}

fn broken(why: &str) -> Failure {
    Failure::runtime(format!("cannot read from the terminal: {why}"))
}
