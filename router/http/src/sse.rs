//! Server-sent events: a response body that polls its source and writes the events that are ready.

use std::cell::RefCell;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use http_body::Frame;
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep};

use penstock_text::generation::TextEvent;

/// Initial capacity of a thread's frame buffer, in bytes.
const FRAME_CAPACITY: usize = 4 << 10;
/// After a frame larger than this the buffer is replaced, so that its memory is freed.
const LARGE_FRAME: usize = 64 << 10;

thread_local! {
    static FRAME_BUFFER: RefCell<FrameBuffer> = RefCell::default();
}

/// Buffers that all streams of a thread use in turn. If each of hundreds of streams had its own,
/// none would be in the cache at its next token.
pub(super) struct FrameBuffer {
    /// The event of the step that is being written.
    pub(super) event: TextEvent,
    /// The frame that is being built.
    pub(super) out: BytesMut,
}

impl Default for FrameBuffer {
    fn default() -> Self {
        Self {
            event: TextEvent::default(),
            out: BytesMut::with_capacity(FRAME_CAPACITY),
        }
    }
}

/// Produces the events of one stream.
pub(super) trait EventSource: Send + Unpin + 'static {
    /// Appends all events that are ready to `buffer.out`. It is not polled again after `End`.
    fn poll_events(&mut self, cx: &mut Context<'_>, buffer: &mut FrameBuffer) -> Poll<Flow>;
}

/// Whether a stream continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// More events may follow.
    More,
    /// The stream has ended.
    End,
}

/// A streaming body. It polls the engine's output directly: no channel and no extra wake-up between
/// engine and socket.
struct SseBody<S> {
    source: S,
    ended: bool,
    keep_alive_timer: KeepAliveTimer,
}

/// Fires when a stream has sent nothing for `keep_alive`.
struct KeepAliveTimer {
    keep_alive: Duration,
    last_frame: Instant,
    timer: Pin<Box<Sleep>>,
    /// Whether `timer` has been polled and will wake the task.
    listens: bool,
}

