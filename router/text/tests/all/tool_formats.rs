//! Reasoning, content and calls in a model's output: each format's meaning, independent of how the
//! text is cut into pieces.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use penstock_text::tool_parsers::{OutputParserOptions, ReasoningFormat, ToolFormat};
use proptest::prelude::*;
use serde_json::{Map, Value};

use crate::parsed::{check, parser_options, read, read_with};
use crate::written_calls::{Call, parameter_types, with_typed_keys, written};

#[test]
fn hermes_calls() {
    check(
        ToolFormat::Hermes,
        &[
            ("hello", "hello", &[]),
            (" hello \n", " hello \n", &[]),
            (
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}\n</tool_call>",
                "",
                &[("f", "{\"a\": [1, \"}\"]}")],
            ),
            (
                "Let me see.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n\
              <tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>\n",
                "Let me see.",
                &[("f", "{}"), ("g", "{}")],
            ),
            // Keys in any order, unknown keys, and other names and types of the arguments.
            (
                "<tool_call>{\"id\": [{}], \"arguments\": {\"x\": 1}, \"name\": \"f\"}</tool_call>",
                "",
                &[("f", "{\"x\": 1}")],
            ),
            (
                "<tool_call>{\"name\": \"\\u0066\", \"parameters\": \"{\\\"x\\\": 1}\"}</tool_call>",
                "",
                &[("f", "{\"x\": 1}")],
            ),
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": null }</tool_call>",
                "",
                &[("f", "{}")],
            ),
            (
                "<tool_call>{\"name\": \"f\"}</tool_call>",
                "",
                &[("f", "{}")],
            ),
        ],
    );
}

#[test]
fn hermes_tags_without_calls_and_truncated_calls() {
    check(
        ToolFormat::Hermes,
        &[
            // No calls.
            ("a < b <tool", "a < b <tool", &[]),
            (
                "<tool_call>none</tool_call>",
                "<tool_call>none</tool_call>",
                &[],
            ),
            (
                "<tool_call>{\"a\": 1}</tool_call>",
                "<tool_call>{\"a\": 1}</tool_call>",
                &[],
            ),
            ("<tool_call>{\"name\": 5}", "<tool_call>{\"name\": 5}", &[]),
            ("x <tool_call>{\"na", "x <tool_call>{\"na", &[]),
            // Truncated, or without the closing tag.
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b",
                "",
                &[("f", "{\"a\": \"b")],
            ),
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{}}",
                "",
                &[("f", "{}")],
            ),
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{}} and more",
                "and more",
                &[("f", "{}")],
            ),
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_\u{e9}",
                "</tool_\u{e9}",
                &[("f", "{}")],
            ),
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{}, oh",
                "oh",
                &[("f", "{}")],
            ),
        ],
    );
}

#[test]
fn llama3_json_calls() {
    check(
        ToolFormat::Llama3Json,
        &[
            ("hello {\"name\": \"f\"}", "hello {\"name\": \"f\"}", &[]),
            (
                "{\"name\": \"f\", \"parameters\": {\"a\": 1}}",
                "",
                &[("f", "{\"a\": 1}")],
            ),
            (
                "\n<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}} ; \
              {\"name\": \"get_weather\", \"parameters\": {}}\n",
                "",
                &[("f", "{}"), ("get_weather", "{}")],
            ),
            (
                "{\"name\": \"Paris\", \"parameters\": {}}",
                "{\"name\": \"Paris\", \"parameters\": {}}",
                &[],
            ),
            (
                "{\"city\": \"Paris\"} is JSON",
                "{\"city\": \"Paris\"} is JSON",
                &[],
            ),
            (" hi", " hi", &[]),
        ],
    );
}

