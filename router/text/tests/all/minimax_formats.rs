//! Calls of MiniMax's models.

use penstock_text::tool_parsers::{
    OutputParserOptions, ParameterTypes, Tool, ToolChoiceMode, ToolFormat, ToolSet,
};

use crate::parsed::{TOOL_FIELDS, check, parser_options, read_with};

#[test]
fn minimax_calls() {
    check(
        ToolFormat::MiniMax,
        &[
            (
                "Sure.\n<minimax:tool_call>\n<invoke name=\"f\">\n\
                 <parameter name=\"city\">New York</parameter>\n\
                 <parameter name=\"days\">[1, 2]</parameter>\n</invoke>\n\
                 <invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
                "Sure.",
                &[
                    ("f", "{\"city\": \"New York\", \"days\": [1,2]}"),
                    ("g", "{}"),
                ],
            ),
            // The outer tag closes the function.
            (
                "<minimax:tool_call><invoke name=\"f\"><parameter name=\"a\">1</parameter>\
                 </minimax:tool_call>x",
                "x",
                &[("f", "{\"a\": 1}")],
            ),
            (
                "<minimax:tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n\
                 </minimax:tool_call>",
                "",
                &[("f", "{\"a\": 1}")],
            ),
            // No calls.
            (
                "<invoke name=\"f\"></invoke>",
                "<invoke name=\"f\"></invoke>",
                &[],
            ),
            (
                "<minimax:tool_call>\n<invoke name=\"\">",
                "<minimax:tool_call>\n<invoke name=\"\">",
                &[],
            ),
            (
                "<minimax:tool_call>\n<invoke name=\"f g\">",
                "<minimax:tool_call>\n<invoke name=\"f g\">",
                &[],
            ),
        ],
    );
}

/// Calls of MiniMax-M3, with `~` for the mark before each tag.
fn marked(text: &str) -> String {
    text.replace('~', "]<]minimax[>[")
}

#[test]
fn minimax_m3_calls() {
    for (text, content, calls) in [
        (
            "Sure.\n~<tool_call>\n~<invoke name=\"f\">~<city>New York~</city>~<days>[1, 2]~</days>\
             ~</invoke>\n~<invoke name=\"g\">~</invoke>\n~</tool_call>",
            "Sure.",
            &[
                ("f", "{\"city\": \"New York\", \"days\": [1,2]}"),
                ("g", "{}"),
            ][..],
        ),
        // Tags that have no mark are text.
        (
            "~<tool_call>~<invoke name=\"f\">~<a><b>1</b></a>\n~</a>~</invoke>~</tool_call>",
            "",
            &[("f", "{\"a\": \"<b>1</b></a>\\n\"}")],
        ),
        // Elements of one name are an array if that is item, else the last one counts.
        (
            "~<tool_call>~<invoke name=\"f\">~<a>\n~<item>1~</item>\n~<item>x~</item>\n~</a>\
             ~<b>~<k>1~</k>~<k>2~</k>~</b>~</invoke>~</tool_call>",
            "",
            &[("f", "{\"a\": [1,\"x\"], \"b\": {\"k\":2}}")],
        ),
        // Ends that are missing, and one too many.
        (
            "~<tool_call>~<invoke name=\"f\">~<a>~<k>1~</a>~</k>~<b>2~</invoke>~</tool_call>x",
            "x",
            &[("f", "{\"a\": {\"k\":1}, \"b\": 2}")],
        ),
        (
            "~<tool_call>~<invoke name=\"f\">~<a>1~</a>~</tool_call>",
            "",
            &[("f", "{\"a\": 1}")],
        ),
        // A call that is broken off.
        (
            "~<tool_call>~<invoke name=\"f\">~<a>1~</a>oh~<b>",
            "oh~<b>",
            &[("f", "{\"a\": 1}")],
        ),
        (
            "~<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n~</tool_call>",
            "",
            &[("f", "{\"a\": 1}")],
        ),
        // No calls.
        ("~<invoke name=\"f\">", "~<invoke name=\"f\">", &[]),
        (
            "~<tool_call>\n~<invoke name=\"\">",
            "~<tool_call>\n~<invoke name=\"\">",
            &[],
        ),
        (
            "<tool_call>{}</tool_call>",
            "<tool_call>{}</tool_call>",
            &[],
        ),
    ] {
        let (text, content) = (marked(text), marked(content));
        check(ToolFormat::MiniMaxM3, &[(&text, &content, calls)]);
    }
}

#[test]
fn elements_within_elements_get_the_types_of_the_schema() {
    let schema = r##"{"type": "object", "$defs": {"line": {"type": "object", "properties": {
        "sku": {"type": "string"}, "count": {"type": "integer"}}}}, "properties": {
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "item": {"type": "object", "properties": {"item": {"type": "string"}}},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
        "maybe": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "string"}}]},
        "text": {"type": "string"}}}"##;
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
    let options = OutputParserOptions {
        parameter_types: ParameterTypes::new(&tool_set),
        ..parser_options(ToolFormat::MiniMaxM3)
    };
    for (key, written, value) in [
        (
            "lines",
            "~<item>~<sku>01~</sku>~<count>2~</count>~</item>~<line>~<sku>x~</sku>~</line>",
            r#"[{"sku":"01","count":2},{"sku":"x"}]"#,
        ),
        ("lines", "\n", "[]"),
        ("lines", r#"[{"sku": "a"}]"#, r#"[{"sku":"a"}]"#),
        ("item", "~<item>1~</item>", r#"{"item":"1"}"#),
        ("item", "", "{}"),
        ("tags", "~<a>1~</a>~<b>true~</b>", r#"{"a":"1","b":"true"}"#),
        ("maybe", "~<item>1~</item>", r#"["1"]"#),
        ("maybe", "null", "null"),
        // A string has no elements.
        ("text", "~<item>1~</item>", r#""~<item>1~</item>""#),
        ("unknown", "~<a>1~</a>", r#"{"a":1}"#),
    ] {
        let text = marked(&format!(
            "~<tool_call>\n~<invoke name=\"f\">~<{key}>{written}~</{key}>~</invoke>\n~</tool_call>"
        ));
        for parts in [
            vec![text.as_str()],
            text.split_inclusive(|_| true).collect(),
        ] {
            let read = read_with(&options, parts);
            let expected = marked(&format!("{{\"{key}\": {value}}}"));
            assert_eq!(read.calls[0].1, expected, "{text}");
        }
    }
}
