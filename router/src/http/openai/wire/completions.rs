//! Body of `/v1/completions`.

use super::common::{prompt_logprobs, request};
use super::one_or_many::WirePrompt;
use crate::error::ApiError;
use crate::logprobs::{LogprobRequest, TokenNames};
use crate::tokenize::SpecialTokens;
use crate::validate::{Parameters, Prompt};

request! {
    /// Body of `/v1/completions`.
    CompletionRequest {
        /// A text, a list of texts, a list of token ids, or a list of such lists.
        #[serde(deserialize_with = "super::one_or_many::prompts")]
        #[schema(value_type = String, example = "Once upon a time")]
        prompt: Vec<WirePrompt>,
        /// At least `n`: so many answers are made, and the `n` of them with the highest mean
        /// log-probability are told. Not with `stream`, unless it equals `n`. With beam search: its width.
        best_of: Option<u32>,
        /// Put the prompt before the answer; `max_tokens` may be 0 then.
        echo: Option<bool>,
        /// 0 to 20: tell the tokens' log-probabilities, and those of so many likely ones in the place
        /// of each; with `echo`, of the prompt's tokens too.
        logprobs: Option<u32>,
        /// 0 to 20: the same of the prompt's tokens by themselves. -1: of the whole vocabulary in the place
        /// of each, up to 1,048,576 log-probabilities. Not in a stream.
        prompt_logprobs: Option<i64>,
        /// Tell the ids of the tokens of prompt and answer, too, as vLLM does.
        return_token_ids: Option<bool>,
        /// Whether a text gets the special tokens that the tokenizer puts around it, such as one for its
        /// beginning. Default true.
        add_special_tokens: Option<bool>,
        /// What stands after the answer, for models of code whose tokenizer has tokens for filling in the
        /// middle. Goes with prompts that are texts, without `echo` and `truncate_prompt_tokens`.
        suffix: Option<String>,
    }
}

impl CompletionRequest {
    /// Adds what it says of `best_of`, which chats do not have: of beam search it is the width.
    pub(crate) fn apply_best_of(&self, parameters: &mut Parameters) {
        match &mut parameters.beam {
            Some(beam) => beam.width = self.beam_width.or(self.best_of).unwrap_or(beam.width),
            None => parameters.choices.best_of = self.best_of,
        }
    }

    /// Refuses what is not offered yet.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        let suffix = self.suffix.as_ref().filter(|text| !text.is_empty());
        let beside = [
            ("echo", self.echo == Some(true)),
            (
                "truncate_prompt_tokens",
                self.truncate_prompt_tokens.is_some(),
            ),
        ];
        if let Some((name, _)) = beside.iter().find(|(_, asked)| *asked)
            && suffix.is_some()
        {
            let rule = format!("`suffix` cannot go with `{name}`");
            return Err(ApiError::validation("suffix", rule));
        }
        self.check_shared()
    }

    /// The prompts, each with the suffix.
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

    /// Which special tokens a text gets.
    pub(crate) fn special_tokens(&self) -> SpecialTokens {
        match self.add_special_tokens {
            Some(false) => SpecialTokens::AsIs,
            _ => SpecialTokens::Add,
        }
    }

    /// What is to be told of probabilities.
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
