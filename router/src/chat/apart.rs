//! Templates that clients send. A template is a program: it is rendered by a process of its own, whose
//! time and memory are bounded, and which ends with it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Chat, ChatMessage, ChatTemplate, Turn, Variable};
use crate::error::{ApiError, ErrorKind};

const NAME: &str = "chat_template";
/// Bytes of a template.
pub(crate) const MOST_TEMPLATE: usize = 64 << 10;
/// Bytes of a reply.
const MOST_REPLY: u64 = 16 << 20;
/// Processes at once.
const AT_ONCE: usize = 2;
/// For one of their turns.
const WAIT: Duration = Duration::from_secs(10);
/// For one of them, its start included; it allows itself less processor time.
const RENDER: Duration = Duration::from_secs(10);

/// What becomes of templates that requests bring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Templates {
    /// They are refused.
    #[default]
    Refused,
    /// Each is rendered by a process: this program, with these arguments.
    Apart(Vec<OsString>),
    /// Whoever sends requests owns this process: it renders them itself.
    Trusted,
}

/// Starts the processes.
#[derive(Debug)]
pub(crate) struct Renderer {
    templates: Templates,
    turns: Semaphore,
}

/// What such a process reads.
#[derive(Serialize, Deserialize)]
struct Job {
    template: String,
    special_tokens: Vec<(String, String)>,
    messages: Vec<ChatMessage>,
    turn: Turn,
    system: Option<String>,
    tools: Option<String>,
    tool_prompt: Option<String>,
    variables: Option<String>,
    special: Vec<Variable>,
}

/// What it writes.
#[derive(Serialize, Deserialize)]
enum Reply {
    Text(String),
    Refused(String),
}

/// Does a job, in the process that is there for it.
///
/// # Errors
/// If it is none.
pub fn render_job(job: &str) -> Result<String, serde_json::Error> {
    let Job {
        template,
        special_tokens,
        messages,
        turn,
        system,
        tools,
        tool_prompt,
        variables,
        special,
    } = serde_json::from_str(job)?;
    let chat = Chat {
        messages,
        turn,
        system: system.map(Into::into),
        tools,
        tool_prompt,
        variables,
        special,
        ..Chat::default()
    };
    let text = rendered(&chat, &template, special_tokens);
    serde_json::to_string(&text.map_or_else(Reply::Refused, Reply::Text))
}

/// The prompt's text, or what is wrong.
fn rendered(
    chat: &Chat,
    template: &str,
    special_tokens: Vec<(String, String)>,
) -> Result<String, String> {
    match ChatTemplate::new(template, special_tokens) {
        Ok(template) => template.render(chat).map_err(|error| error.message),
        Err(error) => Err(format!("it cannot be read: {error}")),
    }
}

impl Renderer {
    pub(crate) fn new(templates: Templates) -> Self {
        Self {
            templates,
            turns: Semaphore::new(AT_ONCE),
        }
    }

    /// The prompt's text by the template that the chat brings; `None` if it brings none.
    pub(crate) async fn render(
        &self,
        chat: &Chat,
        special_tokens: &[(String, String)],
    ) -> Result<Option<String>, ApiError> {
        let Some(template) = &chat.template else {
            return Ok(None);
        };
        let command = match &self.templates {
            Templates::Refused => &[][..],
            Templates::Apart(command) => command,
            Templates::Trusted => {
                let text = rendered(chat, template, special_tokens.to_vec());
                return text.map(Some).map_err(|why| refused(&why));
            }
        };
        let Some((program, arguments)) = command.split_first() else {
            let rule = format!("`{NAME}` is not offered by this server");
            return Err(ApiError::validation(NAME, rule));
        };
        let given = template.len();
        if given > MOST_TEMPLATE {
            let rule = format!("`{NAME}` must have at most {MOST_TEMPLATE} bytes. Given: {given}");
            return Err(ApiError::validation(NAME, rule));
        }
        let failed = |error: &dyn std::fmt::Display| {
            tracing::warn!("a chat template of a request could not be rendered: {error}");
            let message = format!("`{NAME}` could not be rendered; the server's log says why");
            ApiError::new(ErrorKind::Internal, message)
        };
        let job = Job::of(chat, template, special_tokens);
        let job = serde_json::to_vec(&job).map_err(|error| failed(&error))?;
        let Ok(turn) = timeout(WAIT, self.turns.acquire()).await else {
            let message = format!("too many requests bring a `{NAME}`");
            return Err(ApiError::new(ErrorKind::Overloaded, message).retry(WAIT));
        };
        let reply = timeout(RENDER, run(program, arguments, &job)).await;
        drop(turn);
        match reply {
            Ok(Ok(reply)) => told(&reply).map(Some),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => told(&[]).map(Some),
        }
    }
}

/// What the process has written, whatever became of it.
async fn run(program: &OsStr, arguments: &[OsString], job: &[u8]) -> io::Result<Vec<u8>> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let write = async move {
        if let Some(mut stdin) = stdin {
            // One that ends before it has read all has nothing to say either.
            let _ = stdin.write_all(job).await;
        }
    };
    let mut reply = Vec::new();
    let read = async {
        match stdout {
            Some(stdout) => stdout.take(MOST_REPLY).read_to_end(&mut reply).await,
            None => Ok(0),
        }
    };
    let ((), read) = tokio::join!(write, read);
    read?;
    Ok(reply)
}

fn told(reply: &[u8]) -> Result<String, ApiError> {
    match serde_json::from_slice(reply) {
        Ok(Reply::Text(text)) => Ok(text),
        Ok(Reply::Refused(why)) => Err(refused(&why)),
        Err(_) => Err(wrong("takes too much time or memory, or writes too much")),
    }
}

fn refused(why: &str) -> ApiError {
    wrong(&format!("cannot be used: {why}"))
}

fn wrong(what: &str) -> ApiError {
    ApiError {
        param: Some(NAME.into()),
        ..ApiError::new(ErrorKind::Template, format!("`{NAME}` {what}"))
    }
}

impl Job {
    fn of(chat: &Chat, template: &str, special_tokens: &[(String, String)]) -> Self {
        Self {
            template: template.to_owned(),
            special_tokens: special_tokens.to_vec(),
            messages: chat.messages.clone(),
            turn: chat.turn,
            system: chat.system.as_deref().map(str::to_owned),
            tools: chat.tools.clone(),
            tool_prompt: chat.tool_prompt.clone(),
            variables: chat.variables.clone(),
            special: chat.special.clone(),
        }
    }
}
