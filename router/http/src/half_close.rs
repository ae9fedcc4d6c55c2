//! A connection, plain or TLS, that probes a client which has shut down its sending side.
//!
//! A client that shuts down its sending side (`shutdown(SHUT_WR)`, `nc -N`) still wants its
//! response. One that has closed its socket looks the same until it is sent something: then its
//! system replies with a reset. So both are sent the first byte of the response early: the `H` of
//! `HTTP/1.1`, or a comment if an event stream has begun (`connection_service.rs`).

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;

use super::connection_limit::ConnectionState;
use super::write_timeout::WriteTimeout;

/// The first byte of every response.
const FIRST: u8 = b'H';
/// Interval at which a half-closed connection is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(25);

/// The bytes of a connection: as they are on the network, or within TLS.
pub(super) enum ClientStream {
    Plain(WriteTimeout),
    Tls(Box<TlsStream<WriteTimeout>>),
}

/// A connection whose reads do not end before the response does.
pub(super) struct HalfClose {
    stream: ClientStream,
    state: Arc<ConnectionState>,
    /// Time of the next check; set while the client has shut down its sending side and waits for a
    /// response.
    next_check: Option<Pin<Box<Sleep>>>,
    /// Whether the response's first byte was sent ahead of the rest.
    first_byte_sent: bool,
}

impl ClientStream {
    /// Returns and clears the socket's pending error.
    fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self {
            Self::Plain(stream) => stream.take_error(),
            Self::Tls(stream) => stream.get_ref().0.take_error(),
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl HalfClose {
    pub(super) fn new(stream: ClientStream, state: Arc<ConnectionState>) -> Self {
        Self {
            stream,
            state,
            next_check: None,
            first_byte_sent: false,
        }
    }

    /// Records that a write has progressed.
    fn recorded<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.state.wrote();
        }
        written
    }

    /// Hides the end of the client's side until the response has ended, the client is found to be
    /// gone, or the client turns out to have ended in the middle of its request.
    fn poll_half_closed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if !self.state.is_busy() {
                return Poll::Ready(Ok(()));
            }
            if self.state.is_answering() && !self.first_byte_sent && !self.state.has_written() {
                let sent = Pin::new(&mut self.stream).poll_write(cx, &[FIRST])?;
                self.first_byte_sent = sent.is_ready();
                // TLS may keep it in a buffer, which later writes empty too.
                let _ = Pin::new(&mut self.stream).poll_flush(cx)?;
            }
            if let Some(error) = self.stream.take_error()? {
                return Poll::Ready(Err(error));
            }
            let next_check = self
                .next_check
                .get_or_insert_with(|| Box::pin(sleep(CHECK_INTERVAL)));
            ready!(next_check.as_mut().poll(cx));
            next_check.as_mut().reset(Instant::now() + CHECK_INTERVAL);
            // All received bytes have been read by now. If the request is incomplete, no response
            // is due.
            if self.state.is_receiving() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Writes `bytes` without the first byte if that was already sent.
    fn poll_write_rest(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let skipped = usize::from(self.first_byte_sent && bytes.first() == Some(&FIRST));
        let rest = &bytes[skipped..];
        if rest.is_empty() && skipped > 0 {
            self.first_byte_sent = false;
            return Poll::Ready(Ok(skipped));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, rest);
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.first_byte_sent = false;
        }
        written.map_ok(|count| count + skipped)
    }
}

impl AsyncRead for HalfClose {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.state.is_half_closed() {
            return self.poll_half_closed(cx);
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let ended = buffer.filled().len() == before && buffer.remaining() > 0;
        if ended && self.state.is_busy() {
            self.state.half_close();
            return self.poll_half_closed(cx);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for HalfClose {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.poll_write_rest(cx, bytes);
        self.recorded(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.first_byte_sent {
            let first = slices.iter().find(|slice| !slice.is_empty());
            let written = self.poll_write_rest(cx, first.map_or(&[], |slice| slice));
            return self.recorded(written);
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.recorded(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
