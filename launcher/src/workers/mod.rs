//! The workers of one engine: processes on this host, started and replaced as a group. They are
//! children of this process or of its fork server (`--standby`), or an earlier launcher kept them.

mod fork_server;
mod kept;
mod log;
mod process;
mod scratch;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use nix::sys::signal::Signal;
use penstock_engine::shard::{Endpoint, LoadConfig, Loaded, ShardError, ShardGroup};
use penstock_engine::{ProgressSink, Workers, WorkersEnd, WorkersError};
use tokio::time::{Instant, sleep};

pub use kept::KeptWorker;
pub use process::WorkerProcess;
pub use scratch::{KeptGroup, Scratch};

use self::fork_server::ForkServer;
use crate::error::Failure;
use crate::interpreter::Interpreter;

/// How long a worker that hangs may take to write its stacks.
const DUMP_TIME: Duration = Duration::from_millis(500);
/// How long the process of a lost connection may take to end.
const DEATH_TIME: Duration = Duration::from_millis(300);
const DEATH_POLL: Duration = Duration::from_millis(5);

/// One worker process per rank. A loss restarts all of them, because the remaining ranks of a group
/// would wait for the lost one.
#[derive(Debug)]
pub struct LocalWorkers {
    interpreter: Interpreter,
    load: LoadConfig,
    scratch: Scratch,
    /// Counts the groups, so that sockets and rendezvous files are never reused.
    generation: u64,
    /// The group in use.
    current: Option<Group>,
    /// A group that was started in advance, or attached to, and that this process has not loaded.
    next: Option<Group>,
    /// Forks all groups, with `WorkerOptions::standby`.
    fork_server: Option<ForkServer>,
    standby: bool,
    /// Whether the current group has loaded the model.
    loaded: bool,
}

/// How the workers start and end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerOptions {
    /// The directory of running workers to attach to; `auto` finds it, if there is one.
    pub attach: Option<PathBuf>,
    /// Seconds that loaded workers outlive this process; 0 = they end with it.
    pub keep_seconds: u32,
    /// Whether a process that has imported the modules of workers is ready to fork them.
    pub standby: bool,
}

#[derive(Debug)]
struct Group {
    generation: u64,
    processes: Processes,
}

#[derive(Debug)]
enum Processes {
    /// Children of this process or of its fork server, rank 0 first.
    Own(Vec<WorkerProcess>),
    /// Those of an earlier launcher, rank 0 first.
    Kept(Vec<KeptWorker>),
}

impl LocalWorkers {
    /// Creates workers that `interpreter` runs; `load` is the configuration of each except its
    /// rank. New ones start to import their modules in the background.
    ///
    /// # Errors
    /// If there is no directory for their sockets, if the processes cannot be started, or if there
    /// are no workers to attach to.
    pub fn new(
        interpreter: Interpreter,
        load: LoadConfig,
        options: &WorkerOptions,
    ) -> Result<Self, Failure> {
        let adopt = |path: &PathBuf| Scratch::adopt(path, load.world_size).transpose();
        let (scratch, next) = match options.attach.as_ref().and_then(adopt).transpose()? {
            None => (Scratch::new()?, None),
            Some((scratch, kept)) => {
                for (worker, rank) in kept.workers.iter().zip(0..) {
                    worker.forward_log(rank)?;
                }
                (scratch, Some(Group::from(kept)))
            }
        };
        let mut workers = Self {
            interpreter,
            load: LoadConfig {
                keep_seconds: options.keep_seconds,
                ..load
            },
            scratch,
            generation: next.as_ref().map_or(0, |group| group.generation),
            current: None,
            next,
            fork_server: None,
            standby: options.standby,
            loaded: false,
        };
        if workers.standby {
            workers.fork_server()?;
        } else if workers.next.is_none() {
            workers.next = Some(workers.spawn()?);
        }
        Ok(workers)
    }

    /// Returns the directory of the sockets, by which another launcher attaches to kept workers.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Creates the sockets of the next generation: rank -> path.
    fn sockets(&mut self) -> Result<Vec<PathBuf>, Failure> {
        self.generation += 1;
        self.scratch.renew(self.generation)?;
        let ranks = 0..self.load.world_size;
        Ok(ranks
            .map(|rank| self.scratch.socket(self.generation, rank))
            .collect())
    }

