//! Parsers of a model's output: reasoning, content and tool calls.
//!
//! Each format is a state machine over characters, so the result does not depend on token
//! boundaries. Text that begins like a call but turns out not to be one becomes content.
//!
//! The HTTP crate's `parsed_output` runs them for responses. `generation/answer.rs` runs them once more,
//! only to ignore stop strings inside calls.

mod answer_tags;
mod call_grammar;
mod content_buffer;
mod deepseek;
mod gemma;
mod glm;
mod harmony;
mod hermes;
mod json_call;
mod json_list;
mod kimi;
mod llama;
mod minimax_m3;
mod mistral;
mod output_parser;
mod parameter_types;
mod pythonic;
mod reasoning;
mod tag_calls;
mod tool_set;
mod typed_call;
mod xml;

use std::sync::Arc;

pub use self::output_parser::{CallSpans, OutputParser, OutputParserOptions, ReasoningDisplay};
pub use self::parameter_types::ParameterTypes;
pub use self::tool_set::{
    LONGEST_TOOL_NAME, MOST_TOOLS, TOOL_NAME_SYMBOLS, Tool, ToolChoiceMode, ToolFields, ToolSet,
};
use self::typed_call::TypedCall;

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>\n{"name": .., "arguments": ..}\n</tool_call>`: Hermes, Qwen 2.5 and 3.
    Hermes,
    /// The same without whitespace: brook.
    Brook,
    /// The whole output is `{"name": .., "parameters": ..}`, separated by `;`: Llama 3.
    Llama3Json,
    /// The same, also between or after `<|python_start|>` and `<|python_end|>`: Llama 4.
    Llama4Json,
    /// `[TOOL_CALLS][{"name": .., "arguments": ..}]` or `[TOOL_CALLS]name[ARGS]{..}`: Mistral.
    Mistral,
    /// The whole output is `[name(key=value)]`: Llama 3.2, some templates of Llama 4, `ToolACE`.
    Pythonic,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen 3
    /// Coder.
    QwenXml,
    /// `<minimax:tool_call><invoke name="name"><parameter name="key">value</parameter></invoke>
    /// </minimax:tool_call>`: MiniMax-M2.
    MiniMax,
    /// `<tool_call><invoke name="name"><key>value</key></invoke></tool_call>`, each tag after a mark:
    /// MiniMax-M3.
    MiniMaxM3,
    /// `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`: GLM 4.5.
    Glm,
    /// `<|tool_call>call:name{key:<|"|>value<|"|>}<tool_call|>`: Gemma 4.
    Gemma,
    /// `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name` and a JSON code block: `DeepSeek` V3 and R1.
    DeepSeekV3,
    /// `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{..}<｜tool▁call▁end｜>`: `DeepSeek` V3.1.
    DeepSeekV31,
    /// `<｜DSML｜function_calls><｜DSML｜invoke name="name"><｜DSML｜parameter name="key"
    /// string="true">value</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>`: `DeepSeek`
    /// V3.2.
    DeepSeekV32,
    /// The same between `<｜DSML｜tool_calls>` tags: `DeepSeek` V4.
    DeepSeekV4,
    /// `<|tool_call|>[{"name": .., "arguments": ..}]`: Granite 3.
    Granite,
    /// `functools[{"name": .., "arguments": ..}]`: Phi 4 mini.
    Phi,
    /// `<|START_ACTION|>[{"tool_name": .., "parameters": ..}]<|END_ACTION|>`: Command R7B and A.
    Cohere,
    /// `<|channel|>commentary to=functions.name <|constrain|>json<|message|>{..}`: gpt-oss.
    Harmony,
    /// `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{..}<|tool_call_end|>`: Kimi
    /// K2.
    Kimi,
    /// `QwenXml` between `<seed:tool_call>` tags: Seed-OSS.
    Seed,
    /// `<tool_calls>[{"name": .., "arguments": ..}]</tool_calls>`: Hunyuan A13B, Jamba, and without
    /// brackets MiniMax-M1.
    Hunyuan,
    /// `<|action_start|><|plugin|>{"name": .., "parameters": ..}<|action_end|>`: InternLM 2 and 3.
    InternLm,
    /// `Hermes` between `<longcat_tool_call>` tags: `LongCat`.
    LongCat,
    /// `<|tool_call_start|>[name(key=value)]<|tool_call_end|>`: LFM2.
    Lfm,
    /// `<function_calls>name(key=value)</function_calls>`, a call per line: OLMo 3.
    Olmo,
}

