//! Body of `/v1/completions`.

use penstock_request::error::ApiError;
use penstock_request::logprobs::{LogprobRequest, TokenNames};
use penstock_request::validate::Parameters;
use penstock_text::Prompt;
use penstock_text::tokenize::SpecialTokens;

use super::common::{prompt_logprobs, request};
use super::one_or_many::WirePrompt;

request! {
    /// Body of `/v1/completions`.
    CompletionRequest {
        /// A text, a list of texts, a list of token ids, or a list of such lists.
        #[serde(deserialize_with = "super::one_or_many::prompts")]
        #[schema(value_type = String, example = "Once upon a time")]
        prompt: Vec<WirePrompt>,
        /// Number of candidates to generate, at least `n`; the `n` with the highest mean logprob
        /// are returned. With `stream`, it must equal `n`. With beam search: the beam width.
        best_of: Option<u32>,
        /// Whether the text begins with the prompt; then `max_tokens` may be 0.
        echo: Option<bool>,
        /// 0 to 20: return the logprobs of the output's tokens, and of this many most likely tokens
        /// at each position. With `echo`, those of the prompt too.
        logprobs: Option<u32>,
        /// 0 to 20: return the prompt's logprobs and those of this many most likely tokens at each
        /// position. -1: of the whole vocabulary, up to 1,048,576 logprobs in total. Not in a
        /// stream.
        prompt_logprobs: Option<i64>,
        /// Whether to return the token ids of prompt and output, as in vLLM.
        return_token_ids: Option<bool>,
        /// Whether the tokenizer adds special tokens such as BOS to a text. Default true.
        add_special_tokens: Option<bool>,
        /// The text after the output, for code models whose tokenizer has fill-in-the-middle
        /// tokens. Only with text prompts, without `echo` and `truncate_prompt_tokens`.
        suffix: Option<String>,
    }
}

impl CompletionRequest {
    /// Applies `best_of`, which chats do not have. With beam search it is the width.
    pub(crate) fn apply_best_of(&self, parameters: &mut Parameters) {
        match &mut parameters.beam {
            Some(beam) => beam.width = self.beam_width.or(self.best_of).unwrap_or(beam.width),
            None => parameters.choices.best_of = self.best_of,
        }
    }

    /// Fails if a parameter is not supported.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        let suffix = self.suffix.as_ref().filter(|text| !text.is_empty());
        let beside = [
            ("echo", self.echo == Some(true)),
            (
                "truncate_prompt_tokens",
                self.truncate_prompt_tokens.is_some(),
            ),
        ];
        if let Some((name, _)) = beside.iter().find(|(_, given)| *given)
            && suffix.is_some()
        {
            let rule = format!("`suffix` cannot go with `{name}`");
            return Err(ApiError::validation("suffix", rule));
        }
        self.check_shared()
    }

    /// Returns the prompts, each with the suffix.
    pub(crate) fn prompts(&mut self) -> Result<Vec<Prompt>, ApiError> {
        let special = self.special_tokens();
        let suffix = self.suffix.take().filter(|text| !text.is_empty());
        let prompts = std::mem::take(&mut self.prompt).into_iter();
        let prompt = |prompt| match (prompt, &suffix) {
            (WirePrompt::Text(prefix), Some(suffix)) => Ok(Prompt::Infill {
                prefix,
                suffix: suffix.clone(),
                special,
            }),
            (WirePrompt::Ids(_), Some(_)) => {
                let rule = "`suffix` needs a `prompt` that is a text, not token ids";
                Err(ApiError::validation("suffix", rule))
            }
            (WirePrompt::Text(text), None) => Ok(Prompt::Text(text, special)),
            (WirePrompt::Ids(ids), None) => Ok(Prompt::Ids(ids)),
        };
        prompts.map(prompt).collect()
    }

    /// Returns whether special tokens are added to texts.
    pub(crate) fn special_tokens(&self) -> SpecialTokens {
        match self.add_special_tokens {
            Some(false) => SpecialTokens::AsIs,
            _ => SpecialTokens::Add,
        }
    }

    /// Returns the logprobs that the request needs.
    pub(crate) fn logprob_request(&self) -> Result<LogprobRequest, ApiError> {
        Ok(LogprobRequest {
            tokens: self.logprobs.or(self.names_tokens().then_some(0)),
            echo: self.echo == Some(true),
            prompt: prompt_logprobs(self.prompt_logprobs, self.stream)?,
            ids: self.return_token_ids == Some(true),
            names: TokenNames::from_flag(self.return_tokens_as_token_ids),
        })
    }
}
