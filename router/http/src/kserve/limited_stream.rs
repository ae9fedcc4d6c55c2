//! A stream, plain or TLS, that holds a connection permit.

use std::future::ready;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_util::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::tls::Tls;

pub(super) struct LimitedStream {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

enum Bytes {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Accepts connections while permits are free; closes others, and those without TLS if the server
/// speaks it.
pub(super) fn limited_connections(
    listener: TcpListener,
    connections: usize,
    tls: Option<Tls>,
) -> impl Stream<Item = io::Result<LimitedStream>> + Send + 'static {
    let permits = Arc::new(Semaphore::new(connections));
    let accepted = TcpListenerStream::new(listener).filter_map(move |accepted| {
        let permit = Arc::clone(&permits).try_acquire_owned();
        ready(match (accepted, permit) {
            (Ok(stream), Ok(permit)) => Some(Ok((stream, permit))),
            (Ok(_), Err(_)) => None,
            (Err(error), _) => Some(Err(error)),
        })
    });
    let encrypted = accepted.map(move |accepted| {
        let tls = tls.clone();
        async move {
            let (stream, permit) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => return Some(Err(error)),
            };
            match LimitedStream::open(stream, permit, tls).await {
                Ok(stream) => Some(Ok(stream)),
                Err(error) => {
                    tracing::debug!("no TLS connection: {error}");
                    None
                }
            }
        }
    });
    // The permits bound the handshakes.
    let most = connections.max(1);
    encrypted.buffer_unordered(most).filter_map(ready)
}

impl LimitedStream {
    /// Opens a stream; with `tls`, after a handshake.
    async fn open(
        stream: TcpStream,
        permit: OwnedSemaphorePermit,
        tls: Option<Tls>,
    ) -> io::Result<Self> {
        let bytes = match tls {
            None => Bytes::Plain(stream),
            Some(tls) => Bytes::Tls(Box::new(tls.accept_grpc(stream).await?)),
        };
        Ok(Self {
            bytes,
            _permit: permit,
        })
    }
}

impl Connected for LimitedStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        match &self.bytes {
            Bytes::Plain(stream) => stream.connect_info(),
            Bytes::Tls(stream) => stream.get_ref().0.connect_info(),
        }
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.bytes {
            Bytes::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Bytes::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for LimitedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.bytes {
            Bytes::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Bytes::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.bytes {
            Bytes::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Bytes::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.bytes {
            Bytes::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Bytes::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
