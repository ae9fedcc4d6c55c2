//! Answers that must be calls: what the guide asks for is what the reader understands.

#![allow(clippy::unwrap_used)]

use penstock_router::tools::{Choice, Offer, Piece, Pieces, Reading, Tool, ToolFormat};
use serde_json::{Value, json};

/// The content of an answer, and its calls: names and arguments.
fn read(reading: &Reading, parts: &[&str]) -> (String, Vec<(String, String)>) {
    let mut pieces = Pieces::default();
    let mut reader = reading.reader();
    parts.iter().for_each(|part| reader.feed(part, &mut pieces));
    reader.finish(&mut pieces);
    let (mut content, mut calls) = (String::new(), Vec::new());
    for piece in pieces.drain() {
        match piece {
            Piece::Content(text) | Piece::Thought(text) => content += &text,
            Piece::Call(name) => calls.push((name, String::new())),
            Piece::Arguments(text) => calls.last_mut().unwrap().1 += &text,
            Piece::CallEnd => {}
        }
    }
    (content, calls)
}

/// What an answer that a guide forces looks like.
fn forced(guide: &Value, calls: &[(usize, &str)]) -> String {
    let part = |value: &Value| value.as_str().unwrap().to_owned();
    let written = calls.iter().map(|&(index, document)| {
        let call = &guide["calls"][index];
        part(&call["before"]) + document + &part(&call["after"])
    });
    let written: Vec<String> = written.collect();
    part(&guide["begin"]) + &written.join(&part(&guide["between"])) + &part(&guide["end"])
}

fn offer(choice: Choice, parallel: bool) -> Offer {
    let tool = |name: &str, parameters: Option<&str>| Tool {
        name: name.to_owned(),
        description: None,
        parameters: parameters.map(str::to_owned),
    };
    let schema =
        r##"{"type":"object","$defs":{"z":{}},"properties":{"b":{"$ref":"#/$defs/z"},"a":{}}}"##;
    Offer {
        tools: vec![tool("f", None), tool("a.b-c", Some(schema))],
        choice,
        parallel,
    }
}

#[test]
fn forced_calls_come_back_in_every_format() {
    let strange = r#"{"s":"\/ \u00e9 \ud83d\ude00 '[]{}' </tool_call>","n":[1,{"x":null}]}"#;
    for (format, _) in ToolFormat::ALL {
        let offer = offer(Choice::Required, true);
        let text = format.forced_calls(&offer).unwrap();
        assert!(
            text.contains(offer.tools[1].parameters.as_deref().unwrap()),
            "{text}"
        );
        let guide: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(guide["many"], true);
        let answer = forced(&guide, &[(1, strange), (0, "{}")]);
        let reading = Reading {
            tools: Some((format, offer.names())),
            opening: format.opening(),
            ..Reading::default()
        };
        let cut: Vec<&str> = answer.split_inclusive(|_| true).collect();
        for parts in [&[answer.as_str()][..], &cut] {
            let (content, calls) = read(&reading, parts);
            assert_eq!(content, "", "{answer}");
            assert_eq!((calls.len(), calls[0].0.as_str()), (2, "a.b-c"), "{answer}");
            let given: Value = serde_json::from_str(&calls[0].1).unwrap();
            assert_eq!(given, serde_json::from_str::<Value>(strange).unwrap());
            assert_eq!(calls[1], ("f".to_owned(), "{}".to_owned()));
        }
    }
}

#[test]
fn a_choice_forces_what_it_says() {
    let guide = |choice, parallel| {
        let text = ToolFormat::Hermes.forced_calls(&offer(choice, parallel));
        text.map(|text| serde_json::from_str::<Value>(&text).unwrap())
    };
    assert_eq!(guide(Choice::None, true), None);
    assert_eq!(guide(Choice::Auto, true), None);
    let one = guide(Choice::Required, false).unwrap();
    assert_eq!(
        (&one["many"], one["calls"].as_array().unwrap().len()),
        (&json!(false), 2)
    );
    let named = guide(Choice::Named("a.b-c".into()), true).unwrap();
    assert_eq!(named["many"], false);
    assert_eq!(named["calls"][0]["name"], "a.b-c");
    assert_eq!(named["calls"].as_array().unwrap().len(), 1);
    let before = "<tool_call>\n{\"name\": \"a.b-c\", \"arguments\": ";
    assert_eq!(named["calls"][0]["before"], before);
}
