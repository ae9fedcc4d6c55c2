//! The gRPC service.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{Stream, StreamExt, stream};
use penstock_engine::generated::v1::{self, shard_server::Shard};
use tokio::sync::{mpsc, watch};
use tonic::{Request, Response, Status, Streaming};

use crate::{Fault, MockConfig, fold::State};

/// Steps that wait for the pretended device: more than any router sends ahead.
const AHEAD: usize = 64;

/// How the worker ended, for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It serves.
    Running,
    /// Shutdown was called.
    Asked,
    /// A scripted crash.
    Crashed,
}

/// One mock worker. Tests may also call it without a connection.
#[derive(Clone, Debug)]
pub struct Service {
    config: Arc<MockConfig>,
    state: Arc<Mutex<Option<State>>>,
    /// Number of the step stream that is served; an older one ends.
    stream: watch::Sender<u64>,
    /// Calls of Prepare that have not been answered.
    preparing: Arc<AtomicUsize>,
    /// Calls of Prepare so far.
    preparations: Arc<AtomicUsize>,
    /// Whose requests the last calls of Prepare were for.
    clients: Arc<Mutex<Vec<String>>>,
    exit: watch::Sender<Exit>,
}

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// How late the answer of a stalled step is.
const STALL: Duration = Duration::from_secs(1);

/// What happens instead of an answer.
enum Instead {
    Crash,
    Hang,
    Raise,
}