/// Llama 4's template writes content between the marks, and calls after them.
#[test]
fn llama4_json_calls() {
    let call = "{\"name\": \"f\", \"parameters\": {\"a\": \"<|python_end|>\"}}";
    let arguments = "{\"a\": \"<|python_end|>\"}";
    let no_call = "{\"name\": \"Paris\", \"parameters\": {}}";
    for (text, content, calls) in [
        (call.to_owned(), "", 1),
        (format!("<|python_start|>{call}<|python_end|>\n"), "", 1),
        (format!("<|python_start|><|python_end|>{call}{call}"), "", 2),
        (
            format!("<|python_start|>{call}<|python_end|><|python_start|>{call}"),
            "",
            2,
        ),
        (
            format!("<|python_start|>Let me\nsee.<|python_end|> {call}; {call}"),
            "Let me\nsee.",
            2,
        ),
        (format!("I see. <|python_start|>\n{call}"), "I see.", 1),
        (format!("I see. {no_call}"), &format!("I see. {no_call}"), 0),
        (
            format!("<|python_start|>{no_call}<|python_end|>"),
            no_call,
            0,
        ),
        (
            "<|python_start|>x < 1<|python".to_owned(),
            "x < 1<|python",
            0,
        ),
        ("<|python_tag|>1".to_owned(), "<|python_tag|>1", 0),
    ] {
        let calls = &[("f", arguments); 2][..calls];
        check(ToolFormat::Llama4Json, &[(&text, content, calls)]);
    }
}

#[test]
fn mistral_calls() {
    check(
        ToolFormat::Mistral,
        &[
            ("[TOOL] [1]", "[TOOL] [1]", &[]),
            (
                "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"arguments\": {}, \"name\": \"g\"}]",
                "",
                &[("f", "{\"a\": 1}"), ("g", "{}")],
            ),
            (
                "Well. [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}]",
                "Well.",
                &[("f", "{}")],
            ),
            (
                "[TOOL_CALLS]f[ARGS]{\"a\": {\"b\": \"]}\"}}[TOOL_CALLS]a.b-c[CALL_ID]x1y2z3a4b[ARGS]{}",
                "",
                &[("f", "{\"a\": {\"b\": \"]}\"}}"), ("a.b-c", "{}")],
            ),
            ("[TOOL_CALLS]f{\"a\": 1}", "", &[("f", "{\"a\": 1}")]),
            ("[TOOL_CALLS]: none", "[TOOL_CALLS]: none", &[]),
            ("[TOOL_CALLS]no call", "[TOOL_CALLS]no call", &[]),
            ("[TOOL_CALLS][1]", "[TOOL_CALLS][1]", &[]),
        ],
    );
}

#[test]
fn pythonic_calls() {
    check(
        ToolFormat::Pythonic,
        &[
            (
                "[f(a=1, b='it\\'s', c=[True, None, (1.5, -2)], d={'x': \"y)\"})]",
                "",
                &[(
                    "f",
                    "{\"a\":1,\"b\":\"it's\",\"c\":[true,null,[1.5,-2]],\"d\":{\"x\":\"y)\"}}",
                )],
            ),
            (
                "<|python_start|>[f(), a.b-c(x=\"\\u00e9\\n\\d\",)]<|python_end|>",
                "",
                &[("f", "{}"), ("a.b-c", "{\"x\":\"\u{e9}\\n\\\\d\"}")],
            ),
            ("[1, 2]", "[1, 2]", &[]),
            ("[g(a=1)]", "[g(a=1)]", &[]),
            ("[f(1)]", "[f(1)]", &[]),
            ("[f(a=b)]", "[f(a=b)]", &[]),
            ("[f(a=\"b", "[f(a=\"b", &[]),
            ("See [f()]", "See [f()]", &[]),
            ("[f(), oh", " oh", &[("f", "{}")]),
        ],
    );
}

