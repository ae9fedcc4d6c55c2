//! The engine's settings.

use std::time::Duration;

use penstock_scheduler::config::{self, DecodeReads, GroupKind, KvGroup, Reserve, SchedulerConfig};

use crate::shard::{Loaded, StepLimits};
use penstock_request::types::EngineRequest;

/// The latency target where none is set.
pub const LATENCY_TARGET: Duration = Duration::from_micros(config::LATENCY_TARGET);

/// Settings of the engine, chosen by the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Maximum waiting requests; a further one is refused as overload.
    pub max_waiting: usize,
    /// Maximum prompt tokens of waiting requests.
    pub max_waiting_tokens: u64,
    /// Maximum plans in flight.
    pub depth: u16,
    /// A third or later plan is sent only while the steps in flight should take less than this
    /// together.
    pub lead: Duration,
    /// Whether computed blocks are kept for later requests.
    pub prefix_cache: bool,
    /// Memory that must be free for a request to be admitted.
    pub reserve: Reserve,
    /// Inter-token gap of running streams that prefill may cause: mostly a third of it, more while many
    /// requests wait. None: `LATENCY_TARGET`, and more for a slow model.
    pub latency_target: Option<Duration>,
    /// Waiting time after which later requests may no longer overtake a request.
    pub aging: Duration,
    /// Timeouts of a step.
    pub step_limits: StepLimits,
    /// What to do after a loss of the workers.
    pub restart: RestartPolicy,
    /// How long new requests wait in the queue for restarting workers before they are refused.
    pub max_restart_wait: Duration,
    /// Which requests the workers prepare before their first step.
    pub prepare_policy: PreparePolicy,
    /// Whether the engine verifies its invariants after every event and panics if one is broken.
    /// For tests: it takes time proportional to all blocks and tokens.
    pub verify: bool,
}

/// When lost workers are restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// After this many consecutive losses, each soon after a start, the engine stops; `None` =
    /// never.
    pub exit_after: Option<u32>,
    /// A loss is soon if the workers were ready for less than this.
    pub soon: Duration,
    /// Wait before the second attempt in a row; it doubles with each further one.
    pub backoff: Duration,
    /// Maximum wait.
    pub max_backoff: Duration,
}

/// Which requests the workers prepare before their first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreparePolicy {
    /// Requests that need it: those with a grammar.
    #[default]
    WhenNeeded,
    /// All requests, for workers that inspect each one first.
    Always,
}

impl PreparePolicy {
    /// Whether the workers prepare this request.
    pub(super) fn needs(self, request: &EngineRequest) -> bool {
        self == Self::Always || request.grammar.is_some()
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_waiting: 4096,
            max_waiting_tokens: 4 << 20,
            depth: 3,
            lead: Duration::from_millis(3),
            prefix_cache: true,
            reserve: Reserve::default(),
            latency_target: None,
            aging: Duration::from_secs(5),
            step_limits: StepLimits::default(),
            restart: RestartPolicy::default(),
            max_restart_wait: Duration::from_secs(60),
            prepare_policy: PreparePolicy::default(),
            verify: false,
        }
    }
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            exit_after: None,
            soon: Duration::from_secs(30),
            backoff: Duration::from_millis(500),
            max_backoff: Duration::from_secs(30),
        }
    }
}

impl RestartPolicy {
    /// Whether the engine stops after this many losses in a row.
    pub(super) fn gives_up(&self, losses: u32) -> bool {
        self.exit_after.is_some_and(|most| losses >= most)
    }

    /// Returns how long to wait before restarting the workers after this many losses in a row
    /// between which they answered no step.
    pub(super) fn wait(&self, losses: u32) -> Duration {
        let doublings = losses.saturating_sub(2).min(16);
        let wait = self.backoff.saturating_mul(1 << doublings);
        match losses {
            0 | 1 => Duration::ZERO,
            _ => wait.min(self.max_backoff),
        }
    }
}

/// Combines the settings and the workers' limits into the scheduler's configuration.
pub(super) fn scheduler_config(config: &EngineConfig, loaded: &Loaded) -> SchedulerConfig {
    SchedulerConfig {
        block_tokens: loaded.block_tokens,
        groups: loaded.kv_groups.clone(),
        max_slots: loaded.max_slots,
        max_step_tokens: loaded.max_step_tokens,
        step_sizes: loaded.step_sizes.clone(),
        max_sequence_tokens: loaded.max_sequence_tokens,
        max_tokens_per_run: loaded.max_tokens_per_run,
        max_waiting: config.max_waiting,
        max_waiting_tokens: config.max_waiting_tokens,
        depth: config.depth,
        lead: micros(config.lead),
        prefix_cache: config.prefix_cache,
        reserve: config.reserve,
        latency_target: config.latency_target.map(micros),
        aging: micros(config.aging),
        decode_reads: decode_reads(loaded),
    }
}

/// Returns whole microseconds, the scheduler's unit of time.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the bytes that a decode step reads on a rank: the weights, and per token of context.
/// Unknown (zero) with sliding-window layers, since the scheduler counts contexts in full. States
/// do not count: what a decode reads of them does not depend on its context.
fn decode_reads(loaded: &Loaded) -> DecodeReads {
    let slides = |group: &KvGroup| matches!(group.kind, GroupKind::Sliding { .. });
    if loaded.kv_groups.iter().any(slides) {
        return DecodeReads::default();
    }
    let groups = loaded.kv_groups.iter().zip(&loaded.block_bytes);
    let full = groups.filter(|(group, _)| is_full(group));
    let block_bytes: u64 = full.map(|(_, bytes)| bytes).sum();
    DecodeReads {
        weights: loaded.memory.weights,
        token: block_bytes / u64::from(loaded.block_tokens.max(1)),
    }
}

