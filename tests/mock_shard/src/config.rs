//! What the mock worker pretends to be.

use std::time::Duration;

use penstock_engine::generated::v1;

use crate::Fault;

/// Everything about one mock worker; filled from the command line or by a test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MockConfig {
    /// What it declares in Loaded.
    pub geometry: Geometry,
    /// How long its steps take.
    pub cost: Cost,
    /// Which tokens end an answer, and how often they come.
    pub eos: Eos,
    /// How much of the KV memory is compared with what it should hold.
    pub check: Check,
    /// What goes wrong, each once.
    pub faults: Vec<Fault>,
}

/// Sizes, as in Loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// KV blocks in the pool.
    pub blocks: u32,
    /// Tokens per KV block.
    pub block_tokens: u32,
    /// Sequences at once.
    pub slots: u32,
    /// Tokens of one step.
    pub step_tokens: u32,
    /// Tokens of one sequence.
    pub sequence_tokens: u32,
    /// Tokens that a run may yield.
    pub tokens_per_run: u32,
    /// Entries of the vocabulary; at least 2.
    pub vocab: u32,
    /// A second KV group with a sliding window; `None`: all layers attend to everything.
    pub sliding: Option<SlidingGroup>,
}

/// A KV group whose layers attend to the last tokens only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingGroup {
    /// KV blocks in its pool.
    pub blocks: u32,
    /// Tokens that a token attends to, itself included.
    pub window: u32,
}

/// The time that a step takes, all of it on the pretended device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Per step.
    pub step: Duration,
    /// Per token that runs in it.
    pub token: Duration,
}

/// The token that stands for the end of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Eos {
    /// Its id; no other way leads to it.
    pub id: u32,
    /// The interval of tokens at which it is sampled; 0 = never.
    pub every: u64,
}

/// How much of the KV memory is compared with what it should hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Check {
    /// A new sequence's computed part in full, then two positions per run: cheap.
    #[default]
    Sampled,
    /// Everything that a run would read.
    Full,
}

impl Default for Geometry {
    fn default() -> Self {
        Self {
            blocks: 65_536,
            block_tokens: 16,
            slots: 1024,
            step_tokens: 8192,
            sequence_tokens: 32_768,
            tokens_per_run: 1,
            vocab: 32_000,
            sliding: None,
        }
    }
}

impl Geometry {
    /// The answer to Load: its limits, where the request asks for less.
    pub(crate) fn loaded(&self, request: &v1::LoadRequest) -> v1::Loaded {
        let least = |own: u32, wanted: u32| if wanted == 0 { own } else { own.min(wanted) };
        let group = |blocks, window| v1::KvGroup {
            block_tokens: self.block_tokens,
            blocks,
            block_bytes: u64::from(self.block_tokens) * 8,
            window,
            recurrent: false,
        };
        let sliding = self
            .sliding
            .map(|sliding| group(sliding.blocks, sliding.window));
        v1::Loaded {
            kv_groups: std::iter::once(group(self.blocks, 0))
                .chain(sliding)
                .collect(),
            max_slots: least(self.slots, request.max_slots),
            max_step_tokens: least(self.step_tokens, request.max_step_tokens),
            max_sequence_tokens: least(self.sequence_tokens, request.max_sequence_tokens),
            max_tokens_per_run: self.tokens_per_run,
            vocab_size: self.vocab,
            device_name: "mock".into(),
            model_backend: "native".into(),
            limitations: Vec::new(),
            memory: Some(v1::MemoryReport::default()),
            step_sizes: Vec::new(),
        }
    }
}

impl Cost {
    pub(crate) fn of(&self, tokens: u32) -> Duration {
        self.step + self.token * tokens
    }
}
