//! Calls as models write them.

#![allow(clippy::panic)]

use penstock_text::tool_parsers::{ParameterTypes, Tool, ToolChoiceMode, ToolFormat, ToolSet};
use serde_json::{Map, Value, json};

use crate::parsed::TOOL_FIELDS;

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::String(text) => {
            let escaped: String = text
                .chars()
                .map(|c| match c {
                    '\\' | '\'' => format!("\\{c}"),
                    '\n' => "\\n".into(),
                    c if c.is_control() => format!("\\U{:08x}", c as u32),
                    c => c.into(),
                })
                .collect();
            format!("'{escaped}'")
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(python).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(map) => {
            let entries: Vec<_> = map
                .iter()
                .map(|(key, value)| format!("{}: {}", python(&json!(key)), python(value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        number => number.to_string(),
    }
}

/// A call's name and arguments.
pub(crate) type Call = (String, Map<String, Value>);

/// Joins calls, written one by one.
fn each(calls: &[Call], write: &dyn Fn(&Call) -> String, between: &str) -> String {
    calls.iter().map(write).collect::<Vec<_>>().join(between)
}

/// Returns a call as an object with its arguments under `key`.
fn object(key: &str, (name, arguments): &Call) -> String {
    json!({"name": name, key: arguments}).to_string()
}

/// Writes calls as a model of this format does.
pub(crate) fn written(format: ToolFormat, calls: &[Call]) -> String {
    let each = |write: &dyn Fn(&Call) -> String, between: &str| each(calls, write, between);
    match format {
        ToolFormat::Hermes => each(
            &|c| format!("<tool_call>\n{}\n</tool_call>", object("arguments", c)),
            "\n",
        ),
        ToolFormat::Brook => each(
            &|c| format!("<tool_call>{}</tool_call>", object("arguments", c)),
            "",
        ),
        ToolFormat::Llama3Json => each(&|c| object("parameters", c), "; "),
        ToolFormat::Llama4Json => each(&|c| object("parameters", c), ""),
        ToolFormat::Mistral => format!("[TOOL_CALLS][{}]", each(&|c| object("arguments", c), ", ")),
        ToolFormat::Pythonic => format!("[{}]", each(&python_call, ", ")),
        ToolFormat::QwenXml => each(
            &|call| format!("<tool_call>\n{}</tool_call>", function(call)),
            "\n",
        ),
        ToolFormat::Seed => each(
            &|call| format!("<seed:tool_call>\n{}</seed:tool_call>", function(call)),
            "\n",
        ),
        ToolFormat::MiniMax => each(&minimax, "\n"),
        ToolFormat::MiniMaxM3 => format!(
            "]<]minimax[>[<tool_call>\n{}]<]minimax[>[</tool_call>",
            each(&minimax_m3, "")
        ),
        ToolFormat::Glm => each(
            &|(name, arguments)| {
                let argument = |(k, v): (&String, &Value)| {
                    let value = unquoted(v);
                    format!("<arg_key>{k}</arg_key>\n<arg_value>{value}</arg_value>\n")
                };
                let arguments: String = arguments.iter().map(argument).collect();
                format!("<tool_call>{name}\n{arguments}</tool_call>")
            },
            "\n",
        ),
        ToolFormat::Harmony => each(
            &|(name, arguments)| {
                let arguments = json!(arguments);
                format!(
                    "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>\
                     {arguments}<|call|>"
                )
            },
            "<|start|>assistant",
        ),
        format => written_in_marks(format, calls),
    }
}

fn python_call((name, arguments): &Call) -> String {
    let pairs: Vec<_> = arguments
        .iter()
        .map(|(k, v)| format!("{k}={}", python(v)))
        .collect();
    format!("{name}({})", pairs.join(", "))
}

/// Writes a call as Qwen 3 Coder does, without the outer tag.
fn function((name, arguments): &Call) -> String {
    let parameter =
        |(k, v): (&String, &Value)| format!("<parameter={k}>\n{}\n</parameter>\n", unquoted(v));
    let parameters: String = arguments.iter().map(parameter).collect();
    format!("<function={name}>\n{parameters}</function>\n")
}

fn minimax((name, arguments): &Call) -> String {
    let parameter = |(k, v): (&String, &Value)| {
        format!("<parameter name=\"{k}\">\n{}\n</parameter>\n", unquoted(v))
    };
    let parameters: String = arguments.iter().map(parameter).collect();
    format!(
        "<minimax:tool_call>\n<invoke name=\"{name}\">\n{parameters}</invoke>\n</minimax:tool_call>"
    )
}

fn minimax_m3((name, arguments): &Call) -> String {
    const MARK: &str = "]<]minimax[>[";
    let element = |(k, v): (&String, &Value)| format!("{MARK}<{k}>{}{MARK}</{k}>", unquoted(v));
    let elements: String = arguments.iter().map(element).collect();
    format!("{MARK}<invoke name=\"{name}\">{elements}{MARK}</invoke>\n")
}

/// Writes calls in DeepSeek's tags.
fn dsml(block: &str, calls: &[Call]) -> String {
    let call = |(name, arguments): &Call| {
        let parameter = |(k, v): (&String, &Value)| {
            let (is_string, value) = (v.is_string(), unquoted(v));
            format!(
                "<｜DSML｜parameter name=\"{k}\" string=\"{is_string}\">{value}</｜DSML｜parameter>"
            )
        };
        let parameters: Vec<_> = arguments.iter().map(parameter).collect();
        let parameters = parameters.join("\n");
        format!("<｜DSML｜invoke name=\"{name}\">\n{parameters}\n</｜DSML｜invoke>")
    };
    let calls = each(calls, &call, "\n");
    format!("<｜DSML｜{block}>\n{calls}\n</｜DSML｜{block}>")
}

/// Writes a value in Gemma's notation.
fn gemma(value: &Value) -> String {
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(gemma).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| {
                let is_bare = key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
                let key = if is_bare {
                    key.clone()
                } else {
                    gemma(&json!(key))
                };
                format!("{key}:{}", gemma(value))
            };
            let entries: Vec<_> = map.iter().map(entry).collect();
            format!("{{{}}}", entries.join(","))
        }
        other => other.to_string(),
    }
}

/// Writes calls as JSON between marks.
fn written_in_marks(format: ToolFormat, calls: &[Call]) -> String {
    let each = |write: &dyn Fn(&Call) -> String, between: &str| each(calls, write, between);
    match format {
        ToolFormat::DeepSeekV3 => {
            let call = |(name, arguments): &Call| {
                let arguments = json!(arguments);
                format!(
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```\
                     <｜tool▁call▁end｜>"
                )
            };
            let calls = each(&call, "\n");
            format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
        }
        ToolFormat::DeepSeekV31 => {
            let call = |(name, arguments): &Call| {
                let arguments = json!(arguments);
                format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>")
            };
            format!(
                "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>",
                each(&call, "")
            )
        }
        ToolFormat::Gemma => {
            let call = |(name, arguments): &Call| {
                format!(
                    "<|tool_call>call:{name}{}<tool_call|>",
                    gemma(&json!(arguments))
                )
            };
            each(&call, "")
        }
        ToolFormat::Granite => format!(
            "<|tool_call|> [{}]",
            each(&|c| object("arguments", c), ", ")
        ),
        ToolFormat::Phi => format!("functools[{}]", each(&|c| object("arguments", c), ", ")),
        ToolFormat::Cohere => {
            let call = |(name, arguments): &Call| {
                json!({"tool_call_id": "0", "tool_name": name, "parameters": arguments}).to_string()
            };
            let calls = each(&call, ",\n    ");
            format!("<|START_ACTION|>[\n    {calls}\n]<|END_ACTION|>")
        }
        format => written_in_further_marks(format, calls),
    }
}

/// Writes calls between marks of fewer families.
fn written_in_further_marks(format: ToolFormat, calls: &[Call]) -> String {
    let each = |write: &dyn Fn(&Call) -> String, between: &str| each(calls, write, between);
    match format {
        ToolFormat::DeepSeekV32 => dsml("function_calls", calls),
        ToolFormat::DeepSeekV4 => dsml("tool_calls", calls),
        ToolFormat::Kimi => {
            let call = |(name, arguments): &Call| {
                let arguments = json!(arguments);
                format!(
                    "<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}\
                     <|tool_call_end|>"
                )
            };
            let calls = each(&call, "");
            format!("<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>")
        }
        ToolFormat::Hunyuan => {
            let calls = each(&|c| object("arguments", c), ", ");
            format!("<tool_calls>[{calls}]</tool_calls>")
        }
        ToolFormat::InternLm => each(
            &|c| {
                let call = object("parameters", c);
                format!("<|action_start|><|plugin|>\n{call}<|action_end|>\n")
            },
            "",
        ),
        ToolFormat::LongCat => each(
            &|c| {
                let call = object("arguments", c);
                format!("<longcat_tool_call>\n{call}\n</longcat_tool_call>")
            },
            "\n",
        ),
        ToolFormat::Olmo => {
            let calls = each(&python_call, "\n");
            format!("<function_calls>\n{calls}\n</function_calls>")
        }
        ToolFormat::Lfm => {
            let calls = each(&python_call, ", ");
            format!("<|tool_call_start|>[{calls}]<|tool_call_end|>")
        }
        format => unreachable!("{format:?}"),
    }
}

/// Writes a value as the formats do that quote no strings.
fn unquoted(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// Returns the types of the arguments of `calls`, whose keys tell strings from other values.
pub(crate) fn parameter_types(calls: &[Call]) -> ParameterTypes {
    let tool = |(name, _): &Call| {
        let of_name = calls.iter().filter(|(other, _)| other == name);
        let keys = of_name.flat_map(|(_, arguments)| arguments.keys());
        let strings = keys.filter(|key| key.starts_with("s_"));
        let properties: Map<String, Value> = strings
            .map(|key| (key.clone(), json!({"type": "string"})))
            .collect();
        Tool {
            name: name.clone(),
            description: None,
            parameters: Some(json!({"type": "object", "properties": properties}).to_string()),
            strict: false,
        }
    };
    ParameterTypes::new(&ToolSet {
        tools: calls.iter().map(tool).collect(),
        choice: ToolChoiceMode::Auto,
        parallel: true,
        fields: TOOL_FIELDS,
    })
}

/// Renames the arguments so that their keys tell strings from other values.
pub(crate) fn with_typed_keys(calls: Vec<Call>) -> Vec<Call> {
    let renamed = |(key, value): (String, Value)| {
        let kind = if value.is_string() { 's' } else { 'v' };
        (format!("{kind}_{key}"), value)
    };
    let call = |(name, arguments): Call| (name, arguments.into_iter().map(renamed).collect());
    calls.into_iter().map(call).collect()
}
