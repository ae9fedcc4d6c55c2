//! Settings of the text layer; set by the launcher.

use std::num::NonZeroUsize;
use std::sync::Arc;

use penstock_request::RequestLimits;

use crate::chat::RequestTemplates;
use crate::tool_parsers::{ReasoningFormat, ToolFormat};

/// Settings of the text layer. The launcher sets every field.
#[derive(Clone, Debug)]
pub struct TextConfig {
    /// Limits of requests.
    pub limits: RequestLimits,
    /// Threads that render templates and tokenize.
    pub tokenizer_threads: NonZeroUsize,
    /// Maximum prompts waiting for those threads; more are refused with 429.
    pub tokenizer_queue: usize,
    /// System prompt of chats without a system message; shown by `/info`.
    pub system_prompt: Option<Arc<str>>,
    /// How to treat chat templates in requests.
    pub templates: RequestTemplates,
    /// Format of the model's tool calls.
    pub tool_format: Format<ToolFormat>,
    /// Format of the model's reasoning.
    pub reasoning_format: Format<ReasoningFormat>,
}

/// A format of the model's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format<T> {
    /// The format that the chat template uses, if any.
    #[default]
    Auto,
    /// No format: the text stays as it is.
    Off,
    /// This format.
    Fixed(T),
}

impl Default for TextConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, NonZeroUsize::get);
        Self {
            limits: RequestLimits::default(),
            tokenizer_threads: NonZeroUsize::new(cores.div_ceil(2).min(16))
                .unwrap_or(NonZeroUsize::MIN),
            tokenizer_queue: 1024,
            system_prompt: None,
            templates: RequestTemplates::Refused,
            tool_format: Format::Auto,
            reasoning_format: Format::Auto,
        }
    }
}

impl<T: Copy> Format<T> {
    /// Returns the effective format; `find` detects it in the chat template `template`.
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
