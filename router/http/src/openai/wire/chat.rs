//! Body of `/v1/chat/completions`.

use penstock_request::error::{ApiError, Excerpt};
use penstock_request::logprobs::{LogprobRequest, TokenNames};
use penstock_text::chat::{ChatMessage, TemplateVariable};
use penstock_text::tool_parsers::ReasoningDisplay;
use serde::de::{Deserializer, Error, IgnoredAny};
use serde::{Deserialize, de};
use utoipa::ToSchema;

use super::common::{prompt_logprobs, request};
use super::requested_tools::{FunctionChoice, LegacyTools, RequestedTools, ToolCallIds};
use super::tools::{CalledFunction, FIELDS, Function, MessageCall, Tool, ToolChoice};
use crate::neutral::{self, Neutral, Neutrals};
use crate::strict::{self, JsonText, StringOrList, StringOrListEntry, from_object};

from_object!(Message, Part);

/// Maximum number of messages: more than a context holds.
pub(crate) const MOST_MESSAGES: usize = 1 << 16;
/// Maximum number of calls in a message.
pub(crate) const MOST_CALLS: usize = 1024;

/// Parameters that are not supported.
pub(crate) const NEUTRAL: Neutrals<6> = [
    ("modalities", Neutral::Json(r#"["text"]"#)),
    ("audio", Neutral::Null),
    ("prediction", Neutral::Null),
    ("web_search_options", Neutral::Null),
    ("add_special_tokens", Neutral::Json("false")),
    ("best_of", Neutral::Json("1")),
];

request! {
    /// Body of `/v1/chat/completions`.
    #[derive(Default)]
    ChatRequest {
        /// The conversation, not empty.
        #[serde(deserialize_with = "super::chat::messages")]
        messages: Vec<Message>,
        /// The newer name of `max_tokens`.
        max_completion_tokens: Option<u32>,
        /// Whether the output continues the last message. Default: true if that is an assistant's.
        continue_final_message: Option<bool>,
        /// Whether the prompt ends with the start of an assistant message. Default: true unless the
        /// output continues the last message.
        add_generation_prompt: Option<bool>,
        /// Has no effect on the output.
        #[serde(rename = "metadata")]
        #[schema(value_type = Option<Object>)]
        _metadata: Option<IgnoredAny>,
        /// Has no effect: chats are not stored.
        #[serde(rename = "store")]
        #[schema(value_type = Option<bool>)]
        _store: Option<IgnoredAny>,
        /// Has no effect on the output.
        #[serde(rename = "safety_identifier")]
        #[schema(value_type = Option<String>)]
        _safety_identifier: Option<IgnoredAny>,
        /// Has no effect on the output.
        #[serde(rename = "prompt_cache_key")]
        #[schema(value_type = Option<String>)]
        _prompt_cache_key: Option<IgnoredAny>,
        /// Has no effect on the output.
        #[serde(rename = "service_tier")]
        #[schema(value_type = Option<String>)]
        _service_tier: Option<IgnoredAny>,
        /// Tools that the model may call.
        #[serde(default, deserialize_with = "super::tools::tools")]
        tools: Option<Vec<Tool>>,
        /// `none`: ignore the tools. `auto`: the model decides. `required`: the output is one or
        /// more calls. A function, by its name or as an object: the output is a call of it. Default
        /// `auto`.
        #[schema(value_type = Option<String>, example = "auto")]
        tool_choice: Option<ToolChoice>,
        /// Whether an output may have several calls. Default true; always false with `functions`.
        parallel_tool_calls: Option<bool>,
        /// Additional variables of the chat template, such as `{"enable_thinking": false}`.
        #[schema(value_type = Option<Object>)]
        chat_template_kwargs: Option<JsonText>,
        /// Whether to return the logprobs of the output's tokens.
        logprobs: Option<bool>,
        /// 0 to 20: number of most likely tokens at each position whose logprobs are returned.
        /// Requires `logprobs`.
        top_logprobs: Option<u32>,
        /// 0 to 20: return the prompt's logprobs and those of this many most likely tokens at each
        /// position. -1: of the whole vocabulary, up to 1,048,576 logprobs in total. Not in a
        /// stream.
        prompt_logprobs: Option<i64>,
        /// Whether to return the token ids of prompt and output, as in vLLM.
        return_token_ids: Option<bool>,
        /// A chat template (Jinja) that replaces the model's, if the server allows it.
        chat_template: Option<String>,
        /// Introduction to the tools for chat templates without tools (TGI's name). Default: an
        /// explanation of the call format.
        tool_prompt: Option<String>,
        /// The older name of `tools`. The output then has at most one call, in `function_call`.
        #[serde(default, deserialize_with = "super::requested_tools::functions")]
        functions: Option<Vec<Function>>,
        /// The older name of `tool_choice`: `none`, `auto`, or an object with a function's name.
        #[schema(value_type = Option<String>, example = "auto")]
        function_call: Option<FunctionChoice>,
        /// Not supported; `["text"]` is neutral.
        #[schema(value_type = Option<Vec<String>>)]
        modalities: Option<JsonText>,
        /// Not supported.
        #[schema(value_type = Option<Object>)]
        audio: Option<JsonText>,
        /// Not supported.
        #[schema(value_type = Option<Object>)]
        prediction: Option<JsonText>,
        /// Reasoning effort, if the chat template uses it. Otherwise only neutral values: `medium`,
        /// and `none` if the model does not reason.
        reasoning_effort: Option<String>,
        /// Whether the model reasons first, if the chat template uses it. Otherwise only what the
        /// model does anyway.
        enable_thinking: Option<bool>,
        /// Documents to answer from (objects), if the chat template uses `documents`; otherwise
        /// refused.
        #[schema(value_type = Option<Vec<Object>>)]
        documents: Option<JsonText>,
        /// Not supported; false is neutral: the chat template writes special tokens.
        #[schema(value_type = Option<bool>)]
        add_special_tokens: Option<JsonText>,
        /// Whether to return the reasoning. Default true.
        include_reasoning: Option<bool>,
        /// Whether reasoning is separate from the content (SGLang's name). Default true; false
        /// leaves it in the content as the model wrote it.
        separate_reasoning: Option<bool>,
        /// Whether the content begins with that of the last message, if that is an assistant's.
        echo: Option<bool>,
        /// Not supported; 1 is neutral.
        #[schema(value_type = Option<u32>)]
        best_of: Option<JsonText>,
        /// Verbosity, if the chat template uses it. Otherwise only `medium`, which is neutral.
        verbosity: Option<String>,
        /// Not supported.
        #[schema(value_type = Option<Object>)]
        web_search_options: Option<JsonText>,
    }
}

/// A message of the conversation. Fields that are not listed have no effect, so an output may be
/// sent back with the fields that its server or client added.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", expecting = "a message (a JSON object)")]
pub(crate) struct Message {
    /// For example `system`, `user`, `assistant`, `tool` or its older name `function`. The model's
    /// chat template decides.
    #[schema(example = "user")]
    role: String,
    /// A text, or a list of text parts; null only beside calls.
    #[schema(value_type = Option<String>, example = "What is 12 + 30?")]
    content: Option<StringOrList<PartText>>,
    /// Name of the author.
    name: Option<String>,
    /// Reasoning of an assistant's message.
    reasoning_content: Option<String>,
    /// The newer name of `reasoning_content`, which takes precedence. Has no effect if it is not a
    /// string.
    #[schema(value_type = Option<String>)]
    reasoning: Option<JsonText>,
    /// Tool calls of an assistant's message.
    #[serde(default, deserialize_with = "super::chat::calls")]
    tool_calls: Option<Vec<MessageCall>>,
    /// The call whose result a `tool` message has. Default: the first call of the last assistant
    /// message with calls that has no result yet.
    tool_call_id: Option<String>,
    /// Text of an assistant's message instead of `content`.
    refusal: Option<String>,
    /// The call of an assistant's message, with the older name. Not with `tool_calls`.
    function_call: Option<CalledFunction>,
}

/// A part of a message. Fields that are not listed have no effect.
#[derive(Debug, Deserialize)]
#[serde(remote = "Self", expecting = "a part (a JSON object)")]
struct Part {
    r#type: String,
    text: Option<String>,
    refusal: Option<String>,
}

/// The supported types of parts; the text is in the field of the same name.
pub(crate) const TEXT: &str = "text";
pub(crate) const REFUSAL: &str = "refusal";

/// The text of a part.
#[derive(Debug)]
pub(crate) struct PartText(String);

fn messages<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Message>, D::Error> {
    strict::list::<MOST_MESSAGES, _, _>(from)
}

fn calls<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<MessageCall>>, D::Error> {
    strict::list_or_null::<MOST_CALLS, _, _>(from)
}

impl StringOrListEntry for PartText {
    const EXPECTED: &'static str = "a string or a list of parts with `type` and `text`";
    const MOST: usize = 1 << 14;
}

/// Returns the text of a JSON string.
fn text_of(json: Option<JsonText>) -> Option<String> {
    serde_json::from_str(json?.as_str()).ok()
}

/// Returns the text of a message, and the texts of its parts if it has parts.
fn text_and_parts(content: StringOrList<PartText>) -> (String, Vec<String>) {
    match content {
        StringOrList::Text(text) => (text, Vec::new()),
        StringOrList::List(parts) => {
            let parts: Vec<String> = parts.into_iter().map(|PartText(text)| text).collect();
            (parts.concat(), parts)
        }
    }
}

impl<'de> de::Deserialize<'de> for PartText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let part = <Part as de::Deserialize>::deserialize(from)?;
        match (part.r#type.as_str(), part.text, part.refusal) {
            (TEXT, Some(text), _) | (REFUSAL, _, Some(text)) => Ok(Self(text)),
            (TEXT, None, _) => Err(D::Error::missing_field(TEXT)),
            (REFUSAL, _, None) => Err(D::Error::missing_field(REFUSAL)),
            (other, ..) => Err(D::Error::custom(format_args!(
                "`type` must be `{TEXT}`: this model does not support `{}`",
                Excerpt::new(other)
            ))),
        }
    }
}

