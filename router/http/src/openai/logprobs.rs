//! Logprobs in OpenAI's two formats; prompt logprobs and token ids (`return_token_ids`) in vLLM's.

use bytes::{BufMut, BytesMut};
use penstock_request::logprobs::{RankedToken, TokenNames, clamp_logprob, rank_candidates};
use penstock_request::types::Candidate;
use penstock_text::detokenize::{Detokenizer, Vocabulary};
use penstock_text::generation::{Generation, TextEvent};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::sse::put_json;

use super::ChunkKind;

/// Logprobs of a choice.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Logprobs {
    /// For `/v1/completions`.
    Text(TextLogprobs),
    /// For `/v1/chat/completions`.
    Chat(ChatLogprobs),
}

/// Lists of equal length with an entry per token. With `echo`, the prompt's tokens come first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct TextLogprobs {
    /// Each token's own text; `bytes:\x..` if it is not UTF-8. With `return_tokens_as_token_ids`:
    /// `token_id:` and the id.
    pub(crate) tokens: Vec<String>,
    /// Logprobs (natural log); null for the first prompt token.
    pub(crate) token_logprobs: Vec<Option<f32>>,
    /// Top logprobs at each position, and the token's own; null for the first prompt token.
    #[schema(value_type = Vec<Option<Object>>)]
    pub(crate) top_logprobs: Vec<Option<LogprobsByText>>,
    /// Offset of each token in the choice's text, in characters.
    pub(crate) text_offset: Vec<usize>,
}

/// Logprobs of an assistant message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    /// One entry per token.
    pub(crate) content: Vec<ChatToken>,
    /// Always null.
    #[schema(value_type = Option<Vec<Object>>)]
    pub(crate) refusal: Option<()>,
}

/// A token with its alternatives.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct ChatToken {
    /// The token.
    #[serde(flatten)]
    pub(crate) token: ChatCandidate,
    /// The most likely tokens at its position.
    pub(crate) top_logprobs: Vec<ChatCandidate>,
}

/// A token with its logprob.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct ChatCandidate {
    /// The token's own text, with U+FFFD for bytes that are not UTF-8. With
    /// `return_tokens_as_token_ids`: `token_id:` and the id.
    pub(crate) token: String,
    /// Logprob (natural log).
    pub(crate) logprob: f32,
    /// The token's own bytes.
    pub(crate) bytes: Vec<u8>,
}

/// Logprobs by token text, most likely first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LogprobsByText(Vec<(String, f32)>);

/// Logprobs at a prompt position by token id, in vLLM's format.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LogprobsById(Vec<(u32, PromptCandidate)>);

/// A candidate token at a prompt position.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct PromptCandidate {
    /// Logprob (natural log).
    pub(crate) logprob: f32,
    /// 1 = most likely.
    pub(crate) rank: u32,
    /// The token's own text.
    pub(crate) decoded_token: String,
}

/// Collects the logprobs of a choice, token by token.
#[derive(Debug)]
pub(super) struct LogprobsBuilder {
    gathered: Logprobs,
    kind: ChunkKind,
    /// Number of alternatives per token.
    top: usize,
    /// Whether tokens are written as texts or ids.
    names: TokenNames,
    /// Length of the choice's text so far, in characters.
    offset: usize,
    /// Whether nothing was added yet.
    fresh: bool,
}

/// Token ids that were not sent yet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TokenIds {
    /// The prompt's ids, until they are sent.
    prompt: Option<Vec<u32>>,
    answer: Vec<u32>,
}

impl LogprobsBuilder {
    /// Creates the builder if the request needs logprobs. `add_prompt` adds the prompt's tokens.
    pub(super) fn begin(kind: ChunkKind, generation: &Generation) -> Option<Self> {
        let logprob_request = generation.facts().logprob_request;
        let top = logprob_request.tokens?;
        Some(Self {
            names: logprob_request.names,
            gathered: Logprobs::empty(kind),
            kind,
            top: top as usize,
            offset: 0,
            fresh: true,
        })
    }

    /// Adds the tokens of a step; before the first, the prompt if it is echoed.
    pub(super) fn add_event(&mut self, generation: &Generation, event: &TextEvent) {
        if std::mem::take(&mut self.fresh) && generation.facts().logprob_request.echo {
            self.add_prompt(generation);
        }
        for (index, (_, text, _)) in event.tokens().enumerate() {
            self.add(generation, event, index, text);
        }
    }

