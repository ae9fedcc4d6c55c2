//! Every flag, declared once. `settings` adds the environment variables and the configuration file.
//! The doc comments are the help texts.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::access::AccessArgs;
use crate::limits::Limits;
use crate::parsers::{ReasoningParser, ToolParser};
use crate::quantize::{Quantize, QuantizeParser};
use crate::values::{
    ByteSize, DeviceChoice, DtypeChoice, KvDtype, LogFormat, LogLevel, ModelBackend,
    QuantizeMethod, Seconds,
};

/// A server for large language models.
///
/// Every flag --x can also be set by the environment variable PENSTOCK_X, or as `x = ...` in the
/// TOML file of --config. Flags take precedence over variables, and variables over the file.
#[derive(Debug, Parser)]
#[command(
    name = "penstock",
    version,
    disable_help_subcommand = true,
    args_override_self = true
)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model over HTTP
    Serve(Box<ServeArgs>),
    /// Download a model from the hub to the local cache
    Download(DownloadArgs),
    /// Chat with a model in the terminal
    Chat(Box<ChatArgs>),
    /// Serve with the flags and variables of text-generation-launcher
    Tgi(TgiArgs),
    /// Write a quantized checkpoint of a model
    Quantize(QuantizeArgs),
    /// Convert a checkpoint of pickles (pytorch_model.bin), or in Meta's or Mistral's own layout
    Convert(ConvertArgs),
    /// Measure which kernels are fastest for a model on this GPU
    Tune(TuneArgs),
    /// Detect a watermark in a text
    WatermarkDetect(WatermarkArgs),
}

/// Settings of `penstock serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Settings of the engine.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Settings of the HTTP server.
    #[command(flatten)]
    pub http: HttpArgs,
    /// Settings of the workers' life.
    #[command(flatten)]
    pub life: LifeArgs,
    /// Settings of logs.
    #[command(flatten)]
    pub log: LogArgs,
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub config: Option<PathBuf>,
    /// Print every resolved setting with its reason and exit
    #[arg(long, help_heading = "Configuration")]
    pub explain: bool,
}

/// Settings of an engine, common to `serve`, `chat` and the Python API.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model")]
pub struct EngineArgs {
    /// Directory or hub id of the model [default: brook, which Penstock includes]
    #[arg(long, value_name = "PATH_OR_ID")]
    pub model: Option<String>,
    /// Branch, tag or commit of a hub model [default: main]
    #[arg(long, requires = "model")]
    pub revision: Option<String>,
    /// Chat template that replaces the model's: a Jinja file, or JSON with `chat_template`
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Default sampling parameters and end tokens: `auto` is the model's generation_config.json,
    /// `none` ignores it, else a directory with such a file
    #[arg(long, value_name = "auto|none|DIRECTORY", default_value = "auto")]
    pub generation_config: String,
    /// Directory of the hub's cache [default: that of huggingface_hub]
    #[arg(long, value_name = "DIRECTORY")]
    pub hub_cache: Option<PathBuf>,
    /// Dtype of weights, activations and, without --kv-dtype, KV blocks
    #[arg(long, value_enum, default_value = "auto")]
    pub dtype: DtypeChoice,
    /// Weight format: that of a quantized checkpoint, or one to convert to while loading
    /// (bitsandbytes*, eetq, fp8, int4*) [default: as the checkpoint is]
    #[arg(long, value_parser = QuantizeParser, value_name = "FORMAT")]
    pub quantize: Option<Quantize>,
    /// What computes the model: Penstock's own implementation, or the module of the transformers
    /// library, which is slower; auto takes the first if there is one
    #[arg(long, value_enum, value_name = "BACKEND", default_value = "auto")]
    pub model_backend: ModelBackend,
    /// Maximum tokens of one sequence, prompt and output together [default: the model's limit]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    pub max_len: Option<u32>,

