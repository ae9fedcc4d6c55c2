//! A lower bound of a text's token count from its length alone. A prompt that is far too long is
//! refused before it is tokenized, which would take seconds and many times its memory.

use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{ModelWrapper, Tokenizer};

/// NFC shrinks at most 3.5 bytes of UTF-8 to one: U+1FBE U+0308 U+0301.
const NFC_SHRINKS: usize = 4;
/// Maximum bytes of a character that an unknown token can stand for.
const CHARACTER_BYTES: usize = 4;

/// An upper bound of the bytes of text that one token can stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextBound {
    /// `None` if unknown: the tokenizer drops or fuses text of any length.
    token_bytes: Option<usize>,
}

/// The effect on a text of a stage before the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stage {
    /// Maximum number of bytes that become one.
    shrinks: usize,
    /// Whether it writes each byte as a character.
    byte_level: bool,
}

impl TextBound {
    /// Derives the bound from all stages of a tokenizer. Stages with an unknown rule give no bound.
    pub fn from_tokenizer(tokenizer: &Tokenizer) -> Self {
        Self {
            token_bytes: token_bytes(tokenizer),
        }
    }

    /// Returns the minimum number of tokens of a text of this many bytes.
    pub fn least_tokens(self, bytes: usize) -> usize {
        self.token_bytes.map_or(0, |most| bytes.div_ceil(most))
    }
}

fn token_bytes(tokenizer: &Tokenizer) -> Option<usize> {
    let normalizer = tokenizer.get_normalizer().map(serde_json::to_value);
    let pre_tokenizer = tokenizer.get_pre_tokenizer().map(serde_json::to_value);
    let before = stage(&normalizer.transpose().ok()?.unwrap_or_default())?
        .then(stage(&pre_tokenizer.transpose().ok()?.unwrap_or_default())?);
    let added = tokenizer.get_added_tokens_decoder();
    // Such a token absorbs all adjacent white space.
    if added.values().any(|token| token.lstrip || token.rstrip) {
        return None;
    }
    let ModelWrapper::BPE(model) = tokenizer.get_model() else {
        return None;
    };
    let vocabulary = tokenizer.get_vocab(false);
    let known = |token: &str| vocabulary.contains_key(token);
    if !covers_every_byte(model, before.byte_level, known) {
        return None;
    }
    let length = |token: &String| match before.byte_level {
        true => token.chars().count(),
        false => token.len(),
    };
    let longest = vocabulary.keys().map(length).max()?;
    let longest_added = added.values().map(|token| token.content.len()).max();
    let longest = longest.max(longest_added.unwrap_or(0)).max(CHARACTER_BYTES);
    Some(longest * before.shrinks)
}

/// Whether every part of a text becomes tokens: none vanishes or is fused into one unknown token.
fn covers_every_byte(model: &BPE, byte_level: bool, known: impl Fn(&str) -> bool) -> bool {
    let alphabet = || ByteLevel::alphabet().iter().all(|c| known(&c.to_string()));
    let fallback = || (0..=255_u8).all(|byte| known(&format!("<0x{byte:02X}>")));
    let unknown = || !model.fuse_unk && model.unk_token.as_deref().is_some_and(&known);
    byte_level && alphabet() || model.byte_fallback && fallback() || unknown()
}

/// Returns the effect of a normalizer or pre-tokenizer; `None` if unknown.
fn stage(json: &Value) -> Option<Stage> {
    let plain = Stage {
        shrinks: 1,
        byte_level: false,
    };
    if json.is_null() {
        return Some(plain);
    }
    let kept = |parts: &Value| {
        let mut parts = parts.as_array()?.iter();
        parts.try_fold(plain, |before, part| Some(before.then(stage(part)?)))
    };
    match json["type"].as_str()? {
        "Sequence" => kept(&json["normalizers"]).or_else(|| kept(&json["pretokenizers"])),
        "NFC" => Some(Stage {
            shrinks: NFC_SHRINKS,
            ..plain
        }),
        "ByteLevel" => Some(Stage {
            byte_level: true,
            ..plain
        }),
        "Replace" => {
            let (pattern, content) = (json["pattern"]["String"].as_str()?, &json["content"]);
            (content.as_str()?.len() >= pattern.len()).then_some(plain)
        }
        "Split" | "Punctuation" => (json["behavior"] != "Removed").then_some(plain),
        "Prepend" | "Metaspace" | "Digits" => Some(plain),
        _ => None,
    }
}

impl Stage {
    fn then(self, next: Self) -> Self {
        Self {
            shrinks: self.shrinks * next.shrinks,
            byte_level: self.byte_level || next.byte_level,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A byte-level tokenizer whose longest token is `ababab`, with `parts` changed.
    fn tokenizer(parts: &Value) -> Tokenizer {
        let mut vocab: serde_json::Map<String, Value> = ByteLevel::alphabet()
            .iter()
            .zip(0..)
            .map(|(c, id)| (c.to_string(), json!(id)))
            .collect();
        for (id, token) in ["ab", "abab", "ababab"].iter().enumerate() {
            vocab.insert((*token).to_owned(), json!(256 + id));
        }
        let merges = json!(["a b", "ab ab", "ab abab"]);
        let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                           "use_regex": false});
        let mut whole = json!({"version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [], "normalizer": null, "pre_tokenizer": level,
            "post_processor": null, "decoder": null,
            "model": {"type": "BPE", "vocab": vocab, "merges": merges}});
        for (key, value) in parts.as_object().unwrap() {
            *whole.pointer_mut(key).unwrap() = value.clone();
        }
        Tokenizer::from_bytes(whole.to_string()).unwrap()
    }

    fn added(strip: bool) -> Value {
        json!([{"id": 300, "content": "<ending>", "special": true, "single_word": false,
                "lstrip": false, "rstrip": strip, "normalized": false}])
    }

    #[test]
    fn the_longest_token_and_what_normalizers_do_give_the_bound() {
        let bound = |parts: Value| TextBound::from_tokenizer(&tokenizer(&parts)).token_bytes;
        assert_eq!(bound(json!({})), Some(6));
        assert_eq!(bound(json!({"/normalizer": {"type": "NFC"}})), Some(24));
        assert_eq!(bound(json!({"/added_tokens": added(false)})), Some(8));
        let unknown = [
            json!({"/added_tokens": added(true)}),
            json!({"/normalizer": {"type": "NFKC"}}),
            json!({"/normalizer": {"type": "Lowercase"}}),
            json!({"/normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": " "}}),
            json!({"/pre_tokenizer": {"type": "Whitespace"}}),
            json!({"/pre_tokenizer": null}),
        ];
        for parts in unknown {
            assert_eq!(bound(parts.clone()), None, "{parts}");
        }
    }

    #[test]
    fn no_text_has_fewer_tokens() {
        let texts = [
            "ababab".repeat(50),
            "x \u{1FBE}\u{308}\u{301}é\0".repeat(30),
            "<ending>".repeat(9),
        ];
        for parts in [
            json!({}),
            json!({"/normalizer": {"type": "NFC"}, "/added_tokens": added(false)}),
        ] {
            let tokenizer = tokenizer(&parts);
            let bound = TextBound::from_tokenizer(&tokenizer);
            for text in &texts {
                let tokens = tokenizer.encode(text.as_str(), false).unwrap().len();
                let least = bound.least_tokens(text.len());
                assert!(
                    0 < least && least <= tokens,
                    "{least} > {tokens} of {text:?}"
                );
            }
        }
    }
}
