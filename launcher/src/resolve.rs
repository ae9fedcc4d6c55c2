//! Resolves typed settings, a model and a host to one plan with a reason for every value.
//! Contradictions are errors here, before any process starts.

use std::time::Duration;

use penstock_http::RouterConfig;

use crate::cli::{EngineArgs, HttpArgs, LifeArgs};
use crate::descriptors::Descriptors;
use crate::error::{Failure, Outcome};
use crate::hardware::Hardware;
use crate::model::ModelFacts;
use crate::quantize::Quantize;
use crate::settings::{Source, Sources};
use crate::states::{LEAST_STATES, States, TYPICAL_STATES};
use crate::values::{
    ByteSize, Device, DeviceChoice, Dtype, KvDtype, ModelBackend, ResolvedValue, Seconds,
};

/// All resolved values of an engine.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The model that workers load.
    pub model: ModelFacts,
    /// The device of tensors; for the workers.
    pub device: ResolvedValue<Device>,
    /// The dtype; for the workers.
    pub dtype: ResolvedValue<Dtype>,
    /// The weight format that was typed; for the workers, which know the checkpoint's.
    pub quantize: ResolvedValue<Option<Quantize>>,
    /// What may compute the model; for the workers.
    pub model_backend: ResolvedValue<ModelBackend>,
    /// The number of workers that share each layer.
    pub tp: ResolvedValue<u32>,
    /// Whether these workers share the experts of a layer, not each expert; for the workers.
    pub ep: ResolvedValue<bool>,
    /// CPU threads per worker; the worker decides if it is 0.
    pub threads: ResolvedValue<u32>,
    /// Limits of steps and sequences; for the workers, which may lower them.
    pub limits: Limits,
    /// KV memory; for the workers.
    pub memory: Memory,
    /// Queue limits and pace; for the scheduler.
    pub queue: Queue,
}

/// Limits of steps and sequences.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The maximum tokens of one sequence, prompt and output together.
    pub max_sequence_tokens: ResolvedValue<u32>,
    /// The maximum number of running sequences.
    pub max_slots: ResolvedValue<u32>,
    /// The maximum tokens of one step.
    pub max_step_tokens: ResolvedValue<u32>,
}

/// KV memory of one rank.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The size of the pool in bytes. With `None`, the worker measures the free memory after
    /// loading.
    pub kv_bytes: ResolvedValue<Option<u64>>,
    /// The share of the device's memory that a worker may use.
    pub fraction: ResolvedValue<f32>,
    /// Tokens per KV block.
    pub block_tokens: ResolvedValue<u32>,
    /// How keys and values are stored.
    pub kv_dtype: ResolvedValue<KvDtype>,
    /// Bytes per KV block, for `--explain` and the checks here; 0 if no layer has keys and values.
    pub block_bytes: u64,
    /// Bytes of a sequence's states in recurrent layers; 0 if the model has none.
    pub state_bytes: u64,
    /// The estimated size of the weights in bytes, for `--explain`.
    pub weight_bytes: u64,
}

/// Queue limits and pace.
#[derive(Clone, Debug)]
pub struct Queue {
    /// The maximum number of waiting requests.
    pub max_waiting: ResolvedValue<u32>,
    /// The maximum number of waiting prompt tokens.
    pub max_waiting_tokens: ResolvedValue<u64>,
    /// The longest gap between tokens of running sequences that prefills may cause; None: the
    /// scheduler's default.
    pub latency_target: ResolvedValue<Option<Duration>>,
    /// Whether computed KV blocks are kept for later requests.
    pub prefix_cache: ResolvedValue<bool>,
}

/// The most tokens of a sequence where nothing in a model limits them; the worker has the same limit.
const MOST_TOKENS: u32 = 1 << 20;

struct Resolver<'a> {
    typed: &'a EngineArgs,
    sources: &'a Sources,
    model: &'a ModelFacts,
    hardware: &'a Hardware,
}

/// Resolves every value.
///
/// # Errors
/// If a setting contradicts the model, the host or another setting.
pub fn resolve(
    typed: &EngineArgs,
    sources: &Sources,
    model: &ModelFacts,
    hardware: &Hardware,
) -> Outcome<Plan> {
    Resolver {
        typed,
        sources,
        model,
        hardware,
    }
    .plan()
}

