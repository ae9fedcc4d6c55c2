//! Every flag and variable of TGI's launcher, and what Penstock makes of it. `docs/tgi.md` holds the
//! same table, which a test compares.

use super::convert::{
    batch_prompts, body_bytes, host, max_best_of, max_input, max_top_tokens, memory_share,
    negated_bool, no_grammars, not_zero, only, origins, stop_strings, threads,
};
use crate::limits::Limits;

/// One setting of TGI's launcher.
#[derive(Clone, Copy)]
pub struct Row {
    /// The flag without dashes; its variable is the same in capitals.
    pub flag: &'static str,
    /// Where it can be set.
    pub form: Form,
    /// What becomes of it.
    pub mapping: FlagMapping,
}

/// Where a setting can be set, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `--flag value`, or the variable.
    Value,
    /// The same, with a one-letter name.
    Short(char),
    /// `--flag` alone, or the variable with a truth value.
    Switch,
    /// `--flag` alone; no variable.
    FlagOnly(char),
    /// Only the variable.
    Variable,
}

/// What becomes of a setting.
#[derive(Clone, Copy)]
pub enum FlagMapping {
    /// This flag of `penstock serve`, with the same value.
    Flag(&'static str),
    /// This flag, with a value made from the given one.
    Converted(&'static str, Convert, &'static str),
    /// This flag with this value.
    Fixed(&'static str, &'static str),
    /// A limit that `penstock serve` has no flag for.
    Limit(Limit, &'static str),
    /// Accepted if the check allows the value: Penstock does so anyway.
    NoEffect(Check, &'static str),
    /// Refused.
    Refused(&'static str),
}

/// Makes a value of `penstock serve` from one of TGI's; none leaves the flag out.
pub type Convert = fn(&str) -> Result<Option<String>, String>;
/// Takes over a value.
pub type Limit = fn(&mut Limits, &str) -> Result<(), String>;
/// Says what is wrong with a value.
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

/// All of them, in the order of TGI's `--help`, then what only a variable sets.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    row("model-id", Value, Flag("model")),
    row("revision", Value, Flag("revision")),
    row("validation-workers", Value, Limited(threads, "threads that tokenize")),
    row("sharded", Value, NoEffect(|v| only(v, &["false", "true"]),
        "the number of workers is --num-shard alone, 1 without it")),
    row("num-shard", Value, Flag("tp")),
    row("quantize", Value, Refused("quantized weights are not offered yet; serve a checkpoint in bfloat16 or float16")),
    row("speculate", Value, NoEffect(|v| only(v, &["0"]), "speculation is not offered yet: 0 is accepted")),
    row("dtype", Value, Flag("dtype")),
    row("kv-cache-dtype", Value, Refused("KV blocks have the dtype of the model; other formats are not offered yet")),
    row("trust-remote-code", Switch, NoEffect(any, "no code of a model's repository is ever run; a model that needs it is refused when it loads")),
    row("max-concurrent-requests", Value, Flag("max-waiting")),
    row("max-best-of", Value, Limited(max_best_of, "`best_of` and `n` of a request")),
    row("max-stop-sequences", Value, Limited(stop_strings, "stop strings of a request; 16 without it, where TGI has 4")),
    row("max-top-n-tokens", Value, Limited(max_top_tokens, "alternatives told of a token, on every route; at most 20, which is the default")),
    row("max-input-tokens", Value, Limited(max_input, "tokens of a prompt")),
    row("max-input-length", Value, Limited(max_input, "tokens of a prompt, by an older name")),
    row("max-total-tokens", Value, Flag("max-len")),
    row("waiting-served-ratio", Value, NoEffect(any, "prompts and running answers share every step: nobody waits for a batch")),
    row("max-batch-prefill-tokens", Value, Flag("max-step-tokens")),
    row("max-batch-total-tokens", Value, NoEffect(any, "the KV pool follows from free memory, as in TGI with flash attention")),
    row("max-waiting-tokens", Value, NoEffect(any, "prompts and running answers share every step: nobody waits for a batch")),
    row("max-batch-size", Value, Flag("max-slots")),
    row("cuda-graphs", Value, NoEffect(not_zero, "graphs are captured for a fixed ladder of sizes; they cannot be switched off")),
    row("hostname", Value, Converted("host", host, "what is no IP address becomes 0.0.0.0, as in TGI: containers set HOSTNAME; 0.0.0.0 is the default")),
    row("port", Short('p'), Flag("port")),
    row("prometheus-port", Value, NoEffect(any, "/metrics is on the main port, as in TGI")),
    row("shard-uds-path", Value, NoEffect(any, "the sockets of the workers are in a folder of their own")),
    row("master-addr", Value, NoEffect(|v| only(v, &["localhost", "127.0.0.1"]), "all workers are on this host")),
    row("master-port", Value, NoEffect(any, "the workers find each other through a file")),
    row("huggingface-hub-cache", Value, Flag("hub-cache")),
    row("weights-cache-override", Value, Refused("give --model-id the directory")),
    row("disable-custom-kernels", Switch, NoEffect(any, "it is about kernels of models that Penstock does not have")),
    row("cuda-memory-fraction", Value, Converted("memory-fraction", memory_share, "times 0.9: TGI leaves as much room")),
    row("rope-scaling", Value, Refused("the model's config.json says how its positions are scaled")),
    row("rope-factor", Value, Refused("the model's config.json says how its positions are scaled")),
    row("json-output", Switch, Fixed("log-format", "json")),
    row("otlp-endpoint", Value, Refused("traces are not exported yet")),
    row("otlp-service-name", Value, NoEffect(any, "it names nothing without --otlp-endpoint")),
    row("cors-allow-origin", Value, Limited(origins, "origins of web pages, separated by commas")),
    row("api-key", Value, Refused("there is no authentication yet: let a proxy do it, and listen where only it can reach")),
    row("watermark-gamma", Value, Flag("watermark-gamma")),
    row("watermark-delta", Value, Flag("watermark-delta")),
    row("ngrok", Switch, Refused("tunnels are somebody else's work; in TGI it ends the server")),
    row("ngrok-authtoken", Value, Refused("tunnels are somebody else's work")),
    row("ngrok-edge", Value, Refused("tunnels are somebody else's work")),
    row("tokenizer-config-path", Value, Flag("chat-template")),
    row("disable-grammar-support", Switch, Limited(no_grammars, "a request that asks for a grammar is refused")),
    row("env", FlagOnly('e'), Refused("`penstock serve --explain` tells what would run, and why")),
    row("max-client-batch-size", Value, Limited(batch_prompts, "prompts of a completion request")),
    row("lora-adapters", Value, Refused("adapters are not offered yet")),
    row("usage-stats", Value, NoEffect(any, "nothing is ever reported to anybody")),
    row("payload-limit", Value, Limited(body_bytes, "bytes of a request's body")),
    row("enable-prefill-logprobs", Switch, NoEffect(any, "every request may ask for `decoder_input_details`")),
    row("graceful-termination-timeout", Short('g'), Flag("grace")),
    row("max-image-fetch-size", Value, NoEffect(any, "no image is ever fetched")),
    row("attention", Variable, NoEffect(any, "the kernel follows from the device")),
    row("prefix-caching", Variable, Converted("no-prefix-cache", negated_bool, "a false value switches the prefix cache off")),
    row("prefill-chunking", Variable, NoEffect(any, "prompts are always read in chunks")),
    row("use-flash-attention", Variable, NoEffect(any, "the kernel follows from the device")),
    row("tgi-wiggle-room", Variable, Refused("use CUDA_MEMORY_FRACTION")),
    row("log-colorize", Variable, NoEffect(any, "logs have no colours; --json-output is for machines")),
    row("compute-type", Variable, NoEffect(any, "`x-compute-type` is the name of the device")),
    row("log-level", Variable, Flag("log-level")),
];
