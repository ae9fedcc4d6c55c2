//! Log-probabilities in OpenAI's two shapes, and a prompt's in vLLM's.

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::kind::Kind;
use crate::detokenize::{Detokenizer, Vocabulary};
use crate::engine::Candidate;
use crate::generation::{Generation, TextEvent};
use crate::logprobs::{Ranked, TokenNames, ranked, shown};

/// Log-probabilities of a choice.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Logprobs {
    /// Of `/v1/completions`.
    Text(TextLogprobs),
    /// Of `/v1/chat/completions`.
    Chat(ChatLogprobs),
}

/// Lists of equal length, an entry per token; with `echo`, the prompt's tokens come first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct TextLogprobs {
    /// What each token stands for by itself; `bytes:\x..` if that is not UTF-8. With
    /// `return_tokens_as_token_ids`: `token_id:` and its id.
    pub(crate) tokens: Vec<String>,
    /// Natural logs of their probabilities; null for the first of a prompt.
    pub(crate) token_logprobs: Vec<Option<f32>>,
    /// Likely tokens in the place of each, and the token itself; null for the first of a prompt.
    #[schema(value_type = Vec<Option<Object>>)]
    pub(crate) top_logprobs: Vec<Option<ByText>>,
    /// Where each begins in the choice's text, in characters.
    pub(crate) text_offset: Vec<usize>,
}

/// Tokens of an assistant's turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    /// An entry per token.
    pub(crate) content: Vec<ChatToken>,
    /// Always null.
    #[schema(value_type = Option<Vec<Object>>)]
    pub(crate) refusal: Option<()>,
}

/// A token of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct ChatToken {
    /// The token.
    #[serde(flatten)]
    pub(crate) token: ChatCandidate,
    /// Likely tokens in its place.
    pub(crate) top_logprobs: Vec<ChatCandidate>,
}

/// A token and its probability.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct ChatCandidate {
    /// What it stands for by itself; what is not UTF-8 as U+FFFD. With
    /// `return_tokens_as_token_ids`: `token_id:` and its id.
    pub(crate) token: String,
    /// Natural log of its probability.
    pub(crate) logprob: f32,
    /// What it stands for by itself.
    pub(crate) bytes: Vec<u8>,
}

/// Log-probabilities by tokens' texts, the likeliest first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ByText(Vec<(String, f32)>);

/// What the tokens before a prompt token say of it, by token id; as vLLM has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ById(Vec<(u32, PromptCandidate)>);

/// A token in some place of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct PromptCandidate {
    /// Natural log of its probability.
    pub(crate) logprob: f32,
    /// 1 = the likeliest.
    pub(crate) rank: u32,
    /// What it stands for by itself.
    pub(crate) decoded_token: String,
}

/// Gathers a choice's log-probabilities, token by token.
#[derive(Debug)]
pub(super) struct Gathering {
    gathered: Logprobs,
    kind: Kind,
    /// Alternatives of each token.
    top: usize,
    /// How tokens are written.
    names: TokenNames,
    /// Characters of the choice's text so far.
    offset: usize,
    /// Whether nothing was taken yet.
    fresh: bool,
}

impl Gathering {
    /// For an answer, if its request asks; the prompt's tokens are taken by `add_prompt`.
    pub(super) fn begin(kind: Kind, generation: &Generation) -> Option<Self> {
        let wanted = generation.facts().wanted;
        let top = wanted.tokens?;
        Some(Self {
            names: wanted.names,
            gathered: Logprobs::empty(kind),
            kind,
            top: top as usize,
            offset: 0,
            fresh: true,
        })
    }

    /// Takes what a step brought; before the first, the prompt if that is echoed.
    pub(super) fn add_event(&mut self, generation: &Generation, event: &TextEvent) {
        if std::mem::take(&mut self.fresh) && generation.facts().wanted.echo {
            self.add_prompt(generation);
        }
        for (index, (_, text, _)) in event.tokens().enumerate() {
            self.add(generation, event, index, text);
        }
    }