#[test]
fn reasoning_is_parsed_only_at_the_start() {
    for (text, reasoning, content) in [
        ("<think>\na\n b\n</think>\n\nc\n", "a\n b", "c\n"),
        ("  <think></think>c", "", "c"),
        (" c <think>d</think>", "", " c <think>d</think>"),
        ("<think>cut <off", "cut <off", ""),
        (
            "<think>a<think>b</thinkc</think> d",
            "a<think>b</thinkc",
            "d",
        ),
        ("<thin", "", "<thin"),
        ("  ", "", "  "),
    ] {
        let read = read(ToolFormat::Hermes, text);
        assert_eq!(
            (read.reasoning.as_str(), read.content.as_str()),
            (reasoning, content),
            "{text}"
        );
    }
    let mut open = parser_options(ToolFormat::Hermes).after_prompt("<|assistant|><think>\n", false);
    assert!(open.in_reasoning);
    for (text, reasoning, content) in [
        ("a</think>b", "a", "b"),
        ("\n<think>\na</think>\n\nb", "a", "b"),
        ("a", "a", ""),
    ] {
        let read = read_with(&open, [text]);
        assert_eq!(
            (read.reasoning.as_str(), read.content.as_str()),
            (reasoning, content),
            "{text}"
        );
    }
    open = parser_options(ToolFormat::Hermes).after_prompt("<think>\n\n</think>\n\n", false);
    assert_eq!(read_with(&open, ["a</think>b"]).content, "a</think>b");
    let text = "<think>t</think>\n<tool_call>{\"name\":\"f\"}</tool_call>";
    let both = read(ToolFormat::Hermes, text);
    assert_eq!(
        (
            both.reasoning.as_str(),
            both.calls.len(),
            both.content.as_str()
        ),
        ("t", 1, "")
    );
}

#[test]
fn single_call_mode_stops_after_the_first_call() {
    let one = OutputParserOptions {
        one_call: true,
        ..parser_options(ToolFormat::Brook)
    };
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    let text = format!("x{call}y{call}");
    let whole = read_with(&one, [text.as_str()]);
    assert_eq!((whole.content.as_str(), whole.calls.len()), ("x", 1));
    assert_eq!(read_with(&one, text.split_inclusive(|_| true)), whole);
}

#[test]
fn formats_are_detected_from_the_chat_template() {
    for (source, format) in [
        (
            "{{- '\\n</tools>\\n\\nreturn a json object within <tool_call></tool_call>' }}",
            Some(ToolFormat::Hermes),
        ),
        (
            include_str!("../../../../examples/brook/chat_template.jinja"),
            Some(ToolFormat::Brook),
        ),
        (
            "{{ '<|start_header_id|>' }}{\"name\": function name, \"parameters\": dictionary}",
            Some(ToolFormat::Llama3Json),
        ),
        ("{{ '[TOOL_CALLS][' }}", Some(ToolFormat::Mistral)),
        (
            "{{ '<|start_header_id|>' }}[func_name1(params_name1=params_value1)]",
            Some(ToolFormat::Pythonic),
        ),
        (
            "{{ '<|header_start|>' }}[func_name1(param1=value1)] {\"parameters\": {}}",
            Some(ToolFormat::Pythonic),
        ),
        ("{{ '<|python_start|>[' }}", Some(ToolFormat::Pythonic)),
        (
            "{{ '<|python_start|>{\"name\": \"' + name + '\", \"parameters\": ' }}",
            Some(ToolFormat::Llama4Json),
        ),
        ("{{ '<|header_start|>' + message.content }}", None),
        ("{{ messages[0].content }}", None),
    ] {
        assert_eq!(ToolFormat::from_template(source), format, "{source}");
    }
    assert_eq!(
        ReasoningFormat::from_template("x</think>"),
        Some(ReasoningFormat::Think)
    );
    assert_eq!(
        ReasoningFormat::from_template("[THINK]"),
        Some(ReasoningFormat::Mistral)
    );
    assert_eq!(ReasoningFormat::from_template("think"), None);
}

