//! The router's part of the resolved configuration, handed down by the launcher.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use crate::chat::RequestTemplates;
use crate::logits_processors::Watermark;
use crate::logprobs::MAX_TOP_LOGPROBS;
use crate::tool_parsers::{ReasoningFormat, ToolFormat};

/// One thread writes some 100,000 tokens per second; several shorten the time that the streams of one
/// step are written in.
const MAX_SERVING_THREADS: usize = 4;

/// Limits and facts of the text and HTTP layers. Every field is set by the launcher.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// Name of the model as answers and `/info` tell it.
    pub model_id: String,
    /// More names of the same model: listed and accepted like `model_id`.
    pub more_model_ids: Vec<String>,
    /// Revision of the model's files, shown by `/info`.
    pub model_revision: Option<String>,
    /// Largest request body; a larger one is refused with 413.
    pub max_body_bytes: usize,
    /// Bytes of all bodies that are held at once, until their prompts are token ids; more are refused
    /// with 429. What is parsed from a body can take a few times its bytes for a moment.
    pub max_held_body_bytes: usize,
    /// Longest time from a request's first byte to the end of its headers.
    pub header_timeout: Duration,
    /// Longest time in which a body must have arrived.
    pub body_timeout: Duration,
    /// Longest time in which a client may take nothing of its answer; then the connection ends.
    pub write_timeout: Duration,
    /// Open connections. For one more, the one that is idle for the longest is closed; if none is idle,
    /// one of the spare ones is taken.
    pub max_connections: usize,
    /// Connections beyond that bound which are answered: health checks and metrics as ever, anything
    /// else with 503. More are closed.
    pub spare_connections: usize,
    /// Stop strings per request.
    pub max_stop_sequences: usize,
    /// Prompts per completion request.
    pub max_client_batch_size: usize,
    /// Answers to one prompt: the largest `n` and `best_of`.
    pub max_best_of: u32,
    /// Alternatives that are told of one token: at most `logprobs::MAX_TOP_LOGPROBS`.
    pub max_top_tokens: u32,
    /// Whether answers may be asked to keep to a grammar.
    pub structured_output: bool,
    /// Tokens of a prompt; `None` = whatever the context leaves.
    pub max_input_tokens: Option<usize>,
    /// Prompt and answer together; `None` = the model's and the KV pool's limit.
    pub max_total_tokens: Option<usize>,
    /// Threads that serve connections.
    pub serving_threads: NonZeroUsize,
    /// Threads that render templates and tokenize.
    pub tokenizer_threads: NonZeroUsize,
    /// Prompts waiting for those threads; more are refused with 429.
    pub tokenizer_queue: usize,
    /// A comment is sent on a stream that was silent for this long.
    pub keep_alive: Duration,
    /// Which web pages may call the server.
    pub cors: Cors,
    /// Bytes of stored responses; 0 = none is stored.
    pub response_store: usize,
    /// What requests that want a watermark get.
    pub watermark: Watermark,
    /// What the system says in a chat without a system turn; shown by `/info`.
    pub system_prompt: Option<Arc<str>>,
    /// What becomes of chat templates that requests bring.
    pub templates: RequestTemplates,
    /// How the model writes tool calls.
    pub tool_format: Format<ToolFormat>,
    /// How the model writes its thoughts.
    pub reasoning_format: Format<ReasoningFormat>,
}

/// A format of a model's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format<T> {
    /// Whichever the chat template shows, if any.
    #[default]
    Auto,
    /// None: the text is left as it is.
    Off,
    /// This one.
    Fixed(T),
}

/// Which web pages may call the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cors {
    /// Any origin.
    Any,
    /// These origins, such as `https://chat.example.org`.
    Origins(Vec<String>),
}

impl RouterConfig {
    /// The defaults, for a model called `model_id`.
    pub fn new(model_id: impl Into<String>) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, NonZeroUsize::get);
        Self {
            model_id: model_id.into(),
            more_model_ids: Vec::new(),
            model_revision: None,
            max_body_bytes: 8 << 20,
            max_held_body_bytes: 256 << 20,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            max_connections: 8192,
            spare_connections: 64,
            max_stop_sequences: 16,
            max_client_batch_size: 32,
            max_best_of: 32,
            max_top_tokens: MAX_TOP_LOGPROBS,
            structured_output: true,
            max_input_tokens: None,
            max_total_tokens: None,
            serving_threads: NonZeroUsize::new(cores.min(MAX_SERVING_THREADS))
                .unwrap_or(NonZeroUsize::MIN),
            tokenizer_threads: NonZeroUsize::new(cores.div_ceil(2).min(16))
                .unwrap_or(NonZeroUsize::MIN),
            tokenizer_queue: 1024,
            keep_alive: Duration::from_secs(15),
            cors: Cors::Any,
            response_store: 64 << 20,
            watermark: Watermark::default(),
            system_prompt: None,
            templates: RequestTemplates::Refused,
            tool_format: Format::Auto,
            reasoning_format: Format::Auto,
        }
    }
}

impl RouterConfig {
    /// The names that the model is served by; the first is that of answers.
    pub fn served_names(&self) -> impl Iterator<Item = &str> {
        let more = self.more_model_ids.iter().map(String::as_str);
        std::iter::once(self.model_id.as_str()).chain(more)
    }

    /// The served name that a client means: the one it sent, or the first for an alias.
    pub(crate) fn served_name(&self, asked: &str) -> &str {
        let mut names = self.served_names();
        names.find(|name| *name == asked).unwrap_or(&self.model_id)
    }
}

impl<T: Copy> Format<T> {
    /// The format that counts; `template` is the chat template, which `find` looks into.
    pub(crate) fn resolve(
        self,
        template: Option<&str>,
        find: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        match self {
            Self::Auto => template.and_then(find),
            Self::Off => None,
            Self::Fixed(format) => Some(format),
        }
    }
}
