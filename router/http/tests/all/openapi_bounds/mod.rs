//! The bounds in docs/openapi.json, and values on both sides of each.

#![allow(clippy::unwrap_used, unreachable_pub)]

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// A bound of the description.
#[derive(Clone, Debug)]
pub struct Bound {
    pub schema: String,
    pub field: String,
    /// Position in the field: `[]` for an item, `{}` for a member, `{name}` for a member's name.
    pub within: String,
    pub keyword: String,
    pub value: Value,
    /// Whether the bound is of whole numbers.
    whole: bool,
    /// An item of the bounded list.
    item: Value,
}

/// Returns all bounds except those that follow from a number's type.
pub fn bounds() -> Vec<Bound> {
    let api: Value =
        serde_json::from_str(include_str!("../../../../../docs/openapi.json")).unwrap();
    let all = of_requests(&api);
    assert!(all.len() > 300, "{} bounds", all.len());
    all.into_iter()
        .filter(|bound| !bound.is_of_a_type())
        .collect()
}

/// Returns all bounds of the schemas of requests.
fn of_requests(api: &Value) -> Vec<Bound> {
    let schemas = &api["components"]["schemas"];
    let mut names = BTreeSet::new();
    for methods in api["paths"].as_object().unwrap().values() {
        for method in methods.as_object().unwrap().values() {
            refer(&method["requestBody"], schemas, &mut names);
        }
    }
    let mut found = Vec::new();
    for name in names {
        let fields = schemas[&name]["properties"].as_object();
        for (field, said) in fields.into_iter().flatten() {
            let description = said["description"].as_str().unwrap_or_default();
            if !description.contains("no effect") {
                let bound = Bound {
                    schema: name.clone(),
                    field: field.clone(),
                    within: String::new(),
                    keyword: String::new(),
                    value: Value::Null,
                    whole: false,
                    item: said["example"][0].clone(),
                };
                collect(said, &bound, &mut found);
            }
        }
    }
    found
}

/// Collects the schemas to which a value refers.
fn refer(value: &Value, schemas: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            let name = map
                .get("$ref")
                .and_then(|name| name.as_str()?.rsplit('/').next());
            if let Some(name) = name
                && found.insert(name.to_owned())
            {
                refer(&schemas[name], schemas, found);
            }
            map.values().for_each(|value| refer(value, schemas, found));
        }
        Value::Array(list) => list.iter().for_each(|value| refer(value, schemas, found)),
        _ => {}
    }
}

fn collect(said: &Value, place: &Bound, found: &mut Vec<Bound>) {
    for (keyword, value) in said.as_object().unwrap() {
        let ends = ["imum", "Items", "Length", "Properties"];
        let begins = ["min", "max", "exclusive"];
        if begins.iter().any(|begin| keyword.starts_with(begin))
            && ends.iter().any(|end| keyword.ends_with(end))
        {
            let kinds = said["type"].to_string();
            found.push(Bound {
                keyword: keyword.clone(),
                value: value.clone(),
                whole: kinds.contains("integer"),
                ..place.clone()
            });
        }
    }
    for shapes in [&said["anyOf"], &said["oneOf"]] {
        for shape in shapes.as_array().into_iter().flatten() {
            collect(shape, place, found);
        }
    }
    for (keyword, step) in [
        ("items", "[]"),
        ("additionalProperties", "{}"),
        ("propertyNames", "{name}"),
    ] {
        if said[keyword].is_object() {
            let within = place.within.clone() + step;
            let item = place.item[0].clone();
            collect(
                &said[keyword],
                &Bound {
                    within,
                    item,
                    ..place.clone()
                },
                found,
            );
        }
    }
}

