//! Command line, configuration, model files, worker supervision.

pub mod cli;
pub mod command;
pub mod error;
pub mod explain;
pub mod hardware;
pub mod hub;
pub mod interpreter;
pub mod logs;
pub mod model;
pub mod progress;
pub mod resolve;
pub mod settings;
pub mod values;
pub mod workers;
