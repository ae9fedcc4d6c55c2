//! Grammars for tool calls: the workers' description of how each format writes them.

use penstock_request::grammar_spec::OutputConstraint;
use serde_json::{Value, json};

use super::{
    Tool, ToolChoiceMode, ToolFormat, ToolSet, deepseek, gemma, harmony, hermes, json_list, kimi,
    llama, minimax_m3, mistral, pythonic, xml,
};

/// The text around and between calls when they are the whole output.
struct CallSyntax {
    begin: &'static str,
    between: &'static str,
    end: &'static str,
}

/// The tools whose schemas the grammar enforces; other tools accept any object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EnforcedSchemas {
    All,
    Strict,
}

/// The schema of a tool that has no `parameters`.
const NO_SCHEMA: &str = r#"{"type":"object"}"#;
/// The schema of a tool whose own schema is not enforced.
const ANY_OBJECT: &str = r#"{"type":"object","additionalProperties":true}"#;

impl ToolFormat {
    /// Returns the grammar text for the calls that `tool_set` requires: one call, or one or more if
    /// parallel calls are allowed.
    /// With `auto` and a strict tool, the grammar starts where the model begins a call. With `auto`
    /// and no strict tool, there is no grammar. The schemas that it enforces are copied verbatim.
    pub fn call_grammar(self, tool_set: &ToolSet) -> Option<String> {
        match &tool_set.choice {
            ToolChoiceMode::None => None,
            ToolChoiceMode::Auto if !tool_set.is_strict() => None,
            ToolChoiceMode::Auto => {
                // In the other formats every call has its own opening, which starts the grammar
                // again.
                let many = tool_set.parallel && self.writes_lists();
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

    /// Returns the grammar text for an output that is either calls or `document`. Returns `None` if
    /// the format cannot distinguish the two.
    pub fn call_grammar_or(
        self,
        tool_set: &ToolSet,
        document: &OutputConstraint,
    ) -> Option<String> {
        let kind = document.kind.document_name()?;
        if !self.why_no_document().is_empty() {
            return None;
        }
        let OutputConstraint { text, complete, .. } = document;
        let document = json!({"kind": kind, "text": text, "complete": complete});
        let members = format!("\"document\":{document},{}", self.mark_member());
        Some(self.calls_json(
            &tool_set.tools,
            tool_set.parallel,
            EnforcedSchemas::Strict,
            &members,
        ))
    }

    /// Returns why an output cannot be either calls or a document; empty if it can.
    pub fn why_no_document(self) -> &'static str {
        match self {
            Self::Llama3Json | Self::Llama4Json => {
                "this model writes its calls as JSON objects, which look like any JSON document"
            }
            Self::Harmony => "this model writes calls and documents in different channels",
            _ => "",
        }
    }

    /// Whether one mark opens all calls of an output.
    fn writes_lists(self) -> bool {
        match self {
            Self::Mistral
            | Self::Pythonic
            | Self::DeepSeekV3
            | Self::DeepSeekV31
            | Self::Granite
            | Self::Phi
            | Self::Cohere
            | Self::Kimi
            | Self::Hunyuan
            | Self::Lfm
            | Self::Olmo => true,
            Self::Hermes
            | Self::LongCat
            | Self::Seed
            | Self::Brook
            | Self::Llama3Json
            | Self::Llama4Json
            | Self::InternLm
            | Self::QwenXml
            | Self::MiniMax
            | Self::MiniMaxM3
            | Self::DeepSeekV32
            | Self::DeepSeekV4
            | Self::Glm
            | Self::Gemma
            | Self::Harmony => false,
        }
    }

    /// Returns the calls as proto/README.md describes them, together with `members`.
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

    /// Returns the mark before calls that are the whole output. It may be a special token, which no
    /// text can spell.
    fn mark_member(self) -> String {
        format!("\"mark\":{}", Value::from(self.mark()))
    }

    fn mark(self) -> &'static str {
        match self {
            Self::Mistral => mistral::MARK,
            Self::Granite => json_list::GRANITE_MARK,
            Self::Phi => json_list::PHI_MARK,
            Self::Cohere => json_list::COHERE_MARK,
            Self::Gemma => gemma::OPEN,
            Self::Hunyuan => json_list::TOOL_CALLS,
            Self::InternLm => json_list::INTERNLM_MARK,
            Self::Lfm => pythonic::LFM_MARKS[0],
            Self::Hermes
            | Self::LongCat
            | Self::Seed
            | Self::Kimi
            | Self::Olmo
            | Self::Brook
            | Self::Llama3Json
            | Self::Llama4Json
            | Self::Pythonic
            | Self::QwenXml
            | Self::MiniMax
            | Self::MiniMaxM3
            | Self::Glm
            | Self::DeepSeekV3
            | Self::DeepSeekV31
            | Self::DeepSeekV32
            | Self::DeepSeekV4
            | Self::Harmony => "",
        }
    }

    /// Returns what opens a call or a list of calls in free text; see proto/README.md. If the mark
    /// alone does not identify a call, the opening extends to the function's name, because text may
    /// begin in the same way.
    fn opening_member(self, tools: &[Tool]) -> Value {
        let names = tools.iter().map(|tool| tool.name.as_str());
        match self {
            Self::Hermes | Self::Brook | Self::QwenXml | Self::Glm => {
                json!({"mark": hermes::OPEN, "spelt": hermes::OPEN})
            }
            Self::MiniMax => json!({"mark": xml::MINIMAX_OPEN, "spelt": xml::MINIMAX_OPEN}),
            Self::MiniMaxM3 => json!({"mark": minimax_m3::OPEN, "spelt": minimax_m3::OPEN}),
            Self::Seed => json!({"mark": xml::SEED_OPEN, "spelt": xml::SEED_OPEN}),
            Self::DeepSeekV32 => json!({"mark": xml::DSML_CALLS[0], "spelt": xml::DSML_CALLS[0]}),
            Self::DeepSeekV4 => {
                json!({"mark": xml::DSML_TOOL_CALLS[0], "spelt": xml::DSML_TOOL_CALLS[0]})
            }
            Self::LongCat => {
                json!({"mark": hermes::LONGCAT[0][0], "spelt": hermes::LONGCAT[0][0]})
            }
            Self::DeepSeekV3 | Self::DeepSeekV31 => {
                json!({"mark": deepseek::BEGIN, "spelt": deepseek::BEGIN})
            }
            Self::Kimi => json!({"mark": kimi::BEGIN, "spelt": kimi::BEGIN}),
            Self::Olmo => {
                json!({"mark": pythonic::OLMO_MARKS[0], "spelt": pythonic::OLMO_MARKS[0]})
            }
            Self::Mistral
            | Self::Granite
            | Self::Phi
            | Self::Cohere
            | Self::Gemma
            | Self::Hunyuan
            | Self::Lfm => json!({"mark": self.mark()}),
            Self::Harmony => {
                let head = |name| json!({"parts": [format!("{name} ")], "spelt": format!(" {}{name} ", harmony::RECIPIENT)});
                let heads: Vec<Value> = names.map(head).collect();
                json!({"mark": harmony::RECIPIENT, "heads": heads})
            }
            // The second of the model's two special tokens.
            Self::InternLm => json!({"mark": json_list::PLUGIN}),
            Self::Llama3Json | Self::Llama4Json => {
                let heads: Vec<Value> = names.flat_map(llama::heads).collect();
                json!({"mark": self.marks()[0], "heads": heads, "at_start": true, "again": ";"})
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
            Self::Hermes
            | Self::LongCat
            | Self::QwenXml
            | Self::Seed
            | Self::MiniMax
            | Self::MiniMaxM3
            | Self::DeepSeekV32
            | Self::DeepSeekV4
            | Self::Glm => ("", "\n", ""),
            // Only the first of forced calls has Gemma's marks, which no text can spell.
            Self::Brook | Self::Harmony | Self::Gemma | Self::Llama4Json => ("", "", ""),
            Self::InternLm => ("\n", "\n", ""),
            Self::Llama3Json => ("", "; ", ""),
            Self::Mistral | Self::Pythonic | Self::Lfm | Self::Granite | Self::Hunyuan => {
                ("[", ", ", "]")
            }
            Self::Phi => ("", ", ", "]"),
            Self::Cohere => ("[\n    ", ",\n    ", "\n]"),
            Self::DeepSeekV3 => (deepseek::BEGIN, "\n", deepseek::END),
            Self::DeepSeekV31 => (deepseek::BEGIN, "", deepseek::END),
            Self::Kimi => (kimi::BEGIN, "", kimi::END),
            Self::Olmo => (pythonic::OLMO_MARKS[0], "\n", pythonic::OLMO_MARKS[1]),
        };
        CallSyntax {
            begin,
            between,
            end,
        }
    }

    /// Writes `calls`, pairs of (name, arguments), as the model does.
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

    /// Returns the text before and after the arguments of a call.
    fn call_affixes(self, name: &str) -> (String, String) {
        match self {
            // A JSON object is a call in formats with tags, too; only of JSON can the grammar
            // enforce a schema.
            Self::Hermes | Self::QwenXml | Self::Glm => {
                json_in_tags(hermes::OPEN, name, hermes::CLOSE)
            }
            Self::LongCat => json_in_tags(hermes::LONGCAT[0][0], name, hermes::LONGCAT[1][0]),
            Self::MiniMax => json_in_tags(xml::MINIMAX_OPEN, name, xml::MINIMAX_CLOSE),
            Self::MiniMaxM3 => json_in_tags(minimax_m3::OPEN, name, minimax_m3::CLOSE),
            Self::Seed => json_in_tags(xml::SEED_OPEN, name, xml::SEED_CLOSE),
            Self::DeepSeekV32 => json_in_tags(xml::DSML_CALLS[0], name, xml::DSML_CALLS[1]),
            Self::DeepSeekV4 => {
                json_in_tags(xml::DSML_TOOL_CALLS[0], name, xml::DSML_TOOL_CALLS[1])
            }
            Self::Brook => (
                format!("{}{{\"name\":\"{name}\",\"arguments\":", hermes::OPEN),
                format!("}}{}", hermes::CLOSE),
            ),
            Self::Llama3Json | Self::Llama4Json | Self::InternLm => (
                format!("{{\"name\": \"{name}\", \"parameters\": "),
                "}".to_owned(),
            ),
            Self::Mistral | Self::Granite | Self::Phi | Self::Hunyuan => (
                format!("{{\"name\": \"{name}\", \"arguments\": "),
                "}".to_owned(),
            ),
            Self::Pythonic | Self::Lfm | Self::Olmo => (format!("{name}(**"), ")".to_owned()),
            Self::Cohere => (
                format!("{{\"tool_call_id\": \"0\", \"tool_name\": \"{name}\", \"parameters\": "),
                "}".to_owned(),
            ),
            Self::DeepSeekV3 => (
                format!(
                    "{}function{}{name}{}",
                    deepseek::CALL,
                    deepseek::SEPARATOR,
                    deepseek::BLOCK
                ),
                format!("{}{}", deepseek::BLOCK_END, deepseek::CALL_END),
            ),
            Self::DeepSeekV31 => (
                format!("{}{name}{}", deepseek::CALL, deepseek::SEPARATOR),
                deepseek::CALL_END.to_owned(),
            ),
            // The number of the call is not known here; the first one keeps this id.
            Self::Kimi => (
                format!("{}{}{name}:0{}", kimi::CALL, kimi::PREFIX, kimi::SEPARATOR),
                kimi::CALL_END.to_owned(),
            ),
            Self::Gemma => (format!("{}{name}", gemma::CALL), String::new()),
            Self::Harmony => (format!(" {}{name} json", harmony::RECIPIENT), String::new()),
        }
    }
}

/// Returns the text before and after the arguments of a call that is a JSON object between tags.
fn json_in_tags(open: &str, name: &str, close: &str) -> (String, String) {
    (
        format!("{open}\n{{\"name\": \"{name}\", \"arguments\": "),
        format!("}}\n{close}"),
    )
}
