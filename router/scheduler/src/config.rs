//! The scheduler's limits. The engine fills them from the launcher's settings and the workers' Load.

use crate::request::AddError;

/// Microseconds: the latency target where none is set.
pub const LATENCY_TARGET: u64 = 25_000;

/// All limits of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Tokens per block, the same in all KV groups; from Load.
    pub block_tokens: u32,
    /// KV memory, one entry per group; from the last message of Load.
    pub groups: Vec<KvGroup>,
    /// Sequences that may hold a slot at once; from Load.
    pub max_slots: u32,
    /// Tokens of one step over all sequences; from Load.
    pub max_step_tokens: u32,
    /// Step sizes with prompts that suit the workers' device, ascending; from Load. Empty: all
    /// sizes do.
    pub step_sizes: Vec<u32>,
    /// Prompt plus generated tokens of one sequence; from Load.
    pub max_sequence_tokens: u32,
    /// Most tokens that one sequence yields in a step; from Load. Blocks are reserved for this
    /// many.
    pub max_tokens_per_run: u32,
    /// Requests that may wait (preparing or queued); set by the launcher.
    pub max_waiting: usize,
    /// Prompt tokens that may wait; set by the launcher.
    pub max_waiting_tokens: u64,
    /// Plans that may be in flight.
    pub depth: u16,
    /// Microseconds. A third plan and further ones are made only while those in flight should
    /// together take less. Short steps end before their outcome has reached the router and the next
    /// plan has come back.
    pub lead: u64,
    /// Whether computed blocks are kept for later requests.
    pub prefix_cache: bool,
    /// Free memory that admission requires.
    pub reserve: Reserve,
    /// Microseconds: the gap between tokens of running streams that prefills may cause; a third of it
    /// while prompts wait for a short time, more while many wait. None: `LATENCY_TARGET`, and more for
    /// a slow model. See `scheduler::pace`.
    pub latency_target: Option<u64>,
    /// Microseconds after which later requests may no longer pass a waiting one.
    pub aging: u64,
    /// Memory traffic of decodes; from Load.
    pub decode_reads: DecodeReads,
}

/// Bytes that a step of decodes reads from the device's memory. Zeros: unknown, as where windows
/// bound the reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeReads {
    /// The weights, once per step.
    pub weights: u64,
    /// Keys and values of each token attended to.
    pub token: u64,
}

/// Free memory that admission requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reserve {
    /// For the known tokens of all sequences, and some growth. More sequences run at once, but when
    /// many answers grow long, juniors are preempted and recomputed.
    #[default]
    Growth,
    /// For all tokens that all sequences may have. Fewer run at once, and none is preempted unless
    /// forks share its blocks.
    ToFinish,
}

/// KV memory of one kind of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Blocks in the pool.
    pub blocks: u32,
    /// What a sequence keeps in them.
    pub kind: GroupKind,
}

/// What a sequence keeps in a KV group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// Keys and values of all its tokens.
    Full,
    /// Keys and values of its last tokens.
    Sliding {
        /// Tokens that a token attends to, itself included; at least 1.
        window: u32,
    },
    /// One block with the state after its computed tokens, as recurrent layers have it. A sequence
    /// without computed tokens begins with the empty state, whatever its block contains.
    State,
}

