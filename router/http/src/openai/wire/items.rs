//! Items of a conversation in `/v1/responses`.

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny};
use utoipa::ToSchema;

use crate::strict::{ObjectOnly, StringOrList, StringOrListEntry, from_object};

from_object!(Item);

/// An item. Its type decides which fields apply; others have no effect, so the items of a
/// response's `output` may be sent back unchanged.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = InputItem)]
#[serde(remote = "Self", expecting = "an item (a JSON object)")]
pub(crate) struct Item {
    /// The item's type. Default: a message.
    #[schema(inline)]
    pub(crate) r#type: Option<ItemKind>,
    /// For a message: its author.
    #[schema(inline)]
    pub(crate) role: Option<Role>,
    /// For a message or `reasoning`: a text, or a list of text parts.
    #[schema(value_type = Option<String>)]
    pub(crate) content: Option<StringOrList<Part>>,
    /// Whether the item is complete. The output continues an assistant's message that is last and
    /// `incomplete`.
    #[schema(inline)]
    pub(crate) status: Option<Status>,
    /// For `function_call` and its `function_call_output`: the call's id.
    pub(crate) call_id: Option<String>,
    /// For `function_call`: the function's name.
    pub(crate) name: Option<String>,
    /// For `function_call`: the arguments as JSON.
    pub(crate) arguments: Option<String>,
    /// For `function_call_output`: a text, or a list of text parts.
    #[schema(value_type = Option<String>)]
    pub(crate) output: Option<StringOrList<Part>>,
    /// Has no effect.
    #[serde(rename = "id")]
    #[schema(value_type = Option<String>)]
    _id: Option<IgnoredAny>,
    /// For `reasoning`. Has no effect: `content` has the reasoning.
    #[serde(rename = "summary")]
    #[schema(value_type = Option<Vec<Object>>)]
    _summary: Option<IgnoredAny>,
    /// For `reasoning`. Has no effect: `content` has the reasoning.
    #[serde(rename = "encrypted_content")]
    #[schema(value_type = Option<String>)]
    _encrypted_content: Option<IgnoredAny>,
    /// For a message. Has no effect.
    #[serde(rename = "phase")]
    #[schema(value_type = Option<String>)]
    _phase: Option<IgnoredAny>,
}

/// The type of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemKind {
    /// A message.
    #[default]
    Message,
    /// A function call of the model.
    FunctionCall,
    /// The result of a function call.
    FunctionCallOutput,
    /// Reasoning of the model.
    Reasoning,
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    User,
    Assistant,
    System,
    Developer,
}

/// Whether an item is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Completed,
    Incomplete,
    InProgress,
}

/// A part of a text. Fields that are not listed have no effect.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = InputPart)]
#[serde(remote = "Self", expecting = "a part (a JSON object)")]
pub(crate) struct Part {
    /// `input_text` for input, `output_text` for a response's text, `refusal` for text instead of
    /// that, `reasoning_text` for reasoning.
    #[schema(inline)]
    r#type: PartKind,
    /// The text, for all types except `refusal`.
    text: Option<String>,
    /// The text of a `refusal`.
    refusal: Option<String>,
    /// Has no effect.
    #[serde(rename = "annotations")]
    #[schema(value_type = Option<Vec<Object>>)]
    _annotations: Option<IgnoredAny>,
    /// Has no effect.
    #[serde(rename = "logprobs")]
    #[schema(value_type = Option<Vec<Object>>)]
    _logprobs: Option<IgnoredAny>,
    /// Has no effect: prefixes are always cached.
    #[serde(rename = "prompt_cache_breakpoint")]
    #[schema(value_type = Option<Object>)]
    _prompt_cache_breakpoint: Option<IgnoredAny>,
}

/// The type of a part: all are text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
pub(crate) enum PartKind {
    #[serde(rename = "input_text")]
    Input,
    #[serde(rename = "output_text")]
    Output,
    #[serde(rename = "reasoning_text")]
    Reasoning,
    #[serde(rename = "refusal")]
    Refusal,
}

impl StringOrListEntry for Item {
    const EXPECTED: &'static str = "a string or a list of items";
    const MOST: usize = super::chat::MOST_MESSAGES;
}

impl StringOrListEntry for Part {
    const EXPECTED: &'static str = "a string or a list of parts with `type` and `text`";
    const MOST: usize = 1 << 14;
}

impl Item {
    /// Returns the item's type.
    pub(crate) fn kind(&self) -> ItemKind {
        self.r#type.unwrap_or_default()
    }
}

/// Returns a text, or the joined texts of its parts.
pub(crate) fn joined(content: StringOrList<Part>) -> String {
    match content {
        StringOrList::Text(text) => text,
        StringOrList::List(parts) => parts.into_iter().filter_map(Part::into_text).collect(),
    }
}

impl Part {
    /// Returns the part's text.
    pub(crate) fn text(&self) -> &str {
        let text = match self.r#type {
            PartKind::Refusal => &self.refusal,
            _ => &self.text,
        };
        text.as_deref().unwrap_or_default()
    }

    fn into_text(self) -> Option<String> {
        match self.r#type {
            PartKind::Refusal => self.refusal,
            _ => self.text,
        }
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let part = Self::deserialize(ObjectOnly(from))?;
        match part {
            Self {
                r#type: PartKind::Refusal,
                refusal: None,
                ..
            } => Err(D::Error::missing_field("refusal")),
            Self {
                r#type: PartKind::Refusal,
                ..
            }
            | Self { text: Some(_), .. } => Ok(part),
            Self { text: None, .. } => Err(D::Error::missing_field("text")),
        }
    }
}
