//! Mock workers inside the process, which go wrong as the episode's schedule says.

use std::{pin::Pin, sync::Arc};

use async_trait::async_trait;
use futures_util::{Stream, StreamExt};
use penstock_engine::{
    ProgressSink, Workers, WorkersEnd, WorkersError,
    generated::v1::{
        self,
        shard_server::{Shard, ShardServer},
    },
    shard::{LoadConfig, Loaded, ShardGroup, Transport},
};
use penstock_mock_shard::{Exit, Service};
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status, Streaming, body::Body, codegen::http};
use tower::{Service as _, service_fn};

use crate::faults::Fault;
use crate::world::{BURY, OVERSLEPT, World};

/// One worker.
pub(crate) struct Process {
    server: ShardServer<Worker>,
    exit: watch::Sender<Exit>,
}

/// A mock worker with faults.
#[derive(Clone)]
struct Worker {
    service: Service,
    exit: watch::Sender<Exit>,
    rank: usize,
    world: Arc<World>,
}

/// Starts the workers of an episode.
pub(crate) struct SimulatedWorkers(pub(crate) Arc<World>);

#[async_trait]
impl Workers for SimulatedWorkers {
    async fn start(
        &mut self,
        progress: &ProgressSink,
    ) -> Result<(ShardGroup, Loaded), WorkersError> {
        let world = &self.0;
        sleep(world.within(1, 500)).await;
        let survivors = world.survivors();
        let dead_on_arrival = world.begin_start()?;
        let new = || (0..world.ranks()).map(|rank| Process::new(rank, world));
        let processes = survivors.unwrap_or_else(|| new().collect());
        world.set_processes(processes.clone());
        let loads: Vec<_> = processes.iter().map(|_| LoadConfig::default()).collect();
        let transports = processes.iter().map(Process::transport).collect();
        let started = ShardGroup::over(transports, &loads, &|news| progress.report(news)).await?;
        if dead_on_arrival {
            processes[0].kill();
        }
        Ok(started)
    }

    async fn bury(&mut self, _hung: bool) -> WorkersEnd {
        sleep(self.0.within(0, BURY)).await;
        match self.0.bury() {
            true => WorkersEnd::KilledFromOutside,
            false => WorkersEnd::Unknown,
        }
    }

    async fn stop(&mut self) {}
}

impl Process {
    fn new(rank: usize, world: &Arc<World>) -> Arc<Self> {
        let exit = watch::Sender::new(Exit::Running);
        let worker = Worker {
            service: Service::new(world.mock(), exit.clone()),
            exit: exit.clone(),
            rank,
            world: Arc::clone(world),
        };
        Arc::new(Self {
            server: ShardServer::new(worker),
            exit,
        })
    }

    pub(crate) fn kill(&self) {
        self.exit.send_replace(Exit::Crashed);
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.exit.borrow() != Exit::Running
    }

    /// Returns what carries calls to it. They fail once it is dead.
    fn transport(self: &Arc<Self>) -> Transport {
        let process = Arc::clone(self);
        Transport::new(service_fn(move |request: http::Request<Body>| {
            let process = Arc::clone(&process);
            async move {
                let mut server = process.server.clone();
                let answer = server.call(request);
                tokio::select! {
                    biased;
                    () = died(&process.exit) => Err(reset()),
                    Ok(answer) = answer => Ok(answer),
                }
            }
        }))
    }
}

async fn died(exit: &watch::Sender<Exit>) {
    let mut exit = exit.subscribe();
    // An error means that it is gone.
    let _ = exit.wait_for(|exit| *exit != Exit::Running).await;
}

