//! An engine inside somebody else's Python process: no HTTP, no signal handlers, workers as child
//! processes. Several may live at once; each has a runtime of its own.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use penstock::cli::EngineArgs;
use penstock::error::{Failure, FailureKind};
use penstock::interpreter::Interpreter;
use penstock::launch::{Launch, Running};
use penstock::logs;
use penstock::settings::{Sources, read_engine};
use penstock::values::{LogFormat, LogLevel};
use penstock_router::RouterConfig;
use penstock_router::chat::Templates;
use penstock_router::engine::Limits;
use penstock_router::generation::{Generation, Generator, TextEvent};
use penstock_router::validate::GenerateInput;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, JoinHandle};

use crate::delivery::{Delivery, Event, Mailbox};
use crate::request::{PromptArgument, SamplingParams, completion, conversation};

/// Threads that carry events; computing is the workers' work.
const THREADS: usize = 2;
/// How long Ctrl-C may go unnoticed.
const ATTENTION: Duration = Duration::from_millis(50);
/// What is left to do when an engine ends is cut off here.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// A loaded model that answers.
#[pyclass(frozen)]
pub(crate) struct Engine {
    // None once it is closed.
    open: Mutex<Option<Open>>,
}

struct Open {
    runtime: Runtime,
    running: Running,
    limits: Limits,
    delivery: Delivery,
}

/// A request on its way; it ends by itself or when it is cancelled.
#[pyclass(frozen)]
pub(crate) struct Request {
    task: AbortHandle,
}

#[pymethods]
impl Engine {
    /// Loads a model. `flags` are those of `penstock serve` that concern the engine; `report` is
    /// called with phase, done and total while it loads.
    #[new]
    fn new(
        py: Python<'_>,
        flags: Vec<String>,
        executable: PathBuf,
        package: PathBuf,
        report: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        // What errors only refer to is told there: how workers were lost, for one.
        logs::start(LogFormat::Text, LogLevel::Warn);
        let (typed, sources) =
            read_engine(flags, &std::env::vars_os().collect()).map_err(|f| raised(&f))?;
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
                open: Mutex::new(Some(Open {
                    runtime,
                    running,
                    limits,
                    delivery,
                })),
            }),
            Err(error) => {
                // Whoever has pressed Ctrl-C does not wait for a download.
                py.detach(|| runtime.shutdown_timeout(LAST_MOMENT));
                Err(error)
            }
        }
    }

    /// Begins to complete a prompt; every event goes to `deliver`, on a thread of the engine.
    fn generate(
        &self,
        prompt: PromptArgument,
        params: SamplingParams,
        deliver: Py<PyAny>,
    ) -> PyResult<Request> {
        self.begin(completion(prompt, params)?, deliver)
    }

    /// Begins an answer in a conversation; `body` is that of `/v1/chat/completions`, as far as it
    /// tells of the conversation and of tools.
    fn chat(&self, body: &str, params: SamplingParams, deliver: Py<PyAny>) -> PyResult<Request> {
        let generator = self.with(|open| open.running.generator.clone())?;
        self.begin(conversation(body, params, &generator)?, deliver)
    }

    /// Sequences that run at once.
    #[getter]
    fn max_slots(&self) -> PyResult<u32> {
        self.with(|open| open.limits.max_slots)
    }

    /// Prompt and answer of one request, in tokens.
    #[getter]
    fn max_tokens(&self) -> PyResult<u32> {
        self.with(|open| open.limits.max_sequence_tokens)
    }

    /// Ends the engine and its workers; running requests fail. May be called again.
    fn close(&self, py: Python<'_>) {
        let open = self
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(open) = open else { return };
        py.detach(|| {
            let Open {
                runtime,
                running,
                delivery,
                ..
            } = open;
            runtime.block_on(running.stop(Duration::ZERO));
            drop(running);
            runtime.shutdown_timeout(LAST_MOMENT);
            delivery.finish();
        });
    }
}

