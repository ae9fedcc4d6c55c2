//! Rules of requests with a constraint on the output.

use crate::error::ApiError;

use super::{AtEos, FieldNames, Parameters};

impl Parameters {
    /// Checks that nothing conflicts with the constraint: only its grammar decides when the text is
    /// complete, by allowing the model's end tokens.
    pub(super) fn check_constraint(
        &self,
        names: FieldNames,
        offered: bool,
    ) -> Result<(), ApiError> {
        let Some(constraint) = &self.constraint else {
            return Ok(());
        };
        let refused = |field: &'static str, rule: &str| {
            let rule = format!("`{field}` cannot go with `{}`: {rule}", constraint.field);
            Err(ApiError::validation(field, rule))
        };
        if !offered {
            let field = constraint.field;
            let rule =
                format!("grammar is not supported: `{field}` is switched off on this server");
            return Err(ApiError::validation(field, rule));
        }
        if constraint.text.is_empty() {
            let rule = format!("`{}` cannot be empty", constraint.field);
            return Err(ApiError::validation(constraint.field, rule));
        }
        let (given, most) = (constraint.text.len(), constraint.kind.max_bytes());
        if given > most {
            let field = constraint.field;
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
        if !self.bad_words.is_empty() {
            return refused("bad_words", "the grammar may need a forbidden token");
        }
        Ok(())
    }
}
