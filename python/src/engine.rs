//! An engine inside a Python process: no HTTP, no signal handlers, workers as child processes.
//! Several engines can run at once; each has its own tokio runtime.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use penstock::cli::EngineArgs;
use penstock::error::{Failure, FailureKind};
use penstock::interpreter::Interpreter;
use penstock::launch::{Launch, RunningEngine};
use penstock::logs;
use penstock::settings::{Sources, read_engine};
use penstock::values::{LogFormat, LogLevel};
use penstock_request::{Limits, RequestLimits};
use penstock_text::chat::RequestTemplates;
use penstock_text::generation::{Generation, Generator, TextEvent};
use penstock_text::{GenerateInput, TextConfig};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, JoinHandle};

use crate::delivery::{Delivery, Event, EventSender};
use crate::request::{PromptArgument, SamplingParams, completion, conversation};

/// Threads of the tokio runtime. They only carry events; the workers compute.
const THREADS: usize = 2;
/// Interval between checks for Ctrl-C.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout of the runtime's shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// A running engine with a loaded model.
#[pyclass(frozen)]
pub(crate) struct Engine {
    // None after `close`.
    open: Mutex<Option<OpenEngine>>,
}

struct OpenEngine {
    runtime: Runtime,
    running: RunningEngine,
    limits: Limits,
    delivery: Delivery,
}

/// A running request. It ends by itself or when it is cancelled.
#[pyclass(frozen)]
pub(crate) struct Request {
    task: AbortHandle,
}

#[pymethods]
impl Engine {
    /// Loads a model. `flags` are the engine flags of `penstock serve`; `report` is called with
    /// phase, done and total while the model loads.
    #[new]
    fn new(
        py: Python<'_>,
        flags: Vec<String>,
        executable: PathBuf,
        package: PathBuf,
        report: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        // Some errors only refer to the log, such as the loss of a worker.
        logs::start(LogFormat::Text, LogLevel::Warn);
        let (typed, sources) =
            read_engine(flags, &std::env::vars_os().collect()).map_err(|f| to_py_error(&f))?;
        let host = Interpreter {
            path: executable,
            package,
        };
        let mut builder = Builder::new_multi_thread();
        let runtime = builder
            .worker_threads(THREADS)
            .thread_name("penstock")
            .enable_all()
            .build()?;
        match start(py, &runtime, (typed, sources, host), report) {
            Ok((running, limits, delivery)) => Ok(Self {
                open: Mutex::new(Some(OpenEngine {
                    runtime,
                    running,
                    limits,
                    delivery,
                })),
            }),
            Err(error) => {
                // Ctrl-C must not wait for a download.
                py.detach(|| runtime.shutdown_timeout(SHUTDOWN_TIMEOUT));
                Err(error)
            }
        }
    }

    /// Starts the completion of a prompt. Events go to `deliver`, on a thread of the engine.
    fn generate(
        &self,
        prompt: PromptArgument,
        params: SamplingParams,
        deliver: Py<PyAny>,
    ) -> PyResult<Request> {
        self.begin(completion(prompt, params)?, deliver)
    }

    /// Starts a chat completion. `body` is a body of `/v1/chat/completions` with only the fields of
    /// the conversation and of tools.
    fn chat(&self, body: &str, params: SamplingParams, deliver: Py<PyAny>) -> PyResult<Request> {
        let generator = self.with(|open| open.running.generator.clone())?;
        self.begin(conversation(body, params, &generator)?, deliver)
    }

    /// Maximum number of concurrent sequences.
    #[getter]
    fn max_slots(&self) -> PyResult<u32> {
        self.with(|open| open.limits.max_slots)
    }

    /// Maximum tokens of one sequence, prompt included.
    #[getter]
    fn max_tokens(&self) -> PyResult<u32> {
        self.with(|open| open.limits.max_sequence_tokens)
    }

    /// The sampling parameters that the model's generation_config.json recommends: JSON text of an
    /// object with its names.
    #[getter]
    fn generation_defaults(&self) -> PyResult<String> {
        self.with(|open| {
            let given = open.running.generator.model_text().defaults.given();
            let members = given
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()));
            Value::Object(members.collect()).to_string()
        })
    }

    /// Stops the engine and its workers; running requests fail. Idempotent.
    fn close(&self, py: Python<'_>) {
        let open = self
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(open) = open else { return };
        py.detach(|| {
            let OpenEngine {
                runtime,
                running,
                delivery,
                ..
            } = open;
            runtime.block_on(running.stop(Duration::ZERO));
            drop(running);
            runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
            delivery.finish();
        });
    }
}

