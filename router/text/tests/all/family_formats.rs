//! The call and reasoning formats of single model families.

#![allow(clippy::unwrap_used)]

use penstock_text::tool_parsers::{
    OutputParserOptions, ParameterTypes, ReasoningDisplay, ReasoningFormat, Tool, ToolChoiceMode,
    ToolFormat, ToolSet,
};

use crate::parsed::{TOOL_FIELDS, check, parser_options, read, read_with};

#[test]
fn qwen_xml_calls() {
    check(
        ToolFormat::QwenXml,
        &[
            (
                "Sure.\n<tool_call>\n<function=f>\n<parameter=city>\nNew York\n</parameter>\n\
                 <parameter=days>\n[1, 2]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n\
                 <function=g>\n</function>\n</tool_call>\n",
                "Sure.",
                &[
                    ("f", "{\"city\": \"New York\", \"days\": [1,2]}"),
                    ("g", "{}"),
                ],
            ),
            // The outer tag is missing, or closes the function.
            (
                "<function=f>\n<parameter=a>\nTrue\n</parameter>\n</function> and on",
                "and on",
                &[("f", "{\"a\": true}")],
            ),
            (
                "<tool_call><function=f><parameter=a>1</parameter></tool_call>x",
                "x",
                &[("f", "{\"a\": 1}")],
            ),
            (
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
                "",
                &[("f", "{\"a\": 1}")],
            ),
            // No calls.
            ("<function=other>", "<function=other>", &[]),
            ("<tool_call>\n<fun", "<tool_call>\n<fun", &[]),
            (
                "<tool_call> no </tool_call>",
                "<tool_call> no </tool_call>",
                &[],
            ),
            // Broken off and truncated.
            (
                "<tool_call><function=f>\noh\n</function>",
                "oh\n</function>",
                &[("f", "{}")],
            ),
            (
                "<tool_call><function=f><parameter=a>\nb",
                "",
                &[("f", "{\"a\": ")],
            ),
        ],
    );
}

#[test]
fn dsml_calls() {
    check(
        ToolFormat::DeepSeekV32,
        &[
            // Line breaks are part of values.
            (
                "Sure.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n\
                 <｜DSML｜parameter name=\"city\" string=\"true\">\nNew York\n</｜DSML｜parameter>\n\
                 <｜DSML｜parameter name=\"days\" string=\"false\">[1, {\"a\": true}]</｜DSML｜parameter>\n\
                 </｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n\n</｜DSML｜invoke>\n\
                 </｜DSML｜function_calls>",
                "Sure.",
                &[
                    ("f", r#"{"city": "\nNew York\n", "days": [1,{"a":true}]}"#),
                    ("g", "{}"),
                ],
            ),
            // A number that is marked as a string; the outer tag closes the function.
            (
                "<｜DSML｜function_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" \
                 string=\"true\">7</｜DSML｜parameter></｜DSML｜function_calls>x",
                "x",
                &[("f", "{\"a\": \"7\"}")],
            ),
            // No mark.
            (
                "<｜DSML｜function_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\">7\
                 </｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>",
                "",
                &[("f", "{\"a\": 7}")],
            ),
            (
                "<｜DSML｜function_calls>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n\
                 </｜DSML｜function_calls>",
                "",
                &[("f", "{\"a\": 1}")],
            ),
            // No calls.
            (
                "<｜DSML｜invoke name=\"f\"></｜DSML｜invoke>",
                "<｜DSML｜invoke name=\"f\"></｜DSML｜invoke>",
                &[],
            ),
            (
                "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\">",
                "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\">",
                &[],
            ),
        ],
    );
    check(
        ToolFormat::DeepSeekV4,
        &[(
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" \
             string=\"false\">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            "",
            &[("f", "{\"a\": 7}")],
        )],
    );
}

#[test]
fn glm_calls() {
    check(
        ToolFormat::Glm,
        &[
            (
                "Well.\n<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>New York</arg_value>\n\
                 <arg_key>days</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>\n\
                 <tool_call>get_weather</tool_call>\n",
                "Well.",
                &[
                    ("f", "{\"city\": \"New York\", \"days\": [1,2]}"),
                    ("get_weather", "{}"),
                ],
            ),
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
                "",
                &[("f", "{}")],
            ),
            (
                "<tool_call>none</tool_call>",
                "<tool_call>none</tool_call>",
                &[],
            ),
            ("<tool_call>f <b>", "<tool_call>f <b>", &[]),
            (
                "<tool_call>f<arg_key>a</arg_key>oh</tool_call>",
                "oh</tool_call>",
                &[("f", "{\"a\": \"\"}")],
            ),
        ],
    );
}

