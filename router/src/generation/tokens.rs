//! Text to tokens and back, for routes that generate nothing.

use std::sync::Arc;

use super::{Generator, check_bound, prompt_text};
use crate::budget::Charge;
use crate::chat::Chat;
use crate::error::{ApiError, ErrorKind};
use crate::model_text::ModelText;
use crate::tokenize::{self, SpecialTokens, TextPiece};
use crate::validate::too_long;

/// What a client calls a text or a conversation.
type Name = &'static str;

impl Generator {
    /// The tokens of `text` as a prompt, with their places in it. A text that is longer than the
    /// context is refused, under the name `inputs`.
    pub async fn tokenize(&self, text: String, charge: Charge) -> Result<Vec<TextPiece>, ApiError> {
        self.text_tokens((text, "inputs"), charge, |model, text| {
            tokenize::pieces(&model.tokenizer, text, SpecialTokens::Add)
        })
        .await
    }

    /// The token ids of a text. One that is longer than the context is refused, under its name.
    pub(crate) async fn encode(
        &self,
        text: (String, Name),
        special: SpecialTokens,
        charge: Charge,
    ) -> Result<Vec<u32>, ApiError> {
        self.text_tokens(text, charge, move |model, text| {
            tokenize::encode(&model.tokenizer, text, special)
        })
        .await
    }

    /// A conversation as its prompt's text, and the tokens of that with their places in it. One that
    /// is longer than the context is refused, under `name`.
    pub async fn tokenize_chat(
        &self,
        chat: Chat,
        name: &'static str,
        charge: Charge,
    ) -> Result<(String, Vec<TextPiece>), ApiError> {
        self.chat_tokens((chat, name), charge, |model, text| {
            tokenize::pieces(&model.tokenizer, text, SpecialTokens::AsIs)
        })
        .await
    }

    /// The token ids of a conversation's prompt. One that is longer than the context is refused, under
    /// its name.
    pub(crate) async fn encode_chat(
        &self,
        chat: (Chat, Name),
        special: SpecialTokens,
        charge: Charge,
    ) -> Result<Vec<u32>, ApiError> {
        let encode =
            move |model: &ModelText, text: &str| tokenize::encode(&model.tokenizer, text, special);
        Ok(self.chat_tokens(chat, charge, encode).await?.1)
    }

    /// The text of tokens, special ones included. Tokens that do not exist are refused, and more than
    /// the context holds, under the name `tokens`.
    pub(crate) async fn decode(&self, ids: Vec<u32>, charge: Charge) -> Result<String, ApiError> {
        const NAME: Name = "tokens";
        let (model, max) = (Arc::clone(&self.inner.text), self.longest());
        if ids.len() > max {
            return Err(too_long(NAME, max, ids.len()));
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
        self.inner.pool.run(size.min(max), work).await
    }

    async fn text_tokens<T: Send + 'static>(
        &self,
        (text, name): (String, Name),
        charge: Charge,
        tokens: impl FnOnce(&ModelText, &str) -> Result<Vec<T>, ApiError> + Send + 'static,
    ) -> Result<Vec<T>, ApiError> {
        let (model, max) = (Arc::clone(&self.inner.text), self.longest());
        check_bound(&model, &text, (name, max))?;
        let size = text.len();
        let work = move || {
            let tokens = tokens(&model, &text)?;
            drop((text, charge));
            within(max, name, tokens)
        };
        self.inner.pool.run(size, work).await
    }

    async fn chat_tokens<T: Send + 'static>(
        &self,
        (mut chat, name): (Chat, Name),
        charge: Charge,
        tokens: impl FnOnce(&ModelText, &str) -> Result<Vec<T>, ApiError> + Send + 'static,
    ) -> Result<(String, Vec<T>), ApiError> {
        let (model, max) = (Arc::clone(&self.inner.text), self.longest());
        if chat.messages.is_empty() {
            let rule = format!("`{name}` cannot be empty");
            return Err(ApiError::validation(name, rule));
        }
        self.complete(&mut chat).await?;
        let size = chat.size();
        let work = move || {
            let _charge = charge;
            let (text, _) = prompt_text(&model, chat)?;
            check_bound(&model, &text, (name, max))?;
            let tokens = within(max, name, tokens(&model, &text)?)?;
            Ok((text, tokens))
        };
        self.inner.pool.run(size, work).await
    }

    /// Tokens of the longest text that the context holds.
    fn longest(&self) -> usize {
        self.token_limits()
            .map_or(usize::MAX, |limits| limits.max_total)
    }
}

/// The tokens, unless they are more than `max`.
fn within<T>(max: usize, name: Name, tokens: Vec<T>) -> Result<Vec<T>, ApiError> {
    match tokens.len() {
        given if given > max => Err(too_long(name, max, given)),
        _ => Ok(tokens),
    }
}
