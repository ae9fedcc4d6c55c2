//! A mock shard worker as a process.

use std::{process::ExitCode, time::Duration};

use clap::Parser;
use penstock_engine::shard::Endpoint;
use penstock_mock_shard::{
    Check, Cost, Eos, Exit, Fault, Geometry, MockConfig, SlidingGroup, serve,
};

/// A shard worker without a GPU: deterministic tokens, a cost model and scripted faults.
#[derive(Debug, Parser)]
#[command(name = "penstock-mock-shard", version)]
struct Arguments {
    /// Where to listen: unix:PATH or HOST:PORT.
    #[arg(long)]
    listen: Endpoint,
    /// Milliseconds per step.
    #[arg(long, default_value_t = 0.0)]
    step_ms: f64,
    /// Microseconds per token of a step.
    #[arg(long, default_value_t = 0.0)]
    token_us: f64,
    /// crash@STEP, hang@STEP, error-slot@STEP, drop-prepared@STEP, hang-prepare, omit-logprobs,
    /// refuse-prepare=TEXT or load-error=TEXT; repeatable.
    #[arg(long)]
    fault: Vec<Fault>,
    /// KV blocks in the pool.
    #[arg(long, default_value_t = Geometry::default().blocks)]
    blocks: u32,
    /// Tokens per KV block.
    #[arg(long, default_value_t = Geometry::default().block_tokens)]
    block_tokens: u32,
    /// Sequences at once.
    #[arg(long, default_value_t = Geometry::default().slots)]
    slots: u32,
    /// Tokens of one step.
    #[arg(long, default_value_t = Geometry::default().step_tokens)]
    max_step_tokens: u32,
    /// Tokens of one sequence.
    #[arg(long, default_value_t = Geometry::default().sequence_tokens)]
    max_sequence_tokens: u32,
    /// Tokens that one run may yield, as with speculation.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4))]
    tokens_per_run: u32,
    /// Entries of the vocabulary.
    #[arg(long, default_value_t = Geometry::default().vocab,
          value_parser = clap::value_parser!(u32).range(2..))]
    vocab: u32,
    /// The interval of tokens at which an answer ends; 0 = never.
    #[arg(long, default_value_t = 0)]
    eos_every: u64,
    /// The token that ends an answer.
    #[arg(long, default_value_t = 0)]
    eos_id: u32,
    /// The window, in tokens, of a second KV group with as many blocks; 0 = no such group.
    #[arg(long, default_value_t = 0)]
    window: u32,
    /// Compare all KV that a run reads, not only samples.
    #[arg(long)]
    check_all: bool,
}

impl Arguments {
    fn config(&self) -> MockConfig {
        let geometry = Geometry {
            blocks: self.blocks,
            block_tokens: self.block_tokens,
            slots: self.slots,
            step_tokens: self.max_step_tokens,
            sequence_tokens: self.max_sequence_tokens,
            tokens_per_run: self.tokens_per_run,
            vocab: self.vocab,
            sliding: (self.window > 0).then_some(SlidingGroup {
                blocks: self.blocks,
                window: self.window,
            }),
        };
        let cost = Cost {
            step: Duration::from_secs_f64(self.step_ms / 1e3),
            token: Duration::from_secs_f64(self.token_us / 1e6),
        };
        let eos = Eos {
            id: self.eos_id,
            every: self.eos_every,
        };
        let check = if self.check_all {
            Check::Full
        } else {
            Check::Sampled
        };
        MockConfig {
            geometry,
            cost,
            eos,
            check,
            faults: self.fault.clone(),
        }
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match serve(&arguments.listen, arguments.config()).await {
        Ok(Exit::Crashed) => ExitCode::from(101),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "penstock-mock-shard: cannot listen at {}: {error}",
                arguments.listen
            );
            ExitCode::FAILURE
        }
    }
}