    /// Device of the tensors
    #[arg(long, value_enum, default_value = "auto", help_heading = "Workers")]
    pub device: DeviceChoice,
    /// Workers that share each layer (tensor parallelism) [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64),
          help_heading = "Workers")]
    pub tp: Option<u32>,
    /// Share out the experts of each layer over the --tp workers, instead of a part of every expert
    #[arg(long, help_heading = "Workers")]
    pub ep: bool,
    /// Attach the worker that listens at this socket, as unix:PATH, instead of starting one; once
    /// per rank
    #[arg(
        long,
        value_name = "ADDRESS",
        conflicts_with = "python",
        help_heading = "Workers"
    )]
    pub worker: Vec<String>,
    /// Interpreter that runs the workers [default: from VIRTUAL_ENV or PATH]
    #[arg(long, value_name = "PATH", help_heading = "Workers")]
    pub python: Option<PathBuf>,
    /// CPU threads per worker [default: the cores divided by the workers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024),
          help_heading = "Workers")]
    pub threads: Option<u32>,

    /// Maximum running sequences [default: 1024 on CUDA if memory allows, else 512 or 256; 32 on
    /// the CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096),
          help_heading = "Memory and scheduling")]
    pub max_slots: Option<u32>,
    /// Maximum tokens of one step over all sequences [default: 8192 on CUDA, 16896 if the weights
    /// leave 48 GiB; 512 on the CPU]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=1_048_576),
          help_heading = "Memory and scheduling")]
    pub max_step_tokens: Option<u32>,
    /// KV memory per worker, such as 2GiB [default: on CUDA the memory that is free; on the CPU what
    /// all slots need, within --memory-fraction]
    #[arg(long, value_name = "SIZE", help_heading = "Memory and scheduling")]
    pub kv_memory: Option<ByteSize>,
    /// Dtype of keys and values in KV blocks: the model's, or fewer bits for more blocks
    #[arg(
        long,
        value_enum,
        default_value = "auto",
        help_heading = "Memory and scheduling"
    )]
    pub kv_dtype: KvDtype,
    /// Share of a device's memory that a worker may use [default: 0.9 on CUDA, 0.5 on the CPU]
    #[arg(long, value_name = "SHARE", value_parser = share, help_heading = "Memory and scheduling")]
    pub memory_fraction: Option<f32>,
    /// Tokens per KV block
    #[arg(long, value_name = "TOKENS", default_value = "16",
          value_parser = clap::value_parser!(u32).range(1..=1024),
          help_heading = "Memory and scheduling")]
    pub block_tokens: u32,
    /// Do not cache KV blocks for later requests
    #[arg(long, help_heading = "Memory and scheduling")]
    pub no_prefix_cache: bool,
    /// Gap between tokens of running sequences that prefills may cause, in milliseconds: a third of
    /// it while prompts wait for a short time, up to two and a half times as long while many wait
    /// [default: 25, and more for a model whose steps take long]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000),
          help_heading = "Memory and scheduling")]
    pub latency_target: Option<u64>,
    /// Maximum waiting requests; further ones get a 429
    #[arg(long, value_name = "N", default_value = "1024",
          value_parser = clap::value_parser!(u32).range(1..),
          help_heading = "Memory and scheduling")]
    pub max_waiting: u32,
    /// Maximum waiting prompt tokens; further requests get a 429
    #[arg(long, value_name = "TOKENS", default_value = "4000000",
          value_parser = clap::value_parser!(u64).range(1..),
          help_heading = "Memory and scheduling")]
    pub max_waiting_tokens: u64,

    /// The watermark of requests that enable it.
    #[command(flatten)]
    pub watermark: MarkArgs,
    /// Amount added to the logits of a watermark's green tokens
    #[arg(long, value_name = "LOGITS", default_value = "2", value_parser = delta,
          help_heading = "Watermark")]
    pub watermark_delta: f32,
}

/// The parameters that generation and detection of a watermark share.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Watermark")]
pub struct MarkArgs {
    /// Share of green tokens in the vocabulary of a watermark
    #[arg(long, value_name = "SHARE", default_value = "0.5", value_parser = gamma)]
    pub watermark_gamma: f64,
    /// Key of a watermark's hash. Keep it secret: anyone who has it can detect the watermark
    #[arg(long, value_name = "N", default_value = "15485863")]
    pub watermark_key: u64,
}

/// Settings of the HTTP server.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "HTTP")]
pub struct HttpArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on; 0 selects a free one
    #[arg(long, default_value = "3000")]
    pub port: u16,
    /// Port for KServe's gRPC protocol; 0 selects a free one [default: disabled]
    #[arg(long, value_name = "PORT")]
    pub kserve_grpc_port: Option<u16>,
    /// Model name in requests and responses; may be given several times, responses contain the
    /// first [default: the model's id or directory name]
    #[arg(long, value_name = "NAME", num_args = 1..,
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub served_model_name: Vec<String>,
    /// Memory for request bodies that are not tokenized yet, in bytes; further requests get a 429
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = body_memory)]
    pub body_memory: ByteSize,
    /// Memory for stored responses (`previous_response_id`, `GET /v1/responses/{id}`), in bytes;
    /// the least recently used is evicted; 0 stores none
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub response_store: ByteSize,
    /// System message for chats without one
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub system_prompt: Option<String>,
    /// Refuse requests with a chat template
    #[arg(long)]
    pub no_request_chat_template: bool,
    /// Format of the model's tool calls; vLLM's names of formats are accepted too
    #[arg(
        long,
        alias = "tool-call-parser",
        value_enum,
        value_name = "FORMAT",
        default_value = "auto"
    )]
    pub tool_parser: ToolParser,
    /// Format of the model's reasoning; vLLM's names of formats are accepted too
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "auto")]
    pub reasoning_parser: ReasoningParser,
    /// Time for running requests to finish at shutdown, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "30",
          value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub grace: u64,
    /// Who may use the server.
    #[command(flatten)]
    pub access: AccessArgs,
    /// Limits that only TGI's launcher has flags for.
    #[arg(skip)]
    pub limits: Limits,
}

