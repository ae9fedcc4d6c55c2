//! Body of `/v1/completions`.

use super::common::request;
use super::one_or_many::WirePrompt;
use crate::error::ApiError;
use crate::http::neutral::{self, Neutral};
use crate::http::strict::JsonText;

request! {
    /// Body of `/v1/completions`.
    CompletionRequest {
        /// A text, a list of texts, a list of token ids, or a list of such lists.
        #[serde(deserialize_with = "super::one_or_many::prompts")]
        #[schema(value_type = String, example = "Once upon a time")]
        prompt: Vec<WirePrompt>,
        /// At least `n`: so many answers are made, and the `n` of them with the highest mean
        /// log-probability are told. Not with `stream`, unless it equals `n`.
        best_of: Option<u32>,
        /// Not offered yet; false is neutral.
        #[schema(value_type = Option<bool>)]
        echo: Option<JsonText>,
        /// Not offered yet.
        #[schema(value_type = Option<u32>)]
        logprobs: Option<JsonText>,
        /// Not offered yet; the empty string is neutral.
        #[schema(value_type = Option<String>)]
        suffix: Option<JsonText>,
    }
}

impl CompletionRequest {
    /// Refuses what is not offered yet.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        neutral::check(&[
            ("echo", &self.echo, Neutral::Bool(false)),
            ("logprobs", &self.logprobs, Neutral::Null),
            ("suffix", &self.suffix, Neutral::Text(&[""])),
        ])
    }
}