    /// Takes the echoed prompt, once the first event is here.
    pub(super) fn add_prompt(&mut self, generation: &Generation) {
        self.fresh = false;
        let prompt = generation.prompt();
        let vocabulary = &generation.model_text().vocabulary;
        let mut text = String::new();
        let mut detokenizer = Detokenizer::new(vocabulary.clone(), &[]);
        let told = std::iter::once(None).chain(prompt.tokens.iter().map(Some));
        for (&id, told) in prompt.ids.iter().zip(told) {
            let candidate = told.map(|told| {
                let logprob = told.logprob;
                let top = self.top.min(told.top.len());
                (Candidate { id, logprob }, &told.top[..top])
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

    /// Takes the token at `index` of an event, with its own text.
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
        let told = Some((Candidate { id, logprob }, event.top(index)));
        self.add_token(vocabulary, id, told);
        if !token.special {
            self.offset += text.chars().count();
        }
    }

    /// All that was gathered since the last call.
    pub(super) fn take(&mut self) -> Logprobs {
        std::mem::replace(&mut self.gathered, Logprobs::empty(self.kind))
    }

    /// The same, of a chat.
    pub(super) fn take_tokens(&mut self) -> Vec<ChatToken> {
        match self.take() {
            Logprobs::Chat(turn) => turn.content,
            Logprobs::Text(_) => Vec::new(),
        }
    }

    /// The same; `None` if there is nothing.
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
        told: Option<(Candidate, &[Candidate])>,
    ) {
        let names = self.names;
        match &mut self.gathered {
            Logprobs::Text(lists) => {
                lists.tokens.push(text_of(vocabulary, names, id));
                lists.text_offset.push(self.offset);
                lists
                    .token_logprobs
                    .push(told.map(|(own, _)| shown(own.logprob)));
                lists
                    .top_logprobs
                    .push(told.map(|told| ByText::of(vocabulary, names, told)));
            }
            Logprobs::Chat(turn) => turn.content.extend(told.map(|(own, top)| {
                ChatToken {
                    token: ChatCandidate::of(vocabulary, names, own),
                    top_logprobs: top
                        .iter()
                        .map(|&c| ChatCandidate::of(vocabulary, names, c))
                        .collect(),
                }
            })),
        }
    }
}

/// A prompt's log-probabilities, if asked for by `prompt_logprobs`: an entry per token.
pub(super) fn of_prompt(generation: &Generation) -> Option<Vec<Option<ById>>> {
    let top = generation.facts().wanted.prompt? as usize;
    let prompt = generation.prompt();
    let vocabulary = &generation.model_text().vocabulary;
    let entry = |token: Ranked| {
        let candidate = PromptCandidate {
            logprob: token.logprob,
            rank: token.rank.unwrap_or(0),
            decoded_token: vocabulary.piece_text(token.id),
        };
        (token.id, candidate)
    };
    let told = prompt.ids.iter().skip(1).zip(&prompt.tokens);
    let told = told.map(|(&id, told)| {
        let logprob = told.logprob;
        let top = &told.top[..top.min(told.top.len())];
        let entries = ranked(Candidate { id, logprob }, Some(told.rank), top);
        Some(ById(entries.into_iter().map(entry).collect()))
    });
    Some(std::iter::once(None).chain(told).collect())
}

impl Logprobs {
    fn empty(kind: Kind) -> Self {
        match kind {
            Kind::Chat => Self::Chat(ChatLogprobs::default()),
            Kind::Text => Self::Text(TextLogprobs::default()),
        }
    }
}

impl ByText {
    /// The likely tokens and the token itself. Of tokens with one text, the likeliest stays.
    fn of(
        vocabulary: &Vocabulary,
        names: TokenNames,
        (own, top): (Candidate, &[Candidate]),
    ) -> Self {
        let mut entries: Vec<(String, f32)> = Vec::with_capacity(top.len() + 1);
        let own = Some(own).filter(|own| top.iter().all(|c| c.id != own.id));
        for candidate in top.iter().copied().chain(own) {
            let text = text_of(vocabulary, names, candidate.id);
            if entries.iter().all(|(other, _)| *other != text) {
                entries.push((text, shown(candidate.logprob)));
            }
        }
        Self(entries)
    }
}

impl ChatCandidate {
    fn of(vocabulary: &Vocabulary, names: TokenNames, candidate: Candidate) -> Self {
        Self {
            token: match names {
                TokenNames::Texts => vocabulary.piece_text(candidate.id),
                TokenNames::Ids => id_text(candidate.id),
            },
            logprob: shown(candidate.logprob),
            bytes: vocabulary.piece(candidate.id).into_owned(),
        }
    }
}

/// A token as completions write it: different tokens have different texts, also when they are
/// parts of a character.
fn text_of(vocabulary: &Vocabulary, names: TokenNames, id: u32) -> String {
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

impl Serialize for ByText {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(text, logprob)| (text, logprob)))
    }
}

impl Serialize for ById {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(id, candidate)| (id, candidate)))
    }
}
