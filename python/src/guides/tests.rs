//! Documents under a budget, their ends, and the masks that are kept, with the vocabulary of the
//! model that ships.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::budget::Growth;
use super::closing::{Quotes, Trial};
use super::grammar::Grammar;
use super::masks::{Mask, Masks};
use super::vocabulary::Vocabulary;

/// Entries of that model's vocabulary.
const SIZE: usize = 4096;
const SCHEMA: &str = r#"start: %json {"type": "object", "additionalProperties": false,
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}},
                   "more": {"type": "object", "additionalProperties": false,
                            "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}},
    "required": ["name", "tags", "more"]}"#;
/// More than any token adds to a document of that schema.
const GROWTH: Growth = Growth {
    each: 24,
    once: 8,
    jump: 24,
    choices: 0,
};

fn vocabulary() -> Arc<Vocabulary> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("penstock/brook/tokenizer.json");
    Arc::new(Vocabulary::read(&path, SIZE).unwrap())
}

#[test]
fn quotes_are_followed_through_escapes() {
    for (text, place, structure) in [
        (r#"{"a": [1,"#, Quotes::Outside, 6),
        (r#""a{"#, Quotes::Inside, 1),
        (r#""a\"{"#, Quotes::Inside, 1),
        (r#""a\\""#, Quotes::Outside, 2),
        (r#""a\"#, Quotes::Escaped, 1),
    ] {
        assert_eq!(Quotes::Outside.after(text.as_bytes()), place, "{text}");
        let counted = Quotes::Outside.structure(text.as_bytes());
        assert_eq!(counted, structure, "{text}");
    }
    assert_eq!(Quotes::Escaped.after(b"\""), Quotes::Inside);
}

#[test]
fn every_beginning_of_a_document_has_an_end() {
    let vocabulary = vocabulary();
    let parser = vocabulary.parser(SCHEMA).unwrap().parser;
    let whole = r#"{"name": "a\"b", "tags": ["c", "d"], "more": {"yes": true}}"#;
    for length in 0..=whole.len() {
        let begun = &whole[..length];
        let mut trial = Trial::of(&parser, vocabulary.trie());
        assert!(trial.take(begun.as_bytes()), "{begun}");
        let rest = trial.completion(Quotes::Outside.after(begun.as_bytes()));
        let text = format!("{begun}{}", String::from_utf8(rest.unwrap()).unwrap());
        let document: Value = serde_json::from_str(&text).unwrap();
        assert!(document["more"]["yes"].is_boolean(), "{text}");
        let fewer = Trial::of(&parser, vocabulary.trie()).take(b"{\"other\"");
        assert!(!fewer, "what the schema has not");
    }
}

/// The nearest end of what has begun, in a string of a pattern.
fn ending(pattern: &str, begun: &str) -> String {
    let vocabulary = vocabulary();
    let schema = serde_json::json!({"type": "string", "pattern": pattern});
    let parser = vocabulary
        .parser(&format!("start: %json {schema}"))
        .unwrap();
    let mut trial = Trial::of(&parser.parser, vocabulary.trie());
    assert!(trial.take(begun.as_bytes()), "{begun}");
    let rest = trial.completion(Quotes::Outside.after(begun.as_bytes()));
    String::from_utf8(rest.unwrap()).unwrap()
}

#[test]
fn a_pattern_is_searched_for_its_nearest_end() {
    for (pattern, begun, rest) in [
        ("acole", r#"""#, r#"acole""#),
        ("acole", r#""ac"#, r#"ole""#),
        ("acole", r#""acx"#, r#"acole""#),
        (r"\.jpeg$", r#""a.jpeg."#, r#"jpeg""#),
        ("^(abcdef|ab!)$", r#""ab"#, r#"!""#),
        ("^日本$", "\"日", "本\""),
        ("^(é|[a-z]{40})$", r#"""#, "é\""),
        (r"^\d{3}-\d{4}$", r#""12"#, r#"0-0000""#),
        (r"^[a-z]{600}$", r#"""#, &format!("{}\"", "a".repeat(600))),
        ("^(a|b)*c{3}$", r#""abab"#, r#"ccc""#),
    ] {
        assert_eq!(ending(pattern, begun), rest, "{pattern} {begun}");
    }
}

#[test]
fn the_farthest_place_of_a_lexeme_is_known() {
    let vocabulary = vocabulary();
    let reach = |schema: &str, most: usize| {
        let found = super::grammar::reach(&vocabulary, &format!("start: %json {schema}"), most);
        let found = found.unwrap();
        (found.shortest, found.farthest, found.untold)
    };
    let abc = r#"{"type": "string", "pattern": "^abc(de)*$"}"#;
    assert_eq!(reach(abc, 100), (5, 5, 0));
    assert_eq!(reach(abc, 3), (1, 1, 1), "of the blank before it alone");
    assert_eq!(
        reach(r#"{"type": "integer", "multipleOf": 100}"#, 1000),
        (1, 2, 0)
    );
    // By plain text rather than by what is shorter with other bytes, as the way is searched.
    let other = r#"{"type": "string", "pattern": "^(é|[a-z]{40})$"}"#;
    assert_eq!(reach(other, 1000), (4, 42, 0));
}

/// SplitMix64.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut value = *state;
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((value ^ (value >> 31)) >> 1) as usize
}

/// What random tokens make of a document that has so many.
fn written(grammar: &Grammar, vocabulary: &Vocabulary, most: usize, seed: u64) -> Vec<u8> {
    let mut place = grammar.start(b"", most as i64);
    let (mut text, mut state) = (Vec::new(), seed);
    let mut row = vec![0_u32; SIZE.div_ceil(32)];
    for left in (1..=most).rev() {
        let (whole, _) = grammar.fill(&mut place, left as i64, &mut row).unwrap();
        let allowed: Vec<u32> = (0..SIZE as u32)
            .filter(|&token| row[token as usize / 32] >> (token % 32) & 1 == 1)
            .collect();
        if allowed.is_empty() {
            assert!(whole, "only a whole text may end: {}", text.len());
            return text;
        }
        let token = allowed[random(&mut state) % allowed.len()];
        text.extend(vocabulary.text(token));
        grammar.advance(&mut place, token, left as i64 - 1);
    }
    assert!(place.whole() || place.ended(), "cut off");
    text
}

#[test]
fn a_document_is_whole_however_few_tokens_it_has() {
    let vocabulary = vocabulary();
    let grammar = Grammar::new(vocabulary.clone(), SCHEMA, Some(GROWTH)).unwrap();
    assert_eq!(grammar.needed(b""), Some(grammar.shortest));
    let mut used = 0;
    for spare in [0, 1, 2, 3, 5, 8, 20, 60] {
        for seed in 0..4 {
            let most = grammar.shortest + spare;
            let text = written(&grammar, &vocabulary, most, seed);
            let document: Value = serde_json::from_slice(&text).unwrap();
            assert!(document["name"].is_string(), "{document}");
            assert!(document["tags"].is_array(), "{document}");
            assert!(document["more"]["yes"].is_boolean(), "{document}");
            used = used.max(text.len());
        }
    }
    let shortest = written(&grammar, &vocabulary, grammar.shortest, 0).len();
    assert!(used > shortest, "room is made use of: {used} {shortest}");
}

#[test]
fn a_mask_is_made_once_and_the_eldest_make_room() {
    let masks = Masks::default();
    let made = Cell::new(0);
    let ask = |guide: u64| {
        let make = || {
            made.set(made.get() + 1);
            // Five of them are too many.
            Mask {
                bits: vec![0; (4 << 20) - 1024],
                costs: Vec::new(),
            }
        };
        masks.get((guide, 0, 0), make)
    };
    for guide in [1, 2, 1, 3] {
        ask(guide);
    }
    assert_eq!(made.get(), 3);
    ask(4);
    ask(1);
    assert_eq!(made.get(), 4, "four have room");
    ask(5);
    ask(6);
    let before = made.get();
    ask(6);
    ask(1);
    assert_eq!(made.get(), before, "what was asked for lately stays");
    ask(2);
    assert_eq!(made.get(), before + 1, "the eldest has gone");
}
