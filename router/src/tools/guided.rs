//! Calls that are guided: how each format writes them, as a guide of the workers.

use serde_json::{Value, json};

use super::{Choice, Offer, Tool, ToolFormat, llama, mistral, pythonic, tagged};

/// How calls are written when an answer is nothing else.
struct Frame {
    begin: &'static str,
    between: &'static str,
    end: &'static str,
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
        let lazy = !offer.forces();
        let (many, only) = match &offer.choice {
            Choice::None => return None,
            Choice::Auto if !offer.tools.iter().any(|tool| tool.strict) => return None,
            // What opens a call there opens the next one, too.
            Choice::Auto => (offer.parallel && self.is_list(), None),
            Choice::Required => (offer.parallel, None),
            Choice::Named(name) => (false, Some(name)),
        };
        let wanted = |tool: &&Tool| only.is_none_or(|name| *name == tool.name);
        let calls = offer.tools.iter().filter(wanted);
        let calls: Vec<String> = calls
            .map(|tool| self.guided_call(tool, lazy && !tool.strict))
            .collect();
        let Frame {
            begin,
            between,
            end,
        } = self.frame();
        let [begin, between, end] = [begin, between, end].map(Value::from);
        let opened = if lazy {
            format!("\"opening\":{},", self.opened_by())
        } else {
            String::new()
        };
        Some(format!(
            "{{{opened}\"begin\":{begin},\"between\":{between},\"end\":{end},\"many\":{many},\"calls\":[{}]}}",
            calls.join(",")
        ))
    }

    /// What opens a call, or a list of them, in an answer that may say other things: see
    /// proto/README.md.
    fn opened_by(self) -> Value {
        let opened = |mark, then, again| {
            let at_start = !str::is_empty(then);
            json!({"mark": mark, "then": then, "spelt": then, "at_start": at_start, "again": again})
        };
        match self {
            Self::Hermes | Self::Brook => {
                json!({"mark": tagged::OPEN, "then": "", "spelt": tagged::OPEN, "at_start": false, "again": ""})
            }
            Self::Llama3Json => opened(llama::MARK, "{", ";"),
            Self::Mistral => opened(mistral::MARK, "", ""),
            Self::Pythonic => opened(pythonic::MARKS[0], "[", ""),
        }
    }

    /// Whether several calls stand in one list.
    fn is_list(self) -> bool {
        matches!(self, Self::Mistral | Self::Pythonic)
    }

    /// What of a forced answer the prompt holds already: a mark that is a special token, which no
    /// guide can spell.
    pub fn opening(self) -> &'static str {
        match self {
            Self::Mistral => mistral::MARK,
            Self::Hermes | Self::Brook | Self::Llama3Json | Self::Pythonic => "",
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
        let (opening, written) = (self.opening(), written.join(frame.between));
        format!("{opening}{}{written}{}", frame.begin, frame.end)
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
