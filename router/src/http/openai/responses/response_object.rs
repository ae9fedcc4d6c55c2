//! Responses as OpenAI's clients expect them.

use serde::Serialize;
use utoipa::ToSchema;

use super::store::StoredItem;
use crate::error::{ApiError, ErrorKind, Excerpt};
use crate::http::blocks::Block;
use crate::http::ids::unique;
use crate::http::openai::logprobs::ChatToken;

/// An answer of `/v1/responses`: what was made, and what was asked for.
#[derive(Serialize, ToSchema)]
#[allow(
    dead_code,
    reason = "both parts are written one after the other; here for the schema"
)]
pub(crate) struct ResponseObject {
    #[serde(flatten)]
    state: ResponseState,
    #[serde(flatten)]
    echo: super::request_echo::RequestEchoFields,
}

/// What a response tells of the answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ResponseState)]
pub(crate) struct ResponseState {
    /// Unique, and nobody can guess it.
    pub(super) id: String,
    /// Always `response`.
    pub(super) object: &'static str,
    /// Unix time in seconds.
    pub(super) created_at: u64,
    /// Unix time in seconds, once it is complete.
    pub(super) completed_at: Option<u64>,
    /// Whether it is whole.
    #[schema(inline)]
    pub(super) status: Status,
    /// What went wrong in the middle of a stream.
    pub(super) error: Option<ResponseError>,
    /// Why it is not whole.
    pub(super) incomplete_details: Option<IncompleteDetails>,
    /// The served model.
    pub(super) model: String,
    /// Thoughts, text and calls, in the order in which the model wrote them.
    pub(super) output: Vec<OutputItem>,
    /// Whether it is stored, or will be when it is whole.
    pub(super) store: bool,
    /// What it cost; null until it has ended.
    pub(super) usage: Option<ResponseUsage>,
}

/// Whether something is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ResponseError {
    /// `server_error` or `rate_limit_exceeded`.
    code: &'static str,
    /// In words.
    message: String,
}

/// Why a response is not whole.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct IncompleteDetails {
    /// Always `max_output_tokens`.
    reason: &'static str,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    /// What the model thought.
    Reasoning {
        /// Unique.
        id: String,
        /// Always empty: thoughts are told as they are.
        #[schema(value_type = Vec<Object>)]
        summary: [(); 0],
        /// One text, once it has begun.
        content: Vec<OutputPart>,
        /// Whether it is whole.
        #[schema(inline)]
        status: Status,
    },
    /// What the model says.
    Message {
        /// Unique.
        id: String,
        /// Always `assistant`.
        role: &'static str,
        /// One text, once it has begun.
        content: Vec<OutputPart>,
        /// Whether it is whole.
        #[schema(inline)]
        status: Status,
    },
    /// A call of a function.
    FunctionCall {
        /// Unique.
        id: String,
        /// What a `function_call_output` names.
        call_id: String,
        /// The function.
        name: String,
        /// Its arguments as JSON, as the model wrote them.
        arguments: String,
        /// Whether it is whole.
        #[schema(inline)]
        status: Status,
    },
}

/// A text in an item.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputPart {
    /// Of `reasoning`.
    ReasoningText {
        /// The text.
        text: String,
    },
    /// Of a message.
    OutputText {
        /// Always empty.
        #[schema(value_type = Vec<Object>)]
        annotations: [(); 0],
        /// The text.
        text: String,
        /// Of its tokens, if asked for.
        logprobs: Vec<ChatToken>,
    },
}

/// What a response cost.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct ResponseUsage {
    /// Tokens of the prompt.
    pub(super) input_tokens: usize,
    /// Of these.
    pub(super) input_tokens_details: InputDetails,
    /// Tokens of the answer, end tokens included.
    pub(super) output_tokens: u32,
    /// Of these.
    pub(super) output_tokens_details: OutputDetails,
    /// Both.
    pub(super) total_tokens: usize,
}

/// How long a prompt is.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct InputTokens {
    /// Always `response.input_tokens`.
    object: &'static str,
    /// Tokens.
    input_tokens: usize,
}

/// Tokens of a prompt, by what was done with them.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct InputDetails {
    /// Found in the prefix cache: computed for an earlier request.
    cached_tokens: usize,
    /// Always 0: it is not counted by request.
    cache_write_tokens: usize,
}

/// Tokens of an answer, by what they say.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct OutputDetails {
    /// Tokens before the first that shows something else than thoughts.
    pub(super) reasoning_tokens: u32,
}

