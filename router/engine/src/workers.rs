//! The trait by which the engine starts its workers.

use async_trait::async_trait;

use super::ProgressSink;
use crate::shard::{Endpoint, LoadConfig, Loaded, ShardError, ShardGroup};

/// Starts the workers: at first, and again after every loss.
#[async_trait]
pub trait Workers: Send {
    /// Starts the workers, connects to them and loads the model. After a loss, it first ends what
    /// is left of the old workers. The future may be dropped at any point; `stop` follows then.
    async fn start(
        &mut self,
        progress: &ProgressSink,
    ) -> Result<(ShardGroup, Loaded), WorkersError>;

    /// Ends lost workers before the next `start`. Those that `hung` first write their stacks to the
    /// log. Returns what is known about how they ended.
    async fn bury(&mut self, _hung: bool) -> WorkersEnd {
        WorkersEnd::Unknown
    }

    /// Ends the workers. Workers that could be reached have already received a shutdown request.
    async fn stop(&mut self);

    /// Whether the workers get a shutdown request when the engine ends.
    fn end_with_engine(&self) -> bool {
        true
    }
}

/// How lost workers ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkersEnd {
    /// Something else: the workers failed by themselves, as far as is known.
    Unknown,
    /// A person or the operating system killed a process (SIGKILL).
    KilledFromOutside,
}

/// Why the workers did not start. The message is for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkersError {
    /// A worker cannot be reached or refused to load.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// A process could not be started, or exited immediately.
    #[error("{0}")]
    Process(String),
}

/// Workers that are managed elsewhere, on this host or another. They are connected to, never
/// started or killed.
#[derive(Clone, Debug)]
pub struct AttachedWorkers {
    /// Addresses of the ranks, rank 0 first.
    pub endpoints: Vec<Endpoint>,
    /// Load configuration of each rank; as long as `endpoints`.
    pub loads: Vec<LoadConfig>,
}

impl AttachedWorkers {
    /// Creates one worker per endpoint; their load configurations differ only in the rank.
    pub fn new(endpoints: Vec<Endpoint>, load: &LoadConfig) -> Self {
        let world_size = u32::try_from(endpoints.len()).unwrap_or(u32::MAX);
        let of_rank = |rank| LoadConfig {
            rank,
            world_size,
            ..load.clone()
        };
        Self {
            loads: (0..world_size).map(of_rank).collect(),
            endpoints,
        }
    }
}

#[async_trait]
impl Workers for AttachedWorkers {
    async fn start(
        &mut self,
        progress: &ProgressSink,
    ) -> Result<(ShardGroup, Loaded), WorkersError> {
        let report = |news| progress.report(news);
        Ok(ShardGroup::connect(&self.endpoints, &self.loads, &report).await?)
    }

    async fn stop(&mut self) {}

    fn end_with_engine(&self) -> bool {
        false
    }
}
