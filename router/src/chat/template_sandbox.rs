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

use super::{Chat, ChatMessage, ChatTemplate, GenerationPrompt, TemplateVariable};
use crate::error::{ApiError, ErrorKind};

const NAME: &str = "chat_template";
/// Bytes of a template.
pub(crate) const MOST_TEMPLATE: usize = 64 << 10;
/// Bytes of a reply.
const MOST_REPLY: u64 = 16 << 20;
/// Processes at once.
const MAX_PROCESSES: usize = 2;
/// For one of their turns.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(10);
/// For one of them, its start included; it allows itself less processor time.
const RENDER_TIMEOUT: Duration = Duration::from_secs(10);

/// What becomes of templates that requests bring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RequestTemplates {
    /// They are refused.
    #[default]
    Refused,
    /// Each is rendered by a process: this program, with these arguments.
    Sandboxed(Vec<OsString>),
    /// Whoever sends requests owns this process: it renders them itself.
    Trusted,
}

/// Starts the processes.
#[derive(Debug)]
pub(crate) struct TemplateSandbox {
    templates: RequestTemplates,
    permits: Semaphore,
}

/// What such a process reads.
#[derive(Serialize, Deserialize)]
struct RenderJob {
    template: String,
    special_tokens: Vec<(String, String)>,
    messages: Vec<ChatMessage>,
    generation_prompt: GenerationPrompt,
    system: Option<String>,
    tools: Option<String>,
    tool_prompt: Option<String>,
    variables: Option<String>,
    optional_variables: Vec<TemplateVariable>,
}

/// What it writes.
#[derive(Serialize, Deserialize)]
enum RenderReply {
    Text(String),
    Refused(String),
}

/// Does a job, in the process that is there for it.
///
/// # Errors
/// If it is none.
pub fn render_job(job: &str) -> Result<String, serde_json::Error> {
    let RenderJob {
        template,
        special_tokens,
        messages,
        generation_prompt,
        system,
        tools,
        tool_prompt,
        variables,
        optional_variables,
    } = serde_json::from_str(job)?;
    let chat = Chat {
        messages,
        generation_prompt,
        system: system.map(Into::into),
        tools,
        tool_prompt,
        variables,
        optional_variables,
        ..Chat::default()
    };
    let text = render_here(&chat, &template, special_tokens);
    serde_json::to_string(&text.map_or_else(RenderReply::Refused, RenderReply::Text))
}

/// The prompt's text, or what is wrong.
fn render_here(
    chat: &Chat,
    template: &str,
    special_tokens: Vec<(String, String)>,
) -> Result<String, String> {
    match ChatTemplate::new(template, special_tokens) {
        Ok(template) => template.render(chat).map_err(|error| error.message),
        Err(error) => Err(format!("it cannot be read: {error}")),
    }
}

impl TemplateSandbox {
    pub(crate) fn new(templates: RequestTemplates) -> Self {
        Self {
            templates,
            permits: Semaphore::new(MAX_PROCESSES),
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
            RequestTemplates::Refused => &[][..],
            RequestTemplates::Sandboxed(command) => command,
            RequestTemplates::Trusted => {
                let text = render_here(chat, template, special_tokens.to_vec());
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
        let job = RenderJob::new(chat, template, special_tokens);
        let job = serde_json::to_vec(&job).map_err(|error| failed(&error))?;
        let Ok(permit) = timeout(PERMIT_TIMEOUT, self.permits.acquire()).await else {
            let message = format!("too many requests bring a `{NAME}`");
            return Err(ApiError::new(ErrorKind::Overloaded, message).retry(PERMIT_TIMEOUT));
        };
        let reply = timeout(RENDER_TIMEOUT, run(program, arguments, &job)).await;
        drop(permit);
        match reply {
            Ok(Ok(reply)) => parse_reply(&reply).map(Some),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => parse_reply(&[]).map(Some),
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

fn parse_reply(reply: &[u8]) -> Result<String, ApiError> {
    match serde_json::from_slice(reply) {
        Ok(RenderReply::Text(text)) => Ok(text),
        Ok(RenderReply::Refused(why)) => Err(refused(&why)),
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

impl RenderJob {
    fn new(chat: &Chat, template: &str, special_tokens: &[(String, String)]) -> Self {
        Self {
            template: template.to_owned(),
            special_tokens: special_tokens.to_vec(),
            messages: chat.messages.clone(),
            generation_prompt: chat.generation_prompt,
            system: chat.system.as_deref().map(str::to_owned),
            tools: chat.tools.clone(),
            tool_prompt: chat.tool_prompt.clone(),
            variables: chat.variables.clone(),
            optional_variables: chat.optional_variables.clone(),
        }
    }
}
