//! Body of `/v1/chat/completions`.

use serde::de::{Deserializer, Error, IgnoredAny};
use serde::{Deserialize, de};
use utoipa::ToSchema;

use super::common::{prompt_logprobs, request};
use super::functions::{FunctionChoice, RequestedTools, ToolRequestFields};
use super::tool_call_ids::ToolCallIds;
use super::tools::{CalledFunction, Function, MessageCall, Tool, ToolChoice};
use crate::chat::{ChatMessage, TemplateVariable};
use crate::error::{ApiError, Excerpt};
use crate::http::neutral::{self, Neutral, Neutrals};
use crate::http::strict::{self, JsonText, StringOrList, StringOrListEntry, from_object};
use crate::logprobs::{LogprobRequest, TokenNames};
use crate::tool_parsers::ReasoningDisplay;

from_object!(Message, Part);

/// Messages that are read: more than a context has room for.
pub(crate) const MOST_MESSAGES: usize = 1 << 16;
/// Calls of one message.
pub(crate) const MOST_CALLS: usize = 1024;

/// Not offered yet.
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
        /// The conversation; not empty.
        #[serde(deserialize_with = "super::chat::messages")]
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
        /// Tools that the model may call.
        #[serde(default, deserialize_with = "super::tools::tools")]
        tools: Option<Vec<Tool>>,
        /// `none`: as if there were no tools. `auto`: the model decides. `required`: the answer is one
        /// call or more. A function, by its name or as an object: a call of that. Default `auto`.
        #[schema(value_type = Option<String>, example = "auto")]
        tool_choice: Option<ToolChoice>,
        /// Whether one answer may have several calls. Default true; never with `functions`.
        parallel_tool_calls: Option<bool>,
        /// More variables of the chat template, such as `{"enable_thinking": false}`.
        #[schema(value_type = Option<Object>)]
        chat_template_kwargs: Option<JsonText>,
        /// Tell the tokens' log-probabilities.
        logprobs: Option<bool>,
        /// 0 to 20, only with `logprobs`: those of so many likely tokens in the place of each, too.
        top_logprobs: Option<u32>,
        /// 0 to 20: the same of the prompt's tokens by themselves. -1: of the whole vocabulary in the place
        /// of each, up to 1,048,576 log-probabilities. Not in a stream.
        prompt_logprobs: Option<i64>,
        /// Tell the ids of the tokens of prompt and answer, too, as vLLM does.
        return_token_ids: Option<bool>,
        /// A chat template (Jinja) in place of the model's, unless the server refuses them.
        chat_template: Option<String>,
        /// What introduces the tools where the chat template knows none (TGI's name). Default: how
        /// to call them.
        tool_prompt: Option<String>,
        /// The older name of `tools`: the answer then tells one call at most, as `function_call`.
        #[serde(default, deserialize_with = "super::functions::functions")]
        functions: Option<Vec<Function>>,
        /// The older name of `tool_choice`: `none`, `auto`, or an object with a function's name.
        #[schema(value_type = Option<String>, example = "auto")]
        function_call: Option<FunctionChoice>,
        /// Not offered yet; `["text"]` is neutral.
        #[schema(value_type = Option<Vec<String>>)]
        modalities: Option<JsonText>,
        /// Not offered yet.
        #[schema(value_type = Option<Object>)]
        audio: Option<JsonText>,
        /// Not offered yet.
        #[schema(value_type = Option<Object>)]
        prediction: Option<JsonText>,
        /// How much the model is to think, where its chat template speaks of that. Elsewhere only what
        /// changes nothing: `medium`, and `none` where the model shows no thoughts.
        reasoning_effort: Option<String>,
        /// Whether the model thinks first, where its chat template speaks of that. Elsewhere only what
        /// it does anyway.
        enable_thinking: Option<bool>,
        /// Texts to answer from (objects), where the chat template speaks of `documents`; refused elsewhere.
        #[schema(value_type = Option<Vec<Object>>)]
        documents: Option<JsonText>,
        /// Not offered yet; false is neutral: the chat template writes special tokens.
        #[schema(value_type = Option<bool>)]
        add_special_tokens: Option<JsonText>,
        /// Whether thoughts are told. Default true.
        include_reasoning: Option<bool>,
        /// Whether thoughts are told apart from the content (SGLang's name). Default true; with false
        /// they stand in the content as the model wrote them.
        separate_reasoning: Option<bool>,
        /// Begin the answer's content with that of the last message, if that is an assistant's.
        echo: Option<bool>,
        /// Not offered yet; 1 is neutral.
        #[schema(value_type = Option<u32>)]
        best_of: Option<JsonText>,
        /// How much the model is to say, where its chat template speaks of that. Elsewhere only
        /// `medium`, which changes nothing.
        verbosity: Option<String>,
        /// Not offered yet.
        #[schema(value_type = Option<Object>)]
        web_search_options: Option<JsonText>,
    }
}