/// How a model marks its reasoning, which always precedes the rest of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// `<think>..</think>`: Qwen 3, DeepSeek V3.1 and many others.
    Think,
    /// The same. Without an opening tag in prompt or output, the output begins with reasoning:
    /// `DeepSeek` R1, whose template may leave the tag to the model.
    DeepSeekR1,
    /// `<think>..</think><response>..</response>`: Granite 3.3, ERNIE 4.5.
    ThinkResponse,
    /// `<think>..</think><answer>..</answer>`: Hunyuan A13B.
    ThinkAnswer,
    /// `[THINK]..[/THINK]`: Magistral.
    Mistral,
    /// `Here is my thought process:` and `Here is my response:`: Granite 3.2.
    Granite,
    /// `<|START_THINKING|>..<|END_THINKING|>`: Command R7B and A.
    Cohere,
    /// `<seed:think>..</seed:think>`: Seed-OSS.
    Seed,
    /// `<mm:think>..</mm:think>`: MiniMax-M3.
    MiniMax,
    /// `<|channel>thought\n..<channel|>`: Gemma 4.
    Gemma,
    /// The channel `analysis`: gpt-oss. Such reasoning may also follow content.
    Harmony,
}

/// A part of the output. Consecutive parts of one kind belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputDelta {
    /// Text of the reply.
    Content(String),
    /// Reasoning that precedes the reply.
    Reasoning(String),
    /// The start of a call.
    CallStart {
        /// The function.
        name: String,
        /// The call's id, if the model wrote one that no other call of the output has.
        id: Option<String>,
    },
    /// The next piece of JSON of the current call's arguments.
    Arguments(String),
    /// The end of the current call.
    CallEnd,
}

/// The names of the request's tools.
pub type ToolNames = Arc<[String]>;

/// Deltas in order. Text is appended to the last one if that is of the same kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputDeltas(Vec<OutputDelta>);

/// A parser of one call format. `finish` is called once, after the last character.
trait ToolCallParser: std::fmt::Debug + Send {
    fn push(&mut self, c: char, out: &mut OutputDeltas);
    fn finish(&mut self, out: &mut OutputDeltas);
    /// Whether the next character belongs to a call: its mark was seen, or its name if the format
    /// has no mark.
    fn in_call(&self) -> bool;
}

