//! A shard worker without a GPU, for router and load tests: it keeps every rule of the protocol,
//! checks that its router does, and brings tokens that depend on a sequence's history alone.

mod config;
mod fault;
mod fold;
mod kv;
mod logprobs;
mod sequence;
mod server;
mod service;

pub use config::{Check, Cost, Eos, Geometry, MockConfig, SlidingGroup};
pub use fault::{Fault, FaultError};
pub use server::{Exit, MockShard, View, serve};
pub use service::Service;
