//! One sequence of the mock worker: its history as hashes, and the tokens that follow from it.

use penstock_router::generated::v1;

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
    /// One block table; the mock has one KV group.
    pub(crate) table: Vec<u32>,
    pub(crate) sampling: v1::Sampling,
    /// Set by a scripted fault: every further run fails too.
    pub(crate) failed: bool,
    /// The computed part came from outside and has not been compared yet.
    pub(crate) borrowed: bool,
}

impl Sequence {
    pub(crate) fn new(new: v1::NewSequence, table: Vec<u32>) -> Self {
        let mut sequence = Self {
            history: Vec::with_capacity(new.token_ids.len()),
            computed: new.computed as usize,
            generated: new.generated,
            table,
            sampling: new.sampling.unwrap_or_default(),
            failed: false,
            borrowed: true,
        };
        for token in new.token_ids {
            sequence.learn(token);
        }
        sequence
    }

    /// Adds a token to the history.
    pub(crate) fn learn(&mut self, token: u32) {
        let last = self.history.last().copied().unwrap_or(0);
        self.history.push(mix(last ^ (u64::from(token) + 1)).max(1));
    }

    /// The token that follows the history: a function of it, and of the seed unless greedy.
    pub(crate) fn next_token(&self, vocab: u32, eos: Eos) -> u32 {
        let last = self.history.last().copied().unwrap_or(0);
        let noise = if self.sampling.temperature > 0.0 {
            mix(self.sampling.seed)
        } else {
            0
        };
        let early = self.generated < self.sampling.min_tokens;
        let barred = |token: u32| early && self.sampling.stop_token_ids.contains(&token);
        let eos = if barred(eos.id) {
            Eos { every: 0, ..eos }
        } else {
            eos
        };
        let drawn = choose(mix(last ^ noise), vocab, eos);
        let allowed = (0..vocab)
            .map(|step| (drawn + step) % vocab)
            .find(|token| !barred(*token));
        allowed.unwrap_or(drawn)
    }

    /// How many tokens a yielding run brings, from 1 to `most`.
    pub(crate) fn stride(&self, most: usize) -> usize {
        let last = self.history.last().copied().unwrap_or(0);
        1 + (mix(!last) % most as u64) as usize
    }

    /// A log-probability that belongs to the last token.
    pub(crate) fn logprob(&self) -> f32 {
        let last = self.history.last().copied().unwrap_or(0);
        -((last >> 40) as f32) / (1 << 24) as f32 * 4.0
    }
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
