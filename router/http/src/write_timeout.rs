//! A connection that fails if its client reads nothing for too long.
//!
//! The header and body timeouts bound a client that sends nothing, and the network reports one that
//! is gone; but a client that stays connected and reads nothing would hold its connection forever.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// A TCP stream whose writes fail if they make no progress for `limit`.
pub(super) struct WriteTimeout {
    stream: TcpStream,
    limit: Duration,
    /// Set while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
    pub(super) fn new(stream: TcpStream, limit: Duration) -> Self {
        Self {
            stream,
            limit,
            timer: None,
        }
    }

    /// Returns and clears the socket's pending error.
    pub(super) fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.stream.take_error()
    }

    /// Passes on the result of a write; a write that has waited for `limit` fails.
    fn with_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        timer.as_mut().poll(cx).map(|()| {
            let message = format!("the client read nothing for {limit:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        })
    }
}

impl AsyncRead for WriteTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for WriteTimeout {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.with_timeout(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
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
    use tokio::time::{Instant, timeout};

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
        let stream = WriteTimeout::new(accepted.unwrap().0, LIMIT);
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
