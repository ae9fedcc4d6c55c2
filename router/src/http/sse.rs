//! Server-sent events: a response body that polls its answer and writes what is ready.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use http_body::Frame;
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep};

/// Makes the events of one stream.
pub(super) trait EventSource: Send + Unpin + 'static {
    /// Appends all that is ready. After `End` it is not polled again.
    fn poll_events(&mut self, cx: &mut Context<'_>, out: &mut BytesMut) -> Poll<Flow>;
}

/// Whether a stream goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// There may be more.
    More,
    /// That was all.
    End,
}

/// One task and one buffer per stream: no channel, no extra wake-up between engine and socket.
struct SseBody<S> {
    source: S,
    buffer: BytesMut,
    ended: bool,
    keep_alive: Duration,
    last_frame: Instant,
    silence: Pin<Box<Sleep>>,
    /// Whether `silence` has been polled and will wake the task.
    listens: bool,
}

/// A response that streams the events of `source`, with a comment after each `keep_alive` of
/// silence.
pub(super) fn respond(source: impl EventSource, keep_alive: Duration) -> Response {
    let body = SseBody {
        source,
        buffer: BytesMut::with_capacity(1024),
        ended: false,
        keep_alive,
        last_frame: Instant::now(),
        silence: Box::pin(sleep(keep_alive)),
        listens: false,
    };
    let mut response = Response::new(Body::new(body));
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

impl<S: EventSource> SseBody<S> {
    fn fill(&mut self, cx: &mut Context<'_>) {
        // Once for a frame; again only if what was ready showed nothing, for then nothing will wake us.
        while !self.ended && self.buffer.is_empty() {
            match self.source.poll_events(cx, &mut self.buffer) {
                Poll::Ready(flow) => self.ended = flow == Flow::End,
                Poll::Pending => return,
            }
        }
    }

    /// The timer is not moved for every frame, which would cost more than the frame: when it goes
    /// off, it is set again for what is left of the silence. Nor does it take the task's waker for
    /// every frame: it keeps the first, and a body stays with its connection's task.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.listens && !self.silence.is_elapsed() {
            return Poll::Pending;
        }
        self.listens = true;
        while self.silence.as_mut().poll(cx).is_ready() {
            let due = self.last_frame + self.keep_alive;
            if due <= Instant::now() {
                self.silence
                    .as_mut()
                    .reset(Instant::now() + self.keep_alive);
                self.listens = false;
                return Poll::Ready(());
            }
            self.silence.as_mut().reset(due);
        }
        Poll::Pending
    }
}

impl<S: EventSource> http_body::Body for SseBody<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.fill(cx);
        if self.buffer.is_empty() {
            if self.ended {
                return Poll::Ready(None);
            }
            if self.poll_silence(cx).is_pending() {
                return Poll::Pending;
            }
            self.buffer.put_slice(b":\n\n");
        }
        self.last_frame = Instant::now();
        Poll::Ready(Some(Ok(Frame::data(self.buffer.split().freeze()))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.buffer.is_empty()
    }
}

/// Appends the JSON of a value that always has one: text, a number, a plain struct.
pub(super) fn put_json(out: &mut BytesMut, value: &(impl Serialize + ?Sized)) {
    let start = out.len();
    if serde_json::to_writer((&mut *out).writer(), value).is_err() {
        out.truncate(start);
        out.put_slice(b"null");
    }
}

/// Appends an event whose data is `json`.
pub(super) fn put_event(out: &mut BytesMut, json: &str) {
    out.put_slice(b"data: ");
    out.put_slice(json.as_bytes());
    out.put_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    /// Plays one text per poll, empty ones too. Wakes nobody.
    struct Script(std::vec::IntoIter<&'static str>);

    impl EventSource for Script {
        fn poll_events(&mut self, _: &mut Context<'_>, out: &mut BytesMut) -> Poll<Flow> {
            let Some(text) = self.0.next() else {
                panic!("polled after its end");
            };
            out.put_slice(text.as_bytes());
            let last = self.0.len() == 0;
            Poll::Ready(if last { Flow::End } else { Flow::More })
        }
    }

    #[tokio::test]
    async fn what_shows_nothing_holds_nothing_up_and_the_end_is_polled_once() {
        let script = vec!["", "a", "", "", "b", ""].into_iter();
        let response = respond(Script(script), Duration::from_secs(3600));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "ab");
    }
}
