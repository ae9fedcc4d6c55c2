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
        /// Not offered yet; 1 is neutral.
        #[schema(value_type = Option<u32>)]
        best_of: Option<JsonText>,
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
            ("best_of", &self.best_of, Neutral::Number(1.0)),
            ("echo", &self.echo, Neutral::Bool(false)),
            ("logprobs", &self.logprobs, Neutral::Null),
            ("suffix", &self.suffix, Neutral::Text(&[""])),
        ])
    }
}
