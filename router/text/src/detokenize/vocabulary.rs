//! The text of each token of a vocabulary, and how a decoder joins tokens.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;
use tokenizers::Tokenizer;

/// The bytes of every token of a tokenizer.
#[derive(Debug)]
pub struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    pub(super) rule: Rule,
    /// Bytes of all tokens, concatenated; `ends[id]` is one past the last byte of `id`.
    bytes: Vec<u8>,
    ends: Vec<u32>,
    special: IdSet,
}

/// One bit per id: small enough to stay in a cache, unlike the rest of the table.
#[derive(Debug)]
struct IdSet(Vec<u64>);

/// How a tokenizer's decoder joins tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Joins bytes and decodes them as UTF-8; invalid bytes become U+FFFD.
    Bytes,
    /// Joins texts.
    Texts(Texts),
    /// Runs the tokenizer's own decoder on a window.
    Window,
}

/// A decoder of the sentencepiece kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Texts {
    /// Replacements applied to each token, in order.
    pub(super) replace: Vec<(String, String)>,
    /// Character removed from the first token of a text.
    pub(super) first: Option<char>,
    /// Whether `<0x..>` tokens are bytes.
    pub(super) byte_fallback: bool,
    /// Character, and how many of it are stripped from the start of a text.
    pub(super) strip: Option<(char, usize)>,
}

impl Vocabulary {
    /// Builds the table of all tokens.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let decoder = tokenizer
            .get_decoder()
            .and_then(|d| serde_json::to_value(d).ok());
        let rule = decoder.as_ref().map_or(Rule::Window, Rule::from_decoder);
        let last = tokenizer.get_vocab(true).into_values().max();
        let size = last.map_or(0, |id| id as usize + 1);
        let mut new = Self {
            rule,
            bytes: Vec::new(),
            ends: Vec::with_capacity(size),
            special: IdSet::below(size),
            tokenizer,
        };
        for id in 0..u32::try_from(size).unwrap_or(u32::MAX) {
            new.add(id);
        }
        new.bytes.shrink_to_fit();
        new
    }

    fn add(&mut self, id: u32) {
        if let Some(token) = self.tokenizer.id_to_token(id) {
            let special = self
                .tokenizer
                .get_added_vocabulary()
                .is_special_token(&token);
            if special {
                self.special.insert(id);
            }
            match &self.rule {
                _ if special => self.bytes.extend_from_slice(token.as_bytes()),
                Rule::Bytes => match unicode_to_bytes(&token) {
                    Some(bytes) => self.bytes.extend(bytes),
                    None => self.bytes.extend_from_slice(token.as_bytes()),
                },
                Rule::Texts(texts) => self.bytes.extend(texts.apply(token).bytes()),
                Rule::Window => {}
            }
        }
        self.ends
            .push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
    }

    /// Whether the id is a special token: part of token events, but not of the text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(id)
    }

    /// Returns one past the largest id.
    pub fn size(&self) -> usize {
        self.ends.len()
    }

    /// Returns a special token's text.
    pub fn special_text(&self, id: u32) -> Cow<'_, str> {
        if self.is_special(id) {
            String::from_utf8_lossy(self.bytes_of(id))
        } else {
            Cow::Owned(self.token(id))
        }
    }

    /// Returns the token as the vocabulary spells it.
    pub fn token(&self, id: u32) -> String {
        self.tokenizer.id_to_token(id).unwrap_or_default()
    }

    /// Returns the bytes of a token on its own, independent of its neighbours.
    pub fn piece(&self, id: u32) -> Cow<'_, [u8]> {
        match &self.rule {
            Rule::Window if !self.is_special(id) => Cow::Owned(self.token(id).into_bytes()),
            Rule::Texts(texts) => match texts.byte(self.bytes_of(id)) {
                Some(byte) => Cow::Owned(vec![byte]),
                None => Cow::Borrowed(self.bytes_of(id)),
            },
            Rule::Window | Rule::Bytes => Cow::Borrowed(self.bytes_of(id)),
        }
    }

    /// Returns `piece` as text; invalid UTF-8 becomes U+FFFD.
    pub fn piece_text(&self, id: u32) -> String {
        String::from_utf8_lossy(&self.piece(id)).into_owned()
    }

    pub(super) fn bytes_of(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Returns the text of `ids` without special tokens. The decoder of BPE with a suffix counts
    /// down from the number of tokens, so it never gets none.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        let is_decoded =
            |&id: &u32| !self.is_special(id) && self.tokenizer.id_to_token(id).is_some();
        if !ids.iter().any(is_decoded) {
            return String::new();
        }
        self.tokenizer.decode(ids, true).unwrap_or_default()
    }
}