/// One turn of a conversation. Fields that are not listed have no effect: an answer may be sent back as
/// it is, with what its server or a client has added.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", expecting = "a message (a JSON object)")]
pub(crate) struct Message {
    /// Such as `system`, `user`, `assistant`, `tool` (or, by its older name, `function`); the model's
    /// chat template decides.
    #[schema(example = "user")]
    role: String,
    /// A text, or a list of text parts; null only beside calls.
    #[schema(value_type = Option<String>, example = "What is 12 + 30?")]
    content: Option<StringOrList<PartText>>,
    /// The speaker's name.
    name: Option<String>,
    /// What the model thought before an assistant's turn.
    reasoning_content: Option<String>,
    /// The newer name of `reasoning_content`, which counts if both are there. Has no effect if it is not a
    /// string.
    #[schema(value_type = Option<String>)]
    reasoning: Option<JsonText>,
    /// Calls made by an assistant's turn.
    #[serde(default, deserialize_with = "super::chat::calls")]
    tool_calls: Option<Vec<MessageCall>>,
    /// Which call a tool's turn answers; without it the first one of the turn before that is not answered yet.
    tool_call_id: Option<String>,
    /// What an assistant's turn said in place of `content`.
    refusal: Option<String>,
    /// The call of an assistant's turn, by the older name; without `tool_calls`.
    function_call: Option<CalledFunction>,
}

/// One part of a turn. Fields that are not listed have no effect.
#[derive(Debug, Deserialize)]
#[serde(remote = "Self", expecting = "a part (a JSON object)")]
struct Part {
    r#type: String,
    text: Option<String>,
    refusal: Option<String>,
}

/// The types of parts that are offered; the text is in the field of the same name.
pub(crate) const TEXT: &str = "text";
pub(crate) const REFUSAL: &str = "refusal";

/// A part's text.
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

/// The text of a JSON string.
fn text_of(json: Option<JsonText>) -> Option<String> {
    serde_json::from_str(json?.as_str()).ok()
}

/// What a turn says, and the texts of its parts if it came in parts.
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
                "`type` must be `{TEXT}`: this model takes no `{}`",
                Excerpt::new(other)
            ))),
        }
    }
}

impl ChatRequest {
    /// Takes the tools, and what is to be done with them.
    pub(crate) fn take_tools(&mut self) -> Result<RequestedTools, ApiError> {
        RequestedTools::from_fields(ToolRequestFields {
            tools: self.tools.take(),
            choice: self.tool_choice.take(),
            parallel: self.parallel_tool_calls,
            functions: self.functions.take(),
            function_call: self.function_call.take(),
        })
    }

    /// What is to be told of probabilities.
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

    /// Where the answer shows its thoughts.
    pub(crate) fn reasoning_visibility(&self) -> ReasoningDisplay {
        match (self.include_reasoning, self.separate_reasoning) {
            (Some(false), _) => ReasoningDisplay::Hidden,
            (_, Some(false)) => ReasoningDisplay::InContent,
            _ => ReasoningDisplay::Separate,
        }
    }

    /// Variables that only some chat templates speak of. `thinks`: whether the model shows thoughts.
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

    /// A format is that of an answer's text: one of nothing but calls has none.
    pub(crate) fn drop_unused_format(&mut self) {
        let function = self.function_call.as_ref();
        let tool = self.tool_choice.as_ref();
        if tool.is_some_and(ToolChoice::forces) || function.is_some_and(FunctionChoice::forces) {
            self.response_format = None;
        }
    }

    /// Refuses what is not offered yet.
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
    /// The turns as templates see them.
    pub(crate) fn into_turns(messages: Vec<Self>) -> Result<Vec<ChatMessage>, ApiError> {
        let mut known = ToolCallIds::default();
        let turns = messages.into_iter().enumerate();
        turns
            .map(|(index, message)| message.into_turn(index, &mut known))
            .collect()
    }

    /// The turn as templates see it. `index` is its place.
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
        // An answer that ended in its thoughts says nothing.
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
                    at("must have a `tool_call_id`: no call before it waits for an answer")
                })?;
                (self.role, id)
            }
            // The older name of the role: templates know the newer one.
            "function" if self.name.is_none() => {
                return Err(at("must have a `name`: which function it answers"));
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
