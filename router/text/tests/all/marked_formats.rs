//! Formats that differ from others by their marks.

#![allow(clippy::unwrap_used)]

use penstock_text::tool_parsers::{
    OutputDelta, OutputDeltas, OutputParserOptions, ReasoningDisplay, ReasoningFormat, ToolFormat,
};

use crate::parsed::{check, parser_options, read_with};

#[test]
fn seed_oss_and_longcat_calls() {
    check(
        ToolFormat::Seed,
        &[
            (
                "Sure.\n<seed:tool_call>\n<function=f>\n<parameter=city>New York</parameter>\n\
                 </function>\n</seed:tool_call>",
                "Sure.",
                &[("f", "{\"city\": \"New York\"}")],
            ),
            ("<tool_call> no", "<tool_call> no", &[]),
        ],
    );
    check(
        ToolFormat::LongCat,
        &[
            (
                "Sure. <longcat_tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n\
                 </longcat_tool_call>",
                "Sure.",
                &[("f", "{\"a\": 1}")],
            ),
            ("<longcat_tool_call> no", "<longcat_tool_call> no", &[]),
        ],
    );
}

#[test]
fn hunyuan_and_lfm2_calls() {
    check(
        ToolFormat::Hunyuan,
        &[
            (
                "<tool_calls>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \
                 \"arguments\": {}}]</tool_calls>",
                "",
                &[("f", "{\"a\": 1}"), ("g", "{}")],
            ),
            (
                "<tool_calls>[\n  {\"name\": \"f\", \"arguments\": {}}\n]</tool_calls> done",
                " done",
                &[("f", "{}")],
            ),
            (
                "Sure.\n<tool_calls>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n{\"name\": \"g\", \
                 \"arguments\": {}}\n</tool_calls>",
                "Sure.",
                &[("f", "{\"a\": 1}"), ("g", "{}")],
            ),
            ("<tool_calls>[1]", "<tool_calls>[1]", &[]),
        ],
    );
    check(
        ToolFormat::Lfm,
        &[
            (
                "<|tool_call_start|>[f(city=\"New York\", days=[1, 2]), get_weather()]\
                 <|tool_call_end|>I ask.",
                "I ask.",
                &[
                    ("f", "{\"city\":\"New York\",\"days\":[1,2]}"),
                    ("get_weather", "{}"),
                ],
            ),
            (
                "Well. <|tool_call_start|>[f()]<|tool_call_end|>",
                "Well.",
                &[("f", "{}")],
            ),
            ("<|tool_call_start|>[x]", "[x]", &[]),
        ],
    );
}

#[test]
fn internlm_calls() {
    check(
        ToolFormat::InternLm,
        &[
            (
                "Sure.\n<|action_start|><|plugin|>\n{\"name\": \"f\", \"parameters\": {\"a\": 1}}\
                 <|action_end|>\n",
                "Sure.",
                &[("f", "{\"a\": 1}")],
            ),
            (
                "<|action_start|><|plugin|>{\"name\": \"f\", \"parameters\": {}}<|action_end|>\
                 <|action_start|><|plugin|>{\"name\": \"g\", \"arguments\": {\"b\": []}}",
                "",
                &[("f", "{}"), ("g", "{\"b\": []}")],
            ),
            // As a grammar forces several.
            (
                "<|action_start|><|plugin|>\n{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"g\", \
                 \"parameters\": {}}",
                "",
                &[("f", "{}"), ("g", "{}")],
            ),
            (
                "<|action_start|><|interpreter|>\n1<|action_end|>",
                "<|action_start|><|interpreter|>\n1<|action_end|>",
                &[],
            ),
            (
                "<|action_start|><|plugin|>none",
                "<|action_start|><|plugin|>none",
                &[],
            ),
        ],
    );
}

