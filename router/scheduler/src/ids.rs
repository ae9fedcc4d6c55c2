//! Newtype identifiers. One word per thing, the same in Rust, proto and Python.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id!(
    /// One accepted request; never reused within a process.
    RequestId(u64)
);
id!(
    /// One entry of the model's vocabulary.
    TokenId(u32)
);
id!(
    /// A slot in a worker's persistent batch; held by at most one sequence at a time.
    Slot(u32)
);
id!(
    /// One block of KV memory within its group.
    BlockId(u32)
);
id!(
    /// A KV group: the memory of one kind of layers, with its own block size and window.
    GroupId(u32)
);
id!(
    /// One step of the workers, counted from 0 within an epoch.
    StepId(u64)
);
id!(
    /// A lifetime of the workers' state: outcomes of an old epoch are dropped.
    Epoch(u64)
);
id!(
    /// Microseconds on the caller's monotonic clock. The scheduler has no clock of its own.
    Micros(u64)
);

/// One sequence of a request. Index 0 is the request itself; forks count up from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId {
    /// The request that the sequence belongs to.
    pub request: RequestId,
    /// 0 for the sequence that `add` made; forks get the next free number.
    pub index: u32,
}

/// A sequence's index in the store.
pub(crate) type SequenceKey = u32;