/// Resolved limits of the HTTP server.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The maximum bytes of request bodies in memory; for the router.
    pub bodies: ResolvedValue<ByteSize>,
    /// The maximum bytes of stored responses, for `--explain`.
    pub responses: ResolvedValue<ByteSize>,
    /// The maximum number of open connections; for the router.
    pub connections: ResolvedValue<usize>,
}

/// Resolves the limits of the HTTP server beside `workers` workers. Raises the process's limit of
/// open files, because they depend on it.
pub fn resolve_http(typed: &HttpArgs, sources: &Sources, workers: u32) -> Bounds {
    let wanted = RouterConfig::new("").max_connections;
    Bounds {
        bodies: ResolvedValue::new(typed.body_memory, sources.get("body-memory").description()),
        responses: ResolvedValue::new(
            typed.response_store,
            sources.get("response-store").description(),
        ),
        connections: Descriptors::raise().connections(wanted, workers),
    }
}

/// Resolved settings of the workers' life.
#[derive(Clone, Debug)]
pub struct Life {
    /// How long the workers outlive the server.
    pub keep_workers: ResolvedValue<Seconds>,
    /// Whether a second process per worker is ready to replace a lost one.
    pub standby: ResolvedValue<bool>,
    /// The losses in a row after which the server exits; `None` = it never does.
    pub exit_after_losses: ResolvedValue<Option<u32>>,
    /// How long new requests wait in the queue for restarting workers.
    pub max_restart_wait: ResolvedValue<Seconds>,
}

/// Resolves the settings of the workers' life.
pub fn resolve_life(typed: &LifeArgs, sources: &Sources) -> Life {
    let why = |flag| sources.get(flag).description();
    Life {
        keep_workers: ResolvedValue::new(typed.keep_workers, why("keep-workers")),
        standby: ResolvedValue::new(typed.standby, why("standby")),
        exit_after_losses: ResolvedValue::new(typed.exit_after_losses, why("exit-after-losses")),
        max_restart_wait: ResolvedValue::new(typed.max_restart_wait, why("max-restart-wait")),
    }
}

