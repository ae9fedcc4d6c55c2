//! The differences between chunks of a chat and of a completion.

use super::wire::StreamUsage;

/// The kind of a stream's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkKind {
    /// `chat.completion.chunk`
    Chat,
    /// `text_completion`
    Text,
}

impl ChunkKind {
    /// Returns the prefix of response ids.
    pub(super) fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Text => "cmpl",
        }
    }

    /// Returns the field `object` of a chunk.
    pub(super) fn object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion.chunk",
            Self::Text => "text_completion",
        }
    }

    /// Returns the part of a choice's JSON before its text.
    pub(super) fn before_text(self) -> &'static str {
        match self {
            Self::Chat => "\"delta\":{\"content\":",
            Self::Text => "\"text\":",
        }
    }

    /// Returns the part before the first text of a choice, where a chat sends the role.
    pub(super) fn before_first_text(self) -> &'static str {
        match self {
            Self::Chat => "\"delta\":{\"role\":\"assistant\",\"content\":",
            Self::Text => self.before_text(),
        }
    }

    /// Returns the start of the tail, up to the value of `logprobs`.
    pub(super) fn before_logprobs(self) -> &'static str {
        match self {
            Self::Chat => "},\"logprobs\":",
            Self::Text => ",\"logprobs\":",
        }
    }

    /// Returns the tail: the part of a chunk after its text.
    pub(super) fn tail(self, usage: StreamUsage) -> &'static [u8] {
        match (self, usage == StreamUsage::AtEnd) {
            (Self::Chat, false) => b"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
            (Self::Chat, true) => {
                b"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n"
            }
            (Self::Text, false) => b",\"logprobs\":null,\"finish_reason\":null}]}\n\n",
            (Self::Text, true) => {
                b",\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n"
            }
        }
    }
}
