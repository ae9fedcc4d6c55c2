//! A worker's load configuration, and the limits that it reports once it has loaded.

use penstock_scheduler::config::{GroupKind, KvGroup};

use crate::generated::v1;

/// The version of `shard.proto` that this router speaks.
const PROTOCOL_VERSION: u32 = 1;

/// A worker's whole configuration; filled by the launcher.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadConfig {
    /// Directory with `config.json` and `*.safetensors`.
    pub model_path: String,
    /// "cuda" or "cpu".
    pub device: String,
    /// "bfloat16", "float16", "float32" or "float64".
    pub dtype: String,
    /// Rank of this worker in its tensor-parallel group.
    pub rank: u32,
    /// Workers in the group.
    pub world_size: u32,
    /// How the ranks find each other (a torch.distributed init method); empty for a group of one.
    pub rendezvous: String,
    /// Prompt plus generated tokens of one sequence.
    pub max_sequence_tokens: u32,
    /// Maximum concurrent sequences; 0 = the worker's choice.
    pub max_slots: u32,
    /// Tokens of one step over all sequences; 0 = the worker's choice.
    pub max_step_tokens: u32,
    /// Bytes of this rank's KV pool; 0 = what memory allows.
    pub kv_memory_bytes: u64,
    /// Share of the device's memory that the worker may use in total.
    pub memory_fraction: f32,
    /// Requested tokens per KV block; 0 = the worker's choice.
    pub block_tokens: u32,
    /// CPU threads for compute; 0 = the worker's choice.
    pub threads: u32,
    /// How keys and values are stored: "auto" (or empty) for `dtype`, or a narrower dtype's name.
    pub kv_dtype: String,
    /// Weight format: the checkpoint's own, or one to convert to while loading; empty = as stored.
    pub quantize: String,
    /// Whether ranks share the experts of a layer, not the inner size of each expert.
    pub expert_parallel: bool,
    /// What computes the model: "auto" (or empty), "native" or "transformers".
    pub model_backend: String,
    /// Seconds that the worker lives without a router; 0 = it ends with its launcher.
    pub keep_seconds: u32,
}

/// Load progress of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The reporting worker.
    pub rank: u32,
    /// "weights", "memory", "warm-up".
    pub phase: String,
    /// Bytes for "weights", otherwise steps.
    pub done: u64,
    /// In the unit of `done`.
    pub total: u64,
}

/// Limits of a loaded group. All ranks agree on them, except for memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Tokens per block, the same in all KV groups.
    pub block_tokens: u32,
    /// KV memory, one entry per KV group; used by the scheduler.
    pub kv_groups: Vec<KvGroup>,
    /// Bytes of one block of each KV group on one rank; for the scheduler, logs and `--explain`.
    pub block_bytes: Vec<u64>,
    /// Maximum concurrent sequences.
    pub max_slots: u32,
    /// Maximum tokens of one step.
    pub max_step_tokens: u32,
    /// Prompt plus generated tokens of one sequence.
    pub max_sequence_tokens: u32,
    /// Maximum tokens that one sequence may yield in a step.
    pub max_tokens_per_run: u32,
    /// Size of the model's vocabulary.
    pub vocab_size: u32,
    /// The device's name, for people.
    pub device_name: String,
    /// Rank 0's memory, in bytes; for the scheduler, logs and `--explain`.
    pub memory: MemoryReport,
    /// Efficient sizes of steps with prompt tokens, ascending; empty if all sizes are.
    pub step_sizes: Vec<u32>,
    /// What computes the model, "native" or "transformers", for people.
    pub model_backend: String,
    /// What "transformers" gives up for this model, in phrases, for people.
    pub limitations: Vec<String>,
}

/// Memory use of one rank's device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Total memory of the device.
    pub total: u64,
    /// Model weights.
    pub weights: u64,
    /// Activations of the largest step.
    pub activations: u64,
    /// Reserved for CUDA graphs.
    pub graphs: u64,
    /// State of the slots.
    pub slots: u64,
    /// The KV pool.
    pub kv: u64,
}