impl Service {
    /// A worker that says in `exit` when it crashes by script or was asked to shut down.
    pub fn new(config: MockConfig, exit: watch::Sender<Exit>) -> Self {
        let stream = watch::Sender::new(0);
        Self {
            config: Arc::new(config),
            state: Arc::default(),
            stream,
            preparing: Arc::default(),
            preparations: Arc::default(),
            clients: Arc::default(),
            exit,
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls of Prepare that wait for their answer.
    pub(crate) fn preparing(&self) -> usize {
        self.preparing.load(Ordering::SeqCst)
    }

    /// Calls of Prepare so far.
    pub(crate) fn preparations(&self) -> usize {
        self.preparations.load(Ordering::SeqCst)
    }

    /// Whose requests the calls of Prepare so far were for; empty names where the router did not say.
    pub(crate) fn clients(&self) -> Vec<String> {
        self.clients
            .lock()
            .map_or_else(|_| Vec::new(), |names| names.clone())
    }

    fn instead(&self, step: u64) -> Option<Instead> {
        self.config.faults.iter().find_map(|fault| match fault {
            Fault::Crash(at) if *at == step => Some(Instead::Crash),
            Fault::Hang(at) if *at == step => Some(Instead::Hang),
            _ => None,
        })
    }

    /// What happens instead of a step with this token.
    fn poison(&self, has: impl Fn(u32) -> bool) -> Option<Instead> {
        self.config.faults.iter().find_map(|fault| match fault {
            Fault::DieOn(token) if has(*token) => Some(Instead::Crash),
            Fault::RaiseOn(token) if has(*token) => Some(Instead::Raise),
            _ => None,
        })
    }

    async fn go_wrong(&self, instead: Instead) -> Status {
        match instead {
            // The step counts as seen: the fault comes once.
            Instead::Hang => {
                if let Some(state) = self.state().as_mut() {
                    state.skip();
                }
            }
            Instead::Crash => drop(self.exit.send_replace(Exit::Crashed)),
            Instead::Raise => return Status::internal("scripted failure of a step"),
        }
        std::future::pending().await
    }

    /// Applies a step and says how long it takes.
    async fn step(&self, request: v1::StepRequest) -> Result<(v1::StepReply, Duration), Status> {
        let number = self.state().as_ref().map_or(0, State::steps);
        let entering = |token| request.new.iter().any(|new| new.token_ids.contains(&token));
        if let Some(instead) = self.instead(number).or_else(|| self.poison(entering)) {
            return Err(self.go_wrong(instead).await);
        }
        let (reply, cost) = self.apply(request, number)?;
        if self.config.faults.contains(&Fault::Stall(number)) {
            tokio::time::sleep(STALL).await;
        }
        match self.poison(|token| reply.token_ids.contains(&token)) {
            Some(instead) => Err(self.go_wrong(instead).await),
            None => Ok((reply, cost)),
        }
    }

    fn apply(
        &self,
        request: v1::StepRequest,
        number: u64,
    ) -> Result<(v1::StepReply, Duration), Status> {
        let cost = self.config.cost.of(request.run_tokens.iter().sum());
        let first_slot = request.run_slots.first().copied();
        let mut state = self.state();
        let state = state.as_mut().ok_or_else(not_loaded)?;
        let mut reply = state.apply(request).map_err(Status::invalid_argument)?;
        if self.config.faults.contains(&Fault::AlienToken(number))
            && let Some(token) = reply.token_ids.first_mut()
        {
            *token = self.config.geometry.vocab;
        }
        if self.config.faults.contains(&Fault::Closing(number)) {
            reply.closing.extend(first_slot);
        }
        let device = u32::try_from(cost.as_micros()).unwrap_or(u32::MAX);
        reply.timing = Some(v1::StepTiming { host: 0, device });
        Ok((reply, cost))
    }
}

#[tonic::async_trait]
impl Shard for Service {
    type LoadStream = Messages<v1::LoadProgress>;
    type StepStream = Messages<v1::StepReply>;

    async fn load(
        &self,
        request: Request<v1::LoadRequest>,
    ) -> Result<Response<Self::LoadStream>, Status> {
        let request = request.into_inner();
        if request.protocol_version != 1 {
            let version = request.protocol_version;
            return Err(Status::failed_precondition(format!(
                "protocol_version is {version}, but this worker speaks 1"
            )));
        }
        let failure = self.config.faults.iter().find_map(|fault| match fault {
            Fault::LoadError(message) => Some(Status::internal(message.clone())),
            _ => None,
        });
        let loaded = self.config.geometry.loaded(&request);
        if failure.is_none() {
            let state = State::new(MockConfig::clone(&self.config), loaded.clone());
            // A second Load finds the worker as the first left it.
            self.state().get_or_insert(state);
        }
        let mut messages: Vec<_> = (0..=2).map(|done| Ok(progress(done))).collect();
        messages.push(match failure {
            Some(status) => Err(status),
            None => Ok(event(v1::load_progress::Event::Loaded(loaded))),
        });
        Ok(Response::new(stream::iter(messages).boxed()))
    }

    async fn prepare(
        &self,
        request: Request<v1::PrepareRequest>,
    ) -> Result<Response<v1::PrepareReply>, Status> {
        let client = request.metadata().get("penstock-client");
        let client = client.and_then(|name| name.to_str().ok()).unwrap_or("");
        if let Ok(mut clients) = self.clients.lock() {
            clients.push(client.to_owned());
        }
        let _call = Call::begin(&self.preparing);
        self.preparations.fetch_add(1, Ordering::SeqCst);
        if self.config.faults.contains(&Fault::HangPrepare) {
            std::future::pending::<()>().await;
        }
        let error = self.config.faults.iter().find_map(|fault| match fault {
            Fault::RefusePrepare(message) => Some(v1::RequestError {
                kind: v1::request_error::Kind::Invalid.into(),
                message: message.clone(),
            }),
            _ => None,
        });
        Ok(Response::new(v1::PrepareReply { error }))
    }

    async fn step(
        &self,
        request: Request<Streaming<v1::StepRequest>>,
    ) -> Result<Response<Self::StepStream>, Status> {
        let mut number = 0;
        self.stream.send_modify(|streams| {
            *streams += 1;
            number = *streams;
        });
        let arrivals = receive(request.into_inner());
        let device = Device {
            service: self.clone(),
            arrivals,
            free: Instant::now(),
        };
        let mut current = self.stream.subscribe();
        let replaced = async move {
            // An error means that the service is gone, and its streams with it.
            let _ = current.wait_for(|streams| *streams != number).await;
        };
        let replies = stream::unfold(device, Device::answer).take_until(Box::pin(replaced));
        Ok(Response::new(replies.boxed()))
    }

    async fn reset(
        &self,
        request: Request<v1::ResetRequest>,
    ) -> Result<Response<v1::ResetReply>, Status> {
        let mut state = self.state();
        state
            .as_mut()
            .ok_or_else(not_loaded)?
            .reset(request.into_inner().epoch)
            .map_err(Status::failed_precondition)?;
        Ok(Response::new(v1::ResetReply {}))
    }

    async fn health(
        &self,
        _: Request<v1::HealthRequest>,
    ) -> Result<Response<v1::HealthReply>, Status> {
        let state = self.state();
        Ok(Response::new(v1::HealthReply {
            loaded: state.is_some(),
            epoch: state.as_ref().map_or(0, State::epoch),
            steps: state.as_ref().map_or(0, State::steps),
        }))
    }

    async fn shutdown(
        &self,
        _: Request<v1::ShutdownRequest>,
    ) -> Result<Response<v1::ShutdownReply>, Status> {
        self.exit.send_replace(Exit::Asked);
        Ok(Response::new(v1::ShutdownReply {}))
    }
}

/// Counts a call until it is answered or cancelled.
struct Call(Arc<AtomicUsize>);

impl Call {
    fn begin(calls: &Arc<AtomicUsize>) -> Self {
        calls.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(calls))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

type Arrival = Result<(v1::StepRequest, Instant), Status>;

/// The pretended device: steps run one after the other, each for its cost.
struct Device {
    service: Service,
    arrivals: mpsc::Receiver<Arrival>,
    /// When the last step ended, or will.
    free: Instant,
}

impl Device {
    async fn answer(mut self) -> Option<(Result<v1::StepReply, Status>, Self)> {
        let result = match self.arrivals.recv().await? {
            Ok((request, arrived)) => self.run(request, arrived).await,
            Err(status) => Err(status),
        };
        Some((result, self))
    }

    async fn run(
        &mut self,
        request: v1::StepRequest,
        arrived: Instant,
    ) -> Result<v1::StepReply, Status> {
        let (reply, cost) = self.service.step(request).await?;
        self.free = self.free.max(arrived) + cost;
        if !cost.is_zero() {
            let wait = self.free.saturating_duration_since(Instant::now());
            // The runtime's timer counts milliseconds; a thread sleeps to a tenth of one.
            let slept = tokio::task::spawn_blocking(move || std::thread::sleep(wait)).await;
            slept.map_err(|e| Status::internal(e.to_string()))?;
        }
        Ok(reply)
    }
}

/// Reads requests as they come, so that their arrival is known while the device is busy.
fn receive(mut requests: Streaming<v1::StepRequest>) -> mpsc::Receiver<Arrival> {
    let (sender, arrivals) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        while let Some(arrival) = requests.message().await.transpose() {
            let arrival = arrival.map(|request| (request, Instant::now()));
            if sender.send(arrival).await.is_err() {
                return;
            }
        }
    });
    arrivals
}

fn progress(done: u64) -> v1::LoadProgress {
    let phase = "weights".into();
    event(v1::load_progress::Event::Progress(v1::Progress {
        phase,
        done,
        total: 2,
    }))
}

fn event(event: v1::load_progress::Event) -> v1::LoadProgress {
    v1::LoadProgress { event: Some(event) }
}

fn not_loaded() -> Status {
    Status::failed_precondition("the worker is not loaded: call Load first")
}
