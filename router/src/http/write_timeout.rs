//! A connection that is given up when its client takes nothing for too long, and one whose client has
//! ended its side while it waits for the answer.
//!
//! A client that sends nothing is bounded by the header and body timeouts, and one that is gone by
//! the network; but one that stays and reads nothing would keep its place for ever.
//!
//! A client that sends no more (`shutdown(SHUT_WR)`, `nc -N`) still wants its answer; one that has
//! closed its socket looks the same, until it is sent something: then its system answers with a reset.
//! So both are sent the first byte of what they get anyway: the `H` of `HTTP/1.1`, or a comment where
//! a stream of events has begun (`threads.rs`).

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

/// What every response begins with.
const FIRST: u8 = b'H';
/// How often a connection whose client sends no more is looked at.
const CHECK_INTERVAL: Duration = Duration::from_millis(25);

/// A stream whose writes fail after they have waited for `limit`.
pub(super) struct WriteTimeout {
    stream: TcpStream,
    limit: Duration,
    state: Arc<ConnectionState>,
    /// Set while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
    /// Set while the client sends no more, and waits for an answer: the next look at it.
    next_check: Option<Pin<Box<Sleep>>>,
    /// The response's first byte was sent before the rest.
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

    /// Passes a write's result on; one that has waited for too long becomes an error.
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
            let message = format!("the client took nothing for {limit:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        })
    }

    /// Keeps the end of the client's side to itself until the client has its answer, is found to be
    /// gone, or has ended in the middle of its request.
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
            // By now what has come was read. Was it not the whole request, no answer is waited for.
            if self.state.is_receiving() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Writes without the byte that was sent before.
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
    /// Between the reads of a slow client.
    const PAUSE: Duration = Duration::from_millis(100);
    /// Bytes that each end of a connection holds, about.
    const BUFFER: u32 = 64 << 10;
    /// Bytes of a write: more than is held.
    const PART: usize = 1 << 20;

    /// Both ends of a connection that buffers little.
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

    /// How a client fared that takes a part now and then.
    enum Outcome {
        /// It was served for three times the limit.
        Served,
        /// It was given up, so long after it had taken something.
        TimedOut(Duration),
    }

    async fn serve_slowly(stream: &mut WriteTimeout, client: &mut TcpStream) -> Outcome {
        let (began, mut took) = (Instant::now(), Instant::now());
        let mut part = vec![0; PART];
        while began.elapsed() < 3 * LIMIT {
            match timeout(PAUSE, stream.write(&part)).await {
                Ok(Ok(_)) => took = Instant::now(),
                Ok(Err(_)) => return Outcome::TimedOut(took.elapsed()),
                // It takes all that is there.
                Err(_) => while client.try_read(&mut part).is_ok() {},
            }
        }
        Outcome::Served
    }

    /// The limit is for one wait, not for all of them.
    #[tokio::test]
    async fn a_slow_client_that_keeps_reading_is_served() {
        for _ in 0..50 {
            let (mut stream, mut client) = connected().await;
            match serve_slowly(&mut stream, &mut client).await {
                Outcome::Served => return,
                // A busy machine may hold this test up for so long.
                Outcome::TimedOut(after) => assert!(after >= LIMIT, "given up after {after:?}"),
            }
        }
        panic!("no client was served");
    }
}