impl ToolFormat {
    /// All formats with their names on the command line.
    pub const ALL: [(Self, &'static str); 26] = [
        (Self::Hermes, "hermes"),
        (Self::Brook, "brook"),
        (Self::Llama3Json, "llama3-json"),
        (Self::Llama4Json, "llama4-json"),
        (Self::Mistral, "mistral"),
        (Self::Pythonic, "pythonic"),
        (Self::QwenXml, "qwen3-xml"),
        (Self::MiniMax, "minimax-m2"),
        (Self::MiniMaxM3, "minimax-m3"),
        (Self::Glm, "glm45"),
        (Self::Gemma, "gemma4"),
        (Self::DeepSeekV3, "deepseek-v3"),
        (Self::DeepSeekV31, "deepseek-v31"),
        (Self::DeepSeekV32, "deepseek-v32"),
        (Self::DeepSeekV4, "deepseek-v4"),
        (Self::Granite, "granite"),
        (Self::Phi, "phi4-mini"),
        (Self::Cohere, "cohere"),
        (Self::Harmony, "harmony"),
        (Self::Kimi, "kimi-k2"),
        (Self::Seed, "seed-oss"),
        (Self::Hunyuan, "hunyuan"),
        (Self::InternLm, "internlm"),
        (Self::LongCat, "longcat"),
        (Self::Lfm, "lfm2"),
        (Self::Olmo, "olmo3"),
    ];

    /// Returns the call format that a chat template contains.
    pub fn from_template(source: &str) -> Option<Self> {
        let has = |mark: &str| source.contains(mark);
        if has("<tool_call>{\"name\":") {
            Some(Self::Brook)
        } else if has(harmony::ANALYSIS) {
            Some(Self::Harmony)
        } else if has(gemma::OPEN) {
            Some(Self::Gemma)
        } else if has(xml::MINIMAX_OPEN) {
            Some(Self::MiniMax)
        } else if has(minimax_m3::MARK) {
            Some(Self::MiniMaxM3)
        } else if has(xml::DSML) {
            let tool_calls = has("tool_calls>");
            Some(if tool_calls {
                Self::DeepSeekV4
            } else {
                Self::DeepSeekV32
            })
        } else if has(xml::SEED_OPEN) {
            Some(Self::Seed)
        } else if has(kimi::BEGIN) {
            Some(Self::Kimi)
        } else if has(json_list::PLUGIN) {
            Some(Self::InternLm)
        } else if has(hermes::LONGCAT[0][0]) {
            Some(Self::LongCat)
        } else if has(pythonic::LFM_MARKS[0]) || has("<|tool_list_start|>") {
            Some(Self::Lfm)
        } else if has(pythonic::OLMO_MARKS[0]) {
            Some(Self::Olmo)
        } else if has(json_list::TOOL_CALLS) {
            Some(Self::Hunyuan)
        } else if has(deepseek::SEPARATOR) {
            let block = has("```json");
            Some(if block {
                Self::DeepSeekV3
            } else {
                Self::DeepSeekV31
            })
        } else if has(json_list::COHERE_MARK) || has("Action: ```json") || has("Action:```json") {
            Some(Self::Cohere)
        } else if has("<tool_call>") && has("<function=") {
            Some(Self::QwenXml)
        } else if has("<tool_call>") && has("<arg_key>") {
            Some(Self::Glm)
        } else if has("<tool_call>") {
            Some(Self::Hermes)
        } else if has("<|start_of_role|>") {
            Some(Self::Granite)
        } else if has("<|tool|>") || has("functools") {
            Some(Self::Phi)
        } else if has("[TOOL_CALLS]") {
            Some(Self::Mistral)
        } else {
            Self::from_llama_template(source)
        }
    }

    /// Like `from_template`, for Llama's templates: each generation has some that ask for JSON, and
    /// some that ask for Python.
    fn from_llama_template(source: &str) -> Option<Self> {
        let has = |mark: &str| source.contains(mark);
        let has_json = has("\"parameters\": ");
        let is_llama4 = has("<|header_start|>") || has(llama::LLAMA4_MARKS[0]);
        if has("[func_name1(") {
            Some(Self::Pythonic)
        } else if is_llama4 && has_json {
            Some(Self::Llama4Json)
        } else if has(llama::LLAMA4_MARKS[0]) || is_llama4 && has(".name + '('") {
            Some(Self::Pythonic)
        } else if has("<|start_header_id|>") && has_json {
            Some(Self::Llama3Json)
        } else {
            None
        }
    }

    /// Returns the marks that may be special tokens. The parser must see them as text.
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::Brook => &[hermes::OPEN, hermes::CLOSE],
            Self::Llama3Json => &llama::MARKS,
            Self::Llama4Json => &llama::LLAMA4_MARKS,
            Self::Mistral => &[mistral::MARK, mistral::ARGUMENTS, mistral::ID],
            Self::Pythonic => &pythonic::MARKS,
            Self::QwenXml => &[hermes::OPEN, hermes::CLOSE],
            Self::MiniMax => &[xml::MINIMAX_OPEN, xml::MINIMAX_CLOSE],
            Self::MiniMaxM3 => &[minimax_m3::MARK],
            Self::Glm => &glm::MARKS,
            Self::Gemma => &gemma::MARKS,
            Self::DeepSeekV3 | Self::DeepSeekV31 => &deepseek::MARKS,
            Self::DeepSeekV32 | Self::DeepSeekV4 => &[xml::DSML],
            Self::Granite => &[json_list::GRANITE_MARK, hermes::OPEN, hermes::CLOSE],
            Self::Phi => &json_list::PHI_TOKENS,
            Self::Cohere => &[json_list::COHERE_MARK, json_list::COHERE_END],
            Self::Harmony => &harmony::MARKS,
            Self::Kimi => &kimi::MARKS,
            Self::Seed => &[xml::SEED_OPEN, xml::SEED_CLOSE],
            Self::Hunyuan => &[json_list::TOOL_CALLS, json_list::TOOL_CALLS_END],
            Self::InternLm => &json_list::INTERNLM_TOKENS,
            Self::LongCat => &["<longcat_tool_call>", "</longcat_tool_call>"],
            Self::Lfm => &pythonic::LFM_MARKS,
            Self::Olmo => &pythonic::OLMO_MARKS,
        }
    }

    /// Whether call ids must have exactly nine characters, as Mistral's templates require.
    pub fn short_ids(self) -> bool {
        self == Self::Mistral
    }

    fn parser(self, options: &OutputParserOptions, names: ToolNames) -> Box<dyn ToolCallParser> {
        let types = || options.parameter_types.clone();
        let xml = |syntax: &'static xml::Syntax, names| {
            Box::new(syntax.parser(TypedCall::new(names, types()), options.strict))
        };
        let llama = |marks, names| Box::new(llama::LlamaParser::new(marks, names, options.strict));
        let list = |marks, names| Box::new(json_list::JsonListParser::new(marks, names));
        match self {
            Self::Hermes | Self::Brook => Box::new(hermes::HermesParser::new(hermes::HERMES)),
            Self::LongCat => Box::new(hermes::HermesParser::new(hermes::LONGCAT)),
            Self::Llama3Json => llama(&llama::MARKS, names),
            Self::Llama4Json => llama(&llama::LLAMA4_MARKS, names),
            Self::Mistral => Box::new(mistral::MistralParser::new()),
            Self::Pythonic => Box::new(pythonic::PythonicParser::new(&pythonic::MARKS, names)),
            Self::Lfm => Box::new(pythonic::PythonicParser::new(&pythonic::LFM_MARKS, names)),
            Self::Olmo => Box::new(pythonic::PythonicParser::new(&pythonic::OLMO_MARKS, names)),
            Self::QwenXml => xml(&xml::QWEN, names),
            Self::MiniMax => xml(&xml::MINIMAX, names),
            Self::MiniMaxM3 => Box::new(minimax_m3::parser(TypedCall::new(names, types()))),
            Self::Seed => xml(&xml::SEED, names),
            Self::DeepSeekV32 => xml(&xml::DSML_V32, names),
            Self::DeepSeekV4 => xml(&xml::DSML_V4, names),
            Self::Glm => Box::new(glm::GlmParser::new(TypedCall::new(names, types()))),
            Self::Gemma => Box::new(gemma::GemmaParser::new()),
            Self::DeepSeekV3 | Self::DeepSeekV31 => {
                Box::new(deepseek::DeepSeekParser::new(&deepseek::DEEPSEEK))
            }
            Self::Kimi => Box::new(deepseek::DeepSeekParser::new(&kimi::KIMI)),
            Self::Granite => list(&json_list::GRANITE, names),
            Self::Phi => list(&json_list::PHI, names),
            Self::Cohere => list(&json_list::COHERE, names),
            Self::Hunyuan => list(&json_list::HUNYUAN, names),
            Self::InternLm => list(&json_list::INTERNLM, names),
            Self::Harmony => options.harmony_parser(),
        }
    }

    /// Whether the parser needs the types of parameters.
    pub fn needs_types(self) -> bool {
        use ToolFormat::{DeepSeekV4, DeepSeekV32, Glm, MiniMax, MiniMaxM3, QwenXml, Seed};
        matches!(
            self,
            QwenXml | Seed | MiniMax | MiniMaxM3 | Glm | DeepSeekV32 | DeepSeekV4
        )
    }
}

