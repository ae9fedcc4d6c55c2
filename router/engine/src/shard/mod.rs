//! The client side of the shard protocol. Only this module uses protocol types.

mod config;
mod convert;
mod deadline;
mod endpoint;
mod error;
mod group;
mod logprobs;
mod stream;
mod worker;

pub use config::{LoadConfig, Loaded, MemoryReport, Progress};
pub use convert::{SlotError, StepAnswer, Timing};
pub use deadline::StepLimits;
pub use endpoint::{Endpoint, EndpointError, Transport};
pub use error::{PrepareError, ShardError};
pub use group::{Preparer, ShardGroup};
pub use logprobs::{PromptLogprobs, StepLogprobs, TopLogprobs};
