//! What a tool-call grammar allows is what the output parser understands.

#![allow(clippy::unwrap_used)]

use penstock_text::tool_parsers::{
    CallSpans, OutputDelta, OutputDeltas, OutputParserOptions, Tool, ToolChoiceMode, ToolFormat,
    ToolSet,
};
use serde_json::{Value, json};

use crate::parsed::TOOL_FIELDS;

/// Returns the content of an output and its calls as (name, arguments).
fn read(parser_options: &OutputParserOptions, parts: &[&str]) -> (String, Vec<(String, String)>) {
    let mut pieces = OutputDeltas::default();
    let mut parser = parser_options.parser();
    parts.iter().for_each(|part| parser.feed(part, &mut pieces));
    parser.finish(&mut pieces);
    let (mut content, mut calls) = (String::new(), Vec::new());
    for piece in pieces.drain() {
        match piece {
            OutputDelta::Content(text) | OutputDelta::Reasoning(text) => content += &text,
            OutputDelta::CallStart { name, .. } => calls.push((name, String::new())),
            OutputDelta::Arguments(text) => calls.last_mut().unwrap().1 += &text,
            OutputDelta::CallEnd => {}
        }
    }
    (content, calls)
}

/// Writes an output that the grammar forces, with these (tool index, arguments).
fn forced_answer(grammar: &Value, calls: &[(usize, &str)]) -> String {
    let part = |value: &Value| value.as_str().unwrap().to_owned();
    let written = calls.iter().map(|&(index, document)| {
        let call = &grammar["calls"][index];
        part(&call["before"]) + document + &part(&call["after"])
    });
    let written: Vec<String> = written.collect();
    let mark = grammar["mark"].as_str().unwrap_or_default();
    mark.to_owned()
        + &part(&grammar["begin"])
        + &written.join(&part(&grammar["between"]))
        + &part(&grammar["end"])
}

fn tool_set(choice: ToolChoiceMode, parallel: bool) -> ToolSet {
    let tool = |name: &str, parameters: Option<&str>| Tool {
        name: name.to_owned(),
        description: None,
        parameters: parameters.map(str::to_owned),
        strict: false,
    };
    let schema =
        r##"{"type":"object","$defs":{"z":{}},"properties":{"b":{"$ref":"#/$defs/z"},"a":{}}}"##;
    ToolSet {
        tools: vec![tool("f", None), tool("a.b-c", Some(schema))],
        choice,
        parallel,
        fields: TOOL_FIELDS,
    }
}

#[test]
fn calls_that_a_grammar_forces_are_parsed_back_in_every_format() {
    let strange = r#"{"s":"\/ \u00e9 \ud83d\ude00 '[]{}' </tool_call>","n":[1,{"x":null}]}"#;
    for (format, _) in ToolFormat::ALL {
        let tool_set = tool_set(ToolChoiceMode::Required, true);
        let text = format.call_grammar(&tool_set).unwrap();
        assert!(
            text.contains(tool_set.tools[1].parameters.as_deref().unwrap()),
            "{text}"
        );
        let grammar: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(grammar["many"], true);
        let answer = forced_answer(&grammar, &[(1, strange), (0, "{}")]);
        let parser_options = OutputParserOptions {
            tools: Some((format, tool_set.names())),
            ..OutputParserOptions::default()
        };
        let cut: Vec<&str> = answer.split_inclusive(|_| true).collect();
        for parts in [&[answer.as_str()][..], &cut] {
            let (content, calls) = read(&parser_options, parts);
            assert_eq!(content, "", "{answer}");
            assert_eq!((calls.len(), calls[0].0.as_str()), (2, "a.b-c"), "{answer}");
            let given: Value = serde_json::from_str(&calls[0].1).unwrap();
            assert_eq!(given, serde_json::from_str::<Value>(strange).unwrap());
            assert_eq!(calls[1], ("f".to_owned(), "{}".to_owned()));
        }
    }
}