#[test]
fn values_without_quotes_get_the_type_of_the_schema() {
    let schema = r##"{"type": "object", "$defs": {"t": {"type": "string"}}, "properties": {
        "text": {"type": "string"}, "ref": {"$ref": "#/$defs/t"}, "maybe": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "unit": {"enum": ["1", "2"]},
        "number": {"type": "number"}, "list": {"type": "array"}, "flag": {"type": "boolean"}}}"##;
    let tool_set = ToolSet {
        tools: vec![Tool {
            name: "f".into(),
            description: None,
            parameters: Some(schema.into()),
            strict: false,
        }],
        choice: ToolChoiceMode::Auto,
        parallel: true,
        fields: TOOL_FIELDS,
    };
    for format in [ToolFormat::QwenXml, ToolFormat::MiniMax, ToolFormat::Glm] {
        let options = OutputParserOptions {
            parameter_types: ParameterTypes::new(&tool_set),
            ..parser_options(format)
        };
        for (key, written, value) in [
            ("text", "1", "\"1\""),
            ("text", "a \"b\"\n\tc\\", r#""a \"b\"\n\tc\\""#),
            ("ref", "true", "\"true\""),
            ("maybe", "null", "null"),
            ("maybe", "7", "\"7\""),
            ("either", "7", "7"),
            ("either", "7 days", "\"7 days\""),
            ("unit", "1", "\"1\""),
            ("number", "1.50", "1.5"),
            ("number", "many", "\"many\""),
            ("list", "[1, {\"a\": \"b\"}]", "[1,{\"a\":\"b\"}]"),
            ("flag", "False", "false"),
            ("unknown", "[", "\"[\""),
        ] {
            let text = match format {
                ToolFormat::Glm => format!(
                    "<tool_call>f\n<arg_key>{key}</arg_key>\n<arg_value>{written}</arg_value>\n\
                     </tool_call>"
                ),
                ToolFormat::MiniMax => format!(
                    "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"{key}\">{written}\
                     </parameter>\n</invoke>\n</minimax:tool_call>"
                ),
                _ => format!(
                    "<tool_call>\n<function=f>\n<parameter={key}>\n{written}\n</parameter>\n\
                     </function>\n</tool_call>"
                ),
            };
            let read = read_with(&options, [text.as_str()]);
            assert_eq!(read.calls[0].1, format!("{{\"{key}\": {value}}}"), "{text}");
        }
    }
}

#[test]
fn deepseek_calls() {
    let v3 = "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": \
              \"```\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n\
              {}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let v31 = "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": \"```\"}\
               <｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>\
               <｜tool▁calls▁end｜>";
    for format in [ToolFormat::DeepSeekV3, ToolFormat::DeepSeekV31] {
        check(
            format,
            &[
                (v3, "Hm.", &[("f", "{\"a\": \"```\"}"), ("g", "{}")]),
                (v31, "Hm.", &[("f", "{\"a\": \"```\"}"), ("g", "{}")]),
                (
                    "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1} more",
                    "more",
                    &[("f", "{\"a\": 1}")],
                ),
                (
                    "<｜tool▁calls▁begin｜> none",
                    "<｜tool▁calls▁begin｜> none",
                    &[],
                ),
                (
                    "<｜tool▁call▁begin｜>no call<｜tool▁sep｜>{}",
                    "<｜tool▁call▁begin｜>no call<｜tool▁sep｜>{}",
                    &[],
                ),
                (
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```python\n{}",
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```python\n{}",
                    &[],
                ),
            ],
        );
    }
}

