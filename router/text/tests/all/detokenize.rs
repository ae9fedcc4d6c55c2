//! Incremental detokenization gives exactly the text of `Tokenizer::decode`.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use std::sync::Arc;

use penstock_text::detokenize::{Detokenizer, Vocabulary};
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use crate::byte_tokenizer::{EOS, byte_tokenizer, special, tokenizer};

const ROUNDS: usize = 4000;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
}

fn text_of(vocabulary: &Arc<Vocabulary>, prompt: &[u32], ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new(Arc::clone(vocabulary), prompt);
    let mut text = String::new();
    for &id in ids.iter().filter(|id| !vocabulary.is_special(**id)) {
        detokenizer.push(id, &mut text);
    }
    detokenizer.finish(&mut text);
    text
}

fn agrees(tokenizer: Tokenizer, name: &str) {
    let tokenizer = Arc::new(tokenizer);
    let vocabulary = Arc::new(Vocabulary::new(Arc::clone(&tokenizer)));
    let mut random = Random(7);
    for _ in 0..ROUNDS {
        let length = random.below(24);
        let ids: Vec<u32> = (0..length)
            .map(|_| random.below(vocabulary.size()) as u32)
            .collect();
        let special = ids.iter().all(|&id| vocabulary.is_special(id));
        let whole = match special {
            true => String::new(), // no decoder gets an empty list
            false => tokenizer.decode(&ids, true).unwrap(),
        };
        assert_eq!(text_of(&vocabulary, &[], &ids), whole, "{name}: {ids:?}");
    }
}

/// Sentencepiece-like pieces, all bytes and a special token.
fn pieces(decoder: Value) -> Tokenizer {
    let words = [
        "▁",
        "▁▁",
        "▁Hello",
        "Hel",
        "lo",
        "é",
        "▁日本",
        "語",
        "<0xZZ>",
        "a",
        " b",
        "##c",
        ".",
    ];
    let bytes = (0..256).map(|b| format!("<0x{b:02X}>"));
    let all = ["<s>".to_owned(), "<unk>".to_owned()].into_iter();
    let all = all.chain(words.map(str::to_owned)).chain(bytes);
    let vocab: serde_json::Map<_, _> = all.enumerate().map(|(id, t)| (t, json!(id))).collect();
    tokenizer(&json!({
        "added_tokens": [special(0, "<s>")],
        "decoder": decoder,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "<unk>"},
    }))
}

fn replace() -> Value {
    json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "})
}

fn metaspace(scheme: &str) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true})
}

fn sequence(steps: &[Value]) -> Value {
    json!({"type": "Sequence", "decoders": steps})
}

#[test]
fn byte_level() {
    agrees(byte_tokenizer(), "byte level");
}

#[test]
fn llama_2() {
    let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let fallback = json!({"type": "ByteFallback"});
    agrees(
        pieces(sequence(&[
            replace(),
            fallback,
            json!({"type": "Fuse"}),
            strip,
        ])),
        "llama 2",
    );
}

#[test]
fn gemma() {
    let steps = [
        replace(),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    agrees(pieces(sequence(&steps)), "gemma");
}

#[test]
fn metaspace_with_every_prepend_scheme() {
    for scheme in ["always", "first", "never"] {
        agrees(pieces(metaspace(scheme)), scheme);
    }
    agrees(
        pieces(sequence(&[
            metaspace("always"),
            json!({"type": "ByteFallback"}),
        ])),
        "fallback",
    );
}

#[test]
fn decoders_without_a_table() {
    agrees(
        pieces(json!({"type": "WordPiece", "prefix": "##", "cleanup": false})),
        "word piece",
    );
    agrees(
        pieces(json!({"type": "BPEDecoder", "suffix": "lo"})),
        "suffix",
    );
    agrees(pieces(Value::Null), "none");
}

#[test]
fn characters_are_emitted_as_soon_as_they_are_complete() {
    let vocabulary = Arc::new(Vocabulary::new(Arc::new(byte_tokenizer())));
    let mut detokenizer = Detokenizer::new(Arc::clone(&vocabulary), &[]);
    let parts: Vec<String> = "aé日🌊"
        .bytes()
        .map(|byte| {
            let mut text = String::new();
            detokenizer.push(u32::from(byte), &mut text);
            text
        })
        .collect();
    assert_eq!(parts, ["a", "", "é", "", "", "日", "", "", "", "🌊"]);
}

#[test]
fn continued_text_keeps_its_leading_space() {
    let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let fallback = json!({"type": "ByteFallback"});
    let tokenizer = pieces(sequence(&[
        replace(),
        fallback,
        json!({"type": "Fuse"}),
        strip,
    ]));
    let id = |token| tokenizer.token_to_id(token).unwrap();
    let (start, hello) = (id("<s>"), id("▁Hello"));
    let vocabulary = Arc::new(Vocabulary::new(Arc::new(tokenizer)));
    assert_eq!(text_of(&vocabulary, &[start], &[hello]), "Hello");
    assert_eq!(text_of(&vocabulary, &[start, hello], &[hello]), " Hello");
}

#[test]
fn special_tokens_are_recognized() {
    let vocabulary = Vocabulary::new(Arc::new(byte_tokenizer()));
    assert!(vocabulary.is_special(EOS));
    assert!(!vocabulary.is_special(65));
    assert!(!vocabulary.is_special(9999));
    assert_eq!(vocabulary.special_text(EOS), "<end>");
}
