//! Templates that clients send. A template is a program, so each one is rendered in its own process
//! with bounded time and memory.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::Stdio;
use std::time::Duration;

use penstock_request::error::{ApiError, ErrorKind};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Chat, ChatMessage, ChatTemplate, GenerationPrompt, TemplateVariable};

const NAME: &str = "chat_template";
/// The maximum size of a template in bytes.
pub const MOST_TEMPLATE: usize = 64 << 10;
/// The maximum size of a reply in bytes.
const MOST_REPLY: u64 = 16 << 20;
/// The maximum number of concurrent processes.
const MAX_PROCESSES: usize = 2;
/// The maximum wait for a permit to start a process.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum time of a process, including its start. The process itself sets a lower limit on its
/// CPU time.
const RENDER_TIMEOUT: Duration = Duration::from_secs(10);

/// How the server handles templates in requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RequestTemplates {
    /// The server refuses them.
    #[default]
    Refused,
    /// A process renders each one: this program with these arguments.
    Sandboxed(Vec<OsString>),
    /// This process renders them itself, because its owner is the only client.
    Trusted,
}

/// A renderer of requests' templates in separate processes.
#[derive(Debug)]
pub(crate) struct TemplateSandbox {
    templates: RequestTemplates,
    permits: Semaphore,
}

/// The input of a render process.
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

/// The output of a render process.
#[derive(Serialize, Deserialize)]
enum RenderReply {
    Text(String),
    Refused(String),
}

/// Renders a job in the sandbox process.
///
/// # Errors
/// If `job` is not valid.
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

/// Renders the prompt's text in this process. The error is a message for the client.
fn render_here(
    chat: &Chat,
    template: &str,
    special_tokens: Vec<(String, String)>,
) -> Result<String, String> {
    match ChatTemplate::new(template, special_tokens) {
        Ok(template) => template.render(chat).map_err(|error| error.message),
        Err(error) => Err(format!("it does not compile: {error}")),
    }
}

impl TemplateSandbox {
    pub(crate) fn new(templates: RequestTemplates) -> Self {
        Self {
            templates,
            permits: Semaphore::new(MAX_PROCESSES),
        }
    }

    /// Renders the chat with the template that came with it.
    pub(crate) async fn render(
        &self,
        chat: &Chat,
        template: &str,
        special_tokens: &[(String, String)],
    ) -> Result<String, ApiError> {
        let command = match &self.templates {
            RequestTemplates::Refused => &[][..],
            RequestTemplates::Sandboxed(command) => command,
            RequestTemplates::Trusted => {
                let text = render_here(chat, template, special_tokens.to_vec());
                return text.map_err(|why| refused(&why));
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
            tracing::warn!("failed to render a request's chat template: {error}");
            let message = format!("`{NAME}` could not be rendered; the server's log says why");
            ApiError::new(ErrorKind::Internal, message)
        };
        let job = RenderJob::new(chat, template, special_tokens);
        let job = serde_json::to_vec(&job).map_err(|error| failed(&error))?;
        let Ok(permit) = timeout(PERMIT_TIMEOUT, self.permits.acquire()).await else {
            let message = format!("too many requests have a `{NAME}`; send fewer at once");
            return Err(ApiError::new(ErrorKind::Overloaded, message).retry(PERMIT_TIMEOUT));
        };
        let reply = timeout(RENDER_TIMEOUT, run(program, arguments, &job)).await;
        drop(permit);
        match reply {
            Ok(Ok(reply)) => parse_reply(&reply),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => parse_reply(&[]),
        }
    }
}

/// Returns the output of the process, regardless of its exit status.
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
            // A process that ends before it reads its whole input writes no reply; the caller
            // handles that.
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