#[test]
fn gemma_calls() {
    check(
        ToolFormat::Gemma,
        &[
            (
                "Sure.\n<|tool_call>call:f{city:<|\"|>New \"York\" {}<|\"|>,days:[1,-2.5],deep:{a:true,\
                 b:null}}<tool_call|><|tool_call>call:g{}<tool_call|>\n",
                "Sure.",
                &[
                    (
                        "f",
                        "{\"city\":\"New \\\"York\\\" {}\",\"days\":[1,-2.5],\"deep\":{\"a\":true,\"b\":null}}",
                    ),
                    ("g", "{}"),
                ],
            ),
            // JSON, as a grammar forces it: only the first call has a mark.
            (
                "<|tool_call>call:f{\"a\": \"}<|\\\"|>\"}call:g{}",
                "",
                &[("f", "{\"a\":\"}<|\\\"|>\"}"), ("g", "{}")],
            ),
            (
                "<|tool_call> call:f{<|\"|>a b<|\"|>: <|\"|><|\"|> }<tool_call|> done",
                " done",
                &[("f", "{\"a b\":\"\"}")],
            ),
            // No calls.
            ("<|tool_call>calling", "<|tool_call>calling", &[]),
            ("<|tool_call>call:{}", "<|tool_call>call:{}", &[]),
            ("<|tool_call>call:f{a}", "<|tool_call>call:f{a}", &[]),
            ("<|tool_call>call:f{a:no}", "<|tool_call>call:f{a:no}", &[]),
            // Truncated.
            (
                "<|tool_call>call:f{a:<|\"|>b}",
                "<|tool_call>call:f{a:<|\"|>b}",
                &[],
            ),
        ],
    );
}

/// Options of any formats, and text in pieces: fragments, and marks of these formats.
fn any_output() -> impl Strategy<Value = (OutputParserOptions, Vec<String>)> {
    let reasoning = ReasoningFormat::ALL.map(|(format, _)| Some(format));
    let reasoning = prop::sample::select([&reasoning[..], &[None]].concat());
    let formats = (any_format(), reasoning, any::<bool>(), any::<bool>());
    let options =
        formats.prop_map(
            |(format, reasoning, one_call, in_reasoning)| OutputParserOptions {
                one_call,
                in_reasoning,
                reasoning,
                ..parser_options(format)
            },
        );
    options.prop_flat_map(|options| {
        let marks: Vec<_> = options.marks().map(str::to_owned).collect();
        let part = prop_oneof![3 => fragment(), 1 => prop::sample::select(marks)];
        (Just(options), prop::collection::vec(part, 0..20))
    })
}

/// Text with critical boundaries: marks, partial marks and JSON punctuation.
fn fragment() -> impl Strategy<Value = String> {
    let words = prop::sample::select(WORDS.to_vec()).prop_map(str::to_owned);
    prop_oneof![4 => words, 1 => ".{0,3}"]
}

const WORDS: [&str; 77] = [
    "<tool_call>",
    "</tool_call>",
    "<tool",
    "</",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<|python_tag|>",
    "<|python_start|>",
    "<|python_end|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "[TOOL",
    "<|action_start|>",
    "<|plugin|>",
    "<|action_end|>",
    "[",
    "]",
    "{",
    "}",
    "\"name\"",
    "\"arguments\"",
    "\"parameters\"",
    ": ",
    ", ",
    ";",
    "\"",
    "\\",
    "\"f\"",
    "f(",
    "get_weather",
    "a=",
    "'",
    ")",
    "1",
    "null",
    "True",
    " ",
    "\n",
    "\u{e9}",
    "\u{1F600}",
    "<function=f>",
    "</function>",
    "<parameter=a>",
    "</parameter>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "\n```json\n",
    "```",
    "<｜tool▁call▁end｜>",
    "<|tool_call|>",
    "functools[",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|channel|>",
    "commentary to=functions.f ",
    " to=functions.f",
    "analysis",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "{\"name\": \"f\", \"arguments\": {\"a\": \"",
    "{\"name\": \"f\"}",
    "[f(a=1)]",
    "<|tool_call>",
    "<tool_call|>",
    "call:f{",
    "call:f{a:1}",
    "<|channel>",
    "<channel|>",
];

fn any_format() -> impl Strategy<Value = ToolFormat> {
    prop::sample::select(ToolFormat::ALL.map(|(format, _)| format).to_vec())
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        fragment().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec(("[a-z\"\\\\é]{1,4}", inner), 0..3)
                .prop_map(|entries| { Value::Object(entries.into_iter().collect()) }),
        ]
    })
}

