//! What tells the chunks of a chat from those of a completion.

use super::wire::StreamUsage;

/// Which kind of chunk a stream has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkKind {
    /// `chat.completion.chunk`
    Chat,
    /// `text_completion`
    Text,
}

impl ChunkKind {
    /// What the ids of such answers begin with.
    pub(super) fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Text => "cmpl",
        }
    }

    /// The field `object` of a chunk.
    pub(super) fn object(self) -> &'static str {
        match self {
            Self::Chat => "chat.completion.chunk",
            Self::Text => "text_completion",
        }
    }

    /// What a chunk has before its text.
    pub(super) fn before_text(self) -> &'static str {
        match self {
            Self::Chat => "\"delta\":{\"content\":",
            Self::Text => "\"text\":",
        }
    }

    /// The same in the first chunk of an answer, where a chat tells the role.
    pub(super) fn before_first_text(self) -> &'static str {
        match self {
            Self::Chat => "\"delta\":{\"role\":\"assistant\",\"content\":",
            Self::Text => self.before_text(),
        }
    }

    /// What a chunk's tail has before the log-probabilities.
    pub(super) fn before_logprobs(self) -> &'static str {
        match self {
            Self::Chat => "},\"logprobs\":",
            Self::Text => ",\"logprobs\":",
        }
    }

    /// What a chunk has after its text.
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
