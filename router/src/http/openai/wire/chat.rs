//! Body of `/v1/chat/completions`.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use utoipa::ToSchema;

use super::common::request;
use crate::chat::ChatMessage;
use crate::error::ApiError;
use crate::http::neutral::{self, Neutral};

request! {
    /// Body of `/v1/chat/completions`.
    ChatRequest {
        /// The conversation; not empty.
        messages: Vec<Message>,
        /// The newer name of `max_tokens`.
        max_completion_tokens: Option<u32>,
        /// Whether the model goes on with the last message. Default: if it is an assistant's.
        continue_final_message: Option<bool>,
        /// Whether an assistant's turn is opened. Default: unless the last message goes on.
        add_generation_prompt: Option<bool>,
        /// Has no effect on the answer.
        #[serde(rename = "metadata")]
        #[schema(value_type = Option<Object>)]
        _metadata: Option<IgnoredAny>,
        /// Has no effect on the answer: nothing is stored.
        #[serde(rename = "store")]
        #[schema(value_type = Option<bool>)]
        _store: Option<IgnoredAny>,
        /// Has no effect on the answer.
        #[serde(rename = "safety_identifier")]
        #[schema(value_type = Option<String>)]
        _safety_identifier: Option<IgnoredAny>,
        /// Has no effect on the answer.
        #[serde(rename = "prompt_cache_key")]
        #[schema(value_type = Option<String>)]
        _prompt_cache_key: Option<IgnoredAny>,
        /// Has no effect on the answer.
        #[serde(rename = "service_tier")]
        #[schema(value_type = Option<String>)]
        _service_tier: Option<IgnoredAny>,
        /// Has no effect without tools.
        #[serde(rename = "parallel_tool_calls")]
        #[schema(value_type = Option<bool>)]
        _parallel_tool_calls: Option<IgnoredAny>,
        /// Not offered yet; false is neutral.
        #[schema(value_type = Option<bool>)]
        logprobs: Option<Value>,
        /// Not offered yet; 0 is neutral.
        #[schema(value_type = Option<u32>)]
        top_logprobs: Option<Value>,
        /// Not offered yet; `[]` is neutral.
        #[schema(value_type = Option<Vec<Object>>)]
        tools: Option<Value>,
        /// Not offered yet; `none` and `auto` are neutral.
        #[schema(value_type = Option<String>)]
        tool_choice: Option<Value>,
        /// Not offered yet.
        #[schema(value_type = Option<String>)]
        tool_prompt: Option<Value>,
        /// Not offered yet; `[]` is neutral.
        #[schema(value_type = Option<Vec<Object>>)]
        functions: Option<Value>,
        /// Not offered yet; `none` and `auto` are neutral.
        #[schema(value_type = Option<String>)]
        function_call: Option<Value>,
        /// Not offered yet; `{"type":"text"}` is neutral.
        #[schema(value_type = Option<Object>)]
        response_format: Option<Value>,
        /// Not offered yet; `["text"]` is neutral.
        #[schema(value_type = Option<Vec<String>>)]
        modalities: Option<Value>,
        /// Not offered yet.
        #[schema(value_type = Option<Object>)]
        audio: Option<Value>,
        /// Not offered yet.
        #[schema(value_type = Option<Object>)]
        prediction: Option<Value>,
        /// Not offered yet.
        #[schema(value_type = Option<String>)]
        reasoning_effort: Option<Value>,
        /// Not offered yet.
        #[schema(value_type = Option<String>)]
        verbosity: Option<Value>,
        /// Not offered yet.
        #[schema(value_type = Option<Object>)]
        web_search_options: Option<Value>,
    }
}

