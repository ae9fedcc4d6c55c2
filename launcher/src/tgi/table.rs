//! Every flag and variable of TGI's launcher and its effect here. A test compares the same table in
//! `docs/tgi.md`.

use super::convert::{
    batch_prompts, body_bytes, host, max_best_of, max_input, max_top_tokens, memory_share,
    negated_bool, no_grammars, not_zero, only, quantize, stop_strings, threads,
};
use crate::limits::Limits;

/// One setting of TGI's launcher.
#[derive(Clone, Copy)]
pub struct Row {
    /// The flag without dashes; its variable is the same in capitals.
    pub flag: &'static str,
    /// The forms in which it can be set.
    pub form: Form,
    /// Its effect.
    pub mapping: FlagMapping,
}

/// The forms of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `--flag value`, or the variable.
    Value,
    /// The same, with a one-letter name.
    Short(char),
    /// `--flag` alone, or the variable with a boolean.
    Switch,
    /// `--flag` alone; no variable.
    FlagOnly(char),
    /// The variable alone.
    Variable,
}

/// The effect of a setting.
#[derive(Clone, Copy)]
pub enum FlagMapping {
    /// This flag of `penstock serve` with the same value.
    Flag(&'static str),
    /// This flag with a converted value.
    Converted(&'static str, Convert, &'static str),
    /// This flag with this value.
    Fixed(&'static str, &'static str),
    /// A limit that `penstock serve` has no flag for.
    Limit(Limit, &'static str),
    /// Accepted without effect if the check allows the value, because Penstock does so anyway.
    NoEffect(Check, &'static str),
    /// Refused.
    Refused(&'static str),
}

/// A conversion of TGI's value to one of `penstock serve`; `None` omits the flag.
pub type Convert = fn(&str) -> Result<Option<String>, String>;
/// A function that sets a limit from a value.
pub type Limit = fn(&mut Limits, &str) -> Result<(), String>;
/// A check of a value; the error says what is wrong.
pub type Check = fn(&str) -> Result<(), String>;

const fn row(flag: &'static str, form: Form, mapping: FlagMapping) -> Row {
    Row {
        flag,
        form,
        mapping,
    }
}

const fn any(_: &str) -> Result<(), String> {
    Ok(())
}

use FlagMapping::{Converted, Fixed, Flag, Limit as Limited, NoEffect, Refused};
use Form::{FlagOnly, Short, Switch, Value, Variable};

/// All settings in the order of TGI's `--help`, then those with only a variable.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    row("model-id", Value, Flag("model")),
    row("revision", Value, Flag("revision")),
    row("validation-workers", Value, Limited(threads, "tokenizer threads")),
    row("sharded", Value, NoEffect(|v| only(v, &["false", "true"]),
        "--num-shard alone sets the number of workers; the default is 1")),
    row("num-shard", Value, Flag("tp")),
    row("quantize", Value, Converted("quantize", quantize, "`compressed-tensors` needs no flag: config.json names it; `exl2` is refused")),
    row("speculate", Value, NoEffect(|v| only(v, &["0"]), "speculative decoding is not supported yet")),
    row("dtype", Value, Flag("dtype")),
    row("kv-cache-dtype", Value, Flag("kv-dtype")),
    row("trust-remote-code", Switch, NoEffect(any, "code in a model's repository never runs; loading a model that needs it fails")),
    row("max-concurrent-requests", Value, Flag("max-waiting")),
    row("max-best-of", Value, Limited(max_best_of, "maximum `best_of` and `n` of a request")),
    row("max-stop-sequences", Value, Limited(stop_strings, "maximum stop strings of a request; the default is 16, in TGI 4")),
    row("max-top-n-tokens", Value, Limited(max_top_tokens, "maximum top logprobs per token, on every route; at most 20, which is the default")),
    row("max-input-tokens", Value, Limited(max_input, "maximum tokens of a prompt")),
    row("max-input-length", Value, Limited(max_input, "maximum tokens of a prompt (the older name)")),
    row("max-total-tokens", Value, Flag("max-len")),
    row("waiting-served-ratio", Value, NoEffect(any, "prefill and decode share every step, so no request waits for a batch")),
    row("max-batch-prefill-tokens", Value, Flag("max-step-tokens")),
    row("max-batch-total-tokens", Value, NoEffect(any, "the KV pool's size depends on free memory, as in TGI with flash attention")),
    row("max-waiting-tokens", Value, NoEffect(any, "prefill and decode share every step, so no request waits for a batch")),
    row("max-batch-size", Value, Flag("max-slots")),
    row("cuda-graphs", Value, NoEffect(not_zero, "graphs are captured for a fixed list of sizes and cannot be disabled")),
    row("hostname", Value, Converted("host", host, "a value that is no IP address becomes 0.0.0.0, as in TGI, because containers set HOSTNAME; the default is 0.0.0.0")),
    row("port", Short('p'), Flag("port")),
    row("prometheus-port", Value, NoEffect(any, "/metrics is on the main port, as in TGI")),
    row("shard-uds-path", Value, NoEffect(any, "the workers' sockets are in a private directory")),
    row("master-addr", Value, NoEffect(|v| only(v, &["localhost", "127.0.0.1"]), "all workers are on this host")),
    row("master-port", Value, NoEffect(any, "the workers find each other through a file")),
    row("huggingface-hub-cache", Value, Flag("hub-cache")),
    row("weights-cache-override", Value, Refused("pass the directory to --model-id")),
    row("disable-custom-kernels", Switch, NoEffect(any, "it concerns kernels of models that Penstock does not support")),
    row("cuda-memory-fraction", Value, Converted("memory-fraction", memory_share, "multiplied by 0.9, because TGI reserves as much")),
    row("rope-scaling", Value, Refused("the model's config.json defines the RoPE scaling")),
    row("rope-factor", Value, Refused("the model's config.json defines the RoPE scaling")),
    row("json-output", Switch, Fixed("log-format", "json")),
    row("otlp-endpoint", Value, Refused("traces are not exported yet")),
    row("otlp-service-name", Value, NoEffect(any, "it is used only with --otlp-endpoint")),
    row("cors-allow-origin", Value, Flag("cors-allow-origin")),
    row("api-key", Value, Flag("api-key")),
    row("watermark-gamma", Value, Flag("watermark-gamma")),
    row("watermark-delta", Value, Flag("watermark-delta")),
    row("ngrok", Switch, Refused("tunnels are not supported; in TGI the flag ends the server")),
    row("ngrok-authtoken", Value, Refused("tunnels are not supported")),
    row("ngrok-edge", Value, Refused("tunnels are not supported")),
    row("tokenizer-config-path", Value, Flag("chat-template")),
    row("disable-grammar-support", Switch, Limited(no_grammars, "requests with a grammar are refused")),
    row("env", FlagOnly('e'), Refused("`penstock serve --explain` prints the resolved settings")),
    row("max-client-batch-size", Value, Limited(batch_prompts, "maximum prompts of a completion request")),
    row("lora-adapters", Value, Refused("LoRA adapters are not supported yet")),
    row("usage-stats", Value, NoEffect(any, "Penstock never sends usage data")),
    row("payload-limit", Value, Limited(body_bytes, "maximum bytes of a request's body")),
    row("enable-prefill-logprobs", Switch, NoEffect(any, "every request may set `decoder_input_details`")),
    row("graceful-termination-timeout", Short('g'), Flag("grace")),
    row("max-image-fetch-size", Value, NoEffect(any, "images are not supported")),
    row("attention", Variable, NoEffect(any, "the device determines the kernel")),
    row("prefix-caching", Variable, Converted("no-prefix-cache", negated_bool, "a false value disables the prefix cache")),
    row("prefill-chunking", Variable, NoEffect(any, "prefill is always chunked")),
    row("use-flash-attention", Variable, NoEffect(any, "the device determines the kernel")),
    row("tgi-wiggle-room", Variable, Refused("use CUDA_MEMORY_FRACTION")),
    row("log-colorize", Variable, NoEffect(any, "logs have no colours; use --json-output for log collectors")),
    row("compute-type", Variable, NoEffect(any, "`x-compute-type` contains the device's name")),
    row("log-level", Variable, Flag("log-level")),
];
