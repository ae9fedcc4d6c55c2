//! Tokenizing and detokenizing for routes that generate nothing.

use std::sync::Arc;

use penstock_request::error::{ApiError, ErrorKind};
use penstock_request::validate::{FieldNames, TokenLimits, too_long};

use super::{Generator, prompt_text};
use crate::chat::Chat;
use crate::input::Charge;
use crate::model_text::ModelText;
use crate::tokenize::{self, SpecialTokens, TextPiece};

impl Generator {
    /// Tokenizes `text` as a prompt and returns the tokens with their positions. Refuses a text
    /// that is longer than the context, as field `inputs`.
    pub async fn tokenize(&self, text: String, charge: Charge) -> Result<Vec<TextPiece>, ApiError> {
        self.text_tokens((text, FieldNames::NATIVE), charge, |model, text| {
            tokenize::pieces(&model.tokenizer, text, SpecialTokens::Add)
        })
        .await
    }

    /// Returns the token ids of a text. Refuses one that is longer than the context, as the field
    /// of the given names.
    pub async fn encode(
        &self,
        text: (String, FieldNames),
        special: SpecialTokens,
        charge: Charge,
    ) -> Result<Vec<u32>, ApiError> {
        self.text_tokens(text, charge, move |model, text| {
            tokenize::encode(&model.tokenizer, text, special)
        })
        .await
    }

    /// Renders a chat and returns the prompt text and its tokens with their positions. Refuses one
    /// that is longer than the context, as the field of `names`.
    pub async fn tokenize_chat(
        &self,
        chat: Chat,
        names: FieldNames,
        charge: Charge,
    ) -> Result<(String, Vec<TextPiece>), ApiError> {
        self.chat_tokens((chat, names), charge, |model, text| {
            tokenize::pieces(&model.tokenizer, text, SpecialTokens::AsIs)
        })
        .await
    }

    /// Returns the token ids of a chat's prompt. Refuses one that is longer than the context, as
    /// the field of the given names.
    pub async fn encode_chat(
        &self,
        chat: (Chat, FieldNames),
        special: SpecialTokens,
        charge: Charge,
    ) -> Result<Vec<u32>, ApiError> {
        let encode =
            move |model: &ModelText, text: &str| tokenize::encode(&model.tokenizer, text, special);
        Ok(self.chat_tokens(chat, charge, encode).await?.1)
    }

    /// Decodes token ids, including special tokens. Refuses ids outside the vocabulary, and more
    /// ids than the context holds, as field `tokens`.
    pub async fn decode(&self, ids: Vec<u32>, charge: Charge) -> Result<String, ApiError> {
        const NAME: &str = "tokens";
        let (model, limits) = (Arc::clone(&self.inner.text), self.context());
        if ids.len() > limits.max_input {
            let names = FieldNames {
                prompt: NAME,
                ..FieldNames::COMPLETIONS
            };
            return Err(too_long(names, limits, ids.len()));
        }
        let size = model.vocabulary.size();
        if let Some(at) = ids.iter().position(|&id| id as usize >= size) {
            let rule = format!(
                "must be from 0 to {}. Given: {}",
                size.saturating_sub(1),
                ids[at]
            );
            return Err(ApiError::at(&format!("{NAME}[{at}]"), &rule));
        }
        let work = move || {
            let _charge = charge;
            let text = model.tokenizer.decode(&ids, false);
            text.map_err(|error| {
                ApiError::new(ErrorKind::Validation, format!("tokenizer error {error}"))
            })
        };
        self.inner.pool.run(size.min(limits.max_input), work).await
    }

    async fn text_tokens<T: Send + 'static>(
        &self,
        (text, names): (String, FieldNames),
        charge: Charge,
        tokens: impl FnOnce(&ModelText, &str) -> Result<Vec<T>, ApiError> + Send + 'static,
    ) -> Result<Vec<T>, ApiError> {
        let (model, limits) = (Arc::clone(&self.inner.text), self.context());
        check_bound(&model, &text, (names, limits))?;
        let size = text.len();
        let work = move || {
            let tokens = tokens(&model, &text)?;
            drop((text, charge));
            within(limits, names, tokens)
        };
        self.inner.pool.run(size, work).await
    }

    async fn chat_tokens<T: Send + 'static>(
        &self,
        (mut chat, names): (Chat, FieldNames),
        charge: Charge,
        tokens: impl FnOnce(&ModelText, &str) -> Result<Vec<T>, ApiError> + Send + 'static,
    ) -> Result<(String, Vec<T>), ApiError> {
        let (model, limits) = (Arc::clone(&self.inner.text), self.context());
        if chat.messages.is_empty() {
            let name = names.prompt;
            let rule = format!("`{name}` cannot be empty");
            return Err(ApiError::validation(name, rule));
        }
        self.complete(&mut chat).await?;
        let size = chat.size();
        let work = move || {
            let _charge = charge;
            let (text, _) = prompt_text(&model, chat, None)?;
            check_bound(&model, &text, (names, limits))?;
            let tokens = within(limits, names, tokens(&model, &text)?)?;
            Ok((text, tokens))
        };
        self.inner.pool.run(size, work).await
    }

    /// Returns the limits of a text without output: it may fill the context.
    fn context(&self) -> TokenLimits {
        let limits = self.token_limits();
        let longest = limits.map_or(usize::MAX, |limits| limits.max_total);
        TokenLimits {
            max_input: longest,
            max_total: longest,
            vocabulary: usize::MAX,
        }
    }
}

/// Refuses a text that is too long for a prompt however it is tokenized.
fn check_bound(
    model: &ModelText,
    text: &str,
    (names, limits): (FieldNames, TokenLimits),
) -> Result<(), ApiError> {
    match model.least_tokens(text) {
        least if least > limits.max_input => {
            Err(too_long(names, limits, format_args!("at least {least}")))
        }
        _ => Ok(()),
    }
}

/// Returns the tokens unless there are too many.
fn within<T>(limits: TokenLimits, names: FieldNames, tokens: Vec<T>) -> Result<Vec<T>, ApiError> {
    match tokens.len() {
        given if given > limits.max_input => Err(too_long(names, limits, given)),
        _ => Ok(tokens),
    }
}
