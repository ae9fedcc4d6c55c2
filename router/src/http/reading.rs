//! Answers read as thoughts, content and tool calls, as they come or in one piece.

use std::task::{Context, Poll, ready};

use super::facts;
use super::ids::call_id;
use crate::engine::types::{Guide, GuideKind};
use crate::error::ApiError;
use crate::generation::{FinishReason, Generation, TextEnd, TextEvent};
use crate::tools::{AnswerReader, Choice, Offer, OfferFields, Piece, Pieces, Reading, ToolFormat};

/// An answer that is read as it comes.
pub(super) struct Read {
    reader: AnswerReader,
    pieces: Pieces,
    end: Option<ReadEnd>,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadEnd {
    pub(super) reason: FinishReason,
    /// The stop string that ended it.
    pub(super) stop_string: Option<String>,
}

/// An answer that has been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReadAnswer {
    pub(super) content: String,
    pub(super) thought: String,
    pub(super) calls: Vec<Call>,
}

/// A call, complete unless the answer was cut off in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    /// JSON.
    pub(super) arguments: String,
}

impl Read {
    pub(super) fn new(reading: &Reading) -> Self {
        Self {
            reader: reading.reader(),
            pieces: Pieces::default(),
            end: None,
        }
    }

    /// Waits for the next step of the answer and reads it; `drain` gives what it brought.
    pub(super) fn poll(
        &mut self,
        generation: &mut Generation,
        event: &mut TextEvent,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ApiError>> {
        ready!(poll_step(generation, event, cx))?;
        self.feed(event.delta());
        self.close(generation, event);
        Poll::Ready(Ok(()))
    }

    /// Reads more of a step's text: whoever waits by `poll_step` reads each part of it.
    pub(super) fn feed(&mut self, text: &str) {
        self.reader.feed(text, &mut self.pieces);
    }

    /// Reads what a step says of the answer's end, once its text is read.
    pub(super) fn close(&mut self, generation: &mut Generation, event: &mut TextEvent) {
        self.end = event.end.take().as_ref().map(ReadEnd::of);
        if self.end.is_some() {
            self.reader.finish(&mut self.pieces);
        } else if self.reader.is_over() {
            generation.finish();
            self.end = Some(ReadEnd {
                reason: FinishReason::StopToken,
                stop_string: None,
            });
        }
    }

    /// The pieces that have come.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Piece> + '_ {
        self.pieces.drain()
    }

    /// How the answer has ended, if it has.
    pub(super) fn end(&self) -> Option<&ReadEnd> {
        self.end.as_ref()
    }
}

/// Waits for the next step of an answer, which must not break off.
pub(super) fn poll_step(
    generation: &mut Generation,
    event: &mut TextEvent,
    cx: &mut Context<'_>,
) -> Poll<Result<(), ApiError>> {
    let outcome = ready!(generation.poll_event(cx, event));
    Poll::Ready(outcome.unwrap_or_else(|| Err(facts::unfinished())))
}

/// Runs an answer to its end; `heed` is shown each event.
pub(super) async fn collect(
    generation: &mut Generation,
    mut heed: impl FnMut(&Generation, &TextEvent),
) -> Result<(ReadAnswer, ReadEnd), ApiError> {
    let mut read = Read::new(generation.reading());
    let mut event = TextEvent::default();
    let mut answer = ReadAnswer::default();
    loop {
        std::future::poll_fn(|cx| read.poll(generation, &mut event, cx)).await?;
        heed(generation, &event);
        for piece in read.drain() {
            answer.take(piece, generation.reading());
        }
        if let Some(end) = read.end.take() {
            return Ok((answer, end));
        }
    }
}

impl ReadEnd {
    fn of(end: &TextEnd) -> Self {
        let stop_string = end.text[end.content_len..].to_owned();
        Self {
            reason: end.reason,
            stop_string: Some(stop_string).filter(|_| end.reason == FinishReason::StopString),
        }
    }
}

impl ReadAnswer {
    fn take(&mut self, piece: Piece, reading: &Reading) {
        match (piece, self.calls.last_mut()) {
            (Piece::Content(text), _) => self.content.push_str(&text),
            (Piece::Thought(text), _) => self.thought.push_str(&text),
            (Piece::Call(name), _) => self.calls.push(Call {
                id: call_id(reading),
                name,
                arguments: String::new(),
            }),
            (Piece::Arguments(text), Some(call)) => call.arguments.push_str(&text),
            (Piece::Arguments(_), None) | (Piece::CallEnd, _) => {}
        }
    }
}

/// What follows from a request's offer of tools.
#[derive(Debug, Default)]
pub(super) struct Offered {
    /// The tools as the chat template is told of them.
    pub(super) tools: Option<String>,
    /// How the answer is read.
    pub(super) reading: Reading,
    /// What it must spell, if anything.
    pub(super) guide: Option<Box<Guide>>,
}

/// What follows from an offer beside `guide`, what the answer must spell if it is no call.
pub(super) fn read_offer(
    (offer, fields): (Option<&Offer>, OfferFields),
    generator: &crate::Generator,
    guide: Option<Box<Guide>>,
) -> Result<Offered, ApiError> {
    let mut reading = Reading {
        thoughts: generator.thought_format(),
        ..Reading::default()
    };
    let Some(offer) = offer.filter(|offer| offer.choice != Choice::None) else {
        return Ok(Offered {
            reading,
            guide,
            ..Offered::default()
        });
    };
    let format = generator.tool_format();
    let Some(format) = format else {
        let rule =
            "cannot be used: the server knows no format of this model's calls (--tool-parser)";
        return Err(ApiError::at(fields.list, rule));
    };
    reading.tools = Some((format, offer.names()));
    reading.one_call = !offer.parallel;
    reading.named = matches!(offer.choice, Choice::Named(_));
    reading.strict = offer.is_strict();
    Ok(Offered {
        tools: Some(offer.to_json()),
        reading,
        guide: joined(format, (offer, fields), guide)?,
    })
}

/// The guide to an answer that may be calls.
fn joined(
    format: ToolFormat,
    (offer, fields): (&Offer, OfferFields),
    guide: Option<Box<Guide>>,
) -> Result<Option<Box<Guide>>, ApiError> {
    let Some(document) = guide else {
        let text = format.guided_calls(offer);
        return Ok(text.map(|text| calls_guide(fields.list, text)));
    };
    let field = document.field;
    if offer.forces() {
        let rule =
            format!("that forces a call cannot go with `{field}`: the answer is nothing but calls");
        return Err(ApiError::at(fields.choice, &rule));
    }
    let text = format.calls_or(offer, &document).ok_or_else(|| {
        let OfferFields {
            list,
            choice,
            forcing,
            ..
        } = fields;
        let rule = format!(
            "`{field}` cannot go with `{list}` and `{choice}` `auto`: this model writes its calls as \
             JSON objects, which cannot be told from a document. Send `{choice}` `none` or {forcing}"
        );
        ApiError::validation(field, rule)
    })?;
    Ok(Some(calls_guide(field, text)))
}

fn calls_guide(field: &'static str, text: String) -> Box<Guide> {
    Box::new(Guide {
        kind: GuideKind::Calls,
        field,
        text,
        complete: true,
        end_token_ids: Vec::new(),
        thoughts: None,
    })
}
