//! Writes the arguments of a call as JSON while the model writes them as names and values without
//! quotes.

use serde_json::Value;

use super::parameter_types::{JsonTypes, ParameterTypes, ValueSchema};
use super::{OutputDeltas, ToolNames};

/// A call whose arguments arrive one by one.
#[derive(Debug)]
pub(super) struct TypedCall {
    names: ToolNames,
    types: ParameterTypes,
    tool: String,
    /// The number of arguments so far.
    arguments: usize,
    value: Option<Argument>,
}

/// The value that is being written.
#[derive(Debug)]
enum Argument {
    /// A string, emitted as it arrives.
    Text,
    /// Text that is converted when it is complete.
    Whole(String, JsonTypes),
}

impl TypedCall {
    pub(super) fn new(names: ToolNames, types: ParameterTypes) -> Self {
        Self {
            names,
            types,
            tool: String::new(),
            arguments: 0,
            value: None,
        }
    }

    /// Whether `name` is one of the request's tools.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// Begins a call of a function.
    pub(super) fn begin(&mut self, tool: &str, out: &mut OutputDeltas) {
        tool.clone_into(&mut self.tool);
        self.arguments = 0;
        out.call(tool.to_owned());
    }

    /// Begins an argument.
    pub(super) fn begin_argument(&mut self, name: &str, out: &mut OutputDeltas) {
        let types = self.types.of(&self.tool, name);
        if types.is_text() {
            return self.begin_text(name, out);
        }
        self.begin_value(name, out);
        self.value = Some(Argument::Whole(String::new(), types));
    }

    /// Begins an argument that is a string.
    pub(super) fn begin_text(&mut self, name: &str, out: &mut OutputDeltas) {
        self.begin_value(name, out);
        out.arguments("\"");
        self.value = Some(Argument::Text);
    }

    fn begin_value(&mut self, name: &str, out: &mut OutputDeltas) {
        let before = if self.arguments == 0 { "{" } else { ", " };
        out.arguments(&format!("{before}{}: ", Value::from(name)));
        self.arguments += 1;
    }

    /// Takes more text of the argument.
    pub(super) fn push(&mut self, text: &str, out: &mut OutputDeltas) {
        match &mut self.value {
            Some(Argument::Text) => {
                let quoted = Value::from(text).to_string();
                out.arguments(&quoted[1..quoted.len() - 1]);
            }
            Some(Argument::Whole(whole, _)) => whole.push_str(text),
            None => {}
        }
    }

    /// Whether the argument is a string, which is emitted as it arrives.
    pub(super) fn streams(&self) -> bool {
        matches!(self.value, Some(Argument::Text))
    }

    /// Returns the schema of an argument.
    pub(super) fn schema(&self, name: &str) -> ValueSchema<'_> {
        self.types.schema(&self.tool, name)
    }

    /// Ends an argument that is no string with its value.
    pub(super) fn end_with(&mut self, value: &Value, out: &mut OutputDeltas) {
        self.value = None;
        out.arguments(&value.to_string());
    }

    /// Ends the argument, if one has begun.
    pub(super) fn end_argument(&mut self, out: &mut OutputDeltas) {
        match self.value.take() {
            Some(Argument::Text) => out.arguments("\""),
            Some(Argument::Whole(text, types)) => out.arguments(&types.value(&text).to_string()),
            None => {}
        }
    }

    /// Ends the call.
    pub(super) fn end(&mut self, out: &mut OutputDeltas) {
        self.end_argument(out);
        out.arguments(if self.arguments == 0 { "{}" } else { "}" });
        out.end_call();
    }
}