/// One turn of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    /// Such as `system`, `user`, `assistant`, `tool`; the model's chat template decides.
    #[schema(example = "user")]
    role: String,
    /// A text, or a list of text parts; null only beside `tool_calls`.
    #[schema(value_type = Option<String>, example = "What is 12 + 30?")]
    content: Option<Content>,
    /// The speaker's name.
    name: Option<String>,
    /// Calls made by an assistant's turn.
    #[schema(value_type = Option<Vec<Object>>)]
    tool_calls: Option<Value>,
    /// Which call a tool's turn answers.
    tool_call_id: Option<String>,
    /// Sent back by clients; only null.
    #[schema(value_type = Option<String>)]
    refusal: Option<Value>,
    /// Sent back by clients; only null.
    #[schema(value_type = Option<Object>)]
    function_call: Option<Value>,
    /// Sent back by clients; only null.
    #[schema(value_type = Option<Object>)]
    audio: Option<Value>,
    /// Sent back by clients; only null or empty.
    #[schema(value_type = Option<Vec<Object>>)]
    annotations: Option<Value>,
}

/// What a turn says.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string or a list of parts with `type` and `text`"
)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    r#type: String,
    text: Option<String>,
}

impl ChatRequest {
    /// Refuses what is not offered yet.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        const CHOICE: Neutral = Neutral::Text(&["none", "auto"]);
        neutral::check(&[
            ("logprobs", &self.logprobs, Neutral::Bool(false)),
            ("top_logprobs", &self.top_logprobs, Neutral::Number(0.0)),
            ("tools", &self.tools, Neutral::Empty),
            ("tool_choice", &self.tool_choice, CHOICE),
            ("tool_prompt", &self.tool_prompt, Neutral::Null),
            ("functions", &self.functions, Neutral::Empty),
            ("function_call", &self.function_call, CHOICE),
            (
                "response_format",
                &self.response_format,
                Neutral::Json(r#"{"type":"text"}"#),
            ),
            ("modalities", &self.modalities, Neutral::Json(r#"["text"]"#)),
            ("audio", &self.audio, Neutral::Null),
            ("prediction", &self.prediction, Neutral::Null),
            ("reasoning_effort", &self.reasoning_effort, Neutral::Null),
            ("verbosity", &self.verbosity, Neutral::Null),
            (
                "web_search_options",
                &self.web_search_options,
                Neutral::Null,
            ),
        ])
    }
}

impl Message {
    /// The turn as templates see it. `index` is its place, for errors.
    pub(crate) fn into_turn(self, index: usize) -> Result<ChatMessage, ApiError> {
        let at =
            |rule: &str| ApiError::validation("messages", format!("`messages[{index}]` {rule}"));
        neutral::check(&[
            ("refusal", &self.refusal, Neutral::Null),
            ("function_call", &self.function_call, Neutral::Null),
            ("audio", &self.audio, Neutral::Null),
            ("annotations", &self.annotations, Neutral::Empty),
        ])
        .map_err(|error| at(&format!("has a field that {}", error.message)))?;
        if self.role.is_empty() {
            return Err(at("must have a `role`"));
        }
        let tool_calls = self
            .tool_calls
            .filter(|calls| !calls.is_null())
            .map(with_objects);
        let content = match self.content {
            None if tool_calls.is_none() => return Err(at("must have `content` or `tool_calls`")),
            None => None,
            Some(Content::Text(text)) => Some(text),
            Some(Content::Parts(parts)) => Some(join(parts).map_err(|rule| at(&rule))?),
        };
        let Self {
            role,
            name,
            tool_call_id,
            ..
        } = self;
        Ok(ChatMessage {
            role,
            content,
            name,
            tool_calls,
            tool_call_id,
        })
    }
}

fn join(parts: Vec<Part>) -> Result<String, String> {
    let texts =
        parts
            .into_iter()
            .enumerate()
            .map(|(i, part)| match (part.r#type.as_str(), part.text) {
                ("text", Some(text)) => Ok(text),
                ("text", None) => Err(format!("`content[{i}]` must have `text`")),
                (other, _) => Err(format!(
                    "`content[{i}].type` must be `text`: this model takes no `{other}`"
                )),
            });
    texts.collect()
}

/// Templates expect a call's arguments as an object; the wire has them as JSON in a string.
fn with_objects(mut calls: Value) -> Value {
    for call in calls.as_array_mut().into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else {
            continue;
        };
        let parsed = arguments
            .as_str()
            .and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(object) = parsed.filter(Value::is_object) {
            *arguments = object;
        }
    }
    calls
}