#[test]
fn lists_of_calls_after_a_mark() {
    check(
        ToolFormat::Granite,
        &[
            (
                "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \
                 \"arguments\": {}}]",
                "",
                &[("f", "{\"a\": 1}"), ("g", "{}")],
            ),
            (
                "I see. <tool_call> [ {\"arguments\": {}, \"name\": \"f\"} ] </tool_call> done",
                "I see. done",
                &[("f", "{}")],
            ),
            ("<|tool_call|> [1]", "<|tool_call|> [1]", &[]),
            ("<|tool_call|> {\"a\": 1}", "<|tool_call|> {\"a\": 1}", &[]),
        ],
    );
    check(
        ToolFormat::Phi,
        &[
            (
                "functools[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"get_weather\", \
                 \"arguments\": {}}]",
                "",
                &[("f", "{\"a\": 1}"), ("get_weather", "{}")],
            ),
            (
                "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]<|/tool_call|>",
                "",
                &[("f", "{}")],
            ),
            ("functools.wraps(f)", "functools.wraps(f)", &[]),
            (
                "functools[{\"name\": \"Ann\"}]",
                "functools[{\"name\": \"Ann\"}]",
                &[],
            ),
        ],
    );
    check(
        ToolFormat::Cohere,
        &[
            (
                "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": \
                 {\"a\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]\
                 <|END_ACTION|>",
                "",
                &[("f", "{\"a\": 1}"), ("g", "{}")],
            ),
            (
                "Action: ```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": {}\n    \
                 }\n]```",
                "",
                &[("f", "{}")],
            ),
            ("Action: none", "Action: none", &[]),
        ],
    );
}

const THOUGHT: &str = "<|channel|>analysis<|message|>\nI look it up.\n<|end|><|start|>assistant";
const CALL: &str = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"<|end|>\"}\
                    <|call|>";

#[test]
fn harmony_messages() {
    let other = "<|start|>assistant<|channel|>commentary to=functions.a.b-c<|message|>{}<|call|>";
    let words = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant";
    let last = "<|channel|>final<|message|>It *rains*.\n";
    check(
        ToolFormat::Harmony,
        &[
            (last, "It *rains*.\n", &[]),
            (&[THOUGHT, last].concat().leak()[..], "It *rains*.\n", &[]),
            (
                [THOUGHT, words, CALL, other].concat().leak(),
                "Let me see.",
                &[("f", "{\"a\": \"<|end|>\"}"), ("a.b-c", "{}")],
            ),
            // The recipient before the channel, and a header without its mark.
            (
                " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}",
                "",
                &[("f", "{\"a\": 1}")],
            ),
            (
                "<|channel|>commentary to=functions.f json{\"a\": 1}",
                "",
                &[("f", "{\"a\": 1}")],
            ),
            (
                "<|channel|>commentary to=get_weather<|message|> {}",
                "",
                &[("get_weather", "{}")],
            ),
            (
                "<|channel|>commentary to=functions.f<|message|><|call|>",
                "",
                &[("f", "{}")],
            ),
            // No call: another recipient, or no object.
            (
                "<|channel|>commentary to=python<|message|>print(1)",
                "print(1)",
                &[],
            ),
            (
                "<|channel|>commentary to=functions.f<|message|>a = 1",
                "a = 1",
                &[],
            ),
            // Text without a header.
            ("Hello", "Hello", &[]),
            (" to=day is {", " to=day is {", &[]),
            (" to=", " to=", &[]),
            (
                [words, last].concat().leak(),
                "Let me see.\nIt *rains*.\n",
                &[],
            ),
        ],
    );
    assert_eq!(
        read(ToolFormat::Harmony, THOUGHT).reasoning,
        "I look it up."
    );
    let twice = [THOUGHT, THOUGHT].concat();
    let twice = read(ToolFormat::Harmony, &twice).reasoning;
    assert_eq!(twice, "I look it up.\n\nI look it up.");
}

#[test]
fn harmony_reasoning_is_shown_as_the_request_says() {
    let text = [THOUGHT, "<|channel|>final<|message|>Yes<|return|>"].concat();
    for (reasoning_display, reasoning, content) in [
        (ReasoningDisplay::Separate, "I look it up.", "Yes"),
        (ReasoningDisplay::Hidden, "", "Yes"),
        (
            ReasoningDisplay::InContent,
            "",
            "<|channel|>analysis<|message|>\nI look it up.\n<|end|>Yes",
        ),
    ] {
        let options = OutputParserOptions {
            tools: None,
            reasoning: Some(ReasoningFormat::Harmony),
            reasoning_display,
            ..OutputParserOptions::default()
        };
        assert!(
            !options.is_plain(),
            "the header of the answer is no content"
        );
        let read = read_with(&options, [text.as_str()]);
        assert_eq!(
            (read.reasoning.as_str(), read.content.as_str()),
            (reasoning, content)
        );
    }
}

#[test]
fn harmony_without_tools_has_no_calls() {
    let options = OutputParserOptions {
        reasoning: Some(ReasoningFormat::Harmony),
        ..OutputParserOptions::default()
    };
    let read = read_with(&options, [CALL]);
    assert_eq!(
        (read.calls.len(), read.content.starts_with("{\"a\"")),
        (0, true)
    );
}

#[test]
fn harmony_continues_where_the_prompt_ends() {
    let base = OutputParserOptions {
        reasoning: Some(ReasoningFormat::Harmony),
        ..parser_options(ToolFormat::Harmony)
    };
    let user = "<|start|>user<|message|>Hi<|end|>";
    for (end, continues, output, reasoning, content) in [
        (
            "<|start|>assistant",
            false,
            "<|channel|>final<|message|>x",
            "",
            "x",
        ),
        (
            "<|start|>assistant<|channel|>analysis<|message|>",
            false,
            "x",
            "x",
            "",
        ),
        (
            "<|start|>assistant<|channel|>final<|message|>It",
            true,
            "x",
            "",
            "x",
        ),
        (
            "<|start|>assistant<|channel|>analysis<|message|>It",
            true,
            " x",
            "x",
            "",
        ),
    ] {
        let options = base
            .clone()
            .after_prompt(&format!("{user}{end}"), continues);
        let read = read_with(&options, [output]);
        assert_eq!(
            (read.reasoning.as_str(), read.content.as_str()),
            (reasoning, content),
            "{end}"
        );
    }
}

#[test]
fn reasoning_marks_of_every_format() {
    for (format, text) in [
        (
            ReasoningFormat::Granite,
            "Here is my thought process: a\n\nHere is my response: b",
        ),
        (
            ReasoningFormat::Granite,
            "Here's my thought process:\na\nHere's my response:\nb",
        ),
        (
            ReasoningFormat::Cohere,
            "<|START_THINKING|>a<|END_THINKING|>b",
        ),
        (ReasoningFormat::Seed, "<seed:think>a</seed:think>b"),
        (ReasoningFormat::MiniMax, "<mm:think>a</mm:think>b"),
        (ReasoningFormat::Gemma, "<|channel>thought\na<channel|>b"),
        (ReasoningFormat::Gemma, "<|channel>a<channel|>b"),
        (ReasoningFormat::Mistral, "[THINK]a[/THINK]b"),
        (ReasoningFormat::Think, "<think>a</think>b"),
        (ReasoningFormat::DeepSeekR1, "<think>a</think>b"),
        (ReasoningFormat::ThinkResponse, "<think>a</think>b"),
        (
            ReasoningFormat::ThinkResponse,
            "<think>a</think><response>b</response>",
        ),
        (
            ReasoningFormat::ThinkAnswer,
            "<think>\na\n</think>\n<answer>\nb\n</answer>\n",
        ),
    ] {
        let options = OutputParserOptions {
            reasoning: Some(format),
            ..OutputParserOptions::default()
        };
        for parts in [vec![text], text.split_inclusive(|_| true).collect()] {
            let read = read_with(&options, parts);
            assert_eq!(
                (read.reasoning.as_str(), read.content.as_str()),
                ("a", "b"),
                "{text}"
            );
        }
    }
}
