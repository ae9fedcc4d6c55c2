//! Guided calls: what the guide asks for is what the reader understands.

#![allow(clippy::unwrap_used)]

use penstock_router::tools::{CallSpans, Choice, Offer, Piece, Pieces, Reading, Tool, ToolFormat};
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

/// An offer of which the second tool is strict, and how its answers are read.
fn strict_offer(format: ToolFormat) -> (Offer, Reading) {
    let mut offer = offer(Choice::Auto, true);
    offer.tools[1].strict = true;
    let reading = Reading {
        tools: Some((format, offer.names())),
        strict: true,
        ..Reading::default()
    };
    (offer, reading)
}

#[test]
fn what_opens_a_guided_call_opens_one_for_the_reader() {
    for (format, _) in ToolFormat::ALL {
        let (offer, reading) = strict_offer(format);
        let guide: Value = serde_json::from_str(&format.guided_calls(&offer).unwrap()).unwrap();
        let any = json!({"type": "object", "additionalProperties": true});
        assert_eq!(guide["calls"][0]["schema"], any, "it is not strict");
        let kept: Value =
            serde_json::from_str(offer.tools[1].parameters.as_deref().unwrap()).unwrap();
        assert_eq!(guide["calls"][1]["schema"], kept);
        let opening = &guide["opening"];
        let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let each = 1 + usize::from(guide["many"] == true);
        let text = forced(&guide, &[(1, "{\"b\":1}"), (0, "{}")][..each]);
        let mark = part(&opening["mark"]);
        let Some(heads) = opening["heads"].as_array() else {
            let text = text.strip_prefix(&part(&opening["spelt"])).unwrap();
            let (content, calls) = read(&reading, &[&format!("So: {mark}{text}")]);
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
                assert_eq!(read(&reading, &[&call]).1.len(), each, "{call}");
                assert_eq!(read(&reading, &[&marked]).1.len(), each, "{marked}");
                assert_eq!(read(&reading, &[&marked]).0, "So:", "{marked}");
                let again = format!("{call}{}{call}", part(&opening["again"]));
                let twice = if part(&opening["again"]).is_empty() {
                    each
                } else {
                    2 * each
                };
                assert_eq!(read(&reading, &[&again]).1.len(), twice, "{again}");
            }
        }
        assert!(opened > 0, "{text}");
    }
}

#[test]
fn a_call_is_one_from_its_mark_or_its_name_to_its_end() {
    for (format, _) in ToolFormat::ALL {
        let (offer, reading) = strict_offer(format);
        let guide: Value = serde_json::from_str(&format.guided_calls(&offer).unwrap()).unwrap();
        let (arguments, behind) = ("{\"b\": \"x\"}", " And so on");
        let mark = guide["opening"]["mark"].as_str().unwrap();
        let call = forced(&guide, &[(1, arguments)]);
        let call = format!("{mark}{}", call.strip_prefix(mark).unwrap_or(&call));
        let text = format!("So: {call}{behind}");
        let inside = text.find(arguments).unwrap();
        let held = [mark.len(), text.len()].map(|end| {
            let mut spans = CallSpans::of(&reading).unwrap();
            let early = (0..4).any(|place| spans.holds(&text[..end], place));
            let late = spans.holds(&text, text.len() - behind.len() + 1);
            let all = (inside..inside + arguments.len()).all(|place| spans.holds(&text, place));
            (early, all, late)
        });
        assert_eq!(held, [(false, true, false); 2], "{text}");
    }
    assert!(CallSpans::of(&Reading::default()).is_none());
}

#[test]
fn what_opens_no_guided_call_is_none_for_the_reader() {
    let texts = [
        r#"{"parameters": {"b": 1}, "name": "f"}"#,
        r#"{"id": 1, "name": "f", "parameters": {}}"#,
        r#"{"type": "object", "name": "f", "parameters": {}}"#,
        r#"{"name": "Ann", "age": 7}"#,
        r#"{"type": "function", "function": "f", "parameters": {}}"#,
    ];
    let (_, reading) = strict_offer(ToolFormat::Llama3Json);
    for text in texts {
        let cut: Vec<&str> = text.split_inclusive(|_| true).collect();
        assert_eq!(read(&reading, &cut), (text.to_owned(), Vec::new()));
    }
    let loose = Reading {
        strict: false,
        ..reading
    };
    assert_eq!(read(&loose, &texts[..1]).1.len(), 1);
    let (_, reading) = strict_offer(ToolFormat::Pythonic);
    for text in [
        "[1, 2]",
        "[f](http://a)",
        "[f, g]",
        "x<|python_end|>[f(b=1)]",
    ] {
        let (content, calls) = read(&reading, &[text]);
        assert_eq!(
            (content.contains("f(b=1)"), calls.len()),
            (text.contains('='), 0),
            "{text}"
        );
    }
}
