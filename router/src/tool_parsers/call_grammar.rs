//! Calls that are guided: how each format writes them, as a guide of the workers.

use serde_json::{Value, json};

use super::{Tool, ToolChoiceMode, ToolFormat, ToolSet, hermes, llama, mistral, pythonic};
use crate::engine::types::{GrammarFormat, GrammarSpec};

/// How calls are written when an answer is nothing else.
struct CallSyntax {
    begin: &'static str,
    between: &'static str,
    end: &'static str,
}

/// Which tools' schemas are kept; others take any object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EnforcedSchemas {
    All,
    Strict,
}

/// Of a tool that names no schema.
const NO_SCHEMA: &str = r#"{"type":"object"}"#;
/// Of a tool whose schema nobody wants kept.
const ANY_OBJECT: &str = r#"{"type":"object","additionalProperties":true}"#;

impl ToolFormat {
    /// The text of a guide to calls of what `tool_set` asks for: one call, or one or more where it
    /// allows several. Where it forces none, the guide begins with each call that the model makes, if
    /// a tool is strict; else there is none. The schemas that are kept are in it as they came.
    pub fn call_grammar(self, tool_set: &ToolSet) -> Option<String> {
        match &tool_set.choice {
            ToolChoiceMode::None => None,
            ToolChoiceMode::Auto if !tool_set.is_strict() => None,
            ToolChoiceMode::Auto => {
                // What opens a call opens the next one, too, but for calls in a list.
                let many = tool_set.parallel && matches!(self, Self::Mistral | Self::Pythonic);
                let opening = format!("\"opening\":{}", self.opening_member(&tool_set.tools));
                Some(self.calls_json(&tool_set.tools, many, EnforcedSchemas::Strict, &opening))
            }
            ToolChoiceMode::Required => {
                let mark = self.mark_member();
                Some(self.calls_json(
                    &tool_set.tools,
                    tool_set.parallel,
                    EnforcedSchemas::All,
                    &mark,
                ))
            }
            ToolChoiceMode::Named(name) => {
                let named = tool_set.tools.iter().find(|tool| tool.name == *name)?;
                let named = std::slice::from_ref(named);
                Some(self.calls_json(named, false, EnforcedSchemas::All, &self.mark_member()))
            }
        }
    }

    /// The text of a guide to an answer that is calls, or `document`. `None` if the two could not be
    /// told from each other.
    pub fn call_grammar_or(self, tool_set: &ToolSet, document: &GrammarSpec) -> Option<String> {
        let kind = match document.kind {
            GrammarFormat::JsonSchema => "json_schema",
            GrammarFormat::Regex => "regex",
            GrammarFormat::Ebnf => "grammar",
            GrammarFormat::ToolCalls => return None,
        };
        if self == Self::Llama3Json {
            return None;
        }
        let GrammarSpec { text, complete, .. } = document;
        let document = json!({"kind": kind, "text": text, "complete": complete});
        let members = format!("\"document\":{document},{}", self.mark_member());
        Some(self.calls_json(
            &tool_set.tools,
            tool_set.parallel,
            EnforcedSchemas::Strict,
            &members,
        ))
    }

    /// Calls as proto/README.md describes them, with more `members`.
    fn calls_json(
        self,
        tools: &[Tool],
        many: bool,
        enforced: EnforcedSchemas,
        members: &str,
    ) -> String {
        let loose = |tool: &Tool| enforced == EnforcedSchemas::Strict && !tool.strict;
        let call = |tool: &Tool| self.call_member(tool, loose(tool));
        let calls: Vec<String> = tools.iter().map(call).collect();
        let CallSyntax {
            begin,
            between,
            end,
        } = self.syntax();
        let [begin, between, end] = [begin, between, end].map(Value::from);
        format!(
            "{{{members},\"begin\":{begin},\"between\":{between},\"end\":{end},\"many\":{many},\"calls\":[{}]}}",
            calls.join(",")
        )
    }

    /// What comes before calls that are the whole answer: a mark that may be a special token, which
    /// no text can spell.
    fn mark_member(self) -> String {
        format!("\"mark\":{}", Value::from(self.mark()))
    }

    fn mark(self) -> &'static str {
        match self {
            Self::Mistral => mistral::MARK,
            Self::Hermes | Self::Brook | Self::Llama3Json | Self::Pythonic => "",
        }
    }

    /// What opens a call, or a list of them, in an answer that may say other things: see
    /// proto/README.md. Where that is no mark alone, it is a call up to its name: before, text may
    /// begin alike.
    fn opening_member(self, tools: &[Tool]) -> Value {
        let names = tools.iter().map(|tool| tool.name.as_str());
        match self {
            Self::Hermes | Self::Brook => json!({"mark": hermes::OPEN, "spelt": hermes::OPEN}),
            Self::Mistral => json!({"mark": mistral::MARK}),
            Self::Llama3Json => {
                let heads: Vec<Value> = names.flat_map(llama::heads).collect();
                json!({"mark": llama::MARK, "heads": heads, "at_start": true, "again": ";"})
            }
            Self::Pythonic => {
                let head = |name| json!({"parts": ["[", format!("{name}(")], "spelt": format!("[{name}(")});
                let heads: Vec<Value> = names.map(head).collect();
                json!({"mark": pythonic::MARKS[0], "heads": heads, "at_start": true})
            }
        }
    }

    fn syntax(self) -> CallSyntax {
        let (begin, between, end) = match self {
            Self::Hermes => ("", "\n", ""),
            Self::Brook => ("", "", ""),
            Self::Llama3Json => ("", "; ", ""),
            Self::Mistral | Self::Pythonic => ("[", ", ", "]"),
        };
        CallSyntax {
            begin,
            between,
            end,
        }
    }

    /// These calls, (name, arguments), as the model writes them.
    pub(crate) fn write_calls(self, calls: &[(&str, &str)]) -> String {
        let syntax = self.syntax();
        let written = calls.iter().map(|(name, arguments)| {
            let (before, after) = self.call_affixes(name);
            before + arguments + &after
        });
        let written: Vec<String> = written.collect();
        let (mark, written) = (self.mark(), written.join(syntax.between));
        format!("{mark}{}{written}{}", syntax.begin, syntax.end)
    }

    fn call_member(self, tool: &Tool, loose: bool) -> String {
        let (before, after) = self.call_affixes(&tool.name);
        let schema = tool.parameters.as_deref().unwrap_or(NO_SCHEMA);
        let schema = if loose { ANY_OBJECT } else { schema };
        let [name, before, after] = [tool.name.clone(), before, after].map(Value::from);
        format!("{{\"name\":{name},\"before\":{before},\"schema\":{schema},\"after\":{after}}}")
    }

    /// What stands around the arguments of a call.
    fn call_affixes(self, name: &str) -> (String, String) {
        match self {
            Self::Hermes => (
                format!("{}\n{{\"name\": \"{name}\", \"arguments\": ", hermes::OPEN),
                format!("}}\n{}", hermes::CLOSE),
            ),
            Self::Brook => (
                format!("{}{{\"name\":\"{name}\",\"arguments\":", hermes::OPEN),
                format!("}}{}", hermes::CLOSE),
            ),
            Self::Llama3Json => (
                format!("{{\"name\": \"{name}\", \"parameters\": "),
                "}".to_owned(),
            ),
            Self::Mistral => (
                format!("{{\"name\": \"{name}\", \"arguments\": "),
                "}".to_owned(),
            ),
            Self::Pythonic => (format!("{name}(**"), ")".to_owned()),
        }
    }
}
