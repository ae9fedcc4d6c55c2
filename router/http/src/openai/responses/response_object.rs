//! The response object, as OpenAI's clients expect it.

use penstock_request::error::{ApiError, ErrorKind, Excerpt};
use serde::Serialize;
use utoipa::ToSchema;

use super::store::StoredItem;
use crate::blocks::Block;
use crate::ids::unique;
use crate::openai::logprobs::ChatToken;

/// A response of `/v1/responses`: the output, and the request's parameters.
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

/// The output and its state.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ResponseState)]
pub(crate) struct ResponseState {
    /// Unique id that cannot be guessed.
    pub(super) id: String,
    /// Always `response`.
    pub(super) object: &'static str,
    /// Unix time in seconds.
    pub(super) created_at: u64,
    /// Unix time in seconds, once completed.
    pub(super) completed_at: Option<u64>,
    /// Whether the output is complete.
    #[schema(inline)]
    pub(super) status: Status,
    /// The error that ended a stream.
    pub(super) error: Option<ResponseError>,
    /// Why the output is incomplete.
    pub(super) incomplete_details: Option<IncompleteDetails>,
    /// The served model.
    pub(super) model: String,
    /// Reasoning, text and calls, in the order of generation.
    pub(super) output: Vec<OutputItem>,
    /// Whether the response is stored, or will be once it is complete.
    pub(super) store: bool,
    /// Token counts; null until the end.
    pub(super) usage: Option<ResponseUsage>,
}

/// Whether an output or an item is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// An error.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ResponseError {
    /// `server_error` or `rate_limit_exceeded`.
    code: &'static str,
    /// The message.
    message: String,
}

/// Why a response is incomplete.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct IncompleteDetails {
    /// Always `max_output_tokens`.
    reason: &'static str,
}

/// A part of an output.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    /// Reasoning.
    Reasoning {
        /// Unique.
        id: String,
        /// Always empty: reasoning is returned unchanged.
        #[schema(value_type = Vec<Object>)]
        summary: [(); 0],
        /// One part, once it has begun.
        content: Vec<OutputPart>,
        /// Whether the item is complete.
        #[schema(inline)]
        status: Status,
    },
    /// Text.
    Message {
        /// Unique.
        id: String,
        /// Always `assistant`.
        role: &'static str,
        /// One part, once it has begun.
        content: Vec<OutputPart>,
        /// Whether the item is complete.
        #[schema(inline)]
        status: Status,
    },
    /// A function call.
    FunctionCall {
        /// Unique.
        id: String,
        /// The id that a `function_call_output` refers to.
        call_id: String,
        /// The function's name.
        name: String,
        /// Arguments as JSON, unchanged from the model.
        arguments: String,
        /// Whether the item is complete.
        #[schema(inline)]
        status: Status,
    },
}

/// A text of an item.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputPart {
    /// Text of a reasoning item.
    ReasoningText {
        /// The text.
        text: String,
    },
    /// Text of a message.
    OutputText {
        /// Always empty.
        #[schema(value_type = Vec<Object>)]
        annotations: [(); 0],
        /// The text.
        text: String,
        /// Logprobs of its tokens, if requested.
        logprobs: Vec<ChatToken>,
    },
}

/// Token counts of a response.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct ResponseUsage {
    /// Prompt tokens.
    pub(super) input_tokens: usize,
    /// Breakdown of the prompt tokens.
    pub(super) input_tokens_details: InputDetails,
    /// Output tokens, end tokens included.
    pub(super) output_tokens: u32,
    /// Breakdown of the output tokens.
    pub(super) output_tokens_details: OutputDetails,
    /// Prompt and output tokens.
    pub(super) total_tokens: usize,
}

/// The length of a prompt.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct InputTokens {
    /// Always `response.input_tokens`.
    object: &'static str,
    /// Number of tokens.
    input_tokens: usize,
}

/// Breakdown of prompt tokens.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct InputDetails {
    /// Tokens found in the prefix cache.
    cached_tokens: usize,
    /// Always 0: not counted per request.
    cache_write_tokens: usize,
}

/// Breakdown of output tokens.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(crate) struct OutputDetails {
    /// Tokens before the first one that shows text or a call.
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
    /// Creates the breakdown of a prompt with this many tokens in the prefix cache.
    pub(super) fn cached(cached_tokens: usize) -> Self {
        Self {
            cached_tokens,
            ..Self::default()
        }
    }
}

impl OutputItem {
    /// Creates an item when its block begins.
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

    /// Converts the item for the store.
    pub(super) fn to_stored(&self) -> StoredItem {
        StoredItem {
            id: self.id().to_owned(),
            // An item of texts and plain structs always serializes.
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

    /// Returns the types of the events that send a delta of its text and the complete text.
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

    /// Returns its text part, once begun; a call has none.
    pub(super) fn part(&self) -> Option<&OutputPart> {
        match self {
            Self::Reasoning { content, .. } | Self::Message { content, .. } => content.first(),
            Self::FunctionCall { .. } => None,
        }
    }

    /// Returns the logprobs of its text; reasoning and calls have none.
    pub(super) fn logprobs(&self) -> Option<&[ChatToken]> {
        match self.part()? {
            OutputPart::OutputText { logprobs, .. } => Some(logprobs),
            OutputPart::ReasoningText { .. } => None,
        }
    }

    /// Begins its text part.
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

    /// Extends its text or its arguments.
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
