//! The JSON types that the schemas of a request's tools allow, for formats that write values
//! without JSON's quotes.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::ToolSet;

/// The types that each parameter of each tool may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParameterTypes(Arc<HashMap<String, Parameters>>);

/// Those of one tool.
#[derive(Debug, PartialEq, Eq)]
struct Parameters {
    schema: Value,
    types: HashMap<String, JsonTypes>,
}

/// The schema of a value, for formats that write the parts of values in tags. `None`: any value.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueSchema<'a>(Option<(&'a Value, &'a Value)>); // and the root of references

/// A set of JSON types, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JsonTypes(u8);

const STRING: u8 = 1;
const NUMBER: u8 = 2;
const BOOLEAN: u8 = 4;
const NULL: u8 = 8;
const ARRAY: u8 = 16;
const OBJECT: u8 = 32;
/// The maximum depth of references and combined schemas.
const DEPTH: usize = 8;

impl ParameterTypes {
    /// Returns the types of the parameters of `tool_set`.
    pub fn new(tool_set: &ToolSet) -> Self {
        let typed = tool_set.tools.iter().filter_map(|tool| {
            let schema: Value = serde_json::from_str(tool.parameters.as_deref()?).ok()?;
            let properties = schema.get("properties")?.as_object()?;
            let types = properties
                .iter()
                .map(|(name, of)| (name.clone(), JsonTypes(bits(of, &schema, DEPTH))))
                .collect();
            Some((tool.name.clone(), Parameters { schema, types }))
        });
        Self(Arc::new(typed.collect()))
    }

    /// Returns the types of a parameter: all if its schema does not restrict them.
    pub(super) fn of(&self, tool: &str, parameter: &str) -> JsonTypes {
        let found = self.0.get(tool).and_then(|one| one.types.get(parameter));
        found.copied().unwrap_or(JsonTypes(u8::MAX))
    }

    /// Returns the schema of a parameter.
    pub(super) fn schema(&self, tool: &str, parameter: &str) -> ValueSchema<'_> {
        let tool = self.0.get(tool).map(|one| &one.schema);
        ValueSchema(tool.map(|schema| (schema, schema))).property(parameter)
    }
}

impl<'a> ValueSchema<'a> {
    pub(super) fn types(self) -> JsonTypes {
        JsonTypes(self.0.map_or(u8::MAX, |(one, root)| bits(one, root, DEPTH)))
    }

    /// Returns the schema of an object's member.
    pub(super) fn property(self, name: &str) -> Self {
        self.part(&|schema| {
            let own = schema.get("properties").and_then(|all| all.get(name));
            own.or_else(|| schema.get("additionalProperties"))
        })
    }

    /// Returns the schema of an array's elements.
    pub(super) fn items(self) -> Self {
        self.part(&|schema| schema.get("items"))
    }

    fn part(self, find: Find<'_, 'a>) -> Self {
        let found = self.0.and_then(|(one, root)| {
            let part = part_of(one, root, DEPTH, find)?;
            Some((part, root))
        });
        Self(found)
    }
}

/// Looks for a part in a schema alone.
type Find<'f, 'a> = &'f dyn Fn(&'a Map<String, Value>) -> Option<&'a Value>;

/// Returns the first part that `find` finds in `schema`, what it refers to or what it combines.
fn part_of<'a>(
    schema: &'a Value,
    root: &'a Value,
    depth: usize,
    find: Find<'_, 'a>,
) -> Option<&'a Value> {
    let schema = schema.as_object().filter(|_| depth > 0)?;
    let combined = ["anyOf", "oneOf", "allOf"].into_iter();
    let lists = combined.filter_map(|key| schema.get(key).and_then(Value::as_array));
    let mut others = referenced(schema, root).into_iter().chain(lists.flatten());
    find(schema).or_else(|| others.find_map(|other| part_of(other, root, depth - 1, find)))
}

impl JsonTypes {
    /// Whether every value is a string, so that its text needs no look at the whole.
    pub(super) fn is_text(self) -> bool {
        self.0 == STRING
    }

    /// Whether parts in tags are an array's elements; `None` if they may be an object's members, too.
    pub(super) fn is_array(self) -> Option<bool> {
        match (self.0 & ARRAY != 0, self.0 & OBJECT != 0) {
            (true, true) => None,
            (array, _) => Some(array),
        }
    }

    /// As `value`, of a tag without parts, which an empty array or object is, too.
    pub(super) fn tagged_value(self, text: &str) -> Value {
        match self.0 {
            ARRAY if text.trim().is_empty() => Value::Array(Vec::new()),
            OBJECT if text.trim().is_empty() => Value::Object(Map::new()),
            _ => self.value(text),
        }
    }

    /// Converts a value that was written without quotes: to JSON if its type is allowed, else to a
    /// string if that is allowed.
    pub(super) fn value(self, text: &str) -> Value {
        let parsed = literal(text.trim());
        match parsed {
            Some(value) if self.0 & kind(&value) != 0 || self.0 & STRING == 0 => value,
            _ => Value::from(text),
        }
    }
}

/// Parses JSON, or a constant as Python writes it.
fn literal(text: &str) -> Option<Value> {
    match text {
        "True" => Some(Value::Bool(true)),
        "False" => Some(Value::Bool(false)),
        "None" => Some(Value::Null),
        text => serde_json::from_str(text).ok(),
    }
}

fn kind(value: &Value) -> u8 {
    match value {
        Value::String(_) => STRING,
        Value::Number(_) => NUMBER,
        Value::Bool(_) => BOOLEAN,
        Value::Null => NULL,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

fn named(name: &Value) -> u8 {
    match name.as_str() {
        Some("string") => STRING,
        Some("number" | "integer") => NUMBER,
        Some("boolean") => BOOLEAN,
        Some("null") => NULL,
        Some("array") => ARRAY,
        Some("object") => OBJECT,
        _ => u8::MAX,
    }
}

/// Returns the types that `schema` allows; `root` resolves its references.
fn bits(schema: &Value, root: &Value, depth: usize) -> u8 {
    let Some(schema) = schema.as_object().filter(|_| depth > 0) else {
        return u8::MAX;
    };
    let union =
        |list: &[Value], each: &dyn Fn(&Value) -> u8| list.iter().fold(0, |b, v| b | each(v));
    let nested = |inner: &Value| bits(inner, root, depth - 1);
    let mut allowed = u8::MAX;
    match schema.get("type") {
        Some(Value::Array(types)) => allowed &= union(types, &named),
        Some(one) => allowed &= named(one),
        None => {}
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(list) = schema.get(key).and_then(Value::as_array) {
            allowed &= union(list, &nested);
        }
    }
    if let Some(list) = schema.get("allOf").and_then(Value::as_array) {
        allowed &= list.iter().fold(u8::MAX, |b, inner| b & nested(inner));
    }
    if let Some(list) = schema.get("enum").and_then(Value::as_array) {
        allowed &= union(list, &kind);
    }
    allowed &= schema.get("const").map_or(u8::MAX, kind);
    allowed & referenced(schema, root).map_or(u8::MAX, nested)
}

/// Returns the schema that a `$ref` within the document names.
fn referenced<'a>(schema: &Map<String, Value>, root: &'a Value) -> Option<&'a Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}
