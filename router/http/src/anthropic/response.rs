//! JSON of the responses to Anthropic's clients.

use penstock_text::generation::{FinishReason, GenerationFacts};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::parsed_output::{Call, ParsedOutput};

/// A complete message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessageResponse {
    /// Unique id.
    pub(super) id: String,
    /// Always `message`.
    pub(super) r#type: &'static str,
    /// Always `assistant`.
    pub(super) role: &'static str,
    /// The served model.
    pub(super) model: String,
    /// Blocks: first reasoning, then text, then tool calls.
    #[schema(value_type = Vec<Object>)]
    pub(super) content: Vec<Value>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`; null while it streams.
    pub(super) stop_reason: Option<&'static str>,
    /// The stop sequence that ended the output.
    pub(super) stop_sequence: Option<String>,
    /// Token counts.
    pub(super) usage: Usage,
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
#[schema(as = AnthropicUsage)]
pub(crate) struct Usage {
    /// Prompt tokens that were not in the prefix cache.
    pub(super) input_tokens: usize,
    /// Prompt tokens that were in the prefix cache. Together with `input_tokens` the whole prompt.
    pub(super) cache_read_input_tokens: usize,
    /// Always 0: all computed blocks are cached.
    pub(super) cache_creation_input_tokens: usize,
    /// Output tokens, end tokens included.
    pub(super) output_tokens: u32,
}

/// The length of a prompt.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct TokenCount {
    /// Number of tokens.
    pub(super) input_tokens: usize,
}

impl Usage {
    pub(super) fn from_facts(facts: &GenerationFacts) -> Self {
        Self {
            input_tokens: facts.prompt_tokens - facts.cached_tokens,
            cache_read_input_tokens: facts.cached_tokens,
            cache_creation_input_tokens: 0,
            output_tokens: facts.generated_tokens,
        }
    }
}

/// Returns Anthropic's name of a finish reason.
pub(super) fn stop_reason(reason: FinishReason, calls: bool) -> &'static str {
    match reason {
        FinishReason::Length => "max_tokens",
        _ if calls => "tool_use",
        FinishReason::StopToken => "end_turn",
        FinishReason::StopString => "stop_sequence",
    }
}

/// Returns the blocks of an output.
pub(super) fn blocks(answer: ParsedOutput) -> Vec<Value> {
    let mut blocks = Vec::new();
    if !answer.reasoning.is_empty() {
        blocks.push(json!({"type": "thinking", "thinking": answer.reasoning, "signature": ""}));
    }
    if !answer.content.is_empty() {
        blocks.push(json!({"type": "text", "text": answer.content}));
    }
    blocks.extend(answer.calls.into_iter().map(tool_use));
    blocks
}

/// Returns the block of a tool call. `input` must be an object, so arguments that were cut off go
/// into its field `incomplete_json`.
fn tool_use(call: Call) -> Value {
    let input: Map<String, Value> = serde_json::from_str(&call.arguments).unwrap_or_else(|_| {
        let cut = ("incomplete_json".to_owned(), Value::from(call.arguments));
        Map::from_iter([cut])
    });
    json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
}
