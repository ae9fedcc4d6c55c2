//! Formats that are recognised by a chat template.

use penstock_text::tool_parsers::{ReasoningFormat, ToolFormat};

macro_rules! template {
    ($name:literal) => {
        include_str!(concat!(
            "../../../../tests/contract/chat_templates/",
            $name,
            ".jinja"
        ))
    };
}

macro_rules! built_in {
    ($name:literal) => {
        include_str!(concat!("../../src/chat/templates/", $name, ".jinja"))
    };
}

fn check(families: &[(&str, ToolFormat, Option<ReasoningFormat>)]) {
    for &(source, format, reasoning) in families {
        assert_eq!(ToolFormat::from_template(source), Some(format), "{source}");
        let found = ReasoningFormat::from_template(source);
        assert_eq!(found, reasoning, "{source}");
    }
}

#[test]
fn families_are_detected_from_the_chat_template() {
    let think = Some(ReasoningFormat::Think);
    let harmony = Some(ReasoningFormat::Harmony);
    check(&[
        (template!("qwen_3_coder"), ToolFormat::QwenXml, None),
        (template!("qwen_3"), ToolFormat::Hermes, think),
        (template!("glm_4_5"), ToolFormat::Glm, think),
        (template!("minimax_m2"), ToolFormat::MiniMax, think),
        (template!("gpt_oss"), ToolFormat::Harmony, harmony),
        (template!("granite_3"), ToolFormat::Granite, None),
        (template!("command_r"), ToolFormat::Cohere, None),
        (template!("deepseek"), ToolFormat::DeepSeekV31, think),
        (built_in!("deepseek_v32"), ToolFormat::DeepSeekV32, think),
        (built_in!("deepseek_v4"), ToolFormat::DeepSeekV4, think),
        (template!("mistral"), ToolFormat::Mistral, None),
        (template!("llama_3"), ToolFormat::Llama3Json, None),
        (template!("llama_4"), ToolFormat::Pythonic, None),
        (template!("llama_4_json"), ToolFormat::Llama4Json, None),
        (template!("internlm_2"), ToolFormat::InternLm, None),
        (template!("hermes"), ToolFormat::Hermes, None),
    ]);
}

#[test]
fn families_are_detected_from_parts_of_their_templates() {
    check(&[
        (
            "<｜tool▁sep｜>' + name + '\\n```json\\n'",
            ToolFormat::DeepSeekV3,
            None,
        ),
        (
            "'<|START_THINKING|>' '<|START_ACTION|>'",
            ToolFormat::Cohere,
            Some(ReasoningFormat::Cohere),
        ),
        (
            "'<|channel>thought\\n<channel|>' '<|tool_call>call:' + name + '{' '<tool_call|>'",
            ToolFormat::Gemma,
            Some(ReasoningFormat::Gemma),
        ),
        (
            "'<mm:think>' + content + ']<]minimax[>[' + '<tool_call>'",
            ToolFormat::MiniMaxM3,
            Some(ReasoningFormat::MiniMax),
        ),
        (
            "'<|start_of_role|>' 'Think between <think></think> and write your response between \
             <response></response>.'",
            ToolFormat::Granite,
            Some(ReasoningFormat::ThinkResponse),
        ),
        (
            "'<think>\\n' + thoughts + '\\n</think>\\n\\n<response>\\n' + '<tool_call>'",
            ToolFormat::Hermes,
            Some(ReasoningFormat::ThinkResponse),
        ),
        (
            "'<think>\\n' + thoughts + '\\n</think>\\n<answer>\\n' + '<tool_calls>'",
            ToolFormat::Hunyuan,
            Some(ReasoningFormat::ThinkAnswer),
        ),
        (
            "content + '<|tool|>' + tools + '<|/tool|>'",
            ToolFormat::Phi,
            None,
        ),
    ]);
}
