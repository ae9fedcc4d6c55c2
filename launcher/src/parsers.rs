//! The output formats of models, by their names on the command line.

use clap::ValueEnum;
use penstock_text::config::Format;
use penstock_text::tool_parsers::{ReasoningFormat, ToolFormat};

/// The format of a model's tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ToolParser {
    /// Detected in the chat template.
    #[default]
    Auto,
    /// Not parsed: calls stay text.
    Off,
    /// JSON between `<tool_call>` tags: Hermes, Qwen, Granite 4, ERNIE 4.5.
    #[value(aliases = ["granite4", "ernie45"])]
    Hermes,
    /// The same without whitespace.
    Brook,
    /// One JSON object with name and parameters: Llama 3.
    #[value(alias = "llama3_json")]
    Llama3Json,
    /// The same, also between `<|python_start|>` and `<|python_end|>`: Llama 4.
    #[value(alias = "llama4_json")]
    Llama4Json,
    /// JSON after `[TOOL_CALLS]`.
    Mistral,
    /// A list of Python calls: Llama 3.2, some templates of Llama 4.
    #[value(alias = "llama4_pythonic")]
    Pythonic,
    /// `<function=..>` and `<parameter=..>`: Qwen 3 Coder, Step 3.5.
    #[value(aliases = ["qwen3_xml", "qwen3_coder", "step3p5", "mimo"])]
    Qwen3Xml,
    /// `<invoke name="..">` and `<parameter name="..">`: MiniMax-M2.
    #[value(name = "minimax-m2", aliases = ["minimax_m2", "minimax"])]
    MiniMaxM2,
    /// `<invoke name="..">` and `<key>`, each after a mark: MiniMax-M3.
    #[value(name = "minimax-m3", alias = "minimax_m3")]
    MiniMaxM3,
    /// `<arg_key>` and `<arg_value>`: GLM 4.5.
    #[value(name = "glm45", aliases = ["glm47", "poolside_v1"])]
    Glm45,
    /// `call:name{..}` between `<|tool_call>` and `<tool_call|>`: Gemma 4.
    Gemma4,
    /// JSON code blocks between `DeepSeek`'s marks: V3 and R1.
    #[value(name = "deepseek-v3", alias = "deepseek_v3")]
    DeepSeekV3,
    /// JSON between `DeepSeek`'s marks: V3.1.
    #[value(name = "deepseek-v31", alias = "deepseek_v31")]
    DeepSeekV31,
    /// `<｜DSML｜invoke name="..">` between `<｜DSML｜function_calls>` tags: `DeepSeek` V3.2.
    #[value(name = "deepseek-v32", alias = "deepseek_v32")]
    DeepSeekV32,
    /// The same between `<｜DSML｜tool_calls>` tags: `DeepSeek` V4.
    #[value(name = "deepseek-v4", alias = "deepseek_v4")]
    DeepSeekV4,
    /// A JSON list after `<|tool_call|>`: Granite 3.
    Granite,
    /// A JSON list after `functools`: Phi 4 mini.
    #[value(name = "phi4-mini", alias = "phi4_mini_json")]
    Phi4Mini,
    /// A JSON list after `<|START_ACTION|>`: Command R7B and A.
    #[value(aliases = ["cohere_command3", "cohere_command4"])]
    Cohere,
    /// Messages with a recipient: gpt-oss.
    #[value(aliases = ["openai", "gpt-oss"])]
    Harmony,
    /// JSON between `<|tool_call_begin|>` and similar marks: Kimi K2.
    #[value(alias = "kimi_k2")]
    KimiK2,
    /// `<function=..>` between `<seed:tool_call>` tags: Seed-OSS.
    #[value(alias = "seed_oss")]
    SeedOss,
    /// A JSON list between `<tool_calls>` tags: Hunyuan A13B, Jamba.
    #[value(aliases = ["hunyuan_a13b", "jamba"])]
    Hunyuan,
    /// JSON between `<|action_start|><|plugin|>` and `<|action_end|>`: InternLM 2 and 3.
    #[value(name = "internlm")]
    InternLm,
    /// JSON between `<longcat_tool_call>` tags: `LongCat`.
    #[value(name = "longcat")]
    LongCat,
    /// A list of Python calls between `<|tool_call_start|>` and `<|tool_call_end|>`: LFM2.
    Lfm2,
    /// Python calls, one per line, between `<function_calls>` tags: OLMo 3.
    Olmo3,
}

