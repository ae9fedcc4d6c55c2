//! A connection that fails if its client reads nothing for too long, and that probes a client which
//! has shut down its sending side.
//!
//! The header and body timeouts bound a client that sends nothing, and the network reports one that
//! is gone; but a client that stays connected and reads nothing would hold its connection forever.
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
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use super::connection_limit::ConnectionState;

/// The first byte of every response.
const FIRST: u8 = b'H';
/// Interval at which a half-closed connection is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(25);

/// A TCP stream whose writes fail if they make no progress for `limit`.
pub(super) struct WriteTimeout {
    stream: TcpStream,
    limit: Duration,
    state: Arc<ConnectionState>,
    /// Set while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
    /// Time of the next check; set while the client has shut down its sending side and waits for a
    /// response.
    next_check: Option<Pin<Box<Sleep>>>,
    /// Whether the response's first byte was sent ahead of the rest.
    first_byte_sent: bool,
}

impl WriteTimeout {
    pub(super) fn new(stream: TcpStream, limit: Duration, state: Arc<ConnectionState>) -> Self {
        Self {
            stream,
            limit,
            state,
            timer: None,
            next_check: None,
            first_byte_sent: false,
        }
    }

    /// Passes on the result of a write; a write that has waited for `limit` fails.
    fn with_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.timer = None;
            self.state.wrote();
            return written;
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        timer.as_mut().poll(cx).map(|()| {
            let message = format!("the client read nothing for {limit:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        })
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

impl AsyncRead for WriteTimeout {
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

impl AsyncWrite for WriteTimeout {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.poll_write_rest(cx, bytes);
        self.with_timeout(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.first_byte_sent {
            let first = slices.iter().find(|slice| !slice.is_empty());
            let written = self.poll_write_rest(cx, first.map_or(&[], |slice| slice));
            return self.with_timeout(cx, written);
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.with_timeout(cx, written)
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpSocket;
    use tokio::time::timeout;

    use super::super::connection_limit::ConnectionLimit;
    use super::*;

    const LIMIT: Duration = Duration::from_millis(400);
    /// Pause between the reads of a slow client.
    const PAUSE: Duration = Duration::from_millis(100);
    /// Approximate size of each end's socket buffer, in bytes.
    const BUFFER: u32 = 64 << 10;
    /// Bytes of a write: more than the buffers hold.
    const PART: usize = 1 << 20;

    /// Returns both ends of a connection with small buffers.
    async fn connected() -> (WriteTimeout, TcpStream) {
        let (server, client) = (TcpSocket::new_v4().unwrap(), TcpSocket::new_v4().unwrap());
        server.set_send_buffer_size(BUFFER).unwrap();
        client.set_recv_buffer_size(BUFFER).unwrap();
        server.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = server.listen(1).unwrap();
        let client = client.connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(client, listener.accept());
        let permit = ConnectionLimit::new(1, Duration::ZERO)
            .acquire()
            .await
            .unwrap();
        let stream = WriteTimeout::new(accepted.unwrap().0, LIMIT, permit.state());
        (stream, client.unwrap())
    }

    /// Result of serving a client that reads now and then.
    enum Outcome {
        /// The client was served for three times the limit.
        Served,
        /// The write timed out this long after the last successful one.
        TimedOut(Duration),
    }

    async fn serve_slowly(stream: &mut WriteTimeout, client: &mut TcpStream) -> Outcome {
        let (began, mut took) = (Instant::now(), Instant::now());
        let mut part = vec![0; PART];
        while began.elapsed() < 3 * LIMIT {
            match timeout(PAUSE, stream.write(&part)).await {
                Ok(Ok(_)) => took = Instant::now(),
                Ok(Err(_)) => return Outcome::TimedOut(took.elapsed()),
                // The client reads all that is there.
                Err(_) => while client.try_read(&mut part).is_ok() {},
            }
        }
        Outcome::Served
    }

    /// The limit applies to a single wait, not to their sum.
    #[tokio::test]
    async fn a_slow_client_that_keeps_reading_is_served() {
        for _ in 0..50 {
            let (mut stream, mut client) = connected().await;
            match serve_slowly(&mut stream, &mut client).await {
                Outcome::Served => return,
                // A busy machine may delay this test by that much.
                Outcome::TimedOut(after) => assert!(after >= LIMIT, "timed out after {after:?}"),
            }
        }
        panic!("no client was served");
    }
}
