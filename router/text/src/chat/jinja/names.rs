//! The names that a template uses: its variables and its access to message content.

use std::collections::HashSet;

/// Names collected while the template is rewritten.
#[derive(Debug, Default)]
pub(crate) struct TemplateNames {
    /// The variables that it reads outside loops and macros that bind them. Variables that it also
    /// sets are included: `{% set tools = tools or [] %}` reads `tools`.
    pub(crate) variables: HashSet<String>,
    /// Whether a loop iterates over a message's content.
    pub(crate) loops_over_content: bool,
    /// Whether a test checks the type of a value, such as `is string`.
    pub(crate) checks_for_text: bool,
    /// The names bound by the enclosing loops and macros.
    bound: Vec<Vec<String>>,
    /// Variables that hold a message's content.
    content: HashSet<String>,
    /// Whether the current expression mentions content.
    mentions_content: bool,
}

const CONTENT: &str = "content";

impl TemplateNames {
    /// Records that the template reads a variable.
    pub(super) fn record_variable(&mut self, name: &str) {
        if name == CONTENT || self.content.contains(name) {
            self.mentions_content = true;
        }
        if !self.bound.iter().flatten().any(|bound| bound == name) {
            self.variables.insert(name.to_owned());
        }
    }

    /// Records an attribute, or a string that may name one.
    pub(super) fn record_mention(&mut self, name: &str) {
        self.mentions_content |= name == CONTENT;
    }

    pub(super) fn record_test(&mut self, test: &str) {
        let kinds = ["string", "iterable", "sequence", "mapping"];
        self.checks_for_text |= kinds.contains(&test);
    }

    /// Begins another expression.
    pub(super) fn begin_expression(&mut self) {
        self.mentions_content = false;
    }

    /// Records that `names` are set to the current expression.
    pub(super) fn record_assignment(&mut self, names: &[&str]) {
        if self.mentions_content {
            self.content
                .extend(names.iter().map(|name| (*name).to_owned()));
        }
    }

    /// Records that a loop iterates over the current expression.
    pub(super) fn record_loop(&mut self) {
        self.loops_over_content |= self.mentions_content;
    }

    pub(super) fn bind(&mut self, names: &[&str]) {
        self.bound
            .push(names.iter().map(|name| (*name).to_owned()).collect());
    }

    pub(super) fn unbind(&mut self) {
        self.bound.pop();
    }
}
