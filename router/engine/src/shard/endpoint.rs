//! The address of a worker, and the connection to it, which carries all calls.

use std::{fmt, future::Future, io, path::PathBuf, pin::Pin, str::FromStr, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::{
    Status,
    body::Body,
    codegen::http,
    transport::{Channel, Endpoint as ChannelBuilder, Uri},
};
use tower::{ServiceExt, service_fn, util::BoxCloneSyncService};

/// HTTP/2 window in bytes, large enough that a step never waits for an acknowledgement.
const WINDOW_BYTES: u32 = 16 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The address of one worker: `unix:PATH` on this host, `HOST:PORT` on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A unix socket.
    Unix(PathBuf),
    /// Host (name, IPv4 or bracketed IPv6) and port, as typed.
    Tcp(String),
}

/// Carries calls to one worker: a connection, or a service inside this process. The source of an
/// error is the cause of the loss.
pub type Transport = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Status>;

/// The text is not a worker address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a worker address: write unix:PATH or HOST:PORT")]
pub struct EndpointError(String);

impl Endpoint {
    /// Connects. The error has only the cause, not the address.
    pub(super) async fn connect(&self) -> Result<Transport, String> {
        let channel = self.open().await.map_err(|error| root_cause(&error))?;
        let error = |error| Status::from_error(Box::new(error));
        Ok(Transport::new(channel.map_err(error)))
    }

    async fn open(&self) -> Result<Channel, tonic::transport::Error> {
        match self {
            Self::Unix(path) => {
                let path = path.clone();
                // HTTP/2 requires an authority; a unix socket ignores it.
                let connector = service_fn(move |_: Uri| open_unix(path.clone()));
                let channel = tuned(ChannelBuilder::from_static("http://worker"));
                channel.connect_with_connector(connector).await
            }
            Self::Tcp(address) => {
                let channel = ChannelBuilder::from_shared(format!("http://{address}"))?;
                tuned(channel).connect().await
            }
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let refused = || EndpointError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return (!path.is_empty())
                .then(|| Self::Unix(path.into()))
                .ok_or_else(refused);
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(refused)?;
        let plain = !host.is_empty() && !host.contains('/');
        match port.parse::<u16>() {
            Ok(1..) if plain => Ok(Self::Tcp(text.to_owned())),
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => f.write_str(address),
        }
    }
}

type Opening = Pin<Box<dyn Future<Output = io::Result<TokioIo<UnixStream>>> + Send>>;

fn open_unix(path: PathBuf) -> Opening {
    Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
}

fn tuned(channel: ChannelBuilder) -> ChannelBuilder {
    channel
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
}

/// Returns the innermost cause, which says what happened ("No such file or directory"). The outer
/// ones only say that something did.
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_forms() {
        let unix = Endpoint::Unix("/tmp/a.sock".into());
        assert_eq!("unix:/tmp/a.sock".parse(), Ok(unix.clone()));
        assert_eq!("unix:///tmp/a.sock".parse(), Ok(unix));
        assert_eq!("[::1]:9".parse(), Ok(Endpoint::Tcp("[::1]:9".into())));
    }

    #[test]
    fn refuses_what_is_neither() {
        for text in [
            "",
            "unix:",
            "host",
            ":80",
            "host:",
            "host:0",
            "host:70000",
            "http://a:1",
        ] {
            assert_eq!(
                text.parse::<Endpoint>(),
                Err(EndpointError(text.into())),
                "{text}"
            );
        }
    }
}