#[test]
fn olmo_calls() {
    check(
        ToolFormat::Olmo,
        &[
            (
                "Sure.\n<function_calls>\nf(city=\"New\\nYork\", n=true)\nget_weather()\n\
                 </function_calls>",
                "Sure.",
                &[
                    ("f", "{\"city\":\"New\\nYork\",\"n\":true}"),
                    ("get_weather", "{}"),
                ],
            ),
            ("<function_calls>f()</function_calls>", "", &[("f", "{}")]),
            (
                "<function_calls>other()</function_calls>",
                "<function_calls>other()",
                &[],
            ),
            ("[f()]", "[f()]", &[]),
        ],
    );
}

#[test]
fn kimi_calls() {
    check(
        ToolFormat::Kimi,
        &[
            (
                "Sure.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0\
                 <|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_call_begin|>\
                 functions.a.b-c:1<|tool_call_argument_begin|>{}<|tool_call_end|>\
                 <|tool_calls_section_end|>",
                "Sure.",
                &[("f", "{\"a\": 1}"), ("a.b-c", "{}")],
            ),
            (
                "<|tool_call_begin|>f <|tool_call_argument_begin|> {}<|tool_call_end|> done",
                "done",
                &[("f", "{}")],
            ),
            // No calls.
            (
                "<|tool_call_begin|>functions.:0<|tool_call_argument_begin|>{}",
                "<|tool_call_begin|>functions.:0<|tool_call_argument_begin|>{}",
                &[],
            ),
            (
                "<|tool_calls_section_begin|>none",
                "<|tool_calls_section_begin|>none",
                &[],
            ),
        ],
    );
}

/// The chat template of Kimi K2 puts the ids of earlier calls into the prompt.
#[test]
fn ids_of_kimi_calls_are_those_that_the_model_wrote() {
    let call = |id: &str| {
        format!("<|tool_call_begin|>{id}<|tool_call_argument_begin|>{{}}<|tool_call_end|>")
    };
    let calls = ["functions.f:3", "functions.f:4", "functions.f:3"].map(call);
    let mut parser = parser_options(ToolFormat::Kimi).parser();
    let mut deltas = OutputDeltas::default();
    parser.feed(&calls.concat(), &mut deltas);
    let ids: Vec<_> = deltas
        .drain()
        .filter_map(|delta| match delta {
            OutputDelta::CallStart { name, id } => Some((name, id)),
            _ => None,
        })
        .collect();
    let f = |id: Option<&str>| ("f".to_owned(), id.map(str::to_owned));
    let expected = [
        f(Some("functions.f:3")),
        f(Some("functions.f:4")),
        f(None), // the same once more
    ];
    assert_eq!(ids, expected);
}

/// Returns the reasoning, the content and the number of calls of an output, which do not depend on
/// how it is cut.
fn reasoned(options: &OutputParserOptions, text: &str) -> (String, String, usize) {
    let whole = read_with(options, [text]);
    assert_eq!(read_with(options, text.split_inclusive(|_| true)), whole);
    (whole.reasoning, whole.content, whole.calls.len())
}