impl Resolver<'_> {
    fn plan(&self) -> Outcome<Plan> {
        let device = self.device()?;
        let tp = self.tp(device.value)?;
        let dtype = self.dtype(device.value)?;
        let limits = self.limits(device.value)?;
        let memory = self.memory(device.value, dtype.value, tp.value, &limits)?;
        Ok(Plan {
            model: self.model.clone(),
            threads: self.threads(device.value, tp.value),
            queue: self.queue(),
            quantize: self.quantize()?,
            model_backend: self.typed("model-backend", self.typed.model_backend),
            ep: self.ep(tp.value)?,
            device,
            dtype,
            tp,
            limits,
            memory,
        })
    }

    fn typed<T>(&self, flag: &str, value: T) -> ResolvedValue<T> {
        ResolvedValue::new(value, self.sources.get(flag).description())
    }

    fn or_default<T>(
        &self,
        flag: &str,
        value: Option<T>,
        default: T,
        why: &str,
    ) -> ResolvedValue<T> {
        match value {
            Some(value) => self.typed(flag, value),
            None => ResolvedValue::new(default, why),
        }
    }

    fn device(&self) -> Outcome<ResolvedValue<Device>> {
        let found = self.hardware.cuda_devices;
        match self.typed.device {
            DeviceChoice::Cpu => Ok(self.typed("device", Device::Cpu)),
            DeviceChoice::Cuda if found == 0 && self.typed.worker.is_empty() => {
                Err(Failure::runtime(
                    "--device cuda: this host has no CUDA device (no /dev/nvidia0, or \
                     CUDA_VISIBLE_DEVICES hides it). Use --device cpu, or install the driver.",
                ))
            }
            DeviceChoice::Cuda => Ok(self.typed("device", Device::Cuda)),
            DeviceChoice::Auto if found > 0 => Ok(ResolvedValue::new(
                Device::Cuda,
                format!("{found} CUDA device(s) found"),
            )),
            DeviceChoice::Auto => Ok(ResolvedValue::new(Device::Cpu, "no CUDA device found")),
        }
    }

    fn tp(&self, device: Device) -> Outcome<ResolvedValue<u32>> {
        let attached = u32::try_from(self.typed.worker.len()).unwrap_or(u32::MAX);
        let tp = match (self.typed.tp, attached) {
            (typed, 0) => self.or_default("tp", typed, 1, "one worker unless --tp is set"),
            (None, attached) => ResolvedValue::new(attached, "one rank per --worker"),
            (Some(tp), attached) if tp == attached => self.typed("tp", tp),
            (Some(tp), attached) => {
                return Err(Failure::runtime(format!(
                    "--tp {tp} does not match {attached} --worker address(es): give one for each \
                     rank, or leave --tp out."
                )));
            }
        };
        let ranks = u64::from(tp.value);
        if !self.divides_heads(ranks) {
            return Err(self.indivisible(ranks));
        }
        let found = self.hardware.cuda_devices;
        if device == Device::Cuda && attached == 0 && tp.value > found {
            return Err(Failure::runtime(format!(
                "--tp {ranks} needs as many CUDA devices, and this host has {found}."
            )));
        }
        Ok(tp)
    }

    /// Returns the error for a number of ranks that cannot share the heads.
    fn indivisible(&self, ranks: u64) -> Failure {
        let mut sizes = Vec::new();
        if self.model.attends() {
            sizes.push(format!("num_attention_heads {}", self.model.heads));
            if !self.model.latent {
                sizes.push(format!("num_key_value_heads {}", self.model.kv_heads));
            }
        }
        if let Some(full) = self.model.full.filter(|_| !self.model.latent) {
            sizes.push(format!("{} of full attention", full.kv_heads));
        }
        let states = self.model.states.map(|states| states.shared);
        sizes.extend(states.map(|(name, count)| format!("{name} {count}")));
        let most = match self.model.attends() {
            true => self.model.heads,
            false => states.map_or(1, |(_, count)| count),
        };
        let fitting: Vec<String> = (1..=most)
            .filter(|n| self.divides_heads(*n))
            .map(|n| n.to_string())
            .collect();
        Failure::runtime(format!(
            "--tp {ranks} does not divide this model's heads ({}): use one of {}.",
            sizes.join(", "),
            fitting.join(", ")
        ))
    }

    /// Returns whether ranks can share the heads equally. Several may have the same KV head, and all
    /// have the one row of latents.
    fn divides_heads(&self, ranks: u64) -> bool {
        let shares = |heads: u64| heads.is_multiple_of(ranks) || ranks.is_multiple_of(heads);
        let full = self.model.full.is_none_or(|full| shares(full.kv_heads));
        let shares_kv = shares(self.model.kv_heads) && full;
        let shares_states = |states: States| states.divides(ranks);
        (self.model.latent || shares_kv)
            && self.model.heads.is_multiple_of(ranks)
            && self.model.states.is_none_or(shares_states)
    }

    fn ep(&self, tp: u32) -> Outcome<ResolvedValue<bool>> {
        match (self.typed.ep, self.model.experts) {
            (false, _) => Ok(ResolvedValue::new(
                false,
                "each worker has a part of every expert",
            )),
            (true, None) => Err(Failure::runtime(format!(
                "--ep shares out the experts of a model, and {} has none: leave it out.",
                self.model.family
            ))),
            (true, Some(experts)) if !experts.count.is_multiple_of(u64::from(tp)) => {
                Err(Failure::runtime(format!(
                    "--ep: {tp} workers cannot share {} experts equally: set --tp to a divisor of \
                     that number, or leave --ep out.",
                    experts.count
                )))
            }
            (true, Some(_)) => Ok(self.typed("ep", true)),
        }
    }

    fn dtype(&self, device: Device) -> Outcome<ResolvedValue<Dtype>> {
        if let Some(dtype) = self.typed.dtype.typed() {
            if device == Device::Cuda && dtype == Dtype::Float64 {
                return Err(Failure::runtime(
                    "--dtype float64 runs on the CPU only: add --device cpu.",
                ));
            }
            return Ok(self.typed("dtype", dtype));
        }
        Ok(match (device, self.model.dtype) {
            (Device::Cpu, _) => ResolvedValue::new(Dtype::Float32, "the fastest dtype on CPUs"),
            (Device::Cuda, Some(dtype @ (Dtype::Bfloat16 | Dtype::Float16))) => {
                ResolvedValue::new(dtype, "the checkpoint's dtype")
            }
            (Device::Cuda, _) => {
                ResolvedValue::new(Dtype::Bfloat16, "the checkpoint is not in half precision")
            }
        })
    }

    fn quantize(&self) -> Outcome<ResolvedValue<Option<Quantize>>> {
        let stored = self.model.quantization.as_ref();
        let Some(format) = self.typed.quantize else {
            let why = match stored {
                Some(stored) => format!("the checkpoint is quantized: {}", stored.method),
                None => "the checkpoint is not quantized".to_owned(),
            };
            return Ok(ResolvedValue::new(None, why));
        };
        let name = format.name();
        match stored {
            Some(stored) if !stored.agreeing.contains(&format) => Err(Failure::runtime(format!(
                "--quantize {name} contradicts the checkpoint, whose quantization_config has \
                 quant_method {:?}: leave --quantize out, or serve the unquantized checkpoint.",
                stored.method
            ))),
            None if !format.converts_floats() => Err(Failure::runtime(format!(
                "--quantize {name} needs a checkpoint in that format, and config.json has no \
                 quantization_config: make one with `penstock quantize`, or convert the weights \
                 while loading with another format, such as int4."
            ))),
            _ => Ok(self.typed("quantize", Some(format))),
        }
    }

    fn threads(&self, device: Device, tp: u32) -> ResolvedValue<u32> {
        let cores = self.hardware.cores;
        let (default, why) = match device {
            Device::Cpu => (
                (cores / tp).max(1),
                format!("{cores} core(s) over {tp} worker(s)"),
            ),
            Device::Cuda => (0, "the worker decides".to_owned()),
        };
        self.or_default("threads", self.typed.threads, default, &why)
    }

    fn limits(&self, device: Device) -> Outcome<Limits> {
        let model_limit = self.model.max_tokens;
        self.check_length(model_limit)?;
        let limit_why = match self.model.attends() {
            true => "the model's max_position_embeddings",
            false => "default: nothing in the model limits it",
        };
        let (slots, why) = match device {
            Device::Cuda => (
                0,
                "the worker decides, by the memory left after the weights",
            ),
            Device::Cpu => (32, "default on the CPU"),
        };
        let (step, step_why) = match device {
            Device::Cuda => (0, why),
            Device::Cpu => (512, why),
        };
        Ok(Limits {
            max_sequence_tokens: self.or_default(
                "max-len",
                self.typed.max_len,
                model_limit,
                limit_why,
            ),
            max_slots: self.or_default("max-slots", self.typed.max_slots, slots, why),
            max_step_tokens: self.or_default(
                "max-step-tokens",
                self.typed.max_step_tokens,
                step,
                step_why,
            ),
        })
    }

    /// Verifies that a typed length is not beyond the model's. Without attention there are no
    /// positions, and a base of RoPE may grow, so any length up to `MOST_TOKENS` will do.
    fn check_length(&self, model_limit: u32) -> Outcome<()> {
        let typed = self.typed.max_len.unwrap_or(0);
        let most = model_limit.max(MOST_TOKENS);
        let bounded = self.model.attends() && !self.model.extends;
        if bounded && typed > model_limit {
            return Err(Failure::runtime(format!(
                "--max-len {typed} exceeds the model's context length of {model_limit} tokens \
                 (max_position_embeddings in its config.json): lower it."
            )));
        }
        if !bounded && typed > most {
            return Err(Failure::runtime(format!(
                "--max-len {typed} exceeds {most} tokens, the most of a sequence: lower it."
            )));
        }
        Ok(())
    }

    fn memory(&self, device: Device, dtype: Dtype, tp: u32, limits: &Limits) -> Outcome<Memory> {
        let (share, why) = match device {
            Device::Cuda => (0.9, "default on CUDA"),
            Device::Cpu => (
                0.5,
                "default on the CPU, whose memory other processes share",
            ),
        };
        let fraction = self.or_default("memory-fraction", self.typed.memory_fraction, share, why);
        if self.model.latent && self.typed.kv_dtype != KvDtype::Auto {
            return Err(Failure::runtime(format!(
                "--kv-dtype {} is not supported for {}, which caches latents (multi-head latent \
                 attention): leave it out.",
                self.typed.kv_dtype.name(),
                self.model.family
            )));
        }
        if !self.model.attends() && self.typed.kv_dtype != KvDtype::Auto {
            return Err(Failure::runtime(format!(
                "--kv-dtype {} is not supported for {}, which has no keys and values: leave it out.",
                self.typed.kv_dtype.name(),
                self.model.family
            )));
        }
        let head_bytes = |dim| self.typed.kv_dtype.head_bytes(dtype, dim);
        let mut memory = Memory {
            block_bytes: self.model.kv_token_bytes(head_bytes, tp)
                * u64::from(self.typed.block_tokens),
            state_bytes: (self.model.states).map_or(0, |states| states.bytes(dtype, tp)),
            weight_bytes: (self.model).rank_weight_bytes(device, dtype, self.typed.quantize, tp),
            block_tokens: self.typed("block-tokens", self.typed.block_tokens),
            kv_dtype: self.typed("kv-dtype", self.typed.kv_dtype),
            kv_bytes: ResolvedValue::new(
                None,
                "the device memory that is free after loading the weights",
            ),
            fraction,
        };
        if let Some(ByteSize(bytes)) = self.typed.kv_memory {
            memory.kv_bytes = self.typed("kv-memory", Some(bytes));
            self.check_one_sequence("--kv-memory", bytes, &memory, limits)?;
        } else if device == Device::Cpu && self.typed.worker.is_empty() {
            memory.kv_bytes = self.host_kv(tp, &memory, limits);
            let bytes = memory.kv_bytes.value.unwrap_or(0);
            self.check_one_sequence("free host memory", bytes, &memory, limits)?;
        }
        Ok(memory)
    }

    /// Returns the pool's size on the CPU: enough for all slots at the maximum length, or the rest
    /// of the allowed share of free memory if that is less.
    fn host_kv(&self, tp: u32, memory: &Memory, limits: &Limits) -> ResolvedValue<Option<u64>> {
        let slots = u64::from(limits.max_slots.value);
        let one = blocks_of_one(memory, limits) * memory.block_bytes;
        let states = (slots * TYPICAL_STATES).max(LEAST_STATES) * memory.state_bytes;
        let wanted = slots * one + states;
        let share = self.hardware.free_memory as f64 * f64::from(memory.fraction.value);
        let room = (share as u64 / u64::from(tp)).saturating_sub(memory.weight_bytes);
        if wanted <= room {
            return ResolvedValue::new(Some(wanted), "every slot at the maximum length");
        }
        let why = format!(
            "{} of free host memory, minus the weights",
            memory.fraction.value
        );
        ResolvedValue::new(Some(room), why)
    }

    /// Verifies that one sequence fits. Layers with a sliding window need less than all blocks;
    /// the worker, which knows how much, checks such models.
    fn check_one_sequence(
        &self,
        what: &str,
        bytes: u64,
        memory: &Memory,
        limits: &Limits,
    ) -> Outcome<()> {
        let states = LEAST_STATES * memory.state_bytes;
        let needed = blocks_of_one(memory, limits) * memory.block_bytes + states;
        if self.model.sliding || bytes >= needed {
            return Ok(());
        }
        let Some(blocks) = bytes.saturating_sub(states).checked_div(memory.block_bytes) else {
            return Err(Failure::runtime(format!(
                "{what} of {} is too small for one sequence, whose {LEAST_STATES} states need {}: \
                 set --kv-memory to at least that.",
                ByteSize(bytes),
                ByteSize(needed),
            )));
        };
        let tokens = blocks * u64::from(memory.block_tokens.value);
        Err(Failure::runtime(format!(
            "{what} of {} holds {tokens} tokens, but one sequence of {} tokens needs {}: set \
             --kv-memory to at least that, or lower --max-len.",
            ByteSize(bytes),
            limits.max_sequence_tokens.value,
            ByteSize(needed),
        )))
    }

    fn queue(&self) -> Queue {
        let typed = self.typed;
        let latency = typed.latency_target.map(Duration::from_millis);
        Queue {
            max_waiting: self.typed("max-waiting", typed.max_waiting),
            max_waiting_tokens: self.typed("max-waiting-tokens", typed.max_waiting_tokens),
            latency_target: self.typed("latency-target", latency),
            prefix_cache: match self.sources.get("no-prefix-cache") {
                Source::Default => ResolvedValue::new(true, "default"),
                source => ResolvedValue::new(!typed.no_prefix_cache, source.description()),
            },
        }
    }
}

fn blocks_of_one(memory: &Memory, limits: &Limits) -> u64 {
    let tokens = u64::from(limits.max_sequence_tokens.value);
    tokens.div_ceil(u64::from(memory.block_tokens.value))
}
