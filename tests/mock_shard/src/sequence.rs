//! One sequence of the mock worker: its history as hashes, and the tokens that follow from it.

use penstock_engine::generated::v1::{self, request_error::Kind};

use crate::config::Eos;

/// What the worker holds in a slot.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    /// Hash of the history up to and including each known token.
    pub(crate) history: Vec<u64>,
    /// Tokens whose KV is in the blocks.
    pub(crate) computed: usize,
    /// How many of the known tokens were generated.
    pub(crate) generated: u32,
    /// One block table per KV group.
    pub(crate) tables: Vec<Vec<u32>>,
    pub(crate) sampling: v1::Sampling,
    pub(crate) vocab: u32,
    /// Whose tokens these are.
    pub(crate) request: u64,
    /// The prompt's tokens, if their logprobs are requested.
    pub(crate) prompt: Vec<u32>,
    /// Set by a scripted fault: every further run fails too.
    pub(crate) failed: Option<Kind>,
    /// The computed part came from outside and has not been compared yet.
    pub(crate) borrowed: bool,
}

impl Sequence {
    pub(crate) fn new(new: v1::NewSequence, tables: Vec<Vec<u32>>, vocab: u32) -> Self {
        let sampling = new.sampling.unwrap_or_default();
        let prompt = match sampling.prompt_logprobs {
            Some(_) => new.token_ids.len() - new.generated as usize,
            None => 0,
        };
        let mut sequence = Self {
            vocab,
            request: new.request_id,
            prompt: new.token_ids[..prompt].to_vec(),
            history: Vec::with_capacity(new.token_ids.len()),
            computed: new.computed as usize,
            generated: new.generated,
            tables,
            sampling,
            failed: None,
            borrowed: true,
        };
        for token in new.token_ids {
            sequence.learn(token);
        }
        sequence
    }

    /// Adds a token to the history.
    pub(crate) fn learn(&mut self, token: u32) {
        self.history.push(extended(self.last(), token));
    }

    /// The token that follows the history: a function of it, and of the seed unless greedy.
    pub(crate) fn next_token(&self, eos: Eos) -> u32 {
        let noise = if self.sampling.temperature > 0.0 {
            mix(self.sampling.seed)
        } else {
            0
        };
        let drawn = choose(mix(self.last() ^ noise), self.vocab, self.possible(eos));
        let allowed = self.from(drawn).find(|&token| !self.bars(token));
        allowed.unwrap_or(drawn)
    }

    /// Tokens that might follow, in an order that is a function of the history.
    pub(crate) fn alternatives(&self, eos: Eos) -> impl Iterator<Item = u32> {
        let drawn = choose(mix(!self.last()), self.vocab, self.possible(eos));
        self.from(drawn).filter(|&token| !self.bars(token))
    }

    /// All tokens, from this one on.
    fn from(&self, first: u32) -> impl Iterator<Item = u32> + use<> {
        let vocab = self.vocab;
        (0..vocab).map(move |step| (first + step) % vocab)
    }

    /// Whether a stop token would come too early.
    fn bars(&self, token: u32) -> bool {
        let early = self.generated < self.sampling.min_tokens;
        early && self.sampling.stop_token_ids.contains(&token)
    }

    fn possible(&self, eos: Eos) -> Eos {
        match self.bars(eos.id) {
            true => Eos { every: 0, ..eos },
            false => eos,
        }
    }

    fn last(&self) -> u64 {
        self.history.last().copied().unwrap_or(0)
    }

    /// How many tokens a yielding run brings, from 1 to `most`.
    pub(crate) fn stride(&self, most: usize) -> usize {
        1 + (mix(!self.last()) % most as u64) as usize
    }

    /// The log-probability of the last token.
    pub(crate) fn logprob(&self) -> f32 {
        logprob(self.last())
    }

    /// The log-probability of the known token at `position`.
    pub(crate) fn logprob_at(&self, position: usize) -> f32 {
        logprob(self.history[position])
    }

    /// The log-probability that `token` would have as the next one.
    pub(crate) fn logprob_of(&self, token: u32) -> f32 {
        if self.bars(token) {
            return f32::NEG_INFINITY;
        }
        logprob(extended(self.last(), token))
    }
}

/// The hash of a history with one more token.
fn extended(last: u64, token: u32) -> u64 {
    mix(last ^ (u64::from(token) + 1)).max(1)
}

/// What a history says of its last token.
fn logprob(last: u64) -> f32 {
    -((last >> 40) as f32) / (1 << 24) as f32 * 4.0
}

fn choose(draw: u64, vocab: u32, eos: Eos) -> u32 {
    if eos.every > 0 && draw.is_multiple_of(eos.every) {
        return eos.id;
    }
    let token = ((draw >> 16) % u64::from(vocab - 1)) as u32;
    if token >= eos.id { token + 1 } else { token }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