impl ChatRequest {
    /// Takes the tools and their options.
    pub(crate) fn take_tools(&mut self) -> Result<RequestedTools, ApiError> {
        let (tools, choice) = (self.tools.take(), self.tool_choice.take());
        let legacy = LegacyTools::new(self.functions.take(), self.function_call.take());
        if let Some(legacy) = legacy {
            let current = tools.is_some() || choice.is_some();
            return legacy.into_requested(current, self.parallel_tool_calls);
        }
        let tools = tools.unwrap_or_default().into_iter();
        Ok(RequestedTools {
            tools: tools.map(Into::into).collect(),
            choice,
            parallel: self.parallel_tool_calls,
            fields: FIELDS,
            legacy: false,
        })
    }

    /// Returns the logprobs that the request needs.
    pub(crate) fn logprob_request(&self) -> Result<LogprobRequest, ApiError> {
        let top = self.top_logprobs.unwrap_or(0);
        if top > 0 && self.logprobs != Some(true) {
            let rule =
                format!("`top_logprobs` is only allowed when `logprobs` is true. Given: {top}");
            return Err(ApiError::validation("top_logprobs", rule));
        }
        Ok(LogprobRequest {
            tokens: (self.logprobs == Some(true) || self.names_tokens()).then_some(top),
            echo: false,
            prompt: prompt_logprobs(self.prompt_logprobs, self.stream)?,
            ids: self.return_token_ids == Some(true),
            names: TokenNames::from_flag(self.return_tokens_as_token_ids),
        })
    }

