//! The workers of one engine: child processes on this host, started and replaced as a group.

mod process;
mod scratch;

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use penstock_router::engine::{ProgressSink, Workers, WorkersError};
use penstock_router::shard::{Endpoint, LoadConfig, Loaded, ShardError, ShardGroup};

pub use process::WorkerProcess;
pub use scratch::Scratch;

use crate::error::Failure;
use crate::interpreter::Interpreter;

/// Starts one process per rank, and all of them anew after a loss: ranks of a group wait for one
/// another, so one that is left alone is of no use.
#[derive(Debug)]
pub struct LocalWorkers {
    interpreter: Interpreter,
    load: LoadConfig,
    scratch: Scratch,
    /// Counts the group's lives: sockets and rendezvous files are never used twice.
    generation: u64,
    processes: Vec<WorkerProcess>,
    /// The processes were started, but nobody has asked for them yet.
    early: bool,
}

impl LocalWorkers {
    /// Workers that `interpreter` runs; `load` says what each is told, apart from its rank. They
    /// import what they need while the caller goes on.
    ///
    /// # Errors
    /// When there is no place for their sockets, or the processes cannot be started.
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

    /// What a lost connection means, where the process can tell.
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