    fn spawn(&mut self) -> Result<Group, Failure> {
        let sockets = self.sockets()?;
        let spawn =
            |(socket, rank): (&PathBuf, _)| WorkerProcess::spawn(&self.interpreter, socket, rank);
        let processes: Result<_, _> = sockets.iter().zip(0..).map(spawn).collect();
        Ok(Group {
            generation: self.generation,
            processes: Processes::Own(processes?),
        })
    }

    async fn fork(&mut self) -> Result<Group, Failure> {
        let sockets = self.sockets()?;
        let generation = self.generation;
        let server = self.fork_server()?;
        let mut processes = Vec::new();
        for (socket, rank) in sockets.iter().zip(0..) {
            processes.push(server.fork(socket, rank).await?);
        }
        Ok(Group {
            generation,
            processes: Processes::Own(processes),
        })
    }

    /// Returns the process that forks workers; starts it if it does not run.
    fn fork_server(&mut self) -> Result<&ForkServer, Failure> {
        let running = self.fork_server.take().filter(ForkServer::runs);
        let server = match running {
            Some(server) => server,
            None => ForkServer::start(&self.interpreter)?,
        };
        Ok(self.fork_server.insert(server))
    }

    /// Returns the next group; starts one if there is none, or if it has lost a process or its
    /// sockets.
    async fn take_next(&mut self) -> Result<Group, Failure> {
        if let Some(mut group) = self.next.take() {
            if group.is_usable(&self.scratch) {
                return Ok(group);
            }
            group.kill().await;
        }
        if self.standby {
            self.fork().await
        } else {
            self.spawn()
        }
    }

    /// Connects to the processes of the current group and loads the model.
    async fn connect(&self, progress: &ProgressSink) -> Result<(ShardGroup, Loaded), WorkersError> {
        let Some(group) = &self.current else {
            return Err(WorkersError::Process("there are no workers".to_owned()));
        };
        if let Processes::Own(processes) = &group.processes {
            try_join_all(processes.iter().map(WorkerProcess::listening))
                .await
                .map_err(|failure| WorkersError::Process(failure.message))?;
        }
        let sockets =
            (0..self.load.world_size).map(|rank| self.scratch.socket(group.generation, rank));
        let endpoints: Vec<Endpoint> = sockets.map(Endpoint::Unix).collect();
        let report = |news| progress.report(news);
        let connected =
            ShardGroup::connect(&endpoints, &self.loads(group.generation), &report).await;
        connected.map_err(|error| group.explain(error))
    }

    fn loads(&self, generation: u64) -> Vec<LoadConfig> {
        let alone = self.load.world_size == 1;
        let rendezvous = if alone {
            String::new()
        } else {
            self.scratch.rendezvous(generation)
        };
        let of_rank = |rank| LoadConfig {
            rank,
            rendezvous: rendezvous.clone(),
            ..self.load.clone()
        };
        (0..self.load.world_size).map(of_rank).collect()
    }

    /// Whether the current workers outlive this process.
    fn keeps(&self) -> bool {
        self.loaded && self.load.keep_seconds > 0
    }

    /// Leaves the current workers to the next launcher.
    fn release(&mut self) {
        self.scratch.kept = true;
        if let Some(group) = self.current.take() {
            tracing::info!(
                "the workers in {} wait {} s for another server",
                self.scratch.path().display(),
                self.load.keep_seconds
            );
            group.release();
        }
    }
}

impl From<KeptGroup> for Group {
    fn from(kept: KeptGroup) -> Self {
        Self {
            generation: kept.generation,
            processes: Processes::Kept(kept.workers),
        }
    }
}

impl Group {
    /// Whether no process has ended, and the sockets are there.
    fn is_usable(&self, scratch: &Scratch) -> bool {
        match &self.processes {
            Processes::Kept(_) => true,
            Processes::Own(processes) => {
                scratch.exists()
                    && processes
                        .iter()
                        .all(|process| process.exit_status().is_none())
            }
        }
    }