    /// Returns where the response shows the reasoning.
    pub(crate) fn reasoning_visibility(&self) -> ReasoningDisplay {
        match (self.include_reasoning, self.separate_reasoning) {
            (Some(false), _) => ReasoningDisplay::Hidden,
            (_, Some(false)) => ReasoningDisplay::InContent,
            _ => ReasoningDisplay::Separate,
        }
    }

    /// Returns the variables that only some chat templates use. `thinks`: whether the model
    /// reasons.
    pub(crate) fn special_variables(
        &mut self,
        thinks: bool,
    ) -> Result<Vec<TemplateVariable>, ApiError> {
        let documents = self.documents.take().map(JsonText::into_string);
        let documents = documents.filter(|list| !matches!(list.as_str(), "null" | "[]"));
        if let Some(given) = documents.as_ref().filter(|list| !list.starts_with("[{")) {
            let given = Excerpt::new(given);
            let rule = format!("`documents` must be a list of objects. Given: {given}");
            return Err(ApiError::validation("documents", rule));
        }
        let given = [
            documents.map(|list| TemplateVariable::required("documents", list)),
            (self.reasoning_effort.take()).map(|effort| TemplateVariable::effort(&effort, thinks)),
            (self.enable_thinking).map(|wanted| TemplateVariable::thinking(wanted, thinks)),
            (self.verbosity.take()).map(|verbosity| TemplateVariable::verbosity(&verbosity)),
        ];
        Ok(given.into_iter().flatten().collect())
    }

