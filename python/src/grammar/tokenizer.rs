//! Reads a `tokenizer.json`: the bytes of its tokens, and a tokenizer for llguidance.

use std::path::Path;

use llguidance::toktrie::{TokTrie, TokenId, TokenizerEnv};
use penstock_text::model_text::add_listed;
use penstock_text::python_json;
use serde_json::Value;
use tokenizers::Tokenizer;

/// The contents of a tokenizer file.
pub(super) struct TokenizerFile {
    /// Bytes of each token; empty for a token without text.
    pub(super) texts: Vec<Vec<u8>>,
    /// Names of the tokens that grammars may refer to, in llguidance's form.
    pub(super) specials: Vec<Option<Vec<u8>>>,
    pub(super) tokenizer: Tokenizer,
}

/// How the file spells tokens.
enum TokenEncoding {
    /// Each character stands for a byte.
    Bytes,
    /// Text in which a character stands for the space, and `<0x0A>` for a byte.
    Text { space: char },
}

/// Reads a file for a model of `size` logits.
pub(super) fn read(path: &Path, size: usize) -> Result<TokenizerFile, String> {
    let file = std::fs::read(path).map_err(|error| error.to_string())?;
    let mut value: Value = serde_json::from_slice(&file).map_err(|error| error.to_string())?;
    if !value.is_object() {
        return Err("it is no object".to_owned());
    }
    let token_encoding =
        token_encoding(&value["decoder"]).ok_or("its tokens are neither bytes nor text")?;
    disable_prefix_space(&mut value);
    let text = value.to_string();
    let mut tokenizer = Tokenizer::from_bytes(text).map_err(|error| error.to_string())?;
    add_listed(&mut tokenizer, &listed_beside(path));
    let count = tokenizer.get_vocab_size(true);
    if count > size {
        return Err(format!("it has {count} tokens, and the model {size}"));
    }
    let mut texts = vec![Vec::new(); size];
    let mut specials: Vec<Option<Vec<u8>>> = vec![None; size];
    for (token, added) in tokenizer.get_added_tokens_decoder() {
        let place = token as usize;
        if place >= size {
            return Err(format!("it has a token {token}, and the model {size}"));
        }
        let marked = added.content.starts_with('<') && added.content.ends_with('>');
        if added.special || marked {
            specials[place] = Some(special(&added.content));
        } else {
            texts[place] = added.content.into_bytes();
        }
    }
    let bytes = bytes_of_characters();
    for (place, text) in texts.iter_mut().enumerate() {
        if specials[place].is_none() && text.is_empty() {
            let name = u32::try_from(place)
                .ok()
                .and_then(|token| tokenizer.id_to_token(token));
            *text = name
                .and_then(|name| token_bytes(&name, &token_encoding, &bytes))
                .unwrap_or_default();
        }
        if text.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
            text.clear(); // this byte is reserved for names
        }
        // llguidance needs a name for tokens without text, too.
        if specials[place].is_none() && text.is_empty() {
            specials[place] = Some(special(&format!("<[{place}]>")));
        }
    }
    Ok(TokenizerFile {
        texts,
        specials,
        tokenizer,
    })
}

/// Returns tokenizer_config.json in the file's folder; null if there is none that can be read. (The router reads
/// it too, and says what is wrong with it.)
fn listed_beside(path: &Path) -> Value {
    let config = std::fs::read_to_string(path.with_file_name("tokenizer_config.json"));
    let config = config.ok().and_then(|text| python_json::parse(&text).ok());
    config.unwrap_or_default()
}

fn special(name: &str) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
}

fn token_encoding(decoder: &Value) -> Option<TokenEncoding> {
    let mut waiting = vec![decoder];
    let (mut found, mut space) = (None, ' ');
    while let Some(part) = waiting.pop() {
        match part["type"].as_str() {
            Some("ByteLevel") => return Some(TokenEncoding::Bytes),
            Some("ByteFallback") => found = Some(()),
            Some("Replace") if part["content"] == " " => {
                let pattern = part["pattern"]["String"].as_str();
                space = pattern
                    .and_then(|text| text.chars().next())
                    .unwrap_or(space);
            }
            Some("Metaspace") => {
                let character = part["replacement"].as_str();
                space = character
                    .and_then(|text| text.chars().next())
                    .unwrap_or(space);
            }
            _ => waiting.extend(part["decoders"].as_array().into_iter().flatten()),
        }
    }
    found.map(|()| TokenEncoding::Text { space })
}

/// Makes the tokenizer treat texts as continuations: it adds no leading space and removes none.
fn disable_prefix_space(value: &mut Value) {
    value["truncation"] = Value::Null;
    value["padding"] = Value::Null;
    if value["normalizer"]["type"] == "Prepend" {
        value["normalizer"] = Value::Null;
    }
    let parts = value.pointer_mut("/normalizer/normalizers");
    if let Some(parts) = parts.and_then(Value::as_array_mut) {
        parts.retain(|part| part["type"] != "Prepend");
    }
    let mut waiting: Vec<&mut Value> = value.get_mut("pre_tokenizer").into_iter().collect();
    while let Some(part) = waiting.pop() {
        if part["type"] == "Metaspace" {
            part["prepend_scheme"] = "never".into();
        } else if let Some(parts) = part.get_mut("pretokenizers").and_then(Value::as_array_mut) {
            waiting.extend(parts);
        }
    }
}

fn token_bytes(
    name: &str,
    token_encoding: &TokenEncoding,
    bytes: &[Option<u8>],
) -> Option<Vec<u8>> {
    match token_encoding {
        TokenEncoding::Bytes => {
            let byte = |character| bytes.get(character as usize).copied().flatten();
            name.chars().map(byte).collect()
        }
        TokenEncoding::Text { space } => {
            let digits = name
                .strip_prefix("<0x")
                .and_then(|rest| rest.strip_suffix('>'));
            let byte = digits.filter(|digits| digits.len() == 2);
            match byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                Some(byte) => Some(vec![byte]),
                None => Some(name.replace(*space, " ").into_bytes()),
            }
        }
    }
}

/// Returns, for each character up to U+0143, its byte in byte-level BPE: printable bytes stand for
/// themselves, the others for characters from U+0100 on, in order.
fn bytes_of_characters() -> Vec<Option<u8>> {
    let mut table = vec![None; 0x144];
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        if matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) {
            table[usize::from(byte)] = Some(byte);
        } else {
            table[next] = Some(byte);
            next += 1;
        }
    }
    table
}

/// A tokenizer for llguidance.
pub(super) struct LlguidanceTokenizer {
    trie: TokTrie,
    tokenizer: Tokenizer,
}

impl LlguidanceTokenizer {
    pub(super) fn new(trie: TokTrie, tokenizer: Tokenizer) -> Self {
        Self { trie, tokenizer }
    }
}

impl TokenizerEnv for LlguidanceTokenizer {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(text, |text| {
            match self.tokenizer.encode_fast(text, false) {
                Ok(encoding) => encoding.get_ids().to_vec(),
                Err(_) => self.trie.greedy_tokenize(text.as_bytes()),
            }
        })
    }
}
