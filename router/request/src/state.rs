//! The engine's state and limits, as the other layers see them.

/// The engine's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineState {
    /// The workers start for the first time.
    Loading {
        /// "start" until the workers report a phase of theirs: "weights", "memory", "warm-up".
        phase: String,
        /// Progress, summed over all workers; bytes for "weights".
        done: u64,
        /// Total in the unit of `done`; 0 = unknown.
        total: u64,
    },
    /// Requests run.
    Ready,
    /// The workers were lost and are restarting.
    Restarting {
        /// How they were lost. For the operator: it may name files of this host.
        reason: String,
    },
    /// New requests are refused; accepted ones run on.
    Draining,
    /// The engine has ended.
    Stopped {
        /// Why. For the operator: it may name files of this host.
        reason: String,
    },
}

/// Limits of the loaded model and its workers, from the last message of Load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Prompt plus generated tokens of one request.
    pub max_sequence_tokens: u32,
    /// Maximum concurrent sequences.
    pub max_slots: u32,
    /// Maximum tokens of one step.
    pub max_step_tokens: u32,
    /// Size of the vocabulary; prompt ids are below it.
    pub vocab_size: u32,
    /// Tokens that the whole KV pool holds.
    pub kv_tokens: u64,
    /// Name of the workers' device, for people.
    pub device_name: String,
}

impl EngineState {
    /// Returns the state before the workers report anything.
    #[must_use]
    pub fn initial() -> Self {
        Self::Loading {
            phase: "start".into(),
            done: 0,
            total: 0,
        }
    }
}
