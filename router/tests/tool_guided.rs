//! Guided calls: what the guide asks for is what the reader understands.

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
    let mark = guide["mark"].as_str().unwrap_or_default();
    mark.to_owned()
        + &part(&guide["begin"])
        + &written.join(&part(&guide["between"]))
        + &part(&guide["end"])
}

fn offer(choice: Choice, parallel: bool) -> Offer {
    let tool = |name: &str, parameters: Option<&str>| Tool {
        name: name.to_owned(),
        description: None,
        parameters: parameters.map(str::to_owned),
        strict: false,
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
fn guided_calls_come_back_in_every_format() {
    let strange = r#"{"s":"\/ \u00e9 \ud83d\ude00 '[]{}' </tool_call>","n":[1,{"x":null}]}"#;
    for (format, _) in ToolFormat::ALL {
        let offer = offer(Choice::Required, true);
        let text = format.guided_calls(&offer).unwrap();
        assert!(
            text.contains(offer.tools[1].parameters.as_deref().unwrap()),
            "{text}"
        );
        let guide: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(guide["many"], true);
        let answer = forced(&guide, &[(1, strange), (0, "{}")]);
        let reading = Reading {
            tools: Some((format, offer.names())),
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
        let text = ToolFormat::Hermes.guided_calls(&offer(choice, parallel));
        text.map(|text| serde_json::from_str::<Value>(&text).unwrap())
    };
    assert_eq!(guide(Choice::None, true), None);
    assert_eq!(guide(Choice::Auto, true), None, "no tool is strict");
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

#[test]
fn what_opens_a_guided_call_opens_one_for_the_reader() {
    for (format, _) in ToolFormat::ALL {
        let mut offer = offer(Choice::Auto, true);
        offer.tools[1].strict = true;
        let guide: Value = serde_json::from_str(&format.guided_calls(&offer).unwrap()).unwrap();
        let any = json!({"type": "object", "additionalProperties": true});
        assert_eq!(guide["calls"][0]["schema"], any, "it is not strict");
        let kept: Value =
            serde_json::from_str(offer.tools[1].parameters.as_deref().unwrap()).unwrap();
        assert_eq!(guide["calls"][1]["schema"], kept);
        let part = |key: &str| guide["opening"][key].as_str().unwrap().to_owned();
        let each = 1 + usize::from(guide["many"] == true);
        let text = forced(&guide, &[(1, "{\"b\":1}"), (0, "{}")][..each]);
        let text = text.strip_prefix(&part("spelt")).unwrap();
        let marked = format!("So: {}{}{text}", part("mark"), part("then"));
        let bare = format!(" {}{text}", part("then"));
        let again = format!("{marked}{} {}{text}", part("again"), part("then"));
        let reading = Reading {
            tools: Some((format, offer.names())),
            ..Reading::default()
        };
        let (content, calls) = read(&reading, &[&marked]);
        assert_eq!((content.as_str(), calls.len()), ("So:", each), "{marked}");
        assert_eq!(calls[0], ("a.b-c".to_owned(), "{\"b\":1}".to_owned()));
        let at_start = usize::from(guide["opening"]["at_start"] == true);
        assert_eq!(read(&reading, &[&bare]).1.len(), each * at_start, "{bare}");
        if !part("again").is_empty() {
            assert_eq!(read(&reading, &[&again]).1.len(), 2, "{again}");
        }
    }
}
