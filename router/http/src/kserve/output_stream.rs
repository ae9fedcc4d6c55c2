//! Converts a generation to named outputs, as a whole or in pieces.

use std::task::{Context, Poll, ready};

use penstock_request::error::ApiError;
use penstock_text::generation::{FinishReason, Generation, TextEvent};

use super::generation_request::RunningGeneration;
use super::output::Output;
use super::tensor::{OutTensor, Values};
use crate::response_headers;

/// Converts the events of a generation to outputs.
pub(super) struct OutputStream {
    running: RunningGeneration,
    event: TextEvent,
    cumulative_logprob: f32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Ended,
}

/// The content of a response.
#[derive(Debug, Default)]
struct Piece {
    text: String,
    ids: Vec<u32>,
    reason: Option<FinishReason>,
}

impl OutputStream {
    pub(super) fn new(running: RunningGeneration) -> Self {
        Self {
            running,
            event: TextEvent::default(),
            cumulative_logprob: 0.0,
            state: State::Running,
        }
    }

    pub(super) fn generation(&self) -> &Generation {
        &self.running.generation
    }

    /// Returns the next response of a stream; `None` after the last.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Vec<OutTensor>, ApiError>>> {
        let mut piece = Piece::default();
        while self.state == State::Running {
            if let Err(error) = ready!(self.poll_event(cx, &mut piece)) {
                self.state = State::Ended;
                return Poll::Ready(Some(Err(error)));
            }
            // Skip responses without text: a token may not complete a character.
            if !piece.text.is_empty() || piece.reason.is_some() {
                return Poll::Ready(Some(Ok(self.tensors(&piece))));
            }
        }
        Poll::Ready(None)
    }

    /// Returns the complete output.
    pub(super) async fn whole(&mut self) -> Result<Vec<OutTensor>, ApiError> {
        let mut piece = Piece {
            text: std::mem::take(&mut self.running.prefix),
            ..Piece::default()
        };
        while self.state == State::Running {
            std::future::poll_fn(|cx| self.poll_event(cx, &mut piece)).await?;
        }
        Ok(self.tensors(&piece))
    }

    /// Adds the content of the next event.
    fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
        piece: &mut Piece,
    ) -> Poll<Result<(), ApiError>> {
        let generation = &mut self.running.generation;
        match ready!(generation.poll_event(cx, &mut self.event)) {
            Some(Ok(())) => {}
            Some(Err(error)) => return Poll::Ready(Err(error)),
            None => return Poll::Ready(Err(response_headers::incomplete_generation())),
        }
        piece.text.push_str(self.event.delta());
        for token in &self.event.tokens {
            piece.ids.push(token.id);
            self.cumulative_logprob += token.logprob;
        }
        if let Some(end) = &self.event.end {
            piece.reason = Some(end.reason);
            self.state = State::Ended;
        }
        Poll::Ready(Ok(()))
    }

    fn tensors(&self, piece: &Piece) -> Vec<OutTensor> {
        let outputs = self.running.outputs.iter();
        outputs.map(|output| self.tensor(*output, piece)).collect()
    }

    fn tensor(&self, output: Output, piece: &Piece) -> OutTensor {
        let count = |number: usize| Values::Uint32(vec![u32::try_from(number).unwrap_or(u32::MAX)]);
        let prompt_tokens = self.running.generation.facts().prompt_tokens;
        let values = match output {
            Output::Text => Values::Text(piece.text.clone()),
            Output::FinishReason => Values::Text(reason(piece.reason).to_owned()),
            Output::CumulativeLogprob => Values::Fp32(self.cumulative_logprob),
            Output::NumInputTokens => count(prompt_tokens),
            Output::NumOutputTokens | Output::SequenceLength => count(piece.ids.len()),
            Output::Ids => Values::Uint32(piece.ids.clone()),
        };
        let shape = match output {
            Output::Ids => vec![1, i64::try_from(piece.ids.len()).unwrap_or(i64::MAX)],
            _ => vec![1],
        };
        OutTensor {
            output,
            shape,
            values,
        }
    }
}

/// Returns the reason with the names of vLLM's Triton backend, Python's for none.
fn reason(reason: Option<FinishReason>) -> &'static str {
    match reason {
        None => "None",
        Some(FinishReason::Length) => "length",
        Some(FinishReason::StopToken | FinishReason::StopString) => "stop",
    }
}
