//! Items of a conversation, as `/v1/responses` takes them.

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny};
use utoipa::ToSchema;

use crate::http::strict::{ObjectOnly, StringOrList, StringOrListEntry, from_object};

from_object!(Item);

/// One item; which fields it has follows from its type. What a response has in its `output` may be
/// sent back as it is: fields that are not listed have no effect.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = InputItem)]
#[serde(remote = "Self", expecting = "an item (a JSON object)")]
pub(crate) struct Item {
    /// What it is. Default: a message.
    #[schema(inline)]
    pub(crate) r#type: Option<ItemKind>,
    /// Of a message: who says it.
    #[schema(inline)]
    pub(crate) role: Option<Role>,
    /// Of a message, or of `reasoning`: a text, or a list of text parts.
    #[schema(value_type = Option<String>)]
    pub(crate) content: Option<StringOrList<Part>>,
    /// Whether it is whole. An assistant's message that is last and `incomplete` is gone on with.
    #[schema(inline)]
    pub(crate) status: Option<Status>,
    /// Of `function_call`, and of the `function_call_output` that answers it.
    pub(crate) call_id: Option<String>,
    /// Of `function_call`: the function.
    pub(crate) name: Option<String>,
    /// Of `function_call`: JSON.
    pub(crate) arguments: Option<String>,
    /// Of `function_call_output`: a text, or a list of text parts.
    #[schema(value_type = Option<String>)]
    pub(crate) output: Option<StringOrList<Part>>,
    /// Has no effect.
    #[serde(rename = "id")]
    #[schema(value_type = Option<String>)]
    _id: Option<IgnoredAny>,
    /// Of `reasoning`: has no effect, `content` has the thoughts.
    #[serde(rename = "summary")]
    #[schema(value_type = Option<Vec<Object>>)]
    _summary: Option<IgnoredAny>,
    /// Of `reasoning`: has no effect, `content` has the thoughts.
    #[serde(rename = "encrypted_content")]
    #[schema(value_type = Option<String>)]
    _encrypted_content: Option<IgnoredAny>,
    /// Of a message: has no effect.
    #[serde(rename = "phase")]
    #[schema(value_type = Option<String>)]
    _phase: Option<IgnoredAny>,
}

/// What an item is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemKind {
    /// What somebody says.
    #[default]
    Message,
    /// A call that the model made.
    FunctionCall,
    /// What the function gave.
    FunctionCallOutput,
    /// What the model thought.
    Reasoning,
}

/// Who says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    User,
    Assistant,
    System,
    Developer,
}

/// Whether an item is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Completed,
    Incomplete,
    InProgress,
}

/// One part of a text. Fields that are not listed have no effect.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = InputPart)]
#[serde(remote = "Self", expecting = "a part (a JSON object)")]
pub(crate) struct Part {
    /// All are text: `input_text` for what goes in, `output_text` for what a response said, `refusal` for
    /// what it said in place of that, `reasoning_text` for what the model thought.
    #[schema(inline)]
    r#type: PartKind,
    /// The text, of all types but `refusal`.
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
    /// Has no effect: prefixes are cached anyway.
    #[serde(rename = "prompt_cache_breakpoint")]
    #[schema(value_type = Option<Object>)]
    _prompt_cache_breakpoint: Option<IgnoredAny>,
}

/// What a part is: this model takes and gives nothing but text.
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
    /// What it is.
    pub(crate) fn kind(&self) -> ItemKind {
        self.r#type.unwrap_or_default()
    }
}

/// A text, or the texts of its parts.
pub(crate) fn joined(content: StringOrList<Part>) -> String {
    match content {
        StringOrList::Text(text) => text,
        StringOrList::List(parts) => parts.into_iter().filter_map(Part::into_text).collect(),
    }
}

impl Part {
    /// What it says.
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