/// Why a scheduler cannot run with a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// There is no KV group, or one without blocks.
    NoMemory,
    /// `block_tokens`, a window, `max_slots`, `max_tokens_per_run`, `depth` or `max_waiting` is 0.
    Zero(&'static str),
    /// A step must hold the tokens that one sequence may yield.
    StepTooSmall {
        /// `max_step_tokens`.
        tokens: u32,
        /// `max_tokens_per_run`.
        needed: u32,
    },
    /// `max_sequence_tokens` below 2: a prompt token and a generated one.
    SequenceTooSmall(u32),
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoMemory => write!(
                f,
                "the workers offer no KV blocks; give them more memory or a shorter sequence limit"
            ),
            Self::Zero(field) => write!(f, "{field} must be at least 1"),
            Self::StepTooSmall { tokens, needed } => write!(
                f,
                "max_step_tokens is {tokens}, but one sequence may yield {needed} tokens in a \
                 step; raise max_step_tokens"
            ),
            Self::SequenceTooSmall(tokens) => {
                write!(f, "max_sequence_tokens is {tokens}; it must be at least 2")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl SchedulerConfig {
    /// Checks that a scheduler can run with these limits.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.groups.is_empty() || self.groups.iter().any(|group| group.blocks == 0) {
            return Err(ConfigError::NoMemory);
        }
        let windows = self.groups.iter().map(|group| match group.kind {
            GroupKind::Sliding { window } => window,
            GroupKind::Full | GroupKind::State => 1,
        });
        let counts = [
            ("block_tokens", u64::from(self.block_tokens)),
            ("window", u64::from(windows.min().unwrap_or(1))),
            ("max_slots", u64::from(self.max_slots)),
            ("max_tokens_per_run", u64::from(self.max_tokens_per_run)),
            ("depth", u64::from(self.depth)),
            ("max_waiting", self.max_waiting as u64),
        ];
        if let Some((field, _)) = counts.iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError::Zero(field));
        }
        if self.max_step_tokens < self.max_tokens_per_run {
            let (tokens, needed) = (self.max_step_tokens, self.max_tokens_per_run);
            return Err(ConfigError::StepTooSmall { tokens, needed });
        }
        if self.max_sequence_tokens < 2 {
            return Err(ConfigError::SequenceTooSmall(self.max_sequence_tokens));
        }
        Ok(())
    }

    /// Checks that a sequence of `tokens` prompt and generated tokens could run alone.
    pub fn admits(&self, tokens: u64) -> Result<(), AddError> {
        let rooms = self.groups.iter().map(|group| self.longest_in(group));
        let pool = rooms.min().unwrap_or(0);
        let limit = pool.min(u64::from(self.max_sequence_tokens));
        if tokens > limit {
            Err(AddError::TooLong { tokens, limit })
        } else {
            Ok(())
        }
    }

    /// Returns the tokens of the longest sequence that a group can hold alone.
    fn longest_in(&self, group: &KvGroup) -> u64 {
        let (blocks, block_tokens) = (u64::from(group.blocks), u64::from(self.block_tokens));
        let pool = match group.kind {
            GroupKind::Full => blocks * block_tokens,
            GroupKind::Sliding { window } => {
                // The window, the tokens of a run, a block that is not full at each end, and one
                // that is not released yet.
                let tokens = u64::from(window) + u64::from(self.max_tokens_per_run);
                let held = (tokens - 2).div_ceil(block_tokens) + 2;
                match held <= blocks {
                    true => u64::MAX - 1,
                    false => blocks * block_tokens,
                }
            }
            GroupKind::State => u64::MAX - 1,
        };
        // The last generated token is never attended to, so it needs no room.
        pool + 1
    }

    /// Returns the slots that a step's tokens suffice for: every running sequence can decode in
    /// every step.
    pub(crate) fn usable_slots(&self) -> u32 {
        self.max_slots
            .min(self.max_step_tokens / self.max_tokens_per_run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn least() -> SchedulerConfig {
        SchedulerConfig {
            block_tokens: 1,
            groups: vec![KvGroup {
                blocks: 1,
                kind: GroupKind::Full,
            }],
            max_slots: 1,
            max_step_tokens: 3,
            step_sizes: Vec::new(),
            max_sequence_tokens: 2,
            max_tokens_per_run: 3,
            max_waiting: 1,
            max_waiting_tokens: 0,
            depth: 1,
            lead: 0,
            prefix_cache: false,
            reserve: Reserve::Growth,
            latency_target: None,
            aging: 0,
            decode_reads: DecodeReads::default(),
        }
    }

    /// A change to the least valid configuration, and words that its error must contain.
    type Case = (fn(&mut SchedulerConfig), &'static [&'static str]);

    #[test]
    fn the_first_refused_value_of_each_limit_is_named() {
        assert_eq!(least().validate(), Ok(()));
        let cases: &[Case] = &[
            (|c| c.groups.clear(), &["no KV blocks"]),
            (|c| c.groups[0].blocks = 0, &["no KV blocks"]),
            (|c| c.block_tokens = 0, &["block_tokens", "at least 1"]),
            (
                |c| c.groups[0].kind = GroupKind::Sliding { window: 0 },
                &["window", "at least 1"],
            ),
            (|c| c.max_slots = 0, &["max_slots", "at least 1"]),
            (|c| c.max_tokens_per_run = 0, &["max_tokens_per_run", "1"]),
            (|c| c.depth = 0, &["depth", "at least 1"]),
            (|c| c.max_waiting = 0, &["max_waiting", "at least 1"]),
            (|c| c.max_step_tokens = 2, &["max_step_tokens is 2", "3"]),
            (|c| c.max_sequence_tokens = 1, &["is 1", "at least 2"]),
        ];
        for (spoil, words) in cases {
            let mut config = least();
            spoil(&mut config);
            let error = config.validate().unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[test]
    fn a_sequence_may_fill_the_smallest_group_and_one_token_more() {
        let mut config = least();
        config.max_sequence_tokens = 100;
        config.block_tokens = 3;
        config.groups = [9, 5, 6]
            .map(|blocks| KvGroup {
                blocks,
                kind: GroupKind::Full,
            })
            .to_vec();
        assert_eq!(config.admits(16), Ok(()));
        let (tokens, limit) = (17, 16);
        let refused = AddError::TooLong { tokens, limit };
        assert_eq!(config.admits(17), Err(refused));
        let words = refused.to_string();
        assert!(words.contains("17 tokens") && words.contains("limit is 16"));
        config.max_sequence_tokens = 15;
        assert_eq!(config.admits(15), Ok(()));
        assert!(config.admits(16).is_err());
    }

    #[test]
    fn a_sequence_may_exceed_a_group_that_holds_its_window() {
        let mut config = least();
        config.block_tokens = 4;
        config.max_sequence_tokens = 1_000;
        config.max_tokens_per_run = 1;
        let group = |blocks, window| KvGroup {
            blocks,
            kind: GroupKind::Sliding { window },
        };
        // A window of 9 tokens reaches into 3 blocks, and a fourth may not be released yet.
        config.groups = vec![group(4, 9)];
        assert_eq!(config.admits(1_000), Ok(()));
        config.groups = vec![group(3, 9)];
        assert_eq!(config.admits(13), Ok(()));
        assert!(config.admits(14).is_err());
        let state = KvGroup {
            blocks: 1,
            kind: GroupKind::State,
        };
        config.groups = vec![state];
        assert_eq!(config.admits(1_000), Ok(()));
    }
}