/// The format of a model's reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReasoningParser {
    /// Detected in the chat template.
    #[default]
    Auto,
    /// Not parsed: reasoning stays text.
    Off,
    /// Between `<think>` tags.
    #[value(aliases = [
        "deepseek_v3", "deepseek_v4", "glm45", "glm47", "holo2", "hy_v3", "kimi_k2", "mimo",
        "minimax_m2", "nemotron_v3", "olmo3", "poolside_v1", "qwen3", "step3p5",
    ])]
    Think,
    /// The same, or from the start of the output to `</think>`: `DeepSeek` R1.
    #[value(name = "deepseek-r1", aliases = ["deepseek_r1", "step3"])]
    DeepSeekR1,
    /// Between `<think>` tags, before a reply between `<response>` tags: Granite 3.3, ERNIE 4.5.
    #[value(alias = "ernie45")]
    ThinkResponse,
    /// Between `<think>` tags, before a reply between `<answer>` tags: Hunyuan A13B.
    #[value(alias = "hunyuan_a13b")]
    ThinkAnswer,
    /// Between `[THINK]` and `[/THINK]`.
    Mistral,
    /// After `Here is my thought process:`: Granite 3.2.
    Granite,
    /// Between `<|START_THINKING|>` and `<|END_THINKING|>`: Command R7B and A.
    #[value(aliases = ["cohere_command3", "cohere_command4"])]
    Cohere,
    /// Between `<seed:think>` tags: Seed-OSS.
    #[value(alias = "seed_oss")]
    SeedOss,
    /// Between `<mm:think>` tags: MiniMax-M3.
    #[value(name = "minimax-m3", alias = "minimax_m3")]
    MiniMaxM3,
    /// Between `<|channel>thought` and `<channel|>`: Gemma 4.
    Gemma4,
    /// The channel `analysis`: gpt-oss.
    #[value(aliases = ["openai_gptoss", "gpt-oss"])]
    Harmony,
}

impl ToolParser {
    /// Returns the router's value.
    pub fn format(self) -> Format<ToolFormat> {
        match self {
            Self::Auto => Format::Auto,
            Self::Off => Format::Off,
            Self::Hermes => Format::Fixed(ToolFormat::Hermes),
            Self::Brook => Format::Fixed(ToolFormat::Brook),
            Self::Llama3Json => Format::Fixed(ToolFormat::Llama3Json),
            Self::Llama4Json => Format::Fixed(ToolFormat::Llama4Json),
            Self::Mistral => Format::Fixed(ToolFormat::Mistral),
            Self::Pythonic => Format::Fixed(ToolFormat::Pythonic),
            Self::Qwen3Xml => Format::Fixed(ToolFormat::QwenXml),
            Self::MiniMaxM2 => Format::Fixed(ToolFormat::MiniMax),
            Self::MiniMaxM3 => Format::Fixed(ToolFormat::MiniMaxM3),
            Self::Glm45 => Format::Fixed(ToolFormat::Glm),
            Self::Gemma4 => Format::Fixed(ToolFormat::Gemma),
            Self::DeepSeekV3 => Format::Fixed(ToolFormat::DeepSeekV3),
            Self::DeepSeekV31 => Format::Fixed(ToolFormat::DeepSeekV31),
            Self::DeepSeekV32 => Format::Fixed(ToolFormat::DeepSeekV32),
            Self::DeepSeekV4 => Format::Fixed(ToolFormat::DeepSeekV4),
            Self::Granite => Format::Fixed(ToolFormat::Granite),
            Self::Phi4Mini => Format::Fixed(ToolFormat::Phi),
            Self::Cohere => Format::Fixed(ToolFormat::Cohere),
            Self::Harmony => Format::Fixed(ToolFormat::Harmony),
            Self::KimiK2 => Format::Fixed(ToolFormat::Kimi),
            Self::SeedOss => Format::Fixed(ToolFormat::Seed),
            Self::Hunyuan => Format::Fixed(ToolFormat::Hunyuan),
            Self::InternLm => Format::Fixed(ToolFormat::InternLm),
            Self::LongCat => Format::Fixed(ToolFormat::LongCat),
            Self::Lfm2 => Format::Fixed(ToolFormat::Lfm),
            Self::Olmo3 => Format::Fixed(ToolFormat::Olmo),
        }
    }
}