impl InputTokens {
    pub(super) fn new(input_tokens: usize) -> Self {
        Self {
            object: "response.input_tokens",
            input_tokens,
        }
    }
}

impl InputDetails {
    /// Of a prompt of which so many tokens were found in the prefix cache.
    pub(super) fn cached(cached_tokens: usize) -> Self {
        Self {
            cached_tokens,
            ..Self::default()
        }
    }
}

impl OutputItem {
    /// An item that begins.
    pub(super) fn from_block(block: Block) -> Self {
        let status = Status::InProgress;
        match block {
            Block::Reasoning => Self::Reasoning {
                id: unique("rs_"),
                summary: [],
                content: Vec::new(),
                status,
            },
            Block::Text => Self::Message {
                id: unique("msg_"),
                role: "assistant",
                content: Vec::new(),
                status,
            },
            Block::Call { id, name } => Self::FunctionCall {
                id: unique("fc_"),
                call_id: id,
                name,
                arguments: String::new(),
                status,
            },
        }
    }

    /// The item, to be stored.
    pub(super) fn to_stored(&self) -> StoredItem {
        StoredItem {
            id: self.id().to_owned(),
            // An item always has JSON: texts and plain structs.
            json: serde_json::to_string(self).unwrap_or_default(),
        }
    }

    pub(super) fn id(&self) -> &str {
        let (Self::Reasoning { id, .. } | Self::Message { id, .. } | Self::FunctionCall { id, .. }) =
            self;
        id
    }

    pub(super) fn status(&mut self) -> &mut Status {
        let (Self::Reasoning { status, .. }
        | Self::Message { status, .. }
        | Self::FunctionCall { status, .. }) = self;
        status
    }

    /// The types of the events that bring more of its text, and all of it.
    pub(super) fn names(&self) -> (&'static str, &'static str) {
        match self {
            Self::Reasoning { .. } => (
                "response.reasoning_text.delta",
                "response.reasoning_text.done",
            ),
            Self::Message { .. } => ("response.output_text.delta", "response.output_text.done"),
            Self::FunctionCall { .. } => (
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
            ),
        }
    }

    /// Its text, once that has begun; a call has none.
    pub(super) fn part(&self) -> Option<&OutputPart> {
        match self {
            Self::Reasoning { content, .. } | Self::Message { content, .. } => content.first(),
            Self::FunctionCall { .. } => None,
        }
    }

    /// Of its text's tokens; thoughts and calls have none.
    pub(super) fn logprobs(&self) -> Option<&[ChatToken]> {
        match self.part()? {
            OutputPart::OutputText { logprobs, .. } => Some(logprobs),
            OutputPart::ReasoningText { .. } => None,
        }
    }

    /// Begins its text.
    pub(super) fn begin_part(&mut self) {
        let text = String::new();
        match self {
            Self::Reasoning { content, .. } => content.push(OutputPart::ReasoningText { text }),
            Self::Message { content, .. } => content.push(OutputPart::OutputText {
                annotations: [],
                text,
                logprobs: Vec::new(),
            }),
            Self::FunctionCall { .. } => {}
        }
    }

    /// Adds to its text, or to its arguments.
    pub(super) fn add(&mut self, more: &str, tokens: Vec<ChatToken>) {
        match self {
            Self::FunctionCall { arguments, .. } => arguments.push_str(more),
            Self::Reasoning { content, .. } | Self::Message { content, .. } => {
                match content.first_mut() {
                    Some(OutputPart::ReasoningText { text }) => text.push_str(more),
                    Some(OutputPart::OutputText { text, logprobs, .. }) => {
                        text.push_str(more);
                        logprobs.extend(tokens);
                    }
                    None => {}
                }
            }
        }
    }
}

impl OutputPart {
    pub(super) fn text(&self) -> &str {
        let (Self::ReasoningText { text } | Self::OutputText { text, .. }) = self;
        text
    }
}

impl IncompleteDetails {
    pub(super) const MAX_OUTPUT_TOKENS: Self = Self {
        reason: "max_output_tokens",
    };
}

impl From<&ApiError> for ResponseError {
    fn from(error: &ApiError) -> Self {
        Self {
            code: match error.kind {
                ErrorKind::Overloaded => "rate_limit_exceeded",
                _ => "server_error",
            },
            message: Excerpt::of_message(&error.message).to_string(),
        }
    }
}