impl ReasoningFormat {
    /// All formats with their names on the command line.
    pub const ALL: [(Self, &'static str); 11] = [
        (Self::ThinkResponse, "think-response"),
        (Self::ThinkAnswer, "think-answer"),
        (Self::Think, "think"),
        (Self::DeepSeekR1, "deepseek-r1"),
        (Self::Mistral, "mistral"),
        (Self::Granite, "granite"),
        (Self::Cohere, "cohere"),
        (Self::Seed, "seed-oss"),
        (Self::MiniMax, "minimax-m3"),
        (Self::Gemma, "gemma4"),
        (Self::Harmony, "harmony"),
    ];

    /// Returns the reasoning format that a chat template contains.
    pub fn from_template(source: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter().map(|(format, _)| format);
        let has_any = |marks: &[&str]| marks.iter().any(|mark| source.contains(mark));
        let has = |format: Self| match format {
            Self::Harmony => source.contains(harmony::ANALYSIS),
            // The marks are those of `Think`, which is the safer guess.
            Self::DeepSeekR1 => false,
            // MiniMax-M2 has results of tools between such tags.
            Self::ThinkResponse => has_any(&[
                "<response></response>",
                "</think>\\n<response>",
                "</think>\\n\\n<response>",
            ]),
            Self::ThinkAnswer => source.contains("</think>") && source.contains("<answer>"),
            format => has_any(format.marks()),
        };
        all.find(|format| has(*format))
    }

    /// Returns the opening and closing mark of reasoning. They may be special tokens.
    pub fn marks(self) -> &'static [&'static str; 2] {
        match self {
            Self::Think | Self::DeepSeekR1 | Self::ThinkResponse | Self::ThinkAnswer => {
                &["<think>", "</think>"]
            }
            Self::Mistral => &["[THINK]", "[/THINK]"],
            Self::Granite => &["Here is my thought process:", "Here is my response:"],
            Self::Cohere => &["<|START_THINKING|>", "<|END_THINKING|>"],
            Self::Seed => &["<seed:think>", "</seed:think>"],
            Self::MiniMax => &["<mm:think>", "</mm:think>"],
            Self::Gemma => &["<|channel>", "<channel|>"],
            Self::Harmony => &[harmony::ANALYSIS, "<|end|>"],
        }
    }

