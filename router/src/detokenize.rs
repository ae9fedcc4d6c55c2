//! Token ids to text, one id at a time: never half a character, and in sum exactly what
//! `Tokenizer::decode` makes of all ids at once.
//!
//! The decoders that language models use work token by token, but for a few bytes of state. For
//! those a table made at start holds each token's bytes, and an id costs a copy of them. Any other
//! decoder is called on a window of the last few ids.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;
use tokenizers::Tokenizer;

/// Ids kept as context when the decoder has no table: enough for decoders that look back.
const WINDOW_CONTEXT: usize = 6;
/// Ids that a window may hold back while they make no whole character.
const WINDOW_HELD: usize = 32;

/// What every id of a tokenizer turns into.
#[derive(Debug)]
pub struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    rule: Rule,
    /// Bytes of all tokens, back to back; `ends[id]` is one past the last byte of `id`.
    bytes: Vec<u8>,
    ends: Vec<u32>,
    special: Vec<bool>,
}

/// How a tokenizer's decoder joins its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// Bytes are joined, then read as UTF-8; what is not UTF-8 becomes U+FFFD.
    Bytes,
    /// Texts are joined.
    Texts(Texts),
    /// The tokenizer's own decoder runs on a window.
    Window,
}

/// Decoders of the sentencepiece kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Texts {
    /// Applied to each token in order.
    replace: Vec<(String, String)>,
    /// Removed from the first token of a text.
    first: Option<char>,
    /// Whether `<0x..>` tokens are bytes.
    byte_fallback: bool,
    /// Up to so many of this character are cut from the start of a text.
    strip: Option<(char, usize)>,
}

/// The state of one answer.
#[derive(Debug)]
pub struct Detokenizer {
    vocabulary: Arc<Vocabulary>,
    /// Bytes that may become a character with the next token.
    pending: Vec<u8>,
    /// Characters that may still be stripped.
    strip: usize,
    first: bool,
    window: Window,
}

#[derive(Debug, Default)]
struct Window {
    ids: Vec<u32>,
    /// `ids[..read]` has been given out; its text is `prefix`.
    read: usize,
    prefix: String,
}

impl Vocabulary {
    /// Reads every token once.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let decoder = tokenizer
            .get_decoder()
            .and_then(|d| serde_json::to_value(d).ok());
        let rule = decoder.as_ref().map_or(Rule::Window, Rule::of);
        let last = tokenizer.get_vocab(true).into_values().max();
        let size = last.map_or(0, |id| id as usize + 1);
        let mut new = Self {
            rule,
            bytes: Vec::new(),
            ends: Vec::with_capacity(size),
            special: vec![false; size],
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
            self.special[id as usize] = special;
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

    /// Whether the id is a special token: shown in token events, left out of the answer's text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// One past the largest id.
    pub fn size(&self) -> usize {
        self.ends.len()
    }

    /// A special token's own text.
    pub fn special_text(&self, id: u32) -> Cow<'_, str> {
        if self.is_special(id) {
            String::from_utf8_lossy(self.bytes_of(id))
        } else {
            Cow::Owned(self.token(id))
        }
    }

    /// The token as the vocabulary writes it.
    pub fn token(&self, id: u32) -> String {
        self.tokenizer.id_to_token(id).unwrap_or_default()
    }

    fn bytes_of(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, true).unwrap_or_default()
    }
}

impl Rule {
    /// The rule equal to a decoder's JSON, or `Window` if there is none.
    fn of(decoder: &Value) -> Self {
        if decoder["type"] == "ByteLevel" {
            return Self::Bytes;
        }
        let single = [decoder.clone()];
        let steps = match (decoder["type"].as_str(), decoder["decoders"].as_array()) {
            (Some("Sequence"), Some(steps)) => steps.as_slice(),
            _ => &single,
        };
        Texts::of(steps).map_or(Self::Window, Self::Texts)
    }
}

impl Texts {
    /// Accepts (Replace | Metaspace)* ByteFallback? Fuse? Strip?, in this order.
    fn of(steps: &[Value]) -> Option<Self> {
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

    /// Only after `Fuse`, where it sees the whole text, and only at its start.
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

    /// The byte that a `<0x..>` token stands for.
    fn byte(&self, token: &[u8]) -> Option<u8> {
        let digits = token.strip_prefix(b"<0x")?.strip_suffix(b">")?;
        if !self.byte_fallback || digits.len() != 2 {
            return None;
        }
        u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }
}

impl Detokenizer {
    /// Continues after `prompt`; with an empty prompt, begins a text.
    pub fn new(vocabulary: Arc<Vocabulary>, prompt: &[u32]) -> Self {
        let begins = prompt.iter().all(|&id| vocabulary.is_special(id));
        let mut window = Window::default();
        if vocabulary.rule == Rule::Window {
            let tail = prompt.len().saturating_sub(WINDOW_CONTEXT);
            window.ids = prompt[tail..].to_vec();
            window.read = window.ids.len();
            window.prefix = vocabulary.decode(&window.ids);
        }
        let strip = match &vocabulary.rule {
            Rule::Texts(Texts {
                strip: Some((_, count)),
                ..
            }) if begins => *count,
            _ => 0,
        };
        Self {
            vocabulary,
            pending: Vec::new(),
            strip,
            first: begins,
            window,
        }
    }

