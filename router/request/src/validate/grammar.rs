//! Rules of requests with a grammar.

use crate::error::ApiError;
use crate::types::GrammarFormat;

use super::{AtEos, FieldNames, Parameters};

/// Maximum bytes of a grammar that the workers compile. A waiting request holds its grammar in
/// memory.
pub const fn max_grammar_bytes(kind: GrammarFormat) -> usize {
    match kind {
        GrammarFormat::JsonSchema | GrammarFormat::Ebnf => 256 << 10,
        GrammarFormat::Regex => 64 << 10,
        GrammarFormat::ToolCalls => 1 << 20,
    }
}

impl Parameters {
    /// Checks that nothing conflicts with the grammar: only the grammar decides when the text is
    /// complete, by allowing the model's end tokens.
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
            return refused(
                "ignore_eos",
                "only the end token may follow a complete text",
            );
        }
        if self.min_new_tokens > 0 {
            let rule = "a text that is complete earlier could not continue";
            return refused(names.min_new_tokens, rule);
        }
        let rule = "the grammar may need a forbidden token";
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