fn any_call() -> impl Strategy<Value = Call> {
    let arguments = prop::collection::vec(("[a-z_]{1,5}", any_json()), 0..4);
    let name = prop::sample::select(vec!["f".to_owned(), "get_weather".into(), "a.b-c".into()]);
    (
        name,
        arguments.prop_map(|entries| entries.into_iter().collect()),
    )
}

#[test]
fn whitespace_of_a_list_without_calls_is_content() {
    let text = "[TOOL_CALLS][ [TOOL_CALLS]";
    let whole = read_with(&parser_options(ToolFormat::Mistral), [text]);
    assert_eq!(whole.content, text);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The result is the same for every cut, and no character of plain text is lost.
    #[test]
    fn parsing_does_not_depend_on_chunk_boundaries(
        (parser_options, parts) in any_output(),
    ) {
        let text = parts.concat();
        let whole = read_with(&parser_options, [text.as_str()]);
        prop_assert_eq!(&read_with(&parser_options, parts.iter().map(String::as_str)), &whole);
        prop_assert_eq!(&read_with(&parser_options, text.split_inclusive(|_| true)), &whole);
        // Marks of reasoning and messages, unlike tags of most calls, are never content.
        let marked = parser_options.is_harmony() && text.contains("<|");
        let of_reasoning = OutputParserOptions { tools: None, ..parser_options.clone() };
        // These formats drop their marks even if no call follows.
        let unmarked = [ToolFormat::Pythonic, ToolFormat::Lfm, ToolFormat::Olmo, ToolFormat::Llama4Json]
            .iter()
            .any(|format| format.marks().iter().any(|mark| text.contains(mark)));
        let thinks = parser_options.in_reasoning
            || marked
            || of_reasoning.marks().any(|mark| text.contains(mark));
        if whole.calls.is_empty() && !thinks {
            prop_assert!(text.starts_with(&whole.content) || unmarked, "{:?}", whole);
        }
    }

    /// The calls that a model writes in its format are parsed back.
    #[test]
    fn written_calls_are_parsed_back(
        format in any_format(),
        calls in prop::collection::vec(any_call(), 1..4),
        cuts in prop::collection::vec(1_usize..9, 1..9),
    ) {
        let calls = with_typed_keys(calls);
        let text = written(format, &calls);
        // A format without quotes cannot write its own closing tags in a value.
        let tags = text.matches("</parameter>").count() + text.matches("</arg_value>").count();
        let values: usize = calls.iter().map(|(_, arguments)| arguments.len()).sum();
        prop_assume!(!format.needs_types() || tags == values);
        let options = OutputParserOptions {
            parameter_types: parameter_types(&calls),
            ..parser_options(format)
        };
        let mut parts = vec![String::new()];
        let mut lengths = cuts.iter().cycle();
        let mut room = *lengths.next().unwrap();
        for c in text.chars() {
            if room == 0 {
                parts.push(String::new());
                room = *lengths.next().unwrap();
            }
            parts.last_mut().unwrap().push(c);
            room -= 1;
        }
        let read = read_with(&options, parts.iter().map(String::as_str));
        prop_assert_eq!(&read.content, "", "{}", text);
        prop_assert_eq!(read.complete, calls.len());
        let found: Vec<_> = read.calls.iter().map(|(name, arguments)| {
            (name.clone(), serde_json::from_str::<Map<String, Value>>(arguments).unwrap())
        }).collect();
        prop_assert_eq!(found, calls);
    }
}