impl ReasoningParser {
    /// Returns the router's value.
    pub fn format(self) -> Format<ReasoningFormat> {
        match self {
            Self::Auto => Format::Auto,
            Self::Off => Format::Off,
            Self::Think => Format::Fixed(ReasoningFormat::Think),
            Self::DeepSeekR1 => Format::Fixed(ReasoningFormat::DeepSeekR1),
            Self::ThinkResponse => Format::Fixed(ReasoningFormat::ThinkResponse),
            Self::ThinkAnswer => Format::Fixed(ReasoningFormat::ThinkAnswer),
            Self::Mistral => Format::Fixed(ReasoningFormat::Mistral),
            Self::Granite => Format::Fixed(ReasoningFormat::Granite),
            Self::Cohere => Format::Fixed(ReasoningFormat::Cohere),
            Self::SeedOss => Format::Fixed(ReasoningFormat::Seed),
            Self::MiniMaxM3 => Format::Fixed(ReasoningFormat::MiniMax),
            Self::Gemma4 => Format::Fixed(ReasoningFormat::Gemma),
            Self::Harmony => Format::Fixed(ReasoningFormat::Harmony),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool_format(name: &str) -> Format<ToolFormat> {
        ToolParser::from_str(name, false).map_or(Format::Off, ToolParser::format)
    }

    fn reasoning_format(name: &str) -> Format<ReasoningFormat> {
        ReasoningParser::from_str(name, false).map_or(Format::Off, ReasoningParser::format)
    }

    #[test]
    fn every_format_has_its_name() {
        for (format, name) in ToolFormat::ALL {
            assert_eq!(tool_format(name), Format::Fixed(format), "{name}");
        }
        for (format, name) in ReasoningFormat::ALL {
            assert_eq!(reasoning_format(name), Format::Fixed(format), "{name}");
        }
    }

    #[test]
    fn vllms_names_of_tool_formats_are_accepted() {
        for (names, format) in [
            ("hermes granite4 ernie45", ToolFormat::Hermes),
            ("llama3_json", ToolFormat::Llama3Json),
            ("llama4_json", ToolFormat::Llama4Json),
            ("pythonic llama4_pythonic", ToolFormat::Pythonic),
            ("mistral", ToolFormat::Mistral),
            ("qwen3_coder qwen3_xml mimo step3p5", ToolFormat::QwenXml),
            ("minimax_m2", ToolFormat::MiniMax),
            ("minimax_m3", ToolFormat::MiniMaxM3),
            ("glm45 glm47 poolside_v1", ToolFormat::Glm),
            ("gemma4", ToolFormat::Gemma),
            ("deepseek_v3", ToolFormat::DeepSeekV3),
            ("deepseek_v31", ToolFormat::DeepSeekV31),
            ("deepseek_v32", ToolFormat::DeepSeekV32),
            ("deepseek_v4", ToolFormat::DeepSeekV4),
            ("granite", ToolFormat::Granite),
            ("phi4_mini_json", ToolFormat::Phi),
            ("cohere_command3 cohere_command4", ToolFormat::Cohere),
            ("openai", ToolFormat::Harmony),
            ("kimi_k2", ToolFormat::Kimi),
            ("seed_oss", ToolFormat::Seed),
            ("hunyuan_a13b jamba", ToolFormat::Hunyuan),
            ("internlm", ToolFormat::InternLm),
            ("longcat", ToolFormat::LongCat),
            ("lfm2", ToolFormat::Lfm),
            ("olmo3", ToolFormat::Olmo),
        ] {
            for name in names.split(' ') {
                assert_eq!(tool_format(name), Format::Fixed(format), "{name}");
            }
        }
    }

    #[test]
    fn vllms_names_of_reasoning_formats_are_accepted() {
        let think = "deepseek_v3 deepseek_v4 glm45 glm47 holo2 hy_v3 kimi_k2 mimo minimax_m2 \
                     nemotron_v3 olmo3 poolside_v1 qwen3 step3p5";
        for (names, format) in [
            (think, ReasoningFormat::Think),
            ("deepseek_r1 step3", ReasoningFormat::DeepSeekR1),
            ("ernie45", ReasoningFormat::ThinkResponse),
            ("hunyuan_a13b", ReasoningFormat::ThinkAnswer),
            ("mistral", ReasoningFormat::Mistral),
            ("granite", ReasoningFormat::Granite),
            ("cohere_command3 cohere_command4", ReasoningFormat::Cohere),
            ("seed_oss", ReasoningFormat::Seed),
            ("minimax_m3", ReasoningFormat::MiniMax),
            ("gemma4", ReasoningFormat::Gemma),
            ("openai_gptoss", ReasoningFormat::Harmony),
        ] {
            for name in names.split_whitespace() {
                assert_eq!(reasoning_format(name), Format::Fixed(format), "{name}");
            }
        }
    }
}
