//! From settings to a running engine, for `serve`, `chat` and the Python API.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use penstock_engine::shard::{Endpoint, LoadConfig};
use penstock_engine::{
    AttachedWorkers, Engine, EngineConfig, EngineMetrics, RestartPolicy, Workers,
};
use penstock_http::Metrics;
use penstock_request::sampling_params::Watermark;
use penstock_request::{EngineState, GenerationDefaults, Limits};
use penstock_text::chat::RequestTemplates;
use penstock_text::{GenerationConfig, Generator, ModelText, TextConfig, TextFiles};
use prometheus_client::registry::Registry;

use crate::cli::EngineArgs;
use crate::error::{Failure, Outcome};
use crate::hardware::Hardware;
use crate::hub::ModelSource;
use crate::interpreter::Interpreter;
use crate::logs;
use crate::model::{ModelFacts, Weights};
use crate::quantize::Quantize;
use crate::resolve::{Plan, resolve};
use crate::settings::Sources;
use crate::terminal;
use crate::tokenizer::with_tokenizer;
use crate::workers::{LocalWorkers, WorkerOptions};

/// An engine that is ready to start: its model is on this host and every value is resolved.
#[derive(Debug)]
pub struct Launch {
    /// The resolved values and their reasons.
    pub plan: Plan,
    /// The model's name unless --served-model-name replaces it.
    pub name: String,
    /// The revision of a hub model, shown by `/info`.
    pub revision: Option<String>,
    /// The watermark parameters of requests that enable watermarking.
    pub watermark: Watermark,
    /// The default sampling parameters.
    pub defaults: GenerationDefaults,
    /// How the workers start and end.
    pub worker_options: WorkerOptions,
    /// Losses of the workers in a row, each soon after a start, after which the engine stops; `None`
    /// = never.
    pub exit_after_losses: Option<u32>,
    /// How long new requests wait in the queue for restarting workers.
    pub max_restart_wait: Duration,
    files: TextFiles,
    workers: WorkerSource,
}

/// The source of the workers.
#[derive(Debug)]
enum WorkerSource {
    /// Started by this process with this interpreter.
    Local(Interpreter),
    /// Started by another process.
    Attached(Vec<Endpoint>),
}

/// An engine that loads or runs.
#[derive(Clone)]
pub struct RunningEngine {
    /// The engine: token ids in and out.
    pub engine: Engine,
    /// The generator: text in and out.
    pub generator: Generator,
    /// All metrics, the generator's included.
    pub metrics: Arc<Metrics>,
    /// The directory of the workers' sockets; `None` if another process started the workers.
    pub workers_directory: Option<PathBuf>,
}

/// Returns the files that replace those of the model's folder. `vllm` is vLLM's word for `none`.
fn text_files(typed: &EngineArgs) -> TextFiles {
    TextFiles {
        chat_template: typed.chat_template.clone(),
        generation_config: match typed.generation_config.as_str() {
            "auto" => GenerationConfig::Model,
            "none" | "vllm" => GenerationConfig::Off,
            folder => GenerationConfig::Folder(folder.into()),
        },
    }
}

impl Launch {
    /// Finds or downloads the model, detects the hardware and resolves every value. `host` is the
    /// Python interpreter that runs the launcher, if any.
    ///
    /// # Errors
    /// Any reason that prevents the engine from starting.
    pub fn prepare(
        typed: &EngineArgs,
        sources: &Sources,
        host: Option<&Interpreter>,
    ) -> Outcome<Self> {
        let source = ModelSource::parse(typed.model.as_deref(), typed.revision.as_deref())?;
        let find = || Interpreter::find(typed.python.as_deref(), host);
        let directory: PathBuf = source.fetch(find, typed.hub_cache.as_deref())?;
        let directory = with_tokenizer(directory, find)?;
        let attached = !typed.worker.is_empty();
        let weights = if attached {
            Weights::Elsewhere
        } else {
            Weights::Here
        };
        let model = ModelFacts::read(&directory, weights)?;
        let files = text_files(typed);
        let defaults = files.generation_config.defaults(&directory);
        let defaults = defaults.map_err(|error| Failure::runtime(error.to_string()))?;
        let plan = resolve(typed, sources, &model, &Hardware::detect())?;
        let workers = if attached {
            let endpoints: Result<_, _> = typed.worker.iter().map(|text| text.parse()).collect();
            let wrong = |error| Failure::usage(format!("--worker: {error}"));
            WorkerSource::Attached(endpoints.map_err(wrong)?)
        } else {
            WorkerSource::Local(find()?)
        };
        let revision = match &source {
            ModelSource::Hub { revision, .. } => Some(revision.clone()),
            _ => None,
        };
        Ok(Self {
            plan,
            name: source.name(),
            revision,
            watermark: Watermark {
                gamma: typed.watermark.watermark_gamma,
                delta: typed.watermark_delta,
                key: typed.watermark.watermark_key,
            },
            defaults,
            worker_options: WorkerOptions::default(),
            // Nothing but a server waits for ever.
            exit_after_losses: Some(5),
            max_restart_wait: EngineConfig::default().max_restart_wait,
            files,
            workers,
        })
    }