/// How workers survive, and what replaces them.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Restarts")]
pub struct LifeArgs {
    /// Time that the workers keep the loaded model after this process has ended, such as 30s, for
    /// another one to attach
    #[arg(
        long,
        value_name = "TIME",
        default_value = "0s",
        conflicts_with = "worker"
    )]
    pub keep_workers: Seconds,
    /// Attach to the workers that a server with --keep-workers left: their directory, or `auto` for
    /// the only one, which starts new workers if there are none. The settings must be the same
    #[arg(long, value_name = "DIRECTORY|auto", conflicts_with = "worker")]
    pub attach: Option<PathBuf>,
    /// Keep a process that has imported the modules of workers and forks them: a lost worker is
    /// replaced sooner
    #[arg(long, conflicts_with = "worker")]
    pub standby: bool,
    /// Exit after this many losses of the workers in a row, each within 30 s of a start. By default
    /// the server keeps restarting them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub exit_after_losses: Option<u32>,
    /// Time that new requests wait in the queue while lost workers restart, such as 60s; after it
    /// they get a 503
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub max_restart_wait: Seconds,
}

/// Settings of logs.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logs")]
pub struct LogArgs {
    /// Format of log lines
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Least severe level that is logged
    #[arg(long, value_enum, default_value = "info")]
    pub log_level: LogLevel,
}

/// Settings of `penstock download`.
#[derive(Clone, Debug, Args)]
pub struct DownloadArgs {
    /// Hub id, such as TinyLlama/TinyLlama-1.1B-Chat-v1.0
    #[arg(value_name = "ID")]
    pub id: String,
    /// Branch, tag or commit [default: main]
    #[arg(long)]
    pub revision: Option<String>,
    /// Directory of the hub's cache [default: that of huggingface_hub]
    #[arg(long, value_name = "DIRECTORY")]
    pub hub_cache: Option<PathBuf>,
    /// Interpreter that has Penstock installed [default: from VIRTUAL_ENV or PATH]
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
}

/// The command line of TGI's launcher.
#[derive(Clone, Debug, Args)]
#[command(disable_help_flag = true)]
pub struct TgiArgs {
    /// Flags of text-generation-launcher; docs/tgi.md describes the effect of each
    #[arg(
        value_name = "FLAGS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub arguments: Vec<OsString>,
}

/// Settings of `penstock convert`.
#[derive(Clone, Debug, Args)]
pub struct ConvertArgs {
    /// Directory with config.json and pytorch_model.bin, or its index and files; or with params.json and
    /// consolidated.*.pth or consolidated.safetensors. Or the hub id of such a model
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Branch, tag or commit of a hub model [default: main]
    #[arg(long)]
    pub revision: Option<String>,
    /// New directory for config.json, *.safetensors and the tokenizer
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Interpreter that has Penstock installed [default: from VIRTUAL_ENV or PATH]
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
}

/// Settings of `penstock quantize`.
#[derive(Clone, Debug, Args)]
pub struct QuantizeArgs {
    /// Directory or hub id of the model
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Directory to write to; a stopped run continues where it was stopped
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Method
    #[arg(long, value_enum)]
    pub method: QuantizeMethod,
    /// Bits of a weight, 4 or 8 (gptq, rtn) [default: 4]
    #[arg(long, value_name = "N", value_parser = bits)]
    pub bits: Option<u32>,
    /// Inputs that share a scale; 0 or -1 means all of a row (gptq, awq, rtn) [default: 128]
    #[arg(long, value_name = "N", value_parser = group, allow_negative_numbers = true)]
    pub group: Option<u32>,
    /// Store zero points (gptq, rtn; awq always has them)
    #[arg(long)]
    pub asymmetric: bool,
    /// Quantize inputs with the largest activations first (gptq)
    #[arg(long)]
    pub act_order: bool,
    /// Let the codes of a group cover the range of weights with the least error (gptq, rtn)
    #[arg(long)]
    pub mse: bool,
    /// Addition to the Hessian's diagonal, as a share of its mean (gptq) [default: 0.01]
    #[arg(long, value_name = "SHARE", value_parser = damp)]
    pub damp: Option<f64>,
    /// UTF-8 file of calibration texts, one per line [default: texts that Penstock includes]
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Maximum number of calibration texts
    #[arg(long, value_name = "N", default_value = "128")]
    pub samples: u32,
    /// Maximum tokens of a calibration text
    #[arg(long, value_name = "TOKENS", default_value = "2048")]
    pub length: u32,
    /// Use the CPU even if there is a GPU
    #[arg(long)]
    pub cpu: bool,
    /// Branch, tag or commit of a hub model [default: main]
    #[arg(long)]
    pub revision: Option<String>,
    /// Interpreter that has Penstock installed [default: from VIRTUAL_ENV or PATH]
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
}