/// Returns an item that replaces the example's.
fn item(schema: &str, field: &str, within: &str) -> Option<Value> {
    Some(match (schema, field) {
        ("CompletionRequest", "prompt") if within == "[]" => json!(5),
        _ if !within.is_empty() => return None,
        (
            "Message" | "AnthropicMessage" | "AnthropicBlock" | "MessagesRequest",
            "content" | "system",
        ) => {
            json!({"type": "text", "text": "a"})
        }
        ("InputItem", "content" | "output") => json!({"type": "input_text", "text": "a"}),
        ("ResponsesRequest", "input") => json!({"type": "message", "role": "user", "content": "a"}),
        ("CompletionRequest", "prompt") => json!("a"),
        ("InferRequest", "outputs") => json!({"name": "text_output"}),
        _ => return None,
    })
}

impl Bound {
    /// Returns whether the bound follows from the number's type.
    fn is_of_a_type(&self) -> bool {
        let ends = [
            u64::MAX as f64,
            i64::MAX as f64,
            i64::MIN as f64,
            f64::from(u32::MAX),
            f64::from(i32::MAX),
            f64::from(i32::MIN),
        ];
        let value = self.value.as_f64().unwrap();
        let unsigned = self.keyword == "minimum" && self.whole && value == 0.0;
        let any = value as f32 == f32::MAX;
        self.keyword.ends_with("imum") && (ends.contains(&value) || unsigned || any)
    }

    /// Returns the last allowed value, and the next one if there is one.
    pub fn sides(&self) -> (Value, Option<Value>) {
        let sign = if self.keyword.to_lowercase().contains("min") {
            -1
        } else {
            1
        };
        if !self.keyword.ends_with("imum") {
            let count = self.value.as_u64().unwrap();
            let beyond = count.checked_add_signed(sign);
            return (self.of(count), beyond.map(|beyond| self.of(beyond)));
        }
        let value = self.value.as_f64().unwrap();
        let step = |value: f64, sign: i64| match (self.whole, sign) {
            (true, _) => json!(value as i64 + sign),
            (false, 1) => json!((value as f32).next_up()),
            (false, _) => json!((value as f32).next_down()),
        };
        let (last, beyond) = match self.keyword.starts_with("exclusive") {
            true => (step(value, -sign), self.value.clone()),
            false => (self.value.clone(), step(value, sign)),
        };
        (self.placed(last), Some(self.placed(beyond)))
    }

    /// Returns a text, list or object of a length.
    fn of(&self, count: u64) -> Value {
        let range = 0..count as usize;
        let item = item(&self.schema, &self.field, &self.within);
        self.placed(match self.keyword.as_str() {
            "minLength" | "maxLength" => json!("a".repeat(range.len())),
            "minItems" | "maxItems" => {
                let item = item.unwrap_or_else(|| self.item.clone());
                assert!(
                    !item.is_null() || count == 0,
                    "no item is known for {self:?}"
                );
                Value::Array(range.map(|number| self.renamed(&item, number)).collect())
            }
            _ => {
                let member = if self.field == "metadata" {
                    json!("a")
                } else {
                    json!(1)
                };
                Value::Object(range.map(|key| (key.to_string(), member.clone())).collect())
            }
        })
    }

    /// Returns the item with a name of its own, if it has a name: function names must differ.
    fn renamed(&self, item: &Value, number: usize) -> Value {
        let mut item = item.clone();
        for place in ["/name", "/function/name"] {
            if let Some(name) = item.pointer_mut(place)
                && ["tools", "functions"].contains(&self.field.as_str())
                && !self.schema.starts_with("Allowed")
            {
                *name = json!(format!("f{number}"));
            }
        }
        item
    }

    /// Returns the field's value with `value` at the bound's position.
    fn placed(&self, mut value: Value) -> Value {
        let mut within = self.within.as_str();
        while !within.is_empty() {
            if let Some(rest) = within.strip_suffix("[]") {
                (value, within) = (json!([value]), rest);
            } else if let Some(rest) = within.strip_suffix("{}") {
                (value, within) = (json!({"5": value}), rest);
            } else {
                let name = value.as_str().unwrap().to_owned();
                value = Value::Object(Map::from_iter([(name, json!("a"))]));
                within = within.strip_suffix("{name}").unwrap();
            }
        }
        value
    }
}