impl LoadConfig {
    pub(super) fn to_proto(&self) -> v1::LoadRequest {
        v1::LoadRequest {
            protocol_version: PROTOCOL_VERSION,
            model_path: self.model_path.clone(),
            device: self.device.clone(),
            dtype: self.dtype.clone(),
            rank: self.rank,
            world_size: self.world_size,
            rendezvous: self.rendezvous.clone(),
            max_sequence_tokens: self.max_sequence_tokens,
            max_slots: self.max_slots,
            max_step_tokens: self.max_step_tokens,
            kv_memory_bytes: self.kv_memory_bytes,
            memory_fraction: self.memory_fraction,
            block_tokens: self.block_tokens,
            threads: self.threads,
            kv_dtype: self.kv_dtype.clone(),
            quantize: self.quantize.clone(),
            expert_parallel: self.expert_parallel,
            model_backend: self.model_backend.clone(),
            keep_seconds: self.keep_seconds,
        }
    }
}

impl Loaded {
    /// Validates what a worker reports, so that no later stage meets an impossible geometry.
    pub(super) fn from_proto(loaded: v1::Loaded) -> Result<Self, String> {
        let positive = [
            ("max_slots", loaded.max_slots),
            ("max_step_tokens", loaded.max_step_tokens),
            ("max_sequence_tokens", loaded.max_sequence_tokens),
            ("max_tokens_per_run", loaded.max_tokens_per_run),
            ("vocab_size", loaded.vocab_size),
        ];
        let geometry = loaded.kv_groups.iter().flat_map(|group| {
            [
                ("kv_groups.block_tokens", group.block_tokens),
                ("kv_groups.blocks", group.blocks),
            ]
        });
        if let Some((name, _)) = positive.into_iter().chain(geometry).find(|(_, n)| *n == 0) {
            return Err(format!("`{name}` in Loaded must be at least 1, but is 0"));
        }
        if loaded.kv_groups.is_empty() {
            return Err("`kv_groups` in Loaded must not be empty".into());
        }
        let mut sizes = loaded.kv_groups.iter().map(|group| group.block_tokens);
        let block_tokens = sizes.next().unwrap_or(0);
        if let Some(other) = sizes.find(|size| *size != block_tokens) {
            return Err(format!(
                "`kv_groups` in Loaded have {block_tokens} and {other} `block_tokens`; all groups \
                 must have the same number"
            ));
        }
        if loaded
            .kv_groups
            .iter()
            .any(|group| group.recurrent && group.window > 0)
        {
            return Err("a recurrent group of `kv_groups` in Loaded must have no `window`".into());
        }
        if loaded.kv_groups.iter().all(|group| group.recurrent) {
            return Err("`kv_groups` in Loaded must have a group that is not recurrent".into());
        }
        if !loaded.step_sizes.is_sorted_by(|a, b| a < b) || loaded.step_sizes.first() == Some(&0) {
            return Err("`step_sizes` in Loaded must rise, from 1 or more".into());
        }
        Ok(Self {
            block_bytes: loaded
                .kv_groups
                .iter()
                .map(|group| group.block_bytes)
                .collect(),
            block_tokens,
            kv_groups: loaded.kv_groups.iter().map(kv_group).collect(),
            max_slots: loaded.max_slots,
            max_step_tokens: loaded.max_step_tokens,
            max_sequence_tokens: loaded.max_sequence_tokens,
            max_tokens_per_run: loaded.max_tokens_per_run,
            vocab_size: loaded.vocab_size,
            device_name: loaded.device_name,
            model_backend: loaded.model_backend,
            limitations: loaded.limitations,
            memory: loaded.memory.map(memory).unwrap_or_default(),
            step_sizes: loaded.step_sizes,
        })
    }

