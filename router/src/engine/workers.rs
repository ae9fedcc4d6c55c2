//! Where workers come from.

use async_trait::async_trait;

use super::ProgressSink;
use crate::shard::{Endpoint, LoadConfig, Loaded, ShardError, ShardGroup};

/// Starts the workers: at the beginning, and again after every loss.
#[async_trait]
pub trait Workers: Send {
    /// Brings the workers up (after a loss: ends what is left of the old ones first), connects
    /// and loads. The future may be dropped at any point; `stop` follows then.
    async fn start(
        &mut self,
        progress: &ProgressSink,
    ) -> Result<(ShardGroup, Loaded), WorkersError>;

    /// Ends the workers. If they could be reached, they have been asked to shut down.
    async fn stop(&mut self);

    /// Whether the workers are asked to shut down when the engine ends.
    fn end_with_engine(&self) -> bool {
        true
    }
}

/// Why workers did not start, in words for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkersError {
    /// A worker cannot be reached or refused to load.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// A process could not be started or ended at once.
    #[error("{0}")]
    Process(String),
}

/// Workers that someone else runs, on this host or another. They are connected to, never
/// started or killed.
#[derive(Clone, Debug)]
pub struct AttachedWorkers {
    /// Where the ranks listen, rank 0 first.
    pub endpoints: Vec<Endpoint>,
    /// What each rank is told to load; as long as `endpoints`.
    pub loads: Vec<LoadConfig>,
}

impl AttachedWorkers {
    /// One worker per endpoint, told to load the same except for its rank in the group.
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