/// Returns a response that streams the events of `source`, with a comment after every `keep_alive`
/// without an event.
pub(super) fn respond(source: impl EventSource, keep_alive: Duration) -> Response {
    let body = SseBody {
        source,
        ended: false,
        keep_alive_timer: KeepAliveTimer::new(keep_alive),
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
    /// Returns the next frame; `None` if the stream has ended.
    fn poll_next(&mut self, cx: &mut Context<'_>, buffer: &mut FrameBuffer) -> Poll<Option<Bytes>> {
        // Leftovers of a stream that panicked on this thread.
        buffer.out.clear();
        // One poll per frame. Poll again only if a ready poll wrote nothing, since no waker is
        // registered then.
        while !self.ended && buffer.out.is_empty() {
            match self.source.poll_events(cx, buffer) {
                Poll::Ready(flow) => self.ended = flow == Flow::End,
                Poll::Pending => break,
            }
        }
        if buffer.out.is_empty() {
            if self.ended {
                return Poll::Ready(None);
            }
            ready!(self.keep_alive_timer.poll(cx));
            buffer.out.put_slice(b":\n\n");
        }
        self.keep_alive_timer.last_frame = Instant::now();
        let frame = buffer.out.split().freeze();
        if frame.len() > LARGE_FRAME {
            *buffer = FrameBuffer::default();
        }
        Poll::Ready(Some(frame))
    }
}

impl KeepAliveTimer {
    fn new(keep_alive: Duration) -> Self {
        Self {
            keep_alive,
            last_frame: Instant::now(),
            timer: Box::pin(sleep(keep_alive)),
            listens: false,
        }
    }

    /// Completes when a keep-alive comment is due. Moving the timer for every frame would cost more
    /// than the frame, so it is reset only when it fires, to the end of the current interval. It
    /// keeps the first waker it was given: a body stays with its connection's task.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.listens && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        self.listens = true;
        while self.timer.as_mut().poll(cx).is_ready() {
            let due = self.last_frame + self.keep_alive;
            if due <= Instant::now() {
                self.timer.as_mut().reset(Instant::now() + self.keep_alive);
                self.listens = false;
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(due);
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
        let next = FRAME_BUFFER.with_borrow_mut(|buffer| self.poll_next(cx, buffer));
        next.map(|frame| frame.map(|frame| Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

/// Appends the JSON of a value that cannot fail to serialize: text, a number, a plain struct.
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

/// Appends an event called `name`; `write` appends its data.
pub(super) fn put_named_event(out: &mut BytesMut, name: &str, write: impl FnOnce(&mut BytesMut)) {
    for part in ["event: ", name, "\ndata: "] {
        out.put_slice(part.as_bytes());
    }
    write(out);
    out.put_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use http_body_util::BodyExt;
    use tokio::sync::mpsc;

    /// Yields one text per poll, empty ones too, and registers no waker.
    struct Script(std::vec::IntoIter<&'static str>);

    impl EventSource for Script {
        fn poll_events(&mut self, _: &mut Context<'_>, buffer: &mut FrameBuffer) -> Poll<Flow> {
            let Some(text) = self.0.next() else {
                panic!("polled after its end");
            };
            buffer.out.put_slice(text.as_bytes());
            let last = self.0.len() == 0;
            Poll::Ready(if last { Flow::End } else { Flow::More })
        }
    }

    /// Yields the texts that the test sends.
    struct Live(mpsc::UnboundedReceiver<&'static str>);

    impl EventSource for Live {
        fn poll_events(&mut self, cx: &mut Context<'_>, buffer: &mut FrameBuffer) -> Poll<Flow> {
            let text = ready!(self.0.poll_recv(cx));
            buffer.out.put_slice(text.unwrap_or_default().as_bytes());
            Poll::Ready(text.map_or(Flow::End, |_| Flow::More))
        }
    }

    impl<S: EventSource> SseBody<S> {
        /// Returns the frame that is ready now, if any.
        fn ready(&mut self) -> Option<Bytes> {
            let frame = self.frame().now_or_never()??;
            frame.unwrap().into_data().ok()
        }

        /// Pretends that the last frame was sent `keep_alive` ago and that the timer was set before
        /// it.
        fn expire_keep_alive(&mut self) {
            let KeepAliveTimer {
                keep_alive,
                last_frame,
                timer,
                ..
            } = &mut self.keep_alive_timer;
            *last_frame = Instant::now().checked_sub(*keep_alive).unwrap();
            timer.as_mut().reset(Instant::now());
        }
    }

    #[tokio::test]
    async fn a_keep_alive_comment_is_sent_only_when_no_frames_flow() {
        let (sender, texts) = mpsc::unbounded_channel();
        let keep_alive = Duration::from_secs(60);
        let mut body = SseBody {
            source: Live(texts),
            ended: false,
            keep_alive_timer: KeepAliveTimer::new(keep_alive),
        };
        assert_eq!(body.ready(), None);
        for text in ["a", "b", "c"] {
            // The timer fires, but a frame was sent in the meantime.
            body.expire_keep_alive();
            sender.send(text).unwrap();
            assert_eq!(body.ready().as_deref(), Some(text.as_bytes()));
            sleep(Duration::from_millis(5)).await;
            assert_eq!(body.ready(), None, "a comment although {text} was sent");
            let due = body.keep_alive_timer.last_frame + keep_alive;
            assert_eq!(body.keep_alive_timer.timer.deadline(), due);
        }
        for _ in 0..2 {
            body.expire_keep_alive();
            sleep(Duration::from_millis(5)).await;
            assert_eq!(body.ready().as_deref(), Some(&b":\n\n"[..]));
            sleep(Duration::from_millis(5)).await;
            assert_eq!(body.ready(), None, "one comment per interval");
        }
        sender.send("d").unwrap();
        drop(sender);
        assert_eq!(body.ready().as_deref(), Some(&b"d"[..]));
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn a_poll_without_output_does_not_stall_the_stream_and_the_end_is_polled_once() {
        let script = vec!["", "a", "", "", "b", ""].into_iter();
        let response = respond(Script(script), Duration::from_secs(3600));
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "ab");
    }
}
