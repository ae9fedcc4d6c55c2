//! `penstock chat`: a conversation in the terminal, with a running server or a temporary one.

mod client;
mod input;
mod sse;

use client::{Client, Message, SamplingParameters};
use input::{Entry, Input};

use crate::cli::ChatArgs;
use crate::error::Outcome;
use crate::terminal::{print, print_error, print_note};

const HELP: &str =
    "/reset forgets the conversation, /exit or Ctrl-D ends it; Ctrl-C stops an answer.";

/// A conversation with its history.
struct Conversation {
    client: Client,
    sampling: SamplingParameters,
    system: Option<String>,
    turns: Vec<Message>,
    /// Whether Ctrl-C stops the answer (at a terminal) or the program (in a script).
    interactive: bool,
}

/// The meaning of an input line.
#[derive(Debug, PartialEq, Eq)]
enum ChatCommand<'a> {
    Nothing,
    Say(&'a str),
    Reset,
    Help,
    Exit,
    Unknown(&'a str),
}

/// Chats with the server at `url` until the input ends.
///
/// # Errors
/// If the server cannot be reached, or if a line from a pipe gets no answer.
pub async fn run(url: &str, args: &ChatArgs) -> Outcome<()> {
    let client = Client::connect(url, args.api_key.as_deref()).await?;
    let sampling = SamplingParameters {
        max_tokens: args.max_tokens,
        temperature: args.temperature,
    };
    let mut input = Input::open()?;
    if input.is_terminal() {
        print_note(&format!("This is {}. {HELP}", client.model()));
    }
    let interactive = input.is_terminal();
    let system = args.system.clone();
    let mut conversation = Conversation {
        client,
        sampling,
        system,
        turns: Vec::new(),
        interactive,
    };
    conversation.reset();
    let mut interrupted = false;
    loop {
        let (back, entry) = input.read().await?;
        input = back;
        let line = match entry {
            Entry::End => return Ok(()),
            Entry::Interrupt if interrupted => return Ok(()),
            Entry::Interrupt => {
                interrupted = true;
                print_note("Press Ctrl-C again, Ctrl-D or /exit to end the conversation.");
                continue;
            }
            Entry::Line(line) => line,
        };
        interrupted = false;
        match ChatCommand::parse(&line) {
            ChatCommand::Nothing => {}
            ChatCommand::Exit => return Ok(()),
            ChatCommand::Help => print_note(HELP),
            ChatCommand::Reset => conversation.reset(),
            ChatCommand::Unknown(command) => {
                print_note(&format!("{command} is not a command. {HELP}"));
            }
            ChatCommand::Say(text) => match conversation.send(text).await {
                Err(failure) if interactive => print_error(&failure),
                outcome => outcome?,
            },
        }
    }
}

impl Conversation {
    fn reset(&mut self) {
        self.turns.clear();
        let system = self.system.clone();
        self.turns.extend(system.map(|content| Message {
            role: "system".into(),
            content,
        }));
    }

    /// Sends `text` and prints the answer as it arrives. A message without an answer is removed
    /// from the history.
    async fn send(&mut self, text: &str) -> Outcome<()> {
        self.turns.push(Message {
            role: "user".into(),
            content: text.to_owned(),
        });
        match self.answer().await {
            Ok(content) if content.is_empty() => {
                self.turns.pop();
                Ok(())
            }
            Ok(content) => {
                self.turns.push(Message {
                    role: "assistant".into(),
                    content,
                });
                Ok(())
            }
            Err(failure) => {
                self.turns.pop();
                Err(failure)
            }
        }
    }

    async fn answer(&self) -> Outcome<String> {
        let mut said = String::new();
        let whole = async {
            let mut answer = self
                .client
                .stream_answer(&self.turns, self.sampling)
                .await?;
            while let Some(piece) = answer.next().await? {
                print(&piece)?;
                said.push_str(&piece);
            }
            Ok(())
        };
        let outcome = tokio::select! {
            outcome = whole => outcome,
            () = interrupt(self.interactive) => Ok(()),
        };
        // At a terminal, an empty line separates the turns.
        print(if self.interactive { "\n\n" } else { "\n" })?;
        outcome.map(|()| said)
    }
}

/// Returns at Ctrl-C. In a script it never returns: there Ctrl-C ends the program.
async fn interrupt(interactive: bool) {
    if interactive && tokio::signal::ctrl_c().await.is_ok() {
        return;
    }
    std::future::pending::<()>().await;
}

impl<'a> ChatCommand<'a> {
    fn parse(line: &'a str) -> Self {
        match line.trim() {
            "" => Self::Nothing,
            "/reset" => Self::Reset,
            "/exit" | "/quit" => Self::Exit,
            "/help" => Self::Help,
            command if command.starts_with('/') && !command.contains(' ') => Self::Unknown(command),
            text => Self::Say(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_distinguished_from_text() {
        assert_eq!(ChatCommand::parse("  "), ChatCommand::Nothing);
        assert_eq!(ChatCommand::parse("/reset "), ChatCommand::Reset);
        assert_eq!(
            ChatCommand::parse("/restet"),
            ChatCommand::Unknown("/restet")
        );
        assert_eq!(
            ChatCommand::parse("/etc/hosts is what?"),
            ChatCommand::Say("/etc/hosts is what?")
        );
    }
}
