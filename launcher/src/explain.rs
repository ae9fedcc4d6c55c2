//! `penstock serve --explain`: every resolved value with its reason.

use std::fmt::{Display, Write};

use penstock_engine::LATENCY_TARGET;
use penstock_request::GenerationDefaults;

use crate::hardware::CudaDevice;
use crate::quantize::Quantize;
use crate::resolve::{Bounds, Life, Plan};
use crate::states::LEAST_STATES;
use crate::values::ResolvedValue;
use crate::values::{ByteSize, Device};

/// The output, one line per value.
struct Page(String);

impl Page {
    fn title(&mut self, title: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        let _ = writeln!(self.0, "{gap}{title}");
    }

    fn line(&mut self, name: &str, value: impl Display, why: &str) {
        let value = value.to_string();
        let line = format!("  {name:<18} {value:<14} {why}");
        let _ = writeln!(self.0, "{}", line.trim_end());
    }

    fn resolved<T: Display>(&mut self, name: &str, decided: &ResolvedValue<T>) {
        self.line(name, &decided.value, &decided.why);
    }

    /// Adds a line for a value that the worker determines if it is 0.
    fn measured(&mut self, name: &str, decided: &ResolvedValue<u32>) {
        match decided.value {
            0 => self.line(name, "measured", &decided.why),
            value => self.line(name, value, &decided.why),
        }
    }
}

/// Returns the plan, the limits of the HTTP server and the settings of the workers' life as text.
/// `devices` are the host's GPUs, for an estimate of what a worker will measure. `defaults` are
/// those of requests.
pub fn explain(
    plan: &Plan,
    bounds: &Bounds,
    life: &Life,
    devices: &[CudaDevice],
    defaults: &GenerationDefaults,
) -> String {
    let mut page = Page(String::new());
    let model = &plan.model;
    page.title("model");
    page.line("directory", model.directory.display(), "");
    page.line("family", &model.family, &shape(plan));
    if let Some(states) = model.states {
        page.line(
            "recurrent",
            states.layers,
            "layers with a state per sequence",
        );
    }
    if let Some(experts) = model.experts {
        let per_token = format!("{} of each layer's for a token", experts.per_token);
        page.line("experts", experts.count, &per_token);
    }
    page.line("dtype", plan.dtype.value.name(), &plan.dtype.why);
    let quantize = plan.quantize.value.map_or("no", Quantize::name);
    page.line("quantize", quantize, &plan.quantize.why);
    let backend = &plan.model_backend;
    page.line("model-backend", backend.value.name(), &backend.why);
    page.resolved("max-len", &plan.limits.max_sequence_tokens);
    let sampling = if defaults.given().is_empty() {
        "none".to_owned()
    } else {
        defaults.to_string()
    };
    page.line("defaults", sampling, "from --generation-config");
    page.title("workers");
    page.line("device", plan.device.value.name(), &plan.device.why);
    for device in devices {
        page.line("", ByteSize(device.memory), &device.name);
    }
    page.resolved("tp", &plan.tp);
    if model.experts.is_some() {
        page.resolved("ep", &plan.ep);
    }
    page.resolved("threads", &plan.threads);
    page.title("steps");
    page.measured("max-slots", &plan.limits.max_slots);
    page.measured("max-step-tokens", &plan.limits.max_step_tokens);
    let latency = &plan.queue.latency_target;
    page.line(
        "latency-target",
        latency.value.map_or_else(
            || format!("{} ms or more", LATENCY_TARGET.as_millis()),
            |typed| format!("{} ms", typed.as_millis()),
        ),
        &latency.why,
    );
    page.title("queue");
    page.resolved("connections", &bounds.connections);
    page.resolved("body-memory", &bounds.bodies);
    page.resolved("response-store", &bounds.responses);
    page.resolved("max-waiting", &plan.queue.max_waiting);
    page.resolved("max-waiting-tokens", &plan.queue.max_waiting_tokens);
    restarts(&mut page, life);
    memory(&mut page, plan, devices);
    page.0
}

fn restarts(page: &mut Page, life: &Life) {
    page.title("restarts");
    let standby = if life.standby.value { "yes" } else { "no" };
    page.line("standby", standby, &life.standby.why);
    let losses = life.exit_after_losses.value;
    let losses = losses.map_or("never".to_owned(), |losses| losses.to_string());
    page.line("exit-after-losses", losses, &life.exit_after_losses.why);
    page.resolved("max-restart-wait", &life.max_restart_wait);
    page.resolved("keep-workers", &life.keep_workers);
}

