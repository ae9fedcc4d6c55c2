//! Token ids in responses (`return_token_ids`), in the fields where vLLM has them.

use bytes::{BufMut, BytesMut};
use penstock_text::generation::{Generation, TextEvent};
use serde_json::{Value, json};

use crate::sse::put_json;

/// Token ids that were not sent yet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TokenIds {
    /// The prompt's ids, until they are sent.
    prompt: Option<Vec<u32>>,
    answer: Vec<u32>,
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