/// What a client sees of a process that is gone.
fn reset() -> Status {
    let cause = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    Status::from_error(Box::new(cause))
}

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Shard for Worker {
    type LoadStream = <Service as Shard>::LoadStream;
    type StepStream = Messages<v1::StepReply>;

    async fn load(
        &self,
        request: Request<v1::LoadRequest>,
    ) -> Result<Response<Self::LoadStream>, Status> {
        self.service.load(request).await
    }

    async fn prepare(
        &self,
        request: Request<v1::PrepareRequest>,
    ) -> Result<Response<v1::PrepareReply>, Status> {
        sleep(self.world.prepare_time()).await;
        self.service.prepare(request).await
    }

    async fn step(
        &self,
        request: Request<Streaming<v1::StepRequest>>,
    ) -> Result<Response<Self::StepStream>, Status> {
        let replies = self.service.step(request).await?.into_inner();
        self.world.begin_epoch();
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(self.clone().answer(replies, sender));
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(
            receiver,
        ))))
    }

    async fn reset(
        &self,
        request: Request<v1::ResetRequest>,
    ) -> Result<Response<v1::ResetReply>, Status> {
        let answer = self.service.reset(request).await;
        answer.inspect_err(|status| self.world.violated(status))
    }

    async fn health(
        &self,
        request: Request<v1::HealthRequest>,
    ) -> Result<Response<v1::HealthReply>, Status> {
        self.service.health(request).await
    }

    async fn shutdown(
        &self,
        request: Request<v1::ShutdownRequest>,
    ) -> Result<Response<v1::ShutdownReply>, Status> {
        self.service.shutdown(request).await
    }
}

type Answers = mpsc::UnboundedSender<Result<v1::StepReply, Status>>;

impl Worker {
    /// Answers the steps of a stream until the worker dies.
    async fn answer(self, replies: <Service as Shard>::StepStream, answers: Answers) {
        tokio::select! {
            biased;
            () = died(&self.exit) => {}
            () = self.answer_in_time(replies, &answers) => return,
        }
        // The engine may have dropped the stream.
        let _ = answers.send(Err(Status::unavailable("the worker was killed")));
    }

    async fn answer_in_time(&self, mut replies: <Service as Shard>::StepStream, answers: &Answers) {
        while let Some(reply) = replies.next().await {
            sleep(self.world.step_time()).await;
            let faults = match &reply {
                Ok(_) if !answers.is_closed() => self.world.on_reply(self.rank),
                Ok(_) => None,
                Err(status) => {
                    if status.code() != tonic::Code::Internal {
                        self.world.violated(status);
                    }
                    None
                }
            };
            for reply in self.go_wrong(reply, faults).await {
                let failed = reply.is_err();
                // The engine may have dropped the stream.
                let _ = answers.send(reply);
                if failed {
                    return;
                }
            }
        }
    }

    /// Returns what the worker answers.
    async fn go_wrong(
        &self,
        reply: Result<v1::StepReply, Status>,
        fault: Option<Fault>,
    ) -> Vec<Result<v1::StepReply, Status>> {
        let (Ok(mut own), Some(fault)) = (reply.clone(), fault) else {
            if let Ok(reply) = &reply {
                self.world.answered(reply);
            }
            return vec![reply];
        };
        match fault {
            Fault::DiesBeforeReply | Fault::KilledBeforeReply => {
                self.exit.send_replace(Exit::Crashed);
                return Vec::new();
            }
            Fault::DiesAfterReply => {
                self.exit.send_replace(Exit::Crashed);
            }
            Fault::Hangs => std::future::pending().await,
            Fault::Stalls => sleep(self.world.within(100, 1_500)).await,
            Fault::Oversleeps => {
                self.world.survive();
                sleep(OVERSLEPT).await;
            }
            Fault::AnswersOldStep => {
                // New workers begin with epoch 1 again, on connections of their own.
                let older = |old: &v1::StepReply| old.epoch < own.epoch;
                let old = self.world.old_answer().filter(older);
                own.epoch -= 1;
                // Clients must not see these tokens.
                own.token_ids.iter_mut().for_each(|id| *id ^= 1);
                return vec![Ok(old.unwrap_or(own)), reply];
            }
            Fault::AnswersTwice => return vec![reply.clone(), reply],
            Fault::AlienToken => own.token_ids.iter_mut().for_each(|id| *id = u32::MAX),
            Fault::Malformed => own.counts.push(1),
            Fault::StepFails => return vec![Err(Status::internal("the step failed on purpose"))],
            Fault::Panic | Fault::KilledAnytime => {}
        }
        vec![Ok(own)]
    }
}
