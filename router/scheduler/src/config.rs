//! The scheduler's limits. The engine fills them from the launcher's settings and the workers' Load.

/// Everything that bounds the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// KV memory, one entry per group, from the last message of Load.
    pub groups: Vec<KvGroup>,
    /// Sequences that may hold a slot at once; from Load.
    pub max_slots: u32,
    /// Tokens of one step over all sequences; from Load.
    pub max_step_tokens: u32,
    /// Prompt plus generated tokens of one sequence; from Load.
    pub max_sequence_tokens: u32,
    /// Tokens that one sequence may yield in a step; from Load. Blocks are reserved for this many.
    pub max_tokens_per_run: u32,
    /// Requests that may wait (preparing or queued); from the launcher.
    pub max_waiting: usize,
    /// Prompt tokens that may wait; from the launcher.
    pub max_waiting_tokens: u64,
    /// Plans that may be in flight.
    pub depth: u32,
    /// Whether computed blocks are kept for later requests.
    pub prefix_cache: bool,
    /// What running streams are promised while prompts are read; see `cost`.
    pub latency_target: u64,
    /// Microseconds after which a waiting request may no longer be passed by later ones.
    pub aging: u64,
}

/// KV memory of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Tokens per block.
    pub block_tokens: u32,
    /// Blocks in the pool.
    pub blocks: u32,
    /// Sliding window in tokens; 0 = unlimited.
    pub window: u32,
}
