//! Settings of the server; set by the launcher.

use std::num::NonZeroUsize;
use std::time::Duration;

use penstock_text::TextConfig;

use crate::access::{Access, Reload};
use crate::tls::Tls;

/// One thread writes about 100,000 tokens per second; several shorten the time to write one step to
/// all streams.
const MAX_SERVING_THREADS: usize = 4;

/// Settings of the server and of the text layer that it serves. The launcher sets every field.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// Settings of the text layer.
    pub text: TextConfig,
    /// Name of the model in responses and `/info`.
    pub model_id: String,
    /// Further names of the model, listed and accepted like `model_id`.
    pub more_model_ids: Vec<String>,
    /// Revision of the model's files, shown by `/info`.
    pub model_revision: Option<String>,
    /// Maximum size of a request body; a larger one is refused with 413.
    pub max_body_bytes: usize,
    /// Maximum bytes of all bodies in memory until their prompts are token ids; more are refused
    /// with 429. Parsing may briefly use a few times a body's bytes.
    pub max_held_body_bytes: usize,
    /// Timeout from a request's first byte to the end of its headers.
    pub header_timeout: Duration,
    /// Timeout for the arrival of a body.
    pub body_timeout: Duration,
    /// Timeout for the first bytes of a body.
    pub first_byte_timeout: Duration,
    /// Time after which a connection is closed if its client reads nothing of a pending response.
    pub write_timeout: Duration,
    /// Maximum open connections. A further one closes the longest-idle connection; if none is idle,
    /// it becomes a spare one.
    pub max_connections: usize,
    /// Connections accepted beyond `max_connections`: health checks and metrics work on them, other
    /// requests get 503. Further connections are closed.
    pub spare_connections: usize,
    /// Maximum prompts per completion request.
    pub max_client_batch_size: usize,
    /// Threads that serve connections.
    pub serving_threads: NonZeroUsize,
    /// Idle time after which a stream gets a keep-alive comment.
    pub keep_alive: Duration,
    /// Origins of web pages that may call the server.
    pub cors: Cors,
    /// Who may use the server.
    pub access: Access,
    /// Certificate of the listening sockets; `None` = plain HTTP.
    pub tls: Option<Tls>,
    /// What `POST /admin/reload` does.
    pub reload: Reload,
    /// Maximum bytes of stored responses; 0 = none are stored.
    pub response_store: usize,
}

/// Origins of web pages that may call the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cors {
    /// Any origin.
    Any,
    /// These origins, such as `https://chat.example.org`.
    Origins(Vec<String>),
}

impl RouterConfig {
    /// Returns the defaults for a model named `model_id`.
    pub fn new(model_id: impl Into<String>) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, NonZeroUsize::get);
        Self {
            text: TextConfig::default(),
            model_id: model_id.into(),
            more_model_ids: Vec::new(),
            model_revision: None,
            max_body_bytes: 8 << 20,
            max_held_body_bytes: 256 << 20,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            first_byte_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(60),
            max_connections: 8192,
            spare_connections: 64,
            max_client_batch_size: 32,
            serving_threads: NonZeroUsize::new(cores.min(MAX_SERVING_THREADS))
                .unwrap_or(NonZeroUsize::MIN),
            keep_alive: Duration::from_secs(15),
            cors: Cors::Origins(Vec::new()),
            access: Access::default(),
            tls: None,
            reload: Reload::default(),
            response_store: 64 << 20,
        }
    }
}

impl RouterConfig {
    /// Returns the names that the model is served by; the first one is used in responses.
    pub fn served_names(&self) -> impl Iterator<Item = &str> {
        let more = self.more_model_ids.iter().map(String::as_str);
        std::iter::once(self.model_id.as_str()).chain(more)
    }

    /// Returns the served name that a client means: the one it sent, or the first for an alias.
    pub(crate) fn served_name(&self, requested: &str) -> &str {
        let mut names = self.served_names();
        names
            .find(|name| *name == requested)
            .unwrap_or(&self.model_id)
    }
}
