//! Rules of what goes with a guide.

use crate::engine::types::GuideKind;
use crate::error::ApiError;

use super::{AtEos, FieldNames, Parameters};

/// Bytes of a guide: what the workers compile at most. A request holds its guide while it waits.
pub(crate) const fn most_bytes(kind: GuideKind) -> usize {
    match kind {
        GuideKind::JsonSchema | GuideKind::Grammar => 256 << 10,
        GuideKind::Regex => 64 << 10,
        GuideKind::Calls => 1 << 20,
    }
}

impl Parameters {
    /// A guide alone says when the answer is whole, by the model's end tokens.
    pub(super) fn check_guide(&self, names: FieldNames, offered: bool) -> Result<(), ApiError> {
        let Some(guide) = &self.guide else {
            return Ok(());
        };
        let refused = |field: &'static str, rule: &str| {
            let rule = format!("`{field}` cannot go with `{}`: {rule}", guide.field);
            Err(ApiError::validation(field, rule))
        };
        if !offered {
            let field = guide.field;
            let rule =
                format!("grammar is not supported: `{field}` is switched off on this server");
            return Err(ApiError::validation(field, rule));
        }
        if guide.text.is_empty() {
            let rule = format!("`{}` cannot be empty", guide.field);
            return Err(ApiError::validation(guide.field, rule));
        }
        let (given, most) = (guide.text.len(), most_bytes(guide.kind));
        if given > most {
            let field = guide.field;
            let rule = format!("`{field}` must have at most {most} bytes. Given: {given}");
            return Err(ApiError::validation(field, rule));
        }
        if self.at_eos == AtEos::Continue {
            return refused("ignore_eos", "the end token is what follows a whole text");
        }
        if self.min_new_tokens > 0 {
            let rule = "a text that is whole before could not go on";
            return refused(names.min_new_tokens, rule);
        }
        let rule = "it may need a token that is forbidden";
        if self.adjustment.allowed.is_some() {
            return refused("allowed_token_ids", rule);
        }
        if !(self.adjustment.banned.is_empty() && self.adjustment.bad_words.is_empty()) {
            return refused("bad_words_ids", rule);
        }
        if !self.bad_words.is_empty() {
            return refused("bad_words", rule);
        }
        Ok(())
    }
}