    /// Adds the echoed prompt. Call it after the first event: before, its logprobs are not known.
    pub(super) fn add_prompt(&mut self, generation: &Generation) {
        self.fresh = false;
        let prompt = generation.prompt();
        let vocabulary = &generation.model_text().vocabulary;
        let mut text = String::new();
        let mut detokenizer = Detokenizer::new(vocabulary.clone(), &[]);
        let token_logprobs = std::iter::once(None).chain(prompt.tokens.iter().map(Some));
        for (&id, token_logprobs) in prompt.ids.iter().zip(token_logprobs) {
            let candidate = token_logprobs.map(|token_logprobs| {
                let logprob = token_logprobs.logprob;
                let top = self.top.min(token_logprobs.top.len());
                (Candidate { id, logprob }, &token_logprobs.top[..top])
            });
            self.add_token(vocabulary, id, candidate);
            text.clear();
            if !vocabulary.is_special(id) {
                detokenizer.push(id, &mut text);
            }
            self.offset += text.chars().count();
        }
        self.offset = prompt.text.chars().count();
    }

    /// Adds the token at `index` of an event; `text` is the token's own text.
    pub(super) fn add(
        &mut self,
        generation: &Generation,
        event: &TextEvent,
        index: usize,
        text: &str,
    ) {
        let token = event.tokens[index];
        let (id, logprob) = (token.id, token.logprob);
        let vocabulary = &generation.model_text().vocabulary;
        let token_logprobs = Some((Candidate { id, logprob }, event.top(index)));
        self.add_token(vocabulary, id, token_logprobs);
        if !token.special {
            self.offset += text.chars().count();
        }
    }

    /// Returns the logprobs added since the last call.
    pub(super) fn take(&mut self) -> Logprobs {
        std::mem::replace(&mut self.gathered, Logprobs::empty(self.kind))
    }

    /// Returns the logprobs of a chat that were added since the last call.
    pub(super) fn take_tokens(&mut self) -> Vec<ChatToken> {
        match self.take() {
            Logprobs::Chat(turn) => turn.content,
            Logprobs::Text(_) => Vec::new(),
        }
    }

    /// Returns the logprobs added since the last call; `None` if there are none.
    pub(super) fn take_some(&mut self) -> Option<Logprobs> {
        let gathered = self.take();
        let empty = match &gathered {
            Logprobs::Text(lists) => lists.tokens.is_empty(),
            Logprobs::Chat(turn) => turn.content.is_empty(),
        };
        (!empty).then_some(gathered)
    }

    fn add_token(
        &mut self,
        vocabulary: &Vocabulary,
        id: u32,
        token_logprobs: Option<(Candidate, &[Candidate])>,
    ) {
        let names = self.names;
        match &mut self.gathered {
            Logprobs::Text(lists) => {
                lists.tokens.push(token_text(vocabulary, names, id));
                lists.text_offset.push(self.offset);
                lists
                    .token_logprobs
                    .push(token_logprobs.map(|(own, _)| clamp_logprob(own.logprob)));
                lists.top_logprobs.push(
                    token_logprobs.map(|token_logprobs| {
                        LogprobsByText::new(vocabulary, names, token_logprobs)
                    }),
                );
            }
            Logprobs::Chat(turn) => turn.content.extend(token_logprobs.map(|(own, top)| {
                ChatToken {
                    token: ChatCandidate::new(vocabulary, names, own),
                    top_logprobs: top
                        .iter()
                        .map(|&c| ChatCandidate::new(vocabulary, names, c))
                        .collect(),
                }
            })),
        }
    }
}

/// Returns the prompt's logprobs, an entry per token, if the request has `prompt_logprobs`.
pub(super) fn prompt_logprobs(generation: &Generation) -> Option<Vec<Option<LogprobsById>>> {
    let top = generation.facts().logprob_request.prompt? as usize;
    let prompt = generation.prompt();
    let vocabulary = &generation.model_text().vocabulary;
    let entry = |token: RankedToken| {
        let candidate = PromptCandidate {
            logprob: token.logprob,
            rank: token.rank.unwrap_or(0),
            decoded_token: vocabulary.piece_text(token.id),
        };
        (token.id, candidate)
    };
    let token_logprobs = prompt.ids.iter().skip(1).zip(&prompt.tokens);
    let token_logprobs = token_logprobs.map(|(&id, token_logprobs)| {
        let logprob = token_logprobs.logprob;
        let top = &token_logprobs.top[..top.min(token_logprobs.top.len())];
        let entries = rank_candidates(Candidate { id, logprob }, Some(token_logprobs.rank), top);
        Some(LogprobsById(entries.into_iter().map(entry).collect()))
    });
    Some(std::iter::once(None).chain(token_logprobs).collect())
}