fn memory(page: &mut Page, plan: &Plan, devices: &[CudaDevice]) {
    let memory = &plan.memory;
    page.title("memory per worker");
    page.resolved("memory-fraction", &memory.fraction);
    page.line(
        "weights",
        ByteSize(memory.weight_bytes),
        "from the weight files' sizes",
    );
    page.resolved("block-tokens", &memory.block_tokens);
    if plan.model.attends() {
        page.line(
            "kv-dtype",
            memory.kv_dtype.value.name(),
            &memory.kv_dtype.why,
        );
        page.line("block", ByteSize(memory.block_bytes), &block(plan));
    }
    if memory.state_bytes > 0 {
        let why = "of one sequence, and of each checkpoint of the prefix cache";
        page.line("states", ByteSize(memory.state_bytes), why);
    }
    let (bytes, why) = kv_bytes(plan, devices);
    let Some(bytes) = bytes else {
        page.line("kv-memory", "measured", &why);
        return;
    };
    page.line("kv-memory", ByteSize(bytes), &why);
    rooms(page, plan, bytes);
    let prefix = if plan.queue.prefix_cache.value {
        "kept"
    } else {
        "not kept"
    };
    page.line("prefix-cache", prefix, &plan.queue.prefix_cache.why);
}

/// Adds a line for what this many bytes have room for.
fn rooms(page: &mut Page, plan: &Plan, bytes: u64) {
    let memory = &plan.memory;
    let states = memory.state_bytes * LEAST_STATES;
    let Some(blocks) = bytes.saturating_sub(states).checked_div(memory.block_bytes) else {
        let rooms = bytes.checked_div(memory.state_bytes).unwrap_or(0);
        let why = "states, at most: of sequences of any length, and checkpoints";
        page.line("room", rooms, why);
        return;
    };
    let tokens = blocks * u64::from(memory.block_tokens.value);
    let longest = u64::from(plan.limits.max_sequence_tokens.value);
    let sequences = tokens / longest;
    let mut why = format!("{tokens} tokens: {sequences} sequence(s) of maximum length");
    if memory.state_bytes > 0 {
        why += ", at most: the worker shares the memory out between them and states";
    }
    page.line("blocks", blocks, &why);
}

/// Returns the model's layers and heads.
fn shape(plan: &Plan) -> String {
    let model = &plan.model;
    if !model.attends() {
        return "no layer has attention".to_owned();
    }
    let (layers, heads, dim) = (model.layers, model.heads, model.head_dim);
    let kv = if model.latent {
        format!("latents of {dim} elements per token")
    } else {
        format!("{} KV heads, head dimension {dim}", model.kv_heads)
    };
    let full = model.full.map_or(String::new(), |full| {
        let kv = match model.latent {
            true => format!("latents of {} elements", full.head_dim),
            false => format!(
                "{} KV heads, head dimension {}",
                full.kv_heads, full.head_dim
            ),
        };
        format!("; {} layers with full attention, {kv}", full.layers)
    });
    format!("{layers} layers, {heads} query heads, {kv}{full}")
}

/// Returns what a block's bytes consist of.
fn block(plan: &Plan) -> String {
    let stored = plan.memory.kv_dtype.value;
    let head = |elements: u64| {
        let head = format!(
            "{elements} elements x {} bits",
            stored.bits(plan.dtype.value)
        );
        match stored.parameter_bytes() {
            0 => head,
            bytes => format!("({head} + {bytes} bytes of scale and zero)"),
        }
    };
    let own = head(plan.model.head_dim);
    let (layers, tokens) = (plan.model.layers, plan.memory.block_tokens.value);
    if plan.model.latent {
        let rows = format!("{layers} layers x {own}");
        let rows = match plan.model.full {
            None => rows,
            Some(full) => {
                format!(
                    "({rows} + {} layers x {})",
                    full.layers,
                    head(full.head_dim)
                )
            }
        };
        return format!("{rows} x {tokens} tokens, on every worker");
    }
    let heads = plan.model.rank_kv_heads(plan.tp.value);
    if plan.model.index > 0 {
        let row = head(2 * plan.model.head_dim + plan.model.index); // value, key, index key
        let rows = format!("{layers} layers x {heads} heads x {row}");
        return match plan.model.full {
            None => format!("{rows} x {tokens} tokens"),
            Some(full) => format!(
                "({rows} + 2 (key, value) x {} layers x {heads} heads x {own}) x {tokens} tokens",
                full.layers
            ),
        };
    }
    let layers = format!("{layers} layers x {heads} heads x {own}");
    let Some(full) = plan.model.full else {
        return format!("2 (key, value) x {layers} x {tokens} tokens");
    };
    let (heads, one) = (full.rank_heads(plan.tp.value), head(full.head_dim));
    let full = format!("{} layers x {heads} heads x {one}", full.layers);
    format!("2 (key, value) x ({layers} + {full}) x {tokens} tokens")
}

/// Returns the bytes of the KV pool. On CUDA they are an estimate, because the worker measures the
/// activations.
fn kv_bytes(plan: &Plan, devices: &[CudaDevice]) -> (Option<u64>, String) {
    let decided = &plan.memory.kv_bytes;
    if decided.value.is_some() || plan.device.value == Device::Cpu {
        return (decided.value, decided.why.clone());
    }
    let Some(device) = devices.iter().min_by_key(|device| device.memory) else {
        return (None, decided.why.clone());
    };
    let share = device.memory as f64 * f64::from(plan.memory.fraction.value);
    let room = (share as u64).saturating_sub(plan.memory.weight_bytes);
    (
        Some(room),
        "upper bound: the worker measures the memory of a step and uses the rest".to_owned(),
    )
}
