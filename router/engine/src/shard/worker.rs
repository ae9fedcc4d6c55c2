//! A connection to one worker: all calls except the step stream.

use std::time::Duration;

use penstock_request::client::Client;
use penstock_scheduler::ids::Epoch;
use tokio::time::timeout;
use tonic::{Request, Status};

use super::{
    Endpoint, LoadConfig, Loaded, PrepareError, Progress, ShardError, Transport, convert,
    stream::{MAX_MESSAGE_BYTES, StepStream, describe},
};
use crate::generated::v1::{self, load_progress::Event, shard_client::ShardClient};

/// Metadata key of Prepare: the request's client.
const CLIENT: &str = "penstock-client";
/// Timeout of calls that use no device; after it the worker is lost.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Workers bound the preparation themselves; this timeout is for one that does not answer at all.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(120);

/// A connection to one worker.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) rank: u32,
    transport: Transport,
    client: ShardClient<Transport>,
}

impl Worker {
    pub(super) async fn connect(rank: u32, endpoint: &Endpoint) -> Result<Self, ShardError> {
        let transport = endpoint
            .connect()
            .await
            .map_err(|message| ShardError::Connect {
                endpoint: endpoint.clone(),
                message,
            })?;
        Ok(Self::over(rank, transport))
    }

    pub(super) fn over(rank: u32, transport: Transport) -> Self {
        let client = ShardClient::new(transport.clone());
        Self {
            rank,
            transport,
            client: client.max_decoding_message_size(MAX_MESSAGE_BYTES),
        }
    }

    /// Loads the model and reports progress. Has no timeout.
    pub(super) async fn load(
        &self,
        config: &LoadConfig,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Loaded, ShardError> {
        let refused = |status: Status| self.load_error(describe(&status));
        let call = self.client.clone().load(config.to_proto()).await;
        let mut messages = call.map_err(refused)?.into_inner();
        while let Some(message) = messages.message().await.map_err(refused)? {
            match message.event {
                Some(Event::Progress(news)) => progress(Progress::from_proto(self.rank, news)),
                Some(Event::Loaded(loaded)) => {
                    return Loaded::from_proto(loaded).map_err(|rule| self.protocol(rule));
                }
                None => {}
            }
        }
        Err(self.load_error("the worker ended Load without a result".into()))
    }

    /// Returns the worker's current epoch.
    pub(super) async fn epoch(&self) -> Result<Epoch, ShardError> {
        let mut client = self.client.clone();
        match timeout(CALL_TIMEOUT, client.health(v1::HealthRequest {})).await {
            Ok(Ok(reply)) => Ok(Epoch(reply.into_inner().epoch)),
            Ok(Err(status)) => Err(self.lost(describe(&status))),
            Err(_) => Err(self.lost(format!("no answer to Health within {CALL_TIMEOUT:?}"))),
        }
    }

    /// Drops the worker's slots and begins an epoch.
    pub(super) async fn reset(&self, epoch: Epoch) -> Result<(), ShardError> {
        let mut client = self.client.clone();
        let call = client.reset(v1::ResetRequest { epoch: epoch.0 });
        match timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(self.lost(describe(&status))),
            Err(_) => Err(self.lost(format!("no answer to Reset within {CALL_TIMEOUT:?}"))),
        }
    }

    pub(super) fn open_steps(&self) -> StepStream {
        StepStream::open(self.transport.clone())
    }

    /// Prepares a request of `client`, if the client is known.
    pub(super) async fn prepare(
        &self,
        message: v1::PrepareRequest,
        client: Option<Client>,
    ) -> Result<(), PrepareError> {
        let mut call = Request::new(message);
        // An address is a valid metadata value.
        if let Some(name) = client.and_then(|client| client.name().parse().ok()) {
            call.metadata_mut().insert(CLIENT, name);
        }
        match timeout(PREPARE_TIMEOUT, self.client.clone().prepare(call)).await {
            Ok(Ok(reply)) => convert::prepare_result(reply.into_inner()),
            // Statuses of the transport have a source; a worker's own error has none.
            Ok(Err(status)) if std::error::Error::source(&status).is_some() => {
                Err(PrepareError::Lost(describe(&status)))
            }
            Ok(Err(status)) => Err(PrepareError::Internal(describe(&status))),
            Err(_) => Err(PrepareError::Internal(format!(
                "the worker did not prepare the request within {PREPARE_TIMEOUT:?}"
            ))),
        }
    }

    /// Requests the worker to exit. A worker that has already exited does not answer.
    pub(super) async fn shutdown(&self) {
        let mut client = self.client.clone();
        let call = client.shutdown(v1::ShutdownRequest {});
        if let Ok(Err(status)) = timeout(CALL_TIMEOUT, call).await {
            tracing::debug!(rank = self.rank, "Shutdown: {}", describe(&status));
        }
    }

    pub(super) fn lost(&self, message: String) -> ShardError {
        ShardError::Lost {
            rank: self.rank,
            message,
        }
    }

    pub(super) fn protocol(&self, message: String) -> ShardError {
        ShardError::Protocol {
            rank: self.rank,
            message,
        }
    }

    fn load_error(&self, message: String) -> ShardError {
        ShardError::Load {
            rank: self.rank,
            message,
        }
    }
}