    /// Returns the first field in which another rank of the group differs. Memory is not compared.
    pub(super) fn difference(&self, other: &Self) -> Option<&'static str> {
        let fields = [
            ("block_tokens", self.block_tokens == other.block_tokens),
            ("kv_groups", self.kv_groups == other.kv_groups),
            ("max_slots", self.max_slots == other.max_slots),
            (
                "max_step_tokens",
                self.max_step_tokens == other.max_step_tokens,
            ),
            (
                "max_sequence_tokens",
                self.max_sequence_tokens == other.max_sequence_tokens,
            ),
            (
                "max_tokens_per_run",
                self.max_tokens_per_run == other.max_tokens_per_run,
            ),
            ("vocab_size", self.vocab_size == other.vocab_size),
            ("step_sizes", self.step_sizes == other.step_sizes),
        ];
        fields
            .into_iter()
            .find(|(_, same)| !same)
            .map(|(name, _)| name)
    }
}

impl Progress {
    pub(super) fn from_proto(rank: u32, progress: v1::Progress) -> Self {
        Self {
            rank,
            phase: progress.phase,
            done: progress.done,
            total: progress.total,
        }
    }
}

fn kv_group(group: &v1::KvGroup) -> KvGroup {
    KvGroup {
        blocks: group.blocks,
        kind: match (group.recurrent, group.window) {
            (true, _) => GroupKind::State,
            (false, 0) => GroupKind::Full,
            (false, window) => GroupKind::Sliding { window },
        },
    }
}

fn memory(report: v1::MemoryReport) -> MemoryReport {
    MemoryReport {
        total: report.total,
        weights: report.weights,
        activations: report.activations,
        graphs: report.graphs,
        slots: report.slots,
        kv: report.kv,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(block_tokens: [u32; 2]) -> v1::Loaded {
        let groups = block_tokens.into_iter().zip([0, 64]);
        let group = |(block_tokens, window)| v1::KvGroup {
            block_tokens,
            blocks: 5,
            block_bytes: 100,
            window,
            recurrent: false,
        };
        v1::Loaded {
            kv_groups: groups.map(group).collect(),
            max_slots: 1,
            max_step_tokens: 1,
            max_sequence_tokens: 1,
            max_tokens_per_run: 1,
            vocab_size: 1,
            ..v1::Loaded::default()
        }
    }

    #[test]
    fn groups_with_and_without_a_window_are_read() {
        let loaded = Loaded::from_proto(loaded([16, 16])).expect("a valid message");
        let kinds: Vec<_> = loaded.kv_groups.iter().map(|group| group.kind).collect();
        let sliding = GroupKind::Sliding { window: 64 };
        assert_eq!(loaded.block_tokens, 16);
        assert_eq!(kinds, [GroupKind::Full, sliding]);
    }

    #[test]
    fn recurrent_groups_have_states_and_no_window() {
        let mut message = loaded([16, 16]);
        message.kv_groups[1].recurrent = true;
        let error = Loaded::from_proto(message.clone()).expect_err("a window");
        assert!(error.contains("no `window`"), "{error}");
        message.kv_groups[1].window = 0;
        let loaded = Loaded::from_proto(message.clone()).expect("a valid message");
        let kinds: Vec<_> = loaded.kv_groups.iter().map(|group| group.kind).collect();
        assert_eq!(kinds, [GroupKind::Full, GroupKind::State]);
        // Models that are all recurrent have blocks without memory beside states.
        message.kv_groups[0].block_bytes = 0;
        let alone = Loaded::from_proto(message.clone()).expect("a valid message");
        assert_eq!(alone.block_bytes, [0, 100]);
        message.kv_groups[0].recurrent = true;
        let error = Loaded::from_proto(message).expect_err("no keys and values");
        assert!(error.contains("not recurrent"), "{error}");
    }

    #[test]
    fn groups_with_different_block_tokens_are_refused() {
        let error = Loaded::from_proto(loaded([16, 8])).expect_err("two block sizes");
        let named = error.contains("block_tokens") && error.contains("16 and 8");
        assert!(named, "{error}");
    }
}
