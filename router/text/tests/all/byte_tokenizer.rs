//! A tokenizer whose tokens are bytes.

#![allow(dead_code, unreachable_pub, reason = "each test uses its own part")]
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use serde_json::{Value, json};
use tokenizers::Tokenizer;

/// The special token that ends outputs.
pub const EOS: u32 = 256;

/// Returns a byte-level tokenizer: id n is byte n; 256 is the special token `<end>`, and 257,
/// `<far>`, exceeds the scripted model's vocabulary.
pub fn byte_tokenizer() -> Tokenizer {
    let printable = |b: &u32| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut spare = 0x100;
    let mut vocab = serde_json::Map::new();
    for byte in 0..256_u32 {
        let code = if printable(&byte) {
            byte
        } else {
            spare += 1;
            spare - 1
        };
        vocab.insert(char::from_u32(code).unwrap().to_string(), json!(byte));
    }
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                       "use_regex": false});
    tokenizer(&json!({
        "added_tokens": [special(EOS, "<end>"), special(EOS + 1, "<far>")],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }))
}

pub fn special(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
           "rstrip": false, "normalized": false})
}

/// Returns a tokenizer from the relevant parts of its JSON.
pub fn tokenizer(parts: &Value) -> Tokenizer {
    let mut whole = json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": null});
    for (key, value) in parts.as_object().unwrap() {
        whole[key] = value.clone();
    }
    Tokenizer::from_bytes(whole.to_string()).unwrap()
}