impl Engine {
    fn with<T>(&self, look: impl FnOnce(&Open) -> T) -> PyResult<T> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref()
            .map(look)
            .ok_or_else(|| PyRuntimeError::new_err("the engine is closed"))
    }

    fn begin(&self, input: GenerateInput, deliver: Py<PyAny>) -> PyResult<Request> {
        self.with(|open| {
            let answer = answer(
                open.running.generator.clone(),
                input,
                open.delivery.mailbox(deliver),
            );
            Request {
                task: open.runtime.spawn(answer).abort_handle(),
            }
        })
    }
}

#[pymethods]
impl Request {
    /// Gives the answer up: its memory is free at once, and no further event comes.
    fn cancel(&self) {
        self.task.abort();
    }
}

async fn answer(generator: Generator, input: GenerateInput, mailbox: Mailbox) {
    let generations = match generator.generate_all(input).await {
        Ok(generations) => generations,
        Err(error) => return mailbox.send(Event::failed(&error)),
    };
    let branches = generations.into_iter().map(|each| carry(each, &mailbox));
    join_all(branches).await;
}

/// Sends one answer's events on their way.
async fn carry(mut generation: Generation, mailbox: &Mailbox) {
    let mut event = TextEvent::default();
    let mut first = true;
    let reading = generation.reading();
    let mut reader = (!reading.is_plain()).then(|| reading.reader());
    while let Some(outcome) = generation.next(&mut event).await {
        if let Err(error) = outcome {
            return mailbox.send(Event::failed(&error));
        }
        let mut step = Event::step(&event, &generation, std::mem::take(&mut first));
        if let Some(reader) = &mut reader
            && step.read(&event, reader)
        {
            generation.finish();
        }
        mailbox.send(step);
    }
}

/// Starts an engine and waits until requests run.
fn start(
    py: Python<'_>,
    runtime: &Runtime,
    (typed, sources, host): (EngineArgs, Sources, Interpreter),
    report: &Bound<'_, PyAny>,
) -> PyResult<(Running, Limits, Delivery)> {
    let prepare = move || Launch::prepare(&typed, &sources, Some(&host));
    let launch = wait(py, runtime, runtime.spawn_blocking(prepare))?.map_err(|f| raised(&f))?;
    let config = RouterConfig {
        watermark: launch.watermark,
        templates: Templates::Trusted,
        ..RouterConfig::new(launch.name.clone())
    };
    let running = {
        let _inside = runtime.enter();
        py.detach(|| launch.start(&config))
            .map_err(|failure| raised(&failure))?
    };
    let limits = load(py, runtime, &running, report)?;
    Ok((running, limits, Delivery::start()?))
}

/// Waits until requests run, telling `report` and listening to Ctrl-C.
fn load(
    py: Python<'_>,
    runtime: &Runtime,
    running: &Running,
    report: &Bound<'_, PyAny>,
) -> PyResult<Limits> {
    let (tell, mut news) = channel();
    let watched = running.clone();
    let ready = runtime.spawn(async move {
        let told = |phase: &str, done, total| {
            // Nobody listens once loading was given up.
            let _ = tell.send((phase.to_owned(), done, total));
        };
        watched.ready(told).await
    });
    loop {
        let inbox = &mut news;
        match py.detach(move || inbox.recv_timeout(ATTENTION)) {
            Ok((phase, done, total)) => {
                report.call1((phase, done, total))?;
            }
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    wait(py, runtime, ready)?.map_err(|failure| raised(&failure))
}

/// Waits for a task while listening to Ctrl-C.
fn wait<T: Send + 'static>(
    py: Python<'_>,
    runtime: &Runtime,
    mut task: JoinHandle<T>,
) -> PyResult<T> {
    loop {
        let done = py.detach(|| {
            runtime.block_on(async { tokio::time::timeout(ATTENTION, &mut task).await })
        });
        match done {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => return Err(PyRuntimeError::new_err(error.to_string())),
            Err(_) => py.check_signals()?,
        }
    }
}

fn raised(failure: &Failure) -> PyErr {
    match failure.kind {
        FailureKind::Usage => PyValueError::new_err(failure.message.clone()),
        FailureKind::Runtime => PyRuntimeError::new_err(failure.message.clone()),
    }
}
