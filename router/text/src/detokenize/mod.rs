//! Incremental detokenizer: yields whole characters, and in total exactly the text that
//! `Tokenizer::decode` makes of all ids at once.
//!
//! The decoders of language models work token by token, with a few bytes of state. For those, a
//! table built at start holds each token's bytes, and an id costs a copy of them. Any other decoder
//! runs on a window of the last few ids.

mod vocabulary;

use std::sync::Arc;

pub use self::vocabulary::Vocabulary;
use self::vocabulary::{Rule, Texts};

/// Ids kept as context for a decoder without a table: enough for decoders that look back.
const WINDOW_CONTEXT: usize = 6;
/// Maximum ids that a window holds back while they make no whole character.
const WINDOW_HELD: usize = 32;

/// Detokenizes one choice.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    vocabulary: Arc<Vocabulary>,
    state: State,
}

/// The state of one choice.
#[derive(Clone, Debug)]
struct State {
    /// Bytes that may become a character with the next token.
    pending: Vec<u8>,
    /// Leading characters that may still be stripped.
    strip: usize,
    first: bool,
    /// Window of a decoder without a table. Boxed, since nearly all decoders have one.
    window: Option<Box<Window>>,
}

#[derive(Clone, Debug, Default)]
struct Window {
    ids: Vec<u32>,
    /// The text of `ids[..read]` was already returned; it is `prefix`.
    read: usize,
    prefix: String,
}

impl Detokenizer {
    /// Creates a detokenizer that continues after `prompt`; with an empty prompt, it begins a text.
    pub fn new(vocabulary: Arc<Vocabulary>, prompt: &[u32]) -> Self {
        let begins = prompt.iter().all(|&id| vocabulary.is_special(id));
        let window = (vocabulary.rule == Rule::Window).then(|| Window::after(prompt, &vocabulary));
        let strip = match &vocabulary.rule {
            Rule::Texts(Texts {
                strip: Some((_, count)),
                ..
            }) if begins => *count,
            _ => 0,
        };
        let state = State {
            pending: Vec::new(),
            strip,
            first: begins,
            window: window.map(Box::new),
        };
        Self { vocabulary, state }
    }

    /// Adds an id that is not special, and appends to `out` the text that it completes.
    pub fn push(&mut self, id: u32, out: &mut String) {
        let Self { vocabulary, state } = self;
        match &vocabulary.rule {
            Rule::Bytes => state.push_bytes(vocabulary.bytes_of(id), out),
            Rule::Texts(texts) => state.push_text(id, texts, vocabulary, out),
            Rule::Window => state.push_window(id, vocabulary, out),
        }
    }

    /// Appends the text that is still held back.
    pub fn finish(&mut self, out: &mut String) {
        let Self { vocabulary, state } = self;
        match (&vocabulary.rule, &mut state.window) {
            (Rule::Bytes, _) => {
                if !std::mem::take(&mut state.pending).is_empty() {
                    out.push(char::REPLACEMENT_CHARACTER);
                }
            }
            (Rule::Texts(texts), _) => state.flush_run(texts, out),
            (Rule::Window, window) => {
                if let Some(window) = window {
                    window.give(vocabulary, out, true);
                }
            }
        }
    }
}

impl State {
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

    /// Ends a run of byte tokens. A run that is UTF-8 becomes text, any other one U+FFFD per byte.
    /// Since this is known only at its end, a run is held until another token or the end arrives.
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
        if let Some(window) = &mut self.window {
            window.ids.push(id);
            let full = window.ids.len() - window.read >= WINDOW_HELD;
            window.give(vocabulary, out, full);
        }
    }
}

impl Window {
    fn after(prompt: &[u32], vocabulary: &Vocabulary) -> Self {
        let tail = prompt.len().saturating_sub(WINDOW_CONTEXT);
        let ids = prompt[tail..].to_vec();
        Self {
            read: ids.len(),
            prefix: vocabulary.decode(&ids),
            ids,
        }
    }

    /// Appends the text of the ids since `read` if it ends in a whole character, or if `force` is
    /// set. `force` also advances `read` over ids without text, so that no window grows without
    /// bound.
    fn give(&mut self, vocabulary: &Vocabulary, out: &mut String, force: bool) {
        let text = vocabulary.decode(&self.ids);
        let whole = !text.ends_with(char::REPLACEMENT_CHARACTER);
        let grown = text.len() > self.prefix.len();
        if !(force || whole && grown) {
            return;
        }
        out.push_str(text.get(self.prefix.len()..).unwrap_or_default());
        self.ids.drain(..self.read);
        self.read = self.ids.len();
        self.prefix = vocabulary.decode(&self.ids);
    }
}

/// Appends `bytes` as `String::from_utf8_lossy` would, except for an incomplete character at the
/// end, which it returns.
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

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenizers::Tokenizer;

    use super::*;

    #[test]
    fn ids_without_text_do_not_pile_up() {
        let model = json!({"type": "BPE", "vocab": {"<pad>": 0, "a": 1}, "merges": []});
        let decoder = json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|",
                             "cleanup": false});
        let tokenizer = json!({"version": "1.0", "added_tokens": [], "decoder": decoder,
                               "model": model});
        let tokenizer = Tokenizer::from_bytes(tokenizer.to_string()).unwrap();
        let vocabulary = Arc::new(Vocabulary::new(Arc::new(tokenizer)));
        let mut detokenizer = Detokenizer::new(vocabulary, &[]);
        let mut text = String::new();
        for _ in 0..1000 {
            detokenizer.push(0, &mut text);
        }
        let window = detokenizer.state.window.as_ref().unwrap();
        assert!(window.ids.len() <= 2 * WINDOW_HELD, "{}", window.ids.len());
        detokenizer.push(1, &mut text);
        assert_eq!(text, "a");
    }
}
