//! The tools of a request and the choice among them, common to all APIs.

use std::collections::HashSet;

use penstock_request::error::{ApiError, Excerpt};
use serde_json::{Map, Value};

use super::ToolNames;

/// The tools of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolSet {
    /// The tools in the client's order; not empty.
    pub tools: Vec<Tool>,
    /// Which calls the model may or must make.
    pub choice: ToolChoiceMode,
    /// Whether one output may have several calls.
    pub parallel: bool,
    /// The API's names of these fields.
    pub fields: ToolFields,
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// The name that calls use.
    pub name: String,
    /// A description for the model.
    pub description: Option<String>,
    /// A JSON schema of the arguments, as text with its keys in the client's order.
    pub parameters: Option<String>,
    /// Whether calls under `auto` must match the schema.
    pub strict: bool,
}

/// Which calls the model may or must make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoiceMode {
    /// No calls; the prompt does not mention the tools.
    None,
    /// Any number of calls, including none.
    #[default]
    Auto,
    /// At least one call.
    Required,
    /// A call of this function.
    Named(String),
}

/// An API's names of the fields checked here, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolFields {
    /// The list of tools.
    pub list: &'static str,
    /// A tool's name, after its index in the list.
    pub name: &'static str,
    /// A tool's schema, after its index in the list.
    pub parameters: &'static str,
    /// The choice.
    pub choice: &'static str,
    /// The values of the choice that force a call, as text.
    pub forcing: &'static str,
}

/// The maximum number of tools of a request.
pub const MOST_TOOLS: usize = 1024;
/// The maximum number of characters of a tool's name.
pub const LONGEST_TOOL_NAME: usize = 64;
/// The symbols allowed in a name beside letters and digits.
pub const TOOL_NAME_SYMBOLS: &str = "_.-";

impl ToolSet {
    /// Validates the names, schemas and choice.
    pub fn check(&self) -> Result<(), ApiError> {
        let fields = self.fields;
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

    /// Whether the output consists of calls alone.
    pub fn forces_call(&self) -> bool {
        matches!(
            self.choice,
            ToolChoiceMode::Required | ToolChoiceMode::Named(_)
        )
    }

    /// Whether a grammar constrains calls under `auto`.
    pub fn is_strict(&self) -> bool {
        self.choice == ToolChoiceMode::Auto && self.tools.iter().any(|tool| tool.strict)
    }

    /// Returns the names of all tools.
    pub fn names(&self) -> ToolNames {
        self.tools.iter().map(|tool| tool.name.clone()).collect()
    }

    /// Returns the tools as chat templates take them: a JSON list.
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

/// Validates a schema: a JSON object of type `object`.
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