#[test]
fn tool_choice_decides_what_the_grammar_forces() {
    let grammar = |choice, parallel| {
        let text = ToolFormat::Hermes.call_grammar(&tool_set(choice, parallel));
        text.map(|text| serde_json::from_str::<Value>(&text).unwrap())
    };
    assert_eq!(grammar(ToolChoiceMode::None, true), None);
    assert_eq!(
        grammar(ToolChoiceMode::Auto, true),
        None,
        "no tool is strict"
    );
    let one = grammar(ToolChoiceMode::Required, false).unwrap();
    assert_eq!(
        (&one["many"], one["calls"].as_array().unwrap().len()),
        (&json!(false), 2)
    );
    let named = grammar(ToolChoiceMode::Named("a.b-c".into()), true).unwrap();
    assert_eq!(named["many"], false);
    assert_eq!(named["calls"][0]["name"], "a.b-c");
    assert_eq!(named["calls"].as_array().unwrap().len(), 1);
    let before = "<tool_call>\n{\"name\": \"a.b-c\", \"arguments\": ";
    assert_eq!(named["calls"][0]["before"], before);
}

/// Two tools, the second of them strict, and the parser options for their outputs.
fn strict_tool_set(format: ToolFormat) -> (ToolSet, OutputParserOptions) {
    let mut tool_set = tool_set(ToolChoiceMode::Auto, true);
    tool_set.tools[1].strict = true;
    let parser_options = OutputParserOptions {
        tools: Some((format, tool_set.names())),
        strict: true,
        ..OutputParserOptions::default()
    };
    (tool_set, parser_options)
}

/// Harmony's calls begin in a header, which free text does not have.
fn formats_without_headers() -> impl Iterator<Item = ToolFormat> {
    let formats = ToolFormat::ALL.into_iter().map(|(format, _)| format);
    formats.filter(|format| *format != ToolFormat::Harmony)
}

#[test]
fn a_strict_harmony_call_opens_in_its_header() {
    let (tool_set, parser_options) = strict_tool_set(ToolFormat::Harmony);
    let grammar = ToolFormat::Harmony.call_grammar(&tool_set).unwrap();
    let grammar: Value = serde_json::from_str(&grammar).unwrap();
    assert_eq!(grammar["many"], false);
    let opening = &grammar["opening"];
    let text = forced_answer(&grammar, &[(1, "{\"b\":1}")]);
    let head = &opening["heads"][1];
    let rest = text.strip_prefix(head["spelt"].as_str().unwrap()).unwrap();
    let part = head["parts"][0].as_str().unwrap();
    let mark = opening["mark"].as_str().unwrap();
    let header = format!("<|channel|>commentary {mark}{part}");
    let call = ("a.b-c".to_owned(), "{\"b\":1}".to_owned());
    let answer = format!("{header}{rest}<|call|>");
    assert_eq!(
        read(&parser_options, &[&answer]),
        (String::new(), vec![call])
    );
    let start = answer.find("{\"b").unwrap();
    let mut spans = CallSpans::for_options(&parser_options).unwrap();
    assert!(spans.contains(&answer, start + 1) && !spans.contains(&answer, start - 5));
}

