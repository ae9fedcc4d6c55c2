//! Answers that must be calls: how each format writes them, as a guide of the workers.

use serde_json::Value;

use super::{Choice, Offer, Tool, ToolFormat, mistral, tagged};

/// How calls are written when an answer is nothing else.
struct Frame {
    begin: &'static str,
    between: &'static str,
    end: &'static str,
}

/// Of a tool that names no schema.
const ANY_OBJECT: &str = r#"{"type":"object"}"#;

impl ToolFormat {
    /// The text of a guide to calls of what `offer` asks for: one call, or one or more where it
    /// allows several. `None` if it forces none. The schemas are in it as they came.
    pub fn forced_calls(self, offer: &Offer) -> Option<String> {
        let (one, only) = match &offer.choice {
            Choice::None | Choice::Auto => return None,
            Choice::Required => (!offer.parallel, None),
            Choice::Named(name) => (true, Some(name)),
        };
        let wanted = |tool: &&Tool| only.is_none_or(|name| *name == tool.name);
        let calls = offer.tools.iter().filter(wanted);
        let calls: Vec<String> = calls.map(|tool| self.forced_call(tool)).collect();
        let Frame {
            begin,
            between,
            end,
        } = self.frame();
        let [begin, between, end] = [begin, between, end].map(Value::from);
        Some(format!(
            "{{\"begin\":{begin},\"between\":{between},\"end\":{end},\"many\":{},\"calls\":[{}]}}",
            !one,
            calls.join(",")
        ))
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

    fn forced_call(self, tool: &Tool) -> String {
        let (before, after) = self.around(&tool.name);
        let schema = tool.parameters.as_deref().unwrap_or(ANY_OBJECT);
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
