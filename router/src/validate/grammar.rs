//! Rules of what goes with a guide.

use crate::engine::types::GrammarFormat;
use crate::error::ApiError;

use super::{AtEos, FieldNames, Parameters};

/// Bytes of a guide: what the workers compile at most. A request holds its guide while it waits.
pub(crate) const fn max_grammar_bytes(kind: GrammarFormat) -> usize {
    match kind {
        GrammarFormat::JsonSchema | GrammarFormat::Ebnf => 256 << 10,
        GrammarFormat::Regex => 64 << 10,
        GrammarFormat::ToolCalls => 1 << 20,
    }
}

impl Parameters {
    /// A guide alone says when the answer is whole, by the model's end tokens.
    pub(super) fn check_grammar(&self, names: FieldNames, offered: bool) -> Result<(), ApiError> {
        let Some(grammar) = &self.grammar else {
            return Ok(());
        };
        let refused = |field: &'static str, rule: &str| {
            let rule = format!("`{field}` cannot go with `{}`: {rule}", grammar.field);
            Err(ApiError::validation(field, rule))
        };
        if !offered {
            let field = grammar.field;
            let rule =
                format!("grammar is not supported: `{field}` is switched off on this server");
            return Err(ApiError::validation(field, rule));
        }
        if grammar.text.is_empty() {
            let rule = format!("`{}` cannot be empty", grammar.field);
            return Err(ApiError::validation(grammar.field, rule));
        }
        let (given, most) = (grammar.text.len(), max_grammar_bytes(grammar.kind));
        if given > most {
            let field = grammar.field;
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
        if self.logits_processors.allowed.is_some() {
            return refused("allowed_token_ids", rule);
        }
        if !(self.logits_processors.banned.is_empty()
            && self.logits_processors.bad_words.is_empty())
        {
            return refused("bad_words_ids", rule);
        }
        if !self.bad_words.is_empty() {
            return refused("bad_words", rule);
        }
        Ok(())
    }
}
