//! One worker's step stream. A request is encoded once for all ranks.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use prost::{
    Message,
    bytes::{BufMut, Bytes},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
};

use super::Transport;
use crate::generated::v1;

/// More than any sensible number of plans in flight: a full queue means that the worker does not
/// read it.
const QUEUE: usize = 64;

/// A step stream. Requests are queued immediately; replies arrive in the same order.
pub(super) struct StepStream {
    requests: mpsc::Sender<Bytes>,
    replies: Replies,
    /// Replies received so far.
    pub(super) answered: u64,
}

/// Why a step stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The worker's own error, of a step. The worker is alive.
    Failed(String),
    /// Anything else.
    Lost(String),
}

/// A server may withhold its response headers until the first reply, so the call cannot be awaited
/// before a request has been sent.
enum Replies {
    Opening(Pin<Box<dyn Future<Output = Result<Streaming<v1::StepReply>, Status>> + Send>>),
    Open(Box<Streaming<v1::StepReply>>),
}

/// Large, since a step that admits many long prompts travels as one message.
pub(super) const MAX_MESSAGE_BYTES: usize = 256 << 20;

/// Sends the bytes of an encoded `StepRequest`; receives `StepReply`.
#[derive(Clone, Copy, Debug)]
struct StepCodec;

impl StepStream {
    pub(super) fn open(transport: Transport) -> Self {
        let (requests, queue) = mpsc::channel(QUEUE);
        let replies = Replies::Opening(Box::pin(call(transport, queue)));
        Self {
            requests,
            replies,
            answered: 0,
        }
    }

    /// Queues an encoded `StepRequest`. An ended stream ignores it: `poll` returns the status with
    /// the cause.
    pub(super) fn send(&self, step: Bytes) -> Result<(), &'static str> {
        match self.requests.try_send(step) {
            Err(mpsc::error::TrySendError::Full(_)) => Err("it reads no more steps"),
            _ => Ok(()),
        }
    }

    /// Returns the next reply. A stream that ends is an error: workers never end it.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<v1::StepReply, StreamEnd>> {
        if let Replies::Opening(call) = &mut self.replies {
            match ready!(call.as_mut().poll(cx)) {
                Ok(stream) => self.replies = Replies::Open(Box::new(stream)),
                Err(status) => return Poll::Ready(Err(StreamEnd::new(&status))),
            }
        }
        let Replies::Open(stream) = &mut self.replies else {
            return Poll::Pending;
        };
        Poll::Ready(match ready!(Pin::new(stream.as_mut()).poll_next(cx)) {
            Some(Ok(reply)) => {
                self.answered += 1;
                Ok(reply)
            }
            Some(Err(status)) => Err(StreamEnd::new(&status)),
            None => Err(StreamEnd::Lost("it ended the step stream".into())),
        })
    }
}

async fn call(
    transport: Transport,
    queue: mpsc::Receiver<Bytes>,
) -> Result<Streaming<v1::StepReply>, Status> {
    let mut grpc = Grpc::new(transport).max_decoding_message_size(MAX_MESSAGE_BYTES);
    grpc.ready()
        .await
        .map_err(|e| Status::unavailable(super::endpoint::root_cause(&e)))?;
    let path = PathAndQuery::from_static("/penstock.v1.Shard/Step");
    let request = Request::new(ReceiverStream::new(queue));
    Ok(grpc.streaming(request, path, StepCodec).await?.into_inner())
}

impl StreamEnd {
    /// Statuses of the transport have a source; a worker's own error has none.
    fn new(status: &Status) -> Self {
        let own = std::error::Error::source(status).is_none();
        match own && status.code() == Code::Internal {
            true => Self::Failed(describe(status)),
            false => Self::Lost(describe(status)),
        }
    }
}

/// Converts a status to text: the worker's message, or the transport's innermost cause.
pub(super) fn describe(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(cause) => super::endpoint::root_cause(cause),
        None if status.message().is_empty() => status.code().to_string(),
        None => status.message().to_owned(),
    }
}

impl Codec for StepCodec {
    type Encode = Bytes;
    type Decode = v1::StepReply;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for StepCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for StepCodec {
    type Item = v1::StepReply;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<v1::StepReply>, Status> {
        v1::StepReply::decode(buffer)
            .map(Some)
            .map_err(|e| Status::internal(format!("the reply is not a StepReply: {e}")))
    }
}