    /// Adds one id that is not special, and appends to `out` the text that became whole with it.
    pub fn push(&mut self, id: u32, out: &mut String) {
        let vocabulary = Arc::clone(&self.vocabulary);
        match &vocabulary.rule {
            Rule::Bytes => self.push_bytes(vocabulary.bytes_of(id), out),
            Rule::Texts(texts) => self.push_text(id, texts, &vocabulary, out),
            Rule::Window => self.push_window(id, &vocabulary, out),
        }
    }

    /// Appends what is left at the end of an answer.
    pub fn finish(&mut self, out: &mut String) {
        let vocabulary = Arc::clone(&self.vocabulary);
        match &vocabulary.rule {
            Rule::Bytes => {
                if !std::mem::take(&mut self.pending).is_empty() {
                    out.push(char::REPLACEMENT_CHARACTER);
                }
            }
            Rule::Texts(texts) => self.flush_run(texts, out),
            Rule::Window => self.window.give(&vocabulary, out, true),
        }
    }

    fn push_bytes(&mut self, bytes: &[u8], out: &mut String) {
        if self.pending.is_empty() {
            let held = append_lossy(bytes, out);
            self.pending.extend_from_slice(held);
            return;
        }
        let mut joined = std::mem::take(&mut self.pending);
        joined.extend_from_slice(bytes);
        let held = append_lossy(&joined, out);
        self.pending = held.to_vec();
    }

    fn push_text(&mut self, id: u32, texts: &Texts, vocabulary: &Vocabulary, out: &mut String) {
        let first = std::mem::take(&mut self.first);
        let bytes = vocabulary.bytes_of(id);
        if let Some(byte) = texts.byte(bytes) {
            self.pending.push(byte);
            return;
        }
        self.flush_run(texts, out);
        match texts.first {
            Some(replacement) if first => {
                let token = vocabulary.token(id).replace(replacement, "");
                self.append(&token, texts, out);
            }
            _ => self.append(&String::from_utf8_lossy(bytes), texts, out),
        }
    }

    /// Ends a run of byte tokens: text if the whole run is UTF-8, else one U+FFFD per byte. Whether
    /// it is cannot be known earlier, so a run is held until another token or the end comes.
    fn flush_run(&mut self, texts: &Texts, out: &mut String) {
        if self.pending.is_empty() {
            return;
        }
        let run = std::mem::take(&mut self.pending);
        let text = String::from_utf8(run).unwrap_or_else(|e| "\u{FFFD}".repeat(e.as_bytes().len()));
        self.append(&text, texts, out);
    }

    fn append(&mut self, text: &str, texts: &Texts, out: &mut String) {
        let mut rest = text;
        while let Some((content, _)) = texts.strip.filter(|_| self.strip > 0 && !rest.is_empty()) {
            match rest.strip_prefix(content) {
                Some(shorter) => {
                    rest = shorter;
                    self.strip -= 1;
                }
                None => self.strip = 0,
            }
        }
        out.push_str(rest);
    }

    fn push_window(&mut self, id: u32, vocabulary: &Vocabulary, out: &mut String) {
        self.window.ids.push(id);
        let full = self.window.ids.len() - self.window.read >= WINDOW_HELD;
        self.window.give(vocabulary, out, full);
    }
}

impl Window {
    /// Appends what the ids since `read` add to the text, if it ends in a whole character or
    /// `force` is set.
    fn give(&mut self, vocabulary: &Vocabulary, out: &mut String, force: bool) {
        let text = vocabulary.decode(&self.ids);
        let whole = !text.ends_with(char::REPLACEMENT_CHARACTER);
        if text.len() <= self.prefix.len() || !(whole || force) {
            return;
        }
        out.push_str(text.get(self.prefix.len()..).unwrap_or_default());
        self.ids.drain(..self.read);
        self.read = self.ids.len();
        self.prefix = vocabulary.decode(&self.ids);
    }
}

/// Appends `bytes` as `String::from_utf8_lossy` would, but for an unfinished character at the end,
/// which it returns.
fn append_lossy<'a>(mut bytes: &'a [u8], out: &mut String) -> &'a [u8] {
    loop {
        let error = match std::str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                return &[];
            }
            Err(error) => error,
        };
        let (valid, rest) = bytes.split_at(error.valid_up_to());
        out.push_str(&String::from_utf8_lossy(valid));
        let Some(bad) = error.error_len() else {
            return rest;
        };
        out.push(char::REPLACEMENT_CHARACTER);
        bytes = &rest[bad..];
    }
}

/// Reads a byte-level token, whose characters stand for bytes (GPT-2): printable Latin-1 stands
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
