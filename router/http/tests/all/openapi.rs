//! The OpenAPI description is checked in, complete, and has an example of everything.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

use penstock_http::openapi_json;
use serde_json::Value;

fn described() -> Value {
    serde_json::from_str(&openapi_json()).unwrap()
}

fn operations(api: &Value) -> impl Iterator<Item = (&String, &String, &Value)> {
    let paths = api["paths"].as_object().unwrap().iter();
    paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().iter();
        methods.map(move |(method, operation)| (path, method, operation))
    })
}

/// Adds the schemas to which `value` refers, directly or indirectly.
fn referred<'a>(api: &'a Value, value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(name)) = map.get("$ref") {
                let name = name.rsplit('/').next().unwrap();
                if found.insert(name) {
                    referred(api, &api["components"]["schemas"][name], found);
                }
            }
            map.values().for_each(|value| referred(api, value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| referred(api, value, found)),
        _ => {}
    }
}

#[test]
fn checked_in_openapi_json_is_up_to_date() {
    let kept = include_str!("../../../../docs/openapi.json");
    assert!(kept == openapi_json(), "run `make openapi`");
}

#[test]
fn every_operation_has_a_unique_id_and_a_summary() {
    let api = described();
    let mut names = BTreeSet::new();
    for (path, method, operation) in operations(&api) {
        let name = operation["operationId"].as_str().unwrap();
        assert!(names.insert(name), "{method} {path}: {name} is taken");
        assert!(operation["summary"].is_string(), "{method} {path}");
        let has_body = operation["requestBody"].is_object();
        let example = &operation["requestBody"]["content"]["application/json"]["example"];
        assert_eq!(has_body, example.is_object(), "{method} {path}");
        for (status, response) in operation["responses"].as_object().unwrap() {
            let words = response["description"].as_str().unwrap();
            assert!(words.ends_with('.'), "{method} {path} {status}: {words}");
        }
    }
}

#[test]
fn every_schema_and_field_has_a_type_and_a_description() {
    let api = described();
    let schemas = api["components"]["schemas"].as_object().unwrap();
    for (name, schema) in schemas {
        assert!(
            schema["description"].is_string(),
            "{name} has no description"
        );
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            let property = property.as_object().unwrap();
            let shapes = ["type", "oneOf", "anyOf", "allOf", "$ref"];
            let shaped = shapes.iter().any(|shape| property.contains_key(*shape));
            assert!(shaped, "{name}.{field} has no shape");
            let text = Value::from(property.clone()).to_string();
            assert!(
                text.contains("\"description\""),
                "{name}.{field} has no description"
            );
        }
    }
}

#[test]
fn every_request_field_has_a_description_and_an_example() {
    let api = described();
    let mut schemas = BTreeSet::new();
    for (_, _, operation) in operations(&api) {
        referred(&api, &operation["requestBody"], &mut schemas);
    }
    assert!(schemas.len() > 8, "{schemas:?}");
    for schema in schemas {
        let properties = &api["components"]["schemas"][schema]["properties"];
        for (field, property) in properties.as_object().into_iter().flatten() {
            let of = format!("{schema}.{field} (router/http/src/examples.json): {property}");
            let words = property.to_string().contains("\"description\"");
            assert!(words, "no description, or the field is gone: {of}");
            assert!(property.get("example").is_some(), "no example: {of}");
        }
    }
}

#[test]
fn routes_that_may_stream_describe_their_events() {
    let api = described();
    for (path, method, operation) in operations(&api) {
        let body = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
        let Some(schema) = body.as_str().and_then(|name| name.rsplit('/').next()) else {
            continue;
        };
        let may = !api["components"]["schemas"][schema]["properties"]["stream"].is_null();
        let counts = ["tokenize", "tokens", "infer", "generate"];
        let whole = counts.iter().any(|end| path.ends_with(end));
        let schema = &operation["responses"]["200"]["content"]["text/event-stream"]["schema"];
        if may && !whole && path.starts_with("/v1/") {
            assert!(schema.is_object(), "{method} {path} streams");
        }
    }
    let events =
        &api["paths"]["/v1/messages"]["post"]["responses"]["200"]["content"]["text/event-stream"];
    let events = events["schema"]["oneOf"].as_array().unwrap();
    assert_eq!(events.len(), 8);
}
