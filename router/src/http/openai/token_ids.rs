//! Ids of tokens beside their text, if asked for (`return_token_ids`): in the places that vLLM has
//! for them.

use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};

use crate::generation::{Generation, TextEvent};
use crate::http::sse::put_json;

/// Ids that wait to be told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TokenIds {
    /// Until they are told, once.
    prompt: Option<Vec<u32>>,
    answer: Vec<u32>,
}

impl TokenIds {
    /// For an answer, if its request asks.
    pub(super) fn begin(generation: &Generation) -> Option<Box<Self>> {
        let asked = generation.facts().logprob_request.ids;
        asked.then(|| {
            Box::new(Self {
                prompt: Some(generation.prompt().ids.clone()),
                answer: Vec::new(),
            })
        })
    }

    pub(super) fn add(&mut self, id: u32) {
        self.answer.push(id);
    }

    /// Takes what a step brought.
    pub(super) fn add_event(&mut self, event: &TextEvent) {
        self.answer
            .extend(event.tokens.iter().map(|token| token.id));
    }

    /// The prompt's; `None` if they were taken before.
    pub(super) fn take_prompt(&mut self) -> Option<Vec<u32>> {
        self.prompt.take()
    }

    /// The answer's since the last call.
    pub(super) fn take(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.answer)
    }

    /// Puts those of the prompt, unless they were told, at the start of a chunk's JSON.
    pub(super) fn head(&mut self, head: String) -> String {
        match self.take_prompt() {
            Some(ids) => format!("{{\"prompt_token_ids\":{},{}", json!(ids), &head[1..]),
            None => head,
        }
    }

    /// Adds what was not told yet to the JSON of a choice.
    pub(super) fn add_to(&mut self, choice: &mut Value) {
        if let Some(ids) = self.take_prompt() {
            choice["prompt_token_ids"] = json!(ids);
        }
        choice["token_ids"] = json!(self.take());
    }

    /// The same where that JSON is written by hand, behind another member.
    pub(super) fn put(&mut self, out: &mut BytesMut) {
        if let Some(ids) = self.take_prompt() {
            out.put_slice(b",\"prompt_token_ids\":");
            put_json(out, &ids);
        }
        out.put_slice(b",\"token_ids\":");
        put_json(out, &self.take());
    }
}
