//! TLS of the listening sockets, by rustls. Both files can be read again while connections are
//! open: new connections get the new certificate.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::connection_limit::ConnectionState;

/// Time within which a handshake must end.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The HTTP server speaks HTTP/1.1 only.
const HTTP: &[u8] = b"http/1.1";
/// gRPC needs HTTP/2.
#[cfg(feature = "kserve")]
const GRPC: &[u8] = b"h2";

/// A certificate and its key, from PEM files. Clones share it.
#[derive(Clone)]
pub struct Tls(Arc<Files>);

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    current: RwLock<Acceptors>,
}

#[derive(Clone)]
struct Acceptors {
    http: TlsAcceptor,
    #[cfg(feature = "kserve")]
    grpc: TlsAcceptor,
}

impl Tls {
    /// Reads the certificate chain, the server's own first, and its private key.
    ///
    /// # Errors
    /// If a file cannot be read, is not PEM, or the two do not belong together.
    pub fn open(certificate: &Path, key: &Path) -> Result<Self, String> {
        let current = RwLock::new(Acceptors::read(certificate, key)?);
        Ok(Self(Arc::new(Files {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            current,
        })))
    }

    /// Reads both files again, for new connections.
    ///
    /// # Errors
    /// As `open`; then the former certificate stays in use.
    pub fn reload(&self) -> Result<(), String> {
        let read = Acceptors::read(&self.0.certificate, &self.0.key)?;
        *self
            .0
            .current
            .write()
            .unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// Shakes hands on a connection of the HTTP server. Fails when it has taken too long, or when
    /// the connection must make room.
    pub(super) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        state: &ConnectionState,
    ) -> io::Result<TlsStream<S>> {
        let must_close = poll_fn(|cx| match state.register_must_close(cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        let acceptor = self.acceptors().http;
        tokio::select! {
            accepted = within(acceptor.accept(stream)) => accepted,
            () = must_close => Err(io::Error::other("it made room for another connection")),
        }
    }

    /// Shakes hands on a connection of the gRPC server.
    #[cfg(feature = "kserve")]
    pub(super) async fn accept_grpc<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        within(self.acceptors().grpc.accept(stream)).await
    }

    fn acceptors(&self) -> Acceptors {
        let current = self.0.current.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.certificate).finish()
    }
}

impl Acceptors {
    fn read(certificate: &Path, key: &Path) -> Result<Self, String> {
        let unread = |path: &Path, error: rustls::pki_types::pem::Error| {
            format!("cannot read {}: {error}", path.display())
        };
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| unread(certificate, error))?;
        if chain.is_empty() {
            return Err(format!("{} contains no certificate", certificate.display()));
        }
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unread(key, error))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                let builder = builder.with_no_client_auth();
                builder.with_single_cert(chain, private)
            })
            .map_err(|error| format!("{} and its key: {error}", certificate.display()))?;
        let speaking = |protocol: &[u8]| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol.to_vec()];
            TlsAcceptor::from(Arc::new(config))
        };
        Ok(Self {
            http: speaking(HTTP),
            #[cfg(feature = "kserve")]
            grpc: speaking(GRPC),
        })
    }
}

async fn within<T>(handshake: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let ended = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await;
    ended.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "TLS handshake")))
}
