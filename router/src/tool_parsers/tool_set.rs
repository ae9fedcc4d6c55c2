//! Tools that a request offers, and what it wants of them, in whatever dialect.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::ToolNames;
use crate::error::{ApiError, Excerpt};

/// Tools on offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolSet {
    /// In the client's order; not empty.
    pub tools: Vec<Tool>,
    /// What the model is to do with them.
    pub choice: ToolChoiceMode,
    /// Whether one answer may have several calls.
    pub parallel: bool,
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// What calls name.
    pub name: String,
    /// What it does, for the model.
    pub description: Option<String>,
    /// A JSON schema of its arguments, as text with its keys in the client's order.
    pub parameters: Option<String>,
    /// Whether calls that nothing forces keep that schema, too.
    pub strict: bool,
}

/// What the model is to do with the tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoiceMode {
    /// Not to know of them.
    None,
    /// To call some or none.
    #[default]
    Auto,
    /// To call at least one.
    Required,
    /// To call this one.
    Named(String),
}

/// Where a dialect keeps what may be wrong, and its words for what may be done.
#[derive(Clone, Copy, Debug)]
pub struct ToolFields {
    /// The tools.
    pub list: &'static str,
    /// A tool's name, after its place in them.
    pub name: &'static str,
    /// A tool's schema, after its place in them.
    pub parameters: &'static str,
    /// What is to be done with them.
    pub choice: &'static str,
    /// What it can be to force a call, in words.
    pub forcing: &'static str,
}

/// Tools of one request.
pub const MOST_TOOLS: usize = 1024;
pub(crate) const LONGEST_TOOL_NAME: usize = 64;
/// What a name may have beside letters and digits.
pub(crate) const TOOL_NAME_SYMBOLS: &str = "_.-";

impl ToolSet {
    /// Checks every rule about tools.
    pub fn check(&self, fields: ToolFields) -> Result<(), ApiError> {
        let mut seen = HashSet::new();
        for (index, tool) in self.tools.iter().enumerate() {
            let at = |field: &str| format!("{}[{index}].{field}", fields.list);
            check_name(&tool.name, &at(fields.name))?;
            if !seen.insert(tool.name.as_str()) {
                let rule = format!("is used twice: `{}`", tool.name);
                return Err(ApiError::at(&at(fields.name), &rule));
            }
            if let Some(schema) = &tool.parameters {
                check_schema(schema, &at(fields.parameters))?;
            }
        }
        match &self.choice {
            ToolChoiceMode::Named(name) if !seen.contains(name.as_str()) => {
                let (list, name) = (fields.list, Excerpt::new(name));
                let rule = format!("names no tool of `{list}`. Given: `{name}`");
                Err(ApiError::at(fields.choice, &rule))
            }
            _ => Ok(()),
        }
    }

    /// Whether the answer is nothing but calls.
    pub fn forces_call(&self) -> bool {
        matches!(
            self.choice,
            ToolChoiceMode::Required | ToolChoiceMode::Named(_)
        )
    }

    /// Whether calls that nothing forces are guided.
    pub fn is_strict(&self) -> bool {
        self.choice == ToolChoiceMode::Auto && self.tools.iter().any(|tool| tool.strict)
    }

    /// The names of all.
    pub fn names(&self) -> ToolNames {
        self.tools.iter().map(|tool| tool.name.clone()).collect()
    }

    /// The tools as chat templates take them: a JSON list.
    pub fn to_json(&self) -> String {
        let tools: Vec<String> = self.tools.iter().map(Tool::to_json).collect();
        format!("[{}]", tools.join(","))
    }
}

impl Tool {
    fn to_json(&self) -> String {
        let mut json = format!(
            "{{\"type\":\"function\",\"function\":{{\"name\":{}",
            Value::from(self.name.as_str())
        );
        if let Some(description) = &self.description {
            json += &format!(",\"description\":{}", Value::from(description.as_str()));
        }
        if let Some(parameters) = &self.parameters {
            json += &format!(",\"parameters\":{parameters}");
        }
        json + "}}"
    }
}

fn check_name(name: &str, at: &str) -> Result<(), ApiError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || TOOL_NAME_SYMBOLS.contains(c);
    if !name.is_empty() && name.len() <= LONGEST_TOOL_NAME && name.chars().all(plain) {
        return Ok(());
    }
    let rule = format!(
        "must have 1 to {LONGEST_TOOL_NAME} characters of a-z, A-Z, 0-9, `_`, `-` and `.`. Given: `{}`",
        Excerpt::new(name)
    );
    Err(ApiError::at(at, &rule))
}

/// A schema is an object, of an object.
fn check_schema(schema: &str, at: &str) -> Result<(), ApiError> {
    let Ok(schema) = serde_json::from_str::<Map<String, Value>>(schema) else {
        let rule = format!(
            "must be a JSON schema (an object). Given: {}",
            Excerpt::new(schema)
        );
        return Err(ApiError::at(at, &rule));
    };
    match schema.get("type") {
        None => Ok(()),
        Some(kind) if kind == "object" => Ok(()),
        Some(other) => {
            let other = other.to_string();
            let rule = format!(
                "must be a schema of type `object`. Given: {}",
                Excerpt::new(&other)
            );
            Err(ApiError::at(&format!("{at}.type"), &rule))
        }
    }
}