impl IdSet {
    /// Creates an empty set for ids below `size`.
    fn below(size: usize) -> Self {
        Self(vec![0; size.div_ceil(64)])
    }

    fn insert(&mut self, id: u32) {
        if let Some(word) = self.0.get_mut(id as usize / 64) {
            *word |= 1 << (id % 64);
        }
    }

    fn contains(&self, id: u32) -> bool {
        let word = self.0.get(id as usize / 64);
        word.is_some_and(|word| word >> (id % 64) & 1 == 1)
    }
}

impl Rule {
    /// Returns the rule that equals a decoder's JSON; `Window` if there is none.
    fn from_decoder(decoder: &Value) -> Self {
        if decoder["type"] == "ByteLevel" {
            return Self::Bytes;
        }
        let single = [decoder.clone()];
        let steps = match (decoder["type"].as_str(), decoder["decoders"].as_array()) {
            (Some("Sequence"), Some(steps)) => steps.as_slice(),
            _ => &single,
        };
        Texts::from_steps(steps).map_or(Self::Window, Self::Texts)
    }
}

impl Texts {
    /// Accepts (Replace | Metaspace)* ByteFallback? Fuse? Strip?, in this order.
    fn from_steps(steps: &[Value]) -> Option<Self> {
        let mut texts = Self::default();
        let mut stage = 0;
        for step in steps {
            let at = match step["type"].as_str()? {
                "Replace" => texts.replace_step(step)?,
                "Metaspace" => texts.metaspace_step(step)?,
                "ByteFallback" => {
                    texts.byte_fallback = true;
                    1
                }
                "Fuse" => 2,
                "Strip" => texts.strip_step(step, stage)?,
                _ => return None,
            };
            if at < stage || (at == stage && at > 0) {
                return None;
            }
            stage = at;
        }
        Some(texts)
    }

    fn replace_step(&mut self, step: &Value) -> Option<i32> {
        let from = step["pattern"]["String"].as_str()?;
        self.replace
            .push((from.to_owned(), step["content"].as_str()?.to_owned()));
        Some(0)
    }

    fn metaspace_step(&mut self, step: &Value) -> Option<i32> {
        let replacement = step["replacement"].as_str()?.chars().next()?;
        if !self.replace.is_empty() {
            return None;
        }
        if step["prepend_scheme"] != "never" {
            self.first = Some(replacement);
        }
        self.replace.push((replacement.to_string(), " ".to_owned()));
        Some(0)
    }

    /// Accepts `Strip` only after `Fuse`, where it sees the whole text, and only at the start.
    fn strip_step(&mut self, step: &Value, stage: i32) -> Option<i32> {
        let count = usize::try_from(step["start"].as_u64()?).ok()?;
        if stage != 2 || step["stop"].as_u64()? != 0 {
            return None;
        }
        self.strip = Some((step["content"].as_str()?.chars().next()?, count));
        Some(3)
    }

    fn apply(&self, token: String) -> String {
        self.replace
            .iter()
            .fold(token, |token, (from, to)| token.replace(from, to))
    }

    /// Returns the byte of a `<0x..>` token.
    pub(super) fn byte(&self, token: &[u8]) -> Option<u8> {
        let digits = token.strip_prefix(b"<0x")?.strip_suffix(b">")?;
        if !self.byte_fallback || digits.len() != 2 {
            return None;
        }
        u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }
}

/// Decodes a byte-level token, whose characters stand for bytes (GPT-2): printable Latin-1 stands
/// for itself, the other bytes count up from U+0100. `None` if a character stands for none.
fn unicode_to_bytes(token: &str) -> Option<Vec<u8>> {
    token.chars().map(|c| byte_of(c as u32)).collect()
}

fn byte_of(code: u32) -> Option<u8> {
    const fn printable(byte: u32) -> bool {
        matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
    }
    let byte = match code {
        0..=0xFF => Some(code).filter(|&c| printable(c)),
        _ => (0..=0xFF)
            .filter(|&b| !printable(b))
            .nth(code.checked_sub(0x100)? as usize),
    };
    byte.and_then(|b| u8::try_from(b).ok())
}