/// Settings of `penstock tune`.
#[derive(Clone, Debug, Args)]
pub struct TuneArgs {
    /// Directory or hub id of the model [default: brook, which Penstock includes]
    #[arg(long, value_name = "PATH_OR_ID")]
    pub model: Option<String>,
    /// Branch, tag or commit of a hub model [default: main]
    #[arg(long, requires = "model")]
    pub revision: Option<String>,
    /// Workers that will share each layer; one rank's part is measured
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub tp: u32,
    /// Time limit in seconds; no further kernel is measured after it
    #[arg(long, value_name = "SECONDS", default_value = "300",
          value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Interpreter that has Penstock installed [default: from VIRTUAL_ENV or PATH]
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
}

/// Settings of `penstock watermark-detect`.
#[derive(Clone, Debug, Args)]
pub struct WatermarkArgs {
    /// UTF-8 text file; - reads standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Model whose tokenizer encodes the text [default: brook, which Penstock includes]
    #[arg(long, value_name = "PATH_OR_ID")]
    pub model: Option<String>,
    /// Branch, tag or commit of a hub model [default: main]
    #[arg(long, requires = "model")]
    pub revision: Option<String>,
    /// Interpreter that has Penstock installed [default: from VIRTUAL_ENV or PATH]
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
    /// The parameters of the server that generated the text.
    #[command(flatten)]
    pub mark: MarkArgs,
}

fn gamma(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share| 0.0 < *share && *share < 1.0);
    share.ok_or_else(|| "must be between 0 and 1".into())
}

fn delta(text: &str) -> Result<f32, String> {
    let logits = text
        .parse()
        .ok()
        .filter(|logits| 0.0 < *logits && *logits <= 100.0);
    logits.ok_or_else(|| "must be above 0 and at most 100".into())
}

/// Settings of `penstock chat`.
#[derive(Clone, Debug, Args)]
pub struct ChatArgs {
    /// Server to connect to; without it, an engine is started for this conversation
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// API key for the server of --url
    #[arg(long, value_name = "KEY", requires = "url")]
    pub api_key: Option<String>,
    /// System message of the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Maximum tokens of an answer
    #[arg(long, value_name = "TOKENS", default_value = "512",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// Sampling temperature; 0 is greedy
    #[arg(long, value_parser = temperature)]
    pub temperature: Option<f32>,
    /// The engine to start without --url.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE", help_heading = "Configuration")]
    pub config: Option<PathBuf>,
}

fn bits(text: &str) -> Result<u32, String> {
    match text {
        "4" => Ok(4),
        "8" => Ok(8),
        _ => Err("not 4 or 8".to_owned()),
    }
}

/// -1 is the spelling of GPTQ's and AWQ's own files.
fn group(text: &str) -> Result<u32, String> {
    if text == "-1" {
        return Ok(0);
    }
    let inputs = text
        .parse()
        .ok()
        .filter(|inputs: &u32| inputs.is_multiple_of(16));
    inputs.ok_or_else(|| "not a multiple of 16, or 0 or -1 for all of a row".to_owned())
}

fn damp(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share| *share > 0.0 && *share < 1.0);
    share.ok_or_else(|| "not a number above 0 and below 1".to_owned())
}

fn share(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("must be above 0 and at most 1".into()),
    }
}

/// Parses --body-memory. Large bodies may use three quarters of it, and one of the largest must
/// fit.
fn body_memory(text: &str) -> Result<ByteSize, String> {
    const LEAST: ByteSize = ByteSize(16 << 20);
    match text.parse::<ByteSize>()? {
        size if size < LEAST => Err(format!("must be at least {LEAST}")),
        size => Ok(size),
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok(value),
        _ => Err("must be at least 0 and at most 100".into()),
    }
}
