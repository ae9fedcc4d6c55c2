//! The body of a request, and what happens to the part that no handler read.
//!
//! A request may be refused before its body is read, such as one for an unknown route. The body may
//! still be on its way: many clients send it in a segment of its own. hyper tries one read after the
//! handler, and otherwise closes the connection without saying so, and the client's next request on
//! it fails. So a small rest is read and discarded before the response, and the response to a
//! request with a large one says that the connection closes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Response, header};
use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::connection_limit::ConnectionState;

/// Maximum number of unread bytes that are discarded to keep a connection.
const MAX_DISCARDED: usize = 256 << 10;
/// Time to wait for them.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// A request's body. It records when it has been received completely, and returns what its handler
/// leaves unread.
pub(super) struct RequestBody {
    /// `None` only while it is dropped.
    body: Option<Incoming>,
    state: Arc<ConnectionState>,
    /// Receives the body when the handler drops it.
    unread: Option<oneshot::Sender<Incoming>>,
}

/// Receives the part of a body that its handler did not read.
pub(super) struct UnreadBody {
    body: oneshot::Receiver<Incoming>,
    state: Arc<ConnectionState>,
    /// Whether the client waits for `100 Continue` before it sends the body.
    expects_continue: bool,
}

impl RequestBody {
    pub(super) fn new(
        body: Incoming,
        headers: &HeaderMap,
        state: &Arc<ConnectionState>,
    ) -> (Self, Option<UnreadBody>) {
        let (sender, receiver) = oneshot::channel();
        let unread = (!body.is_end_stream()).then(|| UnreadBody {
            body: receiver,
            state: Arc::clone(state),
            expects_continue: headers.contains_key(header::EXPECT),
        });
        let body = Self {
            body: Some(body),
            state: Arc::clone(state),
            unread: unread.is_some().then_some(sender),
        };
        (body, unread)
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(&mut *body).poll_frame(cx);
        let ended = body.is_end_stream();
        self.state.set_receiving(frame.is_pending());
        let frame = ready!(frame);
        if frame.is_none() || ended {
            self.state.request_received();
        }
        if !matches!(frame, Some(Ok(_))) {
            self.unread = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let (Some(unread), Some(body)) = (self.unread.take(), self.body.take()) {
            // The connection may have ended.
            let _ = unread.send(body);
        }
    }
}

impl UnreadBody {
    /// Discards what the handler left, or makes `response` say that the connection closes.
    pub(super) async fn discard<B>(mut self, response: &mut Response<B>) {
        let Ok(body) = self.body.try_recv() else {
            return;
        };
        if !self.discarded(body).await {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
    }

    /// Returns whether all of the body has arrived.
    async fn discarded(&self, body: Incoming) -> bool {
        // A handler that gave up waiting has waited long enough.
        let late = self.state.is_receiving();
        if late || self.expects_continue || body.size_hint().lower() > MAX_DISCARDED as u64 {
            return body.is_end_stream();
        }
        self.state.set_receiving(true);
        let received = timeout(DISCARD_TIMEOUT, read_to_end(body)).await;
        self.state.set_receiving(false);
        let whole = matches!(received, Ok(true));
        if whole {
            self.state.request_received();
        }
        whole
    }
}

/// Returns whether a body ends after at most `MAX_DISCARDED` bytes.
async fn read_to_end(mut body: Incoming) -> bool {
    let mut left = MAX_DISCARDED;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        let length = frame.data_ref().map_or(0, Buf::remaining);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return false,
        }
    }
    true
}