impl Engine {
    fn with<T>(&self, look: impl FnOnce(&OpenEngine) -> T) -> PyResult<T> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref()
            .map(look)
            .ok_or_else(|| PyRuntimeError::new_err("the engine is closed"))
    }

    fn begin(&self, input: GenerateInput, deliver: Py<PyAny>) -> PyResult<Request> {
        self.with(|open| {
            let run = run_request(
                open.running.generator.clone(),
                input,
                open.delivery.sender(deliver),
            );
            Request {
                task: open.runtime.spawn(run).abort_handle(),
            }
        })
    }
}

#[pymethods]
impl Request {
    /// Aborts the request: its memory is freed at once, and no further event arrives.
    fn cancel(&self) {
        self.task.abort();
    }
}

async fn run_request(generator: Generator, input: GenerateInput, sender: EventSender) {
    let generations = match generator.generate_all(input).await {
        Ok(generations) => generations,
        Err(error) => return sender.send(Event::failed(&error)),
    };
    let branches = generations
        .into_iter()
        .map(|each| forward_events(each, &sender));
    join_all(branches).await;
}

/// Forwards the events of one choice.
async fn forward_events(mut generation: Generation, sender: &EventSender) {
    let mut event = TextEvent::default();
    let mut first = true;
    let parser_options = generation.parser_options();
    let mut reader = (!parser_options.is_plain()).then(|| parser_options.parser());
    while let Some(outcome) = generation.next(&mut event).await {
        if let Err(error) = outcome {
            return sender.send(Event::failed(&error));
        }
        let mut step = Event::step(&event, &generation, std::mem::take(&mut first));
        if let Some(reader) = &mut reader
            && step.parse(&event, reader)
        {
            generation.finish();
        }
        sender.send(step);
    }
}

/// Starts an engine and waits until it accepts requests.
fn start(
    py: Python<'_>,
    runtime: &Runtime,
    (typed, sources, host): (EngineArgs, Sources, Interpreter),
    report: &Bound<'_, PyAny>,
) -> PyResult<(RunningEngine, Limits, Delivery)> {
    let prepare = move || Launch::prepare(&typed, &sources, Some(&host));
    let launch =
        wait(py, runtime, runtime.spawn_blocking(prepare))?.map_err(|f| to_py_error(&f))?;
    let config = TextConfig {
        limits: RequestLimits {
            watermark: launch.watermark,
            ..RequestLimits::default()
        },
        templates: RequestTemplates::Trusted,
        ..TextConfig::default()
    };
    let running = {
        let _inside = runtime.enter();
        py.detach(|| launch.start(&config))
            .map_err(|failure| to_py_error(&failure))?
    };
    let limits = load(py, runtime, &running, report)?;
    Ok((running, limits, Delivery::start()?))
}

/// Waits until the engine accepts requests; reports progress to `report` and checks for Ctrl-C.
fn load(
    py: Python<'_>,
    runtime: &Runtime,
    running: &RunningEngine,
    report: &Bound<'_, PyAny>,
) -> PyResult<Limits> {
    let (sender, mut receiver) = channel();
    let watched = running.clone();
    let ready = runtime.spawn(async move {
        let on_progress = |phase: &str, done, total| {
            // The receiver is gone when loading was cancelled.
            let _ = sender.send((phase.to_owned(), done, total));
        };
        watched.ready(on_progress).await
    });
    loop {
        let inbox = &mut receiver;
        match py.detach(move || inbox.recv_timeout(SIGNAL_POLL_INTERVAL)) {
            Ok((phase, done, total)) => {
                report.call1((phase, done, total))?;
            }
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    wait(py, runtime, ready)?.map_err(|failure| to_py_error(&failure))
}

/// Waits for a task and checks for Ctrl-C meanwhile.
fn wait<T: Send + 'static>(
    py: Python<'_>,
    runtime: &Runtime,
    mut task: JoinHandle<T>,
) -> PyResult<T> {
    loop {
        let done = py.detach(|| {
            runtime.block_on(async { tokio::time::timeout(SIGNAL_POLL_INTERVAL, &mut task).await })
        });
        match done {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => return Err(PyRuntimeError::new_err(error.to_string())),
            Err(_) => py.check_signals()?,
        }
    }
}

fn to_py_error(failure: &Failure) -> PyErr {
    match failure.kind {
        FailureKind::Usage => PyValueError::new_err(failure.message.clone()),
        FailureKind::Runtime | FailureKind::Command(_) => {
            PyRuntimeError::new_err(failure.message.clone())
        }
    }
}
