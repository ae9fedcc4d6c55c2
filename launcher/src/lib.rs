//! Command line, configuration, model files, worker supervision.

pub mod chat;
pub mod cli;
pub mod command;
pub mod descriptors;
pub mod error;
pub mod explain;
pub mod hardware;
pub mod hub;
pub mod interpreter;
pub mod launch;
pub mod limits;
pub mod log_queue;
pub mod logs;
pub mod model;
pub mod parsers;
pub mod progress;
pub mod resolve;
pub mod serve;
pub mod settings;
pub mod signals;
pub mod terminal;
pub mod tgi;
pub mod tune;
pub mod values;
pub mod watermark;
pub mod workers;
