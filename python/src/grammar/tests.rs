//! Tests of token budgets, completions and the mask cache, with the vocabulary of the bundled
//! model.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::budget::Growth;
use super::completion::{QuoteState, TrialParser};
use super::llguidance_grammar::LlguidanceGrammar;
use super::mask_cache::{Mask, MaskCache};
use super::vocabulary::Vocabulary;

/// Size of that model's vocabulary.
const SIZE: usize = 4096;
const SCHEMA: &str = r#"start: %json {"type": "object", "additionalProperties": false,
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}},
                   "more": {"type": "object", "additionalProperties": false,
                            "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}},
    "required": ["name", "tags", "more"]}"#;
/// An upper bound of what any token adds to a document of that schema.
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
fn quote_state_handles_escapes() {
    for (text, place, structure) in [
        (r#"{"a": [1,"#, QuoteState::Outside, 6),
        (r#""a{"#, QuoteState::Inside, 1),
        (r#""a\"{"#, QuoteState::Inside, 1),
        (r#""a\\""#, QuoteState::Outside, 2),
        (r#""a\"#, QuoteState::Escaped, 1),
    ] {
        assert_eq!(QuoteState::Outside.after(text.as_bytes()), place, "{text}");
        let counted = QuoteState::Outside.structure(text.as_bytes());
        assert_eq!(counted, structure, "{text}");
    }
    assert_eq!(QuoteState::Escaped.after(b"\""), QuoteState::Inside);
}

#[test]
fn every_document_prefix_has_a_completion() {
    let vocabulary = vocabulary();
    let parser = vocabulary.parser(SCHEMA).unwrap().parser;
    let whole = r#"{"name": "a\"b", "tags": ["c", "d"], "more": {"yes": true}}"#;
    for length in 0..=whole.len() {
        let begun = &whole[..length];
        let mut trial = TrialParser::new(&parser, vocabulary.trie());
        assert!(trial.take(begun.as_bytes()), "{begun}");
        let rest = trial.completion(QuoteState::Outside.after(begun.as_bytes()));
        let text = format!("{begun}{}", String::from_utf8(rest.unwrap()).unwrap());
        let document: Value = serde_json::from_str(&text).unwrap();
        assert!(document["more"]["yes"].is_boolean(), "{text}");
        let fewer = TrialParser::new(&parser, vocabulary.trie()).take(b"{\"other\"");
        assert!(!fewer, "a member that the schema forbids");
    }
}

/// Returns the completion of `begun` in a string with a pattern.
fn ending(pattern: &str, begun: &str) -> String {
    let vocabulary = vocabulary();
    let schema = serde_json::json!({"type": "string", "pattern": pattern});
    let parser = vocabulary
        .parser(&format!("start: %json {schema}"))
        .unwrap();
    let mut trial = TrialParser::new(&parser.parser, vocabulary.trie());
    assert!(trial.take(begun.as_bytes()), "{begun}");
    let rest = trial.completion(QuoteState::Outside.after(begun.as_bytes()));
    String::from_utf8(rest.unwrap()).unwrap()
}

#[test]
fn completion_is_the_shortest_match_of_a_pattern() {
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
fn end_distances_of_lexemes_are_exact() {
    let vocabulary = vocabulary();
    let reach = |schema: &str, most: usize| {
        let found = super::llguidance_grammar::end_distances(
            &vocabulary,
            &format!("start: %json {schema}"),
            most,
        );
        let found = found.unwrap();
        (found.shortest, found.farthest, found.unsearched)
    };
    let abc = r#"{"type": "string", "pattern": "^abc(de)*$"}"#;
    assert_eq!(reach(abc, 100), (5, 5, 0));
    assert_eq!(
        reach(abc, 3),
        (1, 1, 1),
        "only the space before it is measured"
    );
    assert_eq!(
        reach(r#"{"type": "integer", "multipleOf": 100}"#, 1000),
        (1, 2, 0)
    );
    // Plain text is preferred to a shorter end with other bytes, as in `shortest_end`.
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

/// Generates a document of at most `most` random tokens.
fn written(
    grammar: &LlguidanceGrammar,
    vocabulary: &Vocabulary,
    most: usize,
    seed: u64,
) -> Vec<u8> {
    let mut place = grammar.start(b"", most as i64);
    let (mut text, mut state) = (Vec::new(), seed);
    let mut row = vec![0_u32; SIZE.div_ceil(32)];
    for left in (1..=most).rev() {
        let (whole, _) = grammar.fill(&mut place, left as i64, &mut row).unwrap();
        let allowed: Vec<u32> = (0..SIZE as u32)
            .filter(|&token| row[token as usize / 32] >> (token % 32) & 1 == 1)
            .collect();
        if allowed.is_empty() {
            assert!(whole, "only a complete text may end: {}", text.len());
            return text;
        }
        let token = allowed[random(&mut state) % allowed.len()];
        text.extend(vocabulary.text(token));
        grammar.advance(&mut place, token, left as i64 - 1);
    }
    assert!(place.is_accepting() || place.ended(), "cut off");
    text
}

#[test]
fn document_is_complete_within_any_token_budget() {
    let vocabulary = vocabulary();
    let grammar = LlguidanceGrammar::new(vocabulary.clone(), SCHEMA, Some(GROWTH)).unwrap();
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
    assert!(used > shortest, "the budget is used: {used} {shortest}");
}

/// Returns how many tokens more than `document` has must be left for every one of its tokens to be allowed.
fn slack(schema: &str, growth: Growth, document: &str) -> usize {
    let vocabulary = vocabulary();
    let grammar = format!("start: %json {schema}");
    let grammar = LlguidanceGrammar::new(vocabulary.clone(), &grammar, Some(growth)).unwrap();
    let tokens = vocabulary
        .shortest_tokenization(document.as_bytes())
        .unwrap();
    let allowed = |most: usize| {
        let mut place = grammar.start(b"", most as i64);
        let mut row = vec![0_u32; SIZE.div_ceil(32)];
        (0..).zip(&tokens).all(|(at, &token)| {
            let left = most as i64 - at;
            grammar.fill(&mut place, left, &mut row).unwrap();
            grammar.advance(&mut place, token, left - 1);
            row[token as usize / 32] >> (token % 32) & 1 == 1
        })
    };
    let needed = (tokens.len().max(grammar.shortest)..).find(|&most| allowed(most));
    needed.unwrap() - tokens.len()
}

#[test]
fn budget_forbids_little_of_a_document_that_fits() {
    let any = r#"{"type": "object"}"#;
    let person = r#"{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer",
        "minimum": 0}}, "required": ["name", "age"], "additionalProperties": false}"#;
    for (schema, each, document) in [
        (any, 6, r#"{"name":"Ada","age":32}"#),
        (any, 6, r#"{"city":"Paris"}"#),
        (any, 6, r#"{"a":[1,2,{"b":null}],"c":"d"}"#),
        (person, 20, r#"{"name":"Ada","age":32}"#),
    ] {
        let growth = Growth {
            each,
            once: 4,
            jump: 0,
            choices: 0,
        };
        // A name may take what a member needs, and any token the rest of a character.
        let most = each + 4;
        let found = slack(schema, growth, document);
        assert!(found <= most, "{document}: {found} tokens, at most {most}");
    }
}

#[test]
fn mask_cache_evicts_the_least_recently_used() {
    let masks = MaskCache::default();
    let made = Cell::new(0);
    let get = |grammar: u64| {
        let make = || {
            made.set(made.get() + 1);
            // Five of them exceed the limit.
            Mask {
                bits: vec![0; (4 << 20) - 1024],
                costs: Vec::new(),
            }
        };
        masks.get((grammar, 0, 0), make)
    };
    for grammar in [1, 2, 1, 3] {
        get(grammar);
    }
    assert_eq!(made.get(), 3);
    get(4);
    get(1);
    assert_eq!(made.get(), 4, "four have room");
    get(5);
    get(6);
    let before = made.get();
    get(6);
    get(1);
    assert_eq!(made.get(), before, "recently used masks stay");
    get(2);
    assert_eq!(
        made.get(),
        before + 1,
        "the least recently used mask is gone"
    );
}