    /// Starts the engine on the current tokio runtime; it loads in the background.
    ///
    /// # Errors
    /// If the tokenizer's or template's files are unusable, or if there is no directory for
    /// sockets.
    pub fn start(self, text_config: &TextConfig) -> Outcome<RunningEngine> {
        let (load, config) = (self.load_config(), self.engine_config());
        let mut directory = None;
        let workers: Box<dyn Workers> = match self.workers {
            WorkerSource::Local(interpreter) => {
                let workers = LocalWorkers::new(interpreter, load, &self.worker_options)?;
                directory = Some(workers.directory().to_owned());
                Box::new(workers)
            }
            WorkerSource::Attached(endpoints) => Box::new(AttachedWorkers::new(endpoints, &load)),
        };
        // The workers start first, so that they load while this thread reads the tokenizer.
        let text = ModelText::load_with(&self.plan.model.directory, &self.files)
            .map_err(|error| Failure::runtime(error.to_string()))?;
        let mut registry = Registry::default();
        let metrics = EngineMetrics::register(&mut registry);
        register_process_metrics(&mut registry);
        let engine = Engine::start(workers, config, metrics);
        let metrics = Arc::new(Metrics::new(registry));
        let generator = Generator::new(engine.clone(), text, text_config, metrics.text());
        Ok(RunningEngine {
            engine,
            generator,
            metrics,
            workers_directory: directory,
        })
    }

    /// Returns how to render requests' chat templates: in a Python process, if Python is available.
    pub fn templates(&self) -> RequestTemplates {
        match &self.workers {
            WorkerSource::Local(interpreter) => {
                let python = interpreter.path.clone().into_os_string();
                RequestTemplates::Sandboxed(vec![python, "-m".into(), "penstock.rendering".into()])
            }
            WorkerSource::Attached(_) => RequestTemplates::Refused,
        }
    }

    fn load_config(&self) -> LoadConfig {
        let plan = &self.plan;
        LoadConfig {
            model_path: plan.model.directory.display().to_string(),
            device: plan.device.value.name().to_owned(),
            dtype: plan.dtype.value.name().to_owned(),
            world_size: plan.tp.value,
            max_sequence_tokens: plan.limits.max_sequence_tokens.value,
            max_slots: plan.limits.max_slots.value,
            max_step_tokens: plan.limits.max_step_tokens.value,
            kv_memory_bytes: plan.memory.kv_bytes.value.unwrap_or(0),
            memory_fraction: plan.memory.fraction.value,
            block_tokens: plan.memory.block_tokens.value,
            threads: plan.threads.value,
            kv_dtype: plan.memory.kv_dtype.value.name().to_owned(),
            expert_parallel: plan.ep.value,
            model_backend: plan.model_backend.value.name().to_owned(),
            quantize: plan.quantize.value.map_or("", Quantize::name).to_owned(),
            ..LoadConfig::default()
        }
    }

    fn engine_config(&self) -> EngineConfig {
        let queue = &self.plan.queue;
        EngineConfig {
            restart: RestartPolicy {
                exit_after: self.exit_after_losses,
                ..RestartPolicy::default()
            },
            max_restart_wait: self.max_restart_wait,
            max_waiting: queue.max_waiting.value as usize,
            max_waiting_tokens: queue.max_waiting_tokens.value,
            prefix_cache: queue.prefix_cache.value,
            latency_target: queue.latency_target.value,
            ..EngineConfig::default()
        }
    }
}

/// Registers metrics of the process itself.
fn register_process_metrics(registry: &mut Registry) {
    registry.register(
        "penstock_log_lines_dropped",
        "Log lines that could not be written",
        terminal::dropped_lines(),
    );
    registry.register(
        "penstock_panics",
        "Panics. Each is a bug in Penstock; the log has its location",
        logs::panics(),
    );
}

impl RunningEngine {
    /// Waits until the engine accepts requests. Calls `progress` with the phase, the completed
    /// units and the total.
    ///
    /// # Errors
    /// The workers' message if they cannot start.
    pub async fn ready(&self, mut progress: impl FnMut(&str, u64, u64)) -> Outcome<Limits> {
        let mut state = self.engine.watch();
        loop {
            match &*state.borrow_and_update() {
                EngineState::Loading { phase, done, total } => progress(phase, *done, *total),
                EngineState::Stopped { reason } => return Err(Failure::runtime(reason.clone())),
                EngineState::Ready => {
                    if let Some(limits) = self.engine.limits() {
                        return Ok(limits);
                    }
                }
                EngineState::Restarting { .. } | EngineState::Draining => {}
            }
            if state.changed().await.is_err() {
                return Err(Failure::runtime("the engine ended while it was starting"));
            }
        }
    }

    /// Waits until the engine stops and returns the reason.
    pub async fn stopped(&self) -> String {
        let mut state = self.engine.watch();
        let stopped = state
            .wait_for(|state| matches!(state, EngineState::Stopped { .. }))
            .await;
        match stopped.as_deref() {
            Ok(EngineState::Stopped { reason }) => reason.clone(),
            _ => "the engine ended".to_owned(),
        }
    }

    /// Lets running requests finish within `grace`, then stops the workers.
    pub async fn stop(&self, grace: Duration) {
        self.engine.drain(grace).await;
    }
}
