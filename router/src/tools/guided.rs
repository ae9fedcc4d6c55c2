//! Calls that are guided: how each format writes them, as a guide of the workers.

use serde_json::{Value, json};

use super::{Choice, Offer, Tool, ToolFormat, llama, mistral, pythonic, tagged};
use crate::engine::types::{Guide, GuideKind};

/// How calls are written when an answer is nothing else.
struct Frame {
    begin: &'static str,
    between: &'static str,
    end: &'static str,
}

/// Which tools' schemas are kept; others take any object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    All,
    Strict,
}

/// Of a tool that names no schema.
const NO_SCHEMA: &str = r#"{"type":"object"}"#;
/// Of a tool whose schema nobody wants kept.
const ANY_OBJECT: &str = r#"{"type":"object","additionalProperties":true}"#;

impl ToolFormat {
    /// The text of a guide to calls of what `offer` asks for: one call, or one or more where it
    /// allows several. Where it forces none, the guide begins with each call that the model makes, if
    /// a tool is strict; else there is none. The schemas that are kept are in it as they came.
    pub fn guided_calls(self, offer: &Offer) -> Option<String> {
        match &offer.choice {
            Choice::None => None,
            Choice::Auto if !offer.is_strict() => None,
            Choice::Auto => {
                // What opens a call opens the next one, too, but for calls in a list.
                let many = offer.parallel && matches!(self, Self::Mistral | Self::Pythonic);
                let opening = format!("\"opening\":{}", self.opened_by(&offer.tools));
                Some(self.calls_text(&offer.tools, many, Kept::Strict, &opening))
            }
            Choice::Required => {
                let mark = self.marked();
                Some(self.calls_text(&offer.tools, offer.parallel, Kept::All, &mark))
            }
            Choice::Named(name) => {
                let named = offer.tools.iter().find(|tool| tool.name == *name)?;
                let named = std::slice::from_ref(named);
                Some(self.calls_text(named, false, Kept::All, &self.marked()))
            }
        }
    }

    /// The text of a guide to an answer that is calls, or `document`. `None` if the two could not be
    /// told from each other.
    pub fn calls_or(self, offer: &Offer, document: &Guide) -> Option<String> {
        let kind = match document.kind {
            GuideKind::JsonSchema => "json_schema",
            GuideKind::Regex => "regex",
            GuideKind::Grammar => "grammar",
            GuideKind::Calls => return None,
        };
        if self == Self::Llama3Json {
            return None;
        }
        let Guide { text, complete, .. } = document;
        let document = json!({"kind": kind, "text": text, "complete": complete});
        let members = format!("\"document\":{document},{}", self.marked());
        Some(self.calls_text(&offer.tools, offer.parallel, Kept::Strict, &members))
    }

    /// Calls as proto/README.md describes them, with more `members`.
    fn calls_text(self, tools: &[Tool], many: bool, kept: Kept, members: &str) -> String {
        let loose = |tool: &Tool| kept == Kept::Strict && !tool.strict;
        let call = |tool: &Tool| self.guided_call(tool, loose(tool));
        let calls: Vec<String> = tools.iter().map(call).collect();
        let Frame {
            begin,
            between,
            end,
        } = self.frame();
        let [begin, between, end] = [begin, between, end].map(Value::from);
        format!(
            "{{{members},\"begin\":{begin},\"between\":{between},\"end\":{end},\"many\":{many},\"calls\":[{}]}}",
            calls.join(",")
        )
    }

    /// What comes before calls that are the whole answer: a mark that may be a special token, which
    /// no text can spell.
    fn marked(self) -> String {
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
    fn opened_by(self, tools: &[Tool]) -> Value {
        let names = tools.iter().map(|tool| tool.name.as_str());
        match self {
            Self::Hermes | Self::Brook => json!({"mark": tagged::OPEN, "spelt": tagged::OPEN}),
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

    fn frame(self) -> Frame {
        let (begin, between, end) = match self {
            Self::Hermes => ("", "\n", ""),
            Self::Brook => ("", "", ""),
            Self::Llama3Json => ("", "; ", ""),
            Self::Mistral | Self::Pythonic => ("[", ", ", "]"),
        };
        Frame {
            begin,
            between,
            end,
        }
    }

    /// These calls, (name, arguments), as the model writes them.
    pub(crate) fn write_calls(self, calls: &[(&str, &str)]) -> String {
        let frame = self.frame();
        let written = calls.iter().map(|(name, arguments)| {
            let (before, after) = self.around(name);
            before + arguments + &after
        });
        let written: Vec<String> = written.collect();
        let (mark, written) = (self.mark(), written.join(frame.between));
        format!("{mark}{}{written}{}", frame.begin, frame.end)
    }

    fn guided_call(self, tool: &Tool, loose: bool) -> String {
        let (before, after) = self.around(&tool.name);
        let schema = tool.parameters.as_deref().unwrap_or(NO_SCHEMA);
        let schema = if loose { ANY_OBJECT } else { schema };
        let [name, before, after] = [tool.name.clone(), before, after].map(Value::from);
        format!("{{\"name\":{name},\"before\":{before},\"schema\":{schema},\"after\":{after}}}")
    }

    /// What stands around the arguments of a call.
    fn around(self, name: &str) -> (String, String) {
        match self {
            Self::Hermes => (
                format!("{}\n{{\"name\": \"{name}\", \"arguments\": ", tagged::OPEN),
                format!("}}\n{}", tagged::CLOSE),
            ),
            Self::Brook => (
                format!("{}{{\"name\":\"{name}\",\"arguments\":", tagged::OPEN),
                format!("}}{}", tagged::CLOSE),
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