#[test]
fn what_opens_a_call_in_the_grammar_opens_one_in_the_parser() {
    for format in formats_without_headers() {
        let (tool_set, parser_options) = strict_tool_set(format);
        let grammar: Value =
            serde_json::from_str(&format.call_grammar(&tool_set).unwrap()).unwrap();
        let any = json!({"type": "object", "additionalProperties": true});
        assert_eq!(grammar["calls"][0]["schema"], any, "it is not strict");
        let kept: Value =
            serde_json::from_str(tool_set.tools[1].parameters.as_deref().unwrap()).unwrap();
        assert_eq!(grammar["calls"][1]["schema"], kept);
        let opening = &grammar["opening"];
        let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let each = 1 + usize::from(grammar["many"] == true);
        let text = forced_answer(&grammar, &[(1, "{\"b\":1}"), (0, "{}")][..each]);
        let mark = part(&opening["mark"]);
        let Some(heads) = opening["heads"].as_array() else {
            let text = text.strip_prefix(&part(&opening["spelt"])).unwrap();
            let (content, calls) = read(&parser_options, &[&format!("So: {mark}{text}")]);
            assert_eq!((content.as_str(), calls.len()), ("So:", each), "{text}");
            assert_eq!(calls[0], ("a.b-c".to_owned(), "{\"b\":1}".to_owned()));
            continue;
        };
        let mut opened = 0;
        for head in heads {
            let Some(rest) = text.strip_prefix(&part(&head["spelt"])) else {
                continue;
            };
            opened += 1;
            let parts = head["parts"].as_array().unwrap().iter().map(part);
            let parts: Vec<String> = parts.collect();
            for blank in ["", " ", "\n\t"] {
                let call = format!("{blank}{}{rest}", parts.join(blank));
                let marked = format!("So: {mark}{call}");
                assert_eq!(read(&parser_options, &[&call]).1.len(), each, "{call}");
                assert_eq!(read(&parser_options, &[&marked]).1.len(), each, "{marked}");
                assert_eq!(read(&parser_options, &[&marked]).0, "So:", "{marked}");
                let again = format!("{call}{}{call}", part(&opening["again"]));
                let twice = if part(&opening["again"]).is_empty() {
                    each
                } else {
                    2 * each
                };
                assert_eq!(read(&parser_options, &[&again]).1.len(), twice, "{again}");
            }
        }
        assert!(opened > 0, "{text}");
    }
}

#[test]
fn call_spans_reach_from_mark_or_name_to_end() {
    for format in formats_without_headers() {
        let (tool_set, parser_options) = strict_tool_set(format);
        let grammar: Value =
            serde_json::from_str(&format.call_grammar(&tool_set).unwrap()).unwrap();
        let (arguments, behind) = ("{\"b\": \"x\"}", " And so on");
        let mark = grammar["opening"]["mark"].as_str().unwrap();
        let call = forced_answer(&grammar, &[(1, arguments)]);
        let call = format!("{mark}{}", call.strip_prefix(mark).unwrap_or(&call));
        let text = format!("So: {call}{behind}");
        let inside = text.find(arguments).unwrap();
        let held = [mark.len(), text.len()].map(|end| {
            let mut spans = CallSpans::for_options(&parser_options).unwrap();
            let early = (0..4).any(|place| spans.contains(&text[..end], place));
            let late = spans.contains(&text, text.len() - behind.len() + 1);
            let all = (inside..inside + arguments.len()).all(|place| spans.contains(&text, place));
            (early, all, late)
        });
        assert_eq!(held, [(false, true, false); 2], "{text}");
    }
    assert!(CallSpans::for_options(&OutputParserOptions::default()).is_none());
}

#[test]
fn what_opens_no_call_in_the_grammar_opens_none_in_the_parser() {
    let texts = [
        r#"{"parameters": {"b": 1}, "name": "f"}"#,
        r#"{"id": 1, "name": "f", "parameters": {}}"#,
        r#"{"type": "object", "name": "f", "parameters": {}}"#,
        r#"{"name": "Ann", "age": 7}"#,
        r#"{"type": "function", "function": "f", "parameters": {}}"#,
    ];
    let (_, parser_options) = strict_tool_set(ToolFormat::Llama3Json);
    for text in texts {
        let cut: Vec<&str> = text.split_inclusive(|_| true).collect();
        assert_eq!(read(&parser_options, &cut), (text.to_owned(), Vec::new()));
    }
    let loose = OutputParserOptions {
        strict: false,
        ..parser_options
    };
    assert_eq!(read(&loose, &texts[..1]).1.len(), 1);
    let (_, parser_options) = strict_tool_set(ToolFormat::Pythonic);
    for text in [
        "[1, 2]",
        "[f](http://a)",
        "[f, g]",
        "x<|python_end|>[f(b=1)]",
    ] {
        let (content, calls) = read(&parser_options, &[text]);
        assert_eq!(
            (content.contains("f(b=1)"), calls.len()),
            (text.contains('='), 0),
            "{text}"
        );
    }
}
