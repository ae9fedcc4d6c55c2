//! Decides which tokens run in the next step: pure, std only.

pub mod config;
pub mod ids;
pub mod plan;
pub mod request;