    /// Returns opening and closing marks, one after the other, including variants of the format.
    fn all_marks(self) -> &'static [&'static str] {
        match self {
            Self::Granite => &[
                "Here is my thought process:",
                "Here is my response:",
                "Here's my thought process:",
                "Here's my response:",
            ],
            Self::Harmony => &harmony::MARKS,
            format => format.marks(),
        }
    }

    /// Returns the tags around the reply after the reasoning, if the model writes any.
    fn answer_tags(self) -> Option<&'static [&'static str; 2]> {
        match self {
            Self::ThinkResponse => Some(&["<response>", "</response>"]),
            Self::ThinkAnswer => Some(&["<answer>", "</answer>"]),
            _ => None,
        }
    }

    /// Returns the text after the opening mark that is no reasoning.
    fn label(self) -> &'static str {
        match self {
            Self::Gemma => "thought\n",
            _ => "",
        }
    }

    /// Whether the output begins with reasoning: the prompt ends with the opening mark, or needs
    /// none. The prompt ends in the model's own text if the output `continues` it.
    pub fn is_open_after(self, prompt: &str, continues: bool) -> bool {
        let needs_none = self == Self::DeepSeekR1 && !continues;
        prompt.trim_end().ends_with(self.marks()[0]) || needs_none && !self.is_closed_after(prompt)
    }

    /// Whether a prompt ends with the closing mark, so that the output has no reasoning.
    pub fn is_closed_after(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.marks()[1])
    }
}

/// Whether names and ids of calls may contain `c`.
fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || "_-./".contains(c)
}

impl OutputDeltas {
    fn content(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(OutputDelta::Content(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(OutputDelta::Content(text.to_owned())),
        }
    }

    fn reasoning(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(OutputDelta::Reasoning(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(OutputDelta::Reasoning(text.to_owned())),
        }
    }

    fn call(&mut self, name: String) {
        self.call_with_id(name, None);
    }

    fn call_with_id(&mut self, name: String, id: Option<String>) {
        self.0.push(OutputDelta::CallStart { name, id });
    }

    fn arguments(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(OutputDelta::Arguments(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(OutputDelta::Arguments(text.to_owned())),
        }
    }

    fn end_call(&mut self) {
        self.0.push(OutputDelta::CallEnd);
    }

    /// Takes all deltas and keeps the allocation.
    pub fn drain(&mut self) -> impl Iterator<Item = OutputDelta> + '_ {
        self.0.drain(..)
    }

    /// Drops everything after the first complete call. Returns whether there is one.
    fn cut_after_call(&mut self) -> bool {
        let end = self
            .0
            .iter()
            .position(|piece| *piece == OutputDelta::CallEnd);
        self.0.truncate(end.map_or(self.0.len(), |at| at + 1));
        end.is_some()
    }
}
