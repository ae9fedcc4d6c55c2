//! A gRPC codec for the step stream: a request is encoded once for all ranks.

use prost::{
    Message,
    bytes::{BufMut, Bytes},
};
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use crate::generated::v1;

/// Large, since a step that admits many long prompts travels as one message.
pub(super) const MAX_MESSAGE_BYTES: usize = 256 << 20;

/// Sends the bytes of an encoded `StepRequest`; receives `StepReply`.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepCodec;

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