/// Returns the tokens that the KV memory holds: every sequence needs blocks of every group, so the
/// smallest group is the limit. Groups with windows count only where no group is without one, and
/// states, which hold any number of tokens, never.
pub(super) fn kv_tokens(loaded: &Loaded) -> u64 {
    let any_full = loaded.kv_groups.iter().any(is_full);
    let groups = loaded.kv_groups.iter();
    let blocks = groups
        .filter(|group| !any_full || is_full(group))
        .filter(|group| group.kind != GroupKind::State)
        .map(|group| u64::from(group.blocks));
    blocks.min().unwrap_or(0) * u64::from(loaded.block_tokens)
}

fn is_full(group: &KvGroup) -> bool {
    group.kind == GroupKind::Full
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::MemoryReport;
    use penstock_request::grammar_spec::{GrammarFormat, GrammarSpec, OutputConstraint};
    use penstock_request::sampling_params::SamplingParams;
    use penstock_request::types::Stopping;

    #[test]
    fn backoff_doubles_within_bounds_and_ends_only_on_request() {
        let policy = |exit_after| RestartPolicy {
            exit_after,
            soon: Duration::from_secs(30),
            backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(3),
        };
        let waits = |losses: [u32; 6]| losses.map(|n| policy(None).wait(n).as_secs());
        assert_eq!(waits([0, 1, 2, 3, 4, 5]), [0, 0, 1, 2, 3, 3]);
        assert_eq!(waits([6, 7, 99, 1_000, 1 << 20, u32::MAX]), [3; 6]);
        assert!(policy(Some(6)).gives_up(6) && !policy(Some(6)).gives_up(5));
        assert!(!policy(None).gives_up(u32::MAX));
    }

    fn loaded(kv_groups: [KvGroup; 2], block_bytes: &[u64]) -> Loaded {
        Loaded {
            block_tokens: 8,
            kv_groups: kv_groups.to_vec(),
            block_bytes: block_bytes.to_vec(),
            max_slots: 7,
            max_step_tokens: 8,
            max_sequence_tokens: 9,
            max_tokens_per_run: 2,
            vocab_size: 10,
            device_name: "cpu".into(),
            model_backend: "native".into(),
            limitations: Vec::new(),
            memory: MemoryReport {
                weights: 1_000,
                ..MemoryReport::default()
            },
            step_sizes: vec![4, 8],
        }
    }

    #[test]
    fn scheduler_config_combines_worker_limits_and_settings() {
        let config = EngineConfig {
            lead: Duration::from_millis(3),
            latency_target: Some(Duration::from_millis(25)),
            aging: Duration::MAX,
            ..EngineConfig::default()
        };
        let group = |blocks, kind| KvGroup { blocks, kind };
        // 512 bytes a token in one group, 64 in the other.
        let full = [group(10, GroupKind::Full), group(20, GroupKind::Full)];
        let two = loaded(full, &[4_096, 512]);
        let limits = scheduler_config(&config, &two);
        assert_eq!((limits.block_tokens, &limits.groups), (8, &two.kv_groups));
        assert_eq!((limits.max_slots, limits.max_step_tokens), (7, 8));
        assert_eq!(
            (limits.max_sequence_tokens, limits.max_tokens_per_run),
            (9, 2)
        );
        assert_eq!(limits.step_sizes, [4, 8]);
        assert_eq!((limits.lead, limits.latency_target), (3_000, Some(25_000)));
        assert_eq!(limits.aging, u64::MAX);
        let (weights, token) = (1_000, 576);
        assert_eq!(limits.decode_reads, DecodeReads { weights, token });
        let sliding = group(5, GroupKind::Sliding { window: 64 });
        let windows = loaded([full[0], sliding], &[4_096, 512]);
        assert_eq!(
            scheduler_config(&config, &windows).decode_reads,
            DecodeReads::default()
        );
        // States have any number of tokens.
        let states = loaded([full[0], group(5, GroupKind::State)], &[4_096, 9_999]);
        let reads = DecodeReads {
            weights,
            token: 512,
        };
        assert_eq!(scheduler_config(&config, &states).decode_reads, reads);
        assert_eq!(kv_tokens(&states), 80);
        // Blocks without memory: a decode reads nothing that grows with its context.
        let alone = loaded([full[0], group(5, GroupKind::State)], &[0, 9_999]);
        let reads = DecodeReads { weights, token: 0 };
        assert_eq!(scheduler_config(&config, &alone).decode_reads, reads);
        assert_eq!(kv_tokens(&alone), 80);
        // The smallest group without a window bounds what all sequences hold.
        assert_eq!((kv_tokens(&two), kv_tokens(&windows)), (80, 80));
        assert_eq!(kv_tokens(&loaded([sliding; 2], &[1, 1])), 40);
    }

    #[test]
    fn requests_with_a_grammar_need_prepare_unless_policy_is_always() {
        let plain = EngineRequest {
            prompt: vec![1],
            sampling: SamplingParams::default(),
            grammar: None,
            stopping: Stopping {
                max_new_tokens: 1,
                min_new_tokens: 0,
                stop_token_ids: Vec::new(),
            },
            choices: 1,
            beam: None,
            cache_salt: Box::default(),
            priority: 0,
        };
        assert!(!PreparePolicy::WhenNeeded.needs(&plain));
        assert!(PreparePolicy::Always.needs(&plain));
        let constrained = EngineRequest {
            grammar: Some(Box::new(GrammarSpec {
                constraint: OutputConstraint {
                    kind: GrammarFormat::Regex,
                    field: "regex",
                    text: "a".into(),
                    complete: false,
                },
                end_token_ids: vec![2],
                reasoning: None,
            })),
            ..plain
        };
        assert!(PreparePolicy::WhenNeeded.needs(&constrained));
    }
}