impl Logprobs {
    fn empty(kind: ChunkKind) -> Self {
        match kind {
            ChunkKind::Chat => Self::Chat(ChatLogprobs::default()),
            ChunkKind::Text => Self::Text(TextLogprobs::default()),
        }
    }
}

impl LogprobsByText {
    /// Collects the top tokens and the token itself. If several tokens have the same text, the most
    /// likely one stays.
    fn new(
        vocabulary: &Vocabulary,
        names: TokenNames,
        (own, top): (Candidate, &[Candidate]),
    ) -> Self {
        let mut entries: Vec<(String, f32)> = Vec::with_capacity(top.len() + 1);
        let own = Some(own).filter(|own| top.iter().all(|c| c.id != own.id));
        for candidate in top.iter().copied().chain(own) {
            let text = token_text(vocabulary, names, candidate.id);
            if entries.iter().all(|(other, _)| *other != text) {
                entries.push((text, clamp_logprob(candidate.logprob)));
            }
        }
        Self(entries)
    }
}

impl ChatCandidate {
    fn new(vocabulary: &Vocabulary, names: TokenNames, candidate: Candidate) -> Self {
        Self {
            token: match names {
                TokenNames::Texts => vocabulary.piece_text(candidate.id),
                TokenNames::Ids => id_text(candidate.id),
            },
            logprob: clamp_logprob(candidate.logprob),
            bytes: vocabulary.piece(candidate.id).into_owned(),
        }
    }
}

/// Returns a token as completions write it. Different tokens get different texts, even if they are
/// parts of a character.
fn token_text(vocabulary: &Vocabulary, names: TokenNames, id: u32) -> String {
    if names == TokenNames::Ids {
        return id_text(id);
    }
    let piece = vocabulary.piece(id);
    match std::str::from_utf8(&piece) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let bytes = piece.iter().map(|byte| format!("\\x{byte:02x}"));
            format!("bytes:{}", bytes.collect::<String>())
        }
    }
}

fn id_text(id: u32) -> String {
    format!("token_id:{id}")
}

impl Serialize for LogprobsByText {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(text, logprob)| (text, logprob)))
    }
}

impl Serialize for LogprobsById {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(id, candidate)| (id, candidate)))
    }
}

impl TokenIds {
    /// Creates the collector if the request needs token ids.
    pub(super) fn begin(generation: &Generation) -> Option<Box<Self>> {
        let requested = generation.facts().logprob_request.ids;
        requested.then(|| {
            Box::new(Self {
                prompt: Some(generation.prompt().ids.clone()),
                answer: Vec::new(),
            })
        })
    }

    pub(super) fn add(&mut self, id: u32) {
        self.answer.push(id);
    }

    /// Adds the tokens of a step.
    pub(super) fn add_event(&mut self, event: &TextEvent) {
        self.answer
            .extend(event.tokens.iter().map(|token| token.id));
    }

    /// Returns the prompt's ids; `None` if they were taken before.
    pub(super) fn take_prompt(&mut self) -> Option<Vec<u32>> {
        self.prompt.take()
    }

    /// Returns the output's ids since the last call.
    pub(super) fn take(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.answer)
    }

    /// Inserts the prompt's ids, if not yet sent, at the start of a chunk's JSON.
    pub(super) fn head(&mut self, head: String) -> String {
        match self.take_prompt() {
            Some(ids) => format!("{{\"prompt_token_ids\":{},{}", json!(ids), &head[1..]),
            None => head,
        }
    }

    /// Adds the ids that were not sent yet to the JSON of a choice.
    pub(super) fn add_to(&mut self, choice: &mut Value) {
        if let Some(ids) = self.take_prompt() {
            choice["prompt_token_ids"] = json!(ids);
        }
        choice["token_ids"] = json!(self.take());
    }

    /// Appends the ids that were not sent yet to hand-written JSON, after another member.
    pub(super) fn put(&mut self, out: &mut BytesMut) {
        if let Some(ids) = self.take_prompt() {
            out.put_slice(b",\"prompt_token_ids\":");
            put_json(out, &ids);
        }
        out.put_slice(b",\"token_ids\":");
        put_json(out, &self.take());
    }
}
