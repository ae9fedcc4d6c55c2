//! What a template speaks of: the variables that it reads, and how it takes content.

use std::collections::HashSet;

/// Gathered while the template is rewritten.
#[derive(Debug, Default)]
pub(crate) struct TemplateNames {
    /// Variables that it reads and that neither a loop nor a macro binds there. Those that it sets
    /// itself are here too: `{% set tools = tools or [] %}` speaks of tools.
    pub(crate) variables: HashSet<String>,
    /// Whether a loop goes over a message's content.
    pub(crate) loops_over_content: bool,
    /// Whether it asks of a value whether it is text.
    pub(crate) checks_for_text: bool,
    /// Names that inner tags bind: those of loops and of macros.
    bound: Vec<Vec<String>>,
    /// Names that hold a message's content.
    content: HashSet<String>,
    /// Whether the expression that is read speaks of content.
    mentions_content: bool,
}

const CONTENT: &str = "content";

impl TemplateNames {
    /// The template reads a variable.
    pub(super) fn record_variable(&mut self, name: &str) {
        if name == CONTENT || self.content.contains(name) {
            self.mentions_content = true;
        }
        if !self.bound.iter().flatten().any(|bound| bound == name) {
            self.variables.insert(name.to_owned());
        }
    }

    /// It speaks of an attribute, or says a text that may be one's name.
    pub(super) fn record_mention(&mut self, name: &str) {
        self.mentions_content |= name == CONTENT;
    }

    pub(super) fn record_test(&mut self, test: &str) {
        let kinds = ["string", "iterable", "sequence", "mapping"];
        self.checks_for_text |= kinds.contains(&test);
    }

    /// Another expression begins.
    pub(super) fn begin_expression(&mut self) {
        self.mentions_content = false;
    }

    /// The names are set to the expression that was read.
    pub(super) fn record_assignment(&mut self, names: &[&str]) {
        if self.mentions_content {
            self.content
                .extend(names.iter().map(|name| (*name).to_owned()));
        }
    }

    /// A loop goes over the expression that was read.
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