    /// Drops the format if the output is only calls: it applies to text.
    pub(crate) fn drop_unused_format(&mut self) {
        let function = self.function_call.as_ref();
        let tool = self.tool_choice.as_ref();
        if tool.is_some_and(ToolChoice::forces) || function.is_some_and(FunctionChoice::forces) {
            self.response_format = None;
        }
    }

    /// Fails if a parameter is not supported.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        let values = [
            &self.modalities,
            &self.audio,
            &self.prediction,
            &self.web_search_options,
            &self.add_special_tokens,
            &self.best_of,
        ];
        neutral::check(&NEUTRAL, values)?;
        self.check_shared()
    }
}

impl Message {
    /// Converts messages for the chat template.
    pub(crate) fn into_turns(messages: Vec<Self>) -> Result<Vec<ChatMessage>, ApiError> {
        let mut known = ToolCallIds::default();
        let turns = messages.into_iter().enumerate();
        turns
            .map(|(index, message)| message.into_turn(index, &mut known))
            .collect()
    }

    /// Converts the message at `index` for the chat template.
    fn into_turn(self, index: usize, known: &mut ToolCallIds) -> Result<ChatMessage, ApiError> {
        let at =
            |rule: &str| ApiError::validation("messages", format!("`messages[{index}]` {rule}"));
        if self.role.is_empty() {
            return Err(at("must have a `role`"));
        }
        let mut calls = self.tool_calls.unwrap_or_default();
        if let Some(function) = self.function_call {
            if !calls.is_empty() {
                return Err(at("cannot have both `function_call` and `tool_calls`"));
            }
            let id = format!("call{index:05}");
            known.older = Some(id.clone());
            calls.push(MessageCall::new(function, id));
        }
        known.add_calls(&calls);
        let reasoning = self.reasoning_content.or_else(|| text_of(self.reasoning));
        // An output that ended during its reasoning has no text.
        let empty_content = (reasoning.is_some() && calls.is_empty()).then(String::new);
        let (content, parts) = self.content.map(text_and_parts).unzip();
        let content = content.or(self.refusal).or(empty_content);
        if content.is_none() && calls.is_empty() {
            return Err(at("must have `content`, `tool_calls` or `function_call`"));
        }
        let (role, answered) = match self.role.as_str() {
            "tool" => {
                let id = known.take_answered(self.tool_call_id);
                let id = id.ok_or_else(|| {
                    at("must have a `tool_call_id`: no call before it lacks a result")
                })?;
                (self.role, id)
            }
            // Chat templates know the newer role.
            "function" if self.name.is_none() => {
                return Err(at("must have a `name`: the function whose result it is"));
            }
            "function" => ("tool".to_owned(), self.tool_call_id.or(known.older.clone())),
            _ => (self.role, self.tool_call_id),
        };
        Ok(ChatMessage {
            role,
            content,
            parts: parts.unwrap_or_default(),
            reasoning_content: reasoning,
            name: self.name,
            tool_calls: (!calls.is_empty()).then(|| MessageCall::list_to_json(calls)),
            tool_call_id: answered,
        })
    }
}