    /// Adds the exit status of a worker to a connection error, if there is one.
    fn explain(&self, error: ShardError) -> WorkersError {
        let Processes::Own(processes) = &self.processes else {
            return error.into();
        };
        let mut ranks = processes.iter().zip(0..);
        let ended = ranks.find_map(|(process, rank)| Some((process, rank, process.exit_status()?)));
        match (&error, ended) {
            (
                ShardError::Lost { .. } | ShardError::Connect { .. },
                Some((process, rank, status)),
            ) => {
                let tail = process.stderr_tail();
                WorkersError::Process(format!(
                    "worker {rank} ended while loading ({status}).{tail}"
                ))
            }
            _ => error.into(),
        }
    }

    /// Makes the processes write the stacks of their threads to their logs.
    fn dump_stacks(&self) {
        if let Processes::Own(processes) = &self.processes {
            processes.iter().for_each(WorkerProcess::dump_stacks);
        }
    }

    /// Returns how the first process that is found to have ended did so. Waits a little: connections
    /// end before their process.
    async fn ended(&self) -> Option<ExitStatus> {
        let Processes::Own(processes) = &self.processes else {
            return None;
        };
        let deadline = Instant::now() + DEATH_TIME;
        loop {
            let mut ranks = processes.iter().zip(0_u32..);
            let ended = ranks.find_map(|(process, rank)| Some((rank, process.exit_status()?)));
            if let Some((rank, status)) = ended {
                tracing::warn!(rank, "a worker ended: {status}");
                return Some(status);
            }
            if Instant::now() >= deadline {
                return None;
            }
            sleep(DEATH_POLL).await;
        }
    }

    /// Ends the processes, with time to end by themselves.
    async fn stop(&mut self) {
        match &mut self.processes {
            Processes::Own(processes) => {
                join_all(processes.iter_mut().map(WorkerProcess::stop)).await;
            }
            Processes::Kept(workers) => {
                join_all(workers.iter().map(KeptWorker::stop)).await;
            }
        }
    }

    /// Ends processes after a loss. The others wait for the lost one, so asking them is no use.
    async fn kill(&mut self) {
        match &mut self.processes {
            Processes::Own(processes) => {
                join_all(processes.iter_mut().map(WorkerProcess::kill)).await;
            }
            Processes::Kept(workers) => {
                join_all(workers.iter().map(KeptWorker::stop)).await;
            }
        }
    }

    fn release(self) {
        if let Processes::Own(processes) = self.processes {
            processes.into_iter().for_each(WorkerProcess::release);
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
        self.loaded = false;
        if let Some(mut lost) = self.current.take() {
            lost.kill().await;
        }
        self.current = Some(self.take_next().await.map_err(process)?);
        let connected = self.connect(progress).await?;
        self.loaded = true;
        self.scratch.kept = false;
        Ok(connected)
    }

    async fn bury(&mut self, hung: bool) -> WorkersEnd {
        let Some(lost) = &mut self.current else {
            return WorkersEnd::Unknown;
        };
        if hung {
            lost.dump_stacks();
            sleep(DUMP_TIME).await;
        }
        let ended = if hung { None } else { lost.ended().await };
        lost.kill().await;
        match ended {
            Some(status) if status.signal() == Some(Signal::SIGKILL as i32) => {
                WorkersEnd::KilledFromOutside
            }
            _ => WorkersEnd::Unknown,
        }
    }

    async fn stop(&mut self) {
        if self.keeps() {
            self.release();
        }
        let groups = self.current.iter_mut().chain(&mut self.next);
        // Kept workers that refused this server's settings stay: another server may attach to them.
        let loaded = self.loaded;
        let ours = groups.filter(|group| loaded || matches!(group.processes, Processes::Own(_)));
        join_all(ours.map(Group::stop)).await;
        (self.current, self.next) = (None, None);
    }

    fn end_with_engine(&self) -> bool {
        !self.keeps()
    }
}

impl Drop for LocalWorkers {
    fn drop(&mut self) {
        if self.keeps() {
            self.release();
        }
    }
}