#[test]
fn tags_around_the_reply_are_dropped() {
    let options = OutputParserOptions {
        reasoning: Some(ReasoningFormat::ThinkAnswer),
        ..parser_options(ToolFormat::Hunyuan)
    };
    let call = "<tool_calls>[{\"name\": \"f\", \"arguments\": {}}]</tool_calls>";
    let no_answer = "<response>b</response> <answer>c</answer>";
    for (text, reasoning, content, calls) in [
        (
            "<think>\n\n</think>\n<answer>\nb\n\nc \n</answer>",
            "",
            "b\n\nc",
            0,
        ),
        // The prompt closed the reasoning.
        ("<answer>\nb\n</answer>\n", "", "b", 0),
        ("<think>a</think>\n<answer></answer>", "a", "", 0),
        (
            &format!("<think>a</think><answer>b</answer>\n{call}"),
            "a",
            "b",
            1,
        ),
        (
            &format!("<think>a</think><answer>\n{call}\n</answer>"),
            "a",
            "",
            1,
        ),
        ("<think>a</think><answer>b</answer> c ", "a", "b c ", 0),
        (&format!("<think>a</think>{no_answer}"), "a", no_answer, 0),
        ("<think>a</think> <ans", "a", "<ans", 0),
        ("<think>a</think>b </answer>", "a", "b </answer>", 0),
        // Truncated.
        ("<think>a</think><answer>b </ans", "a", "b </ans", 0),
    ] {
        let expected = (reasoning.to_owned(), content.to_owned(), calls);
        assert_eq!(reasoned(&options, text), expected, "{text}");
    }
    let text = "<think>a</think><answer>b</answer>";
    for (reasoning_display, reasoning, content) in [
        (ReasoningDisplay::InContent, "", text),
        (ReasoningDisplay::Hidden, "", "b"),
    ] {
        let options = OutputParserOptions {
            reasoning_display,
            ..options.clone()
        };
        let expected = (reasoning.to_owned(), content.to_owned(), 0);
        assert_eq!(reasoned(&options, text), expected);
    }
    let mut marks = options.marks();
    assert!(
        marks.any(|mark| mark == "<answer>"),
        "it may be a special token"
    );
}

/// A model whose template was asked for by name may write no opening tag at all.
#[test]
fn deepseek_r1_reasons_from_the_start_unless_the_prompt_closed_it() {
    let options = |format| OutputParserOptions {
        reasoning: Some(format),
        ..parser_options(ToolFormat::DeepSeekV3)
    };
    for (prompt, continues, text, reasoning, content) in [
        ("<｜Assistant｜>", false, "a\n</think>\n\nb", "a", "b"),
        (
            "<｜Assistant｜>",
            false,
            "<think>\na\n</think>\n\nb",
            "a",
            "b",
        ),
        (
            "<｜Assistant｜>",
            false,
            "a, without an end",
            "a, without an end",
            "",
        ),
        ("<｜Assistant｜><think>\n", false, "a</think>b", "a", "b"),
        ("<｜Assistant｜><think>\n\n</think>\n", false, "b", "", "b"),
        ("<｜Assistant｜>The", true, " answer", "", " answer"),
    ] {
        let named = options(ReasoningFormat::DeepSeekR1).after_prompt(prompt, continues);
        let expected = (reasoning.to_owned(), content.to_owned(), 0);
        assert_eq!(reasoned(&named, text), expected, "{prompt}{text}");
    }
    // The detected format needs a tag.
    let detected = options(ReasoningFormat::Think).after_prompt("<｜Assistant｜>", false);
    let text = "a\n</think>\n\nb";
    assert_eq!(
        reasoned(&detected, text),
        (String::new(), text.to_owned(), 0)
    );
    assert!(!detected.in_reasoning && detected.may_think);
}

#[test]
fn families_are_detected_from_their_marks() {
    for (source, format) in [
        (
            "'<|tool_calls_section_begin|>' '<|tool_call_begin|>' + tool_call['id']",
            ToolFormat::Kimi,
        ),
        (
            "'<seed:think>' '<seed:tool_call>\\n<function=' + name",
            ToolFormat::Seed,
        ),
        (
            "'<tool_calls>[' + calls + ']</tool_calls>'",
            ToolFormat::Hunyuan,
        ),
        ("'<longcat_tool_call>' + call", ToolFormat::LongCat),
        ("'<function_calls>' + calls", ToolFormat::Olmo),
        ("'List of tools: <|tool_list_start|>['", ToolFormat::Lfm),
    ] {
        assert_eq!(ToolFormat::from_template(source), Some(format), "{source}");
        let reasoning = (format == ToolFormat::Seed).then_some(ReasoningFormat::Seed);
        assert_eq!(ReasoningFormat::from_template(source), reasoning);
    }
}
