//! The workers of one engine: child processes on this host, started and replaced as a group.

mod process;
mod scratch;

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use penstock_engine::shard::{Endpoint, LoadConfig, Loaded, ShardError, ShardGroup};
use penstock_engine::{ProgressSink, Workers, WorkersError};

pub use process::WorkerProcess;
pub use scratch::Scratch;

use crate::error::Failure;
use crate::interpreter::Interpreter;

/// One worker process per rank. A loss restarts all of them, because the remaining ranks of a group
/// would wait for the lost one.
#[derive(Debug)]
pub struct LocalWorkers {
    interpreter: Interpreter,
    load: LoadConfig,
    scratch: Scratch,
    /// Counts restarts of the group, so that sockets and rendezvous files are never reused.
    generation: u64,
    processes: Vec<WorkerProcess>,
    /// Whether the processes were started in advance and are not yet in use.
    early: bool,
}

impl LocalWorkers {
    /// Creates workers that `interpreter` runs; `load` is the configuration of each except its
    /// rank. They start to import their modules in the background.
    ///
    /// # Errors
    /// If there is no directory for their sockets or if the processes cannot be started.
    pub fn new(interpreter: Interpreter, load: LoadConfig) -> Result<Self, Failure> {
        let scratch = Scratch::new()?;
        let mut workers = Self {
            interpreter,
            load,
            scratch,
            generation: 0,
            processes: Vec::new(),
            early: true,
        };
        workers.spawn()?;
        Ok(workers)
    }

    fn spawn(&mut self) -> Result<(), Failure> {
        self.generation += 1;
        self.scratch.renew()?;
        for rank in 0..self.load.world_size {
            let socket = self.scratch.socket(self.generation, rank);
            self.processes
                .push(WorkerProcess::spawn(&self.interpreter, &socket, rank)?);
        }
        Ok(())
    }

    fn loads(&self) -> Vec<LoadConfig> {
        let alone = self.load.world_size == 1;
        let rendezvous = if alone {
            String::new()
        } else {
            self.scratch.rendezvous(self.generation)
        };
        let of_rank = |rank| LoadConfig {
            rank,
            rendezvous: rendezvous.clone(),
            ..self.load.clone()
        };
        (0..self.load.world_size).map(of_rank).collect()
    }

    /// Adds the exit status of a worker to a connection error, if there is one.
    fn explain(&self, error: ShardError) -> WorkersError {
        let ended = self
            .processes
            .iter()
            .zip(0..)
            .find(|(p, _)| p.exit_status().is_some());
        match (&error, ended) {
            (ShardError::Lost { .. } | ShardError::Connect { .. }, Some((process, rank))) => {
                let status = process
                    .exit_status()
                    .map(|s| s.to_string())
                    .unwrap_or_default();
                let tail = process.stderr_tail();
                WorkersError::Process(format!(
                    "worker {rank} ended while loading ({status}).{tail}"
                ))
            }
            _ => error.into(),
        }
    }
}

#[async_trait]
impl Workers for LocalWorkers {
    async fn start(
        &mut self,
        progress: &ProgressSink,
    ) -> Result<(ShardGroup, Loaded), WorkersError> {
        let process = |failure: Failure| WorkersError::Process(failure.message);
        if !std::mem::take(&mut self.early) {
            self.stop().await;
            self.spawn().map_err(process)?;
        }
        try_join_all(self.processes.iter().map(WorkerProcess::listening))
            .await
            .map_err(process)?;
        let ranks = 0..self.load.world_size;
        let endpoints: Vec<Endpoint> = ranks
            .map(|rank| Endpoint::Unix(self.scratch.socket(self.generation, rank)))
            .collect();
        let report = |news| progress.report(news);
        let connected = ShardGroup::connect(&endpoints, &self.loads(), &report).await;
        connected.map_err(|error| self.explain(error))
    }

    async fn stop(&mut self) {
        join_all(self.processes.iter_mut().map(WorkerProcess::stop)).await;
        self.processes.clear();
    }
}
