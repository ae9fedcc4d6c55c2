//! Accepts connections up to a limit and hands them to the serving threads.

use std::future::{Future, pending};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use penstock_text::generation::Generator;
use prometheus_client::metrics::counter::Counter;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

use super::connection_limit::{ConnectionLimit, ConnectionPermit};
#[cfg(feature = "kserve")]
use super::kserve::grpc::start as start_grpc;
use super::threads::{ConnectionKind, NewConnection, Threads};
use super::{App, Metrics};
use crate::config::RouterConfig;

/// Pause after the system refused to accept a connection, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Shortest idle time after which a connection may be closed to make room. A connection that became
/// idle more recently may have a request on its way.
const LEAST_IDLE: Duration = Duration::from_secs(1);
/// One in this many connections is reserved for the gRPC server, if it runs.
const GRPC_SHARE: usize = 8;

/// Silence after which the system asks the client's whether the connection still exists.
const PROBE_IDLE: Duration = Duration::from_secs(30);
/// Interval of further questions.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Unanswered questions after which the connection is closed.
const PROBE_RETRIES: u32 = 3;

/// The sockets on which the server listens.
#[derive(Debug)]
pub struct Listeners {
    /// All HTTP routes.
    pub http: TcpListener,
    /// KServe's gRPC service, if enabled; an error without the feature `kserve`.
    pub kserve: Option<TcpListener>,
}

impl From<TcpListener> for Listeners {
    fn from(http: TcpListener) -> Self {
        Self { http, kserve: None }
    }
}

/// Serves until `shutdown` completes. Then it accepts no more connections, waits until the open
/// responses have ended and returns. To bound that wait, drain the engine.
pub async fn serve(
    listeners: impl Into<Listeners>,
    generator: Generator,
    metrics: Arc<Metrics>,
    config: RouterConfig,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let Listeners {
        http: listener,
        kserve,
    } = listeners.into();
    let app = App::new(generator, metrics, config)?;
    for listener in std::iter::once(&listener).chain(&kserve) {
        close_half_open(listener, app.config.write_timeout)?;
    }
    let most = app.config.max_connections.max(1);
    let share = kserve.as_ref().map_or(0, |_| most.div_ceil(GRPC_SHARE));
    let server = Server::new(&app, most - share)?;
    let stop = server.stop.subscribe();
    let kserve = kserve.map(|grpc| start_grpc(grpc, &app, share, stop));
    let mut kserve = kserve.transpose()?;
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = server.accept(&listener) => {
                if let Some((stream, permit, kind)) = accepted {
                    server.hand_over(stream, permit, kind)?;
                }
            }
            () = ended(kserve.as_mut()) => {
                return Err(io::Error::other("the gRPC server has ended"));
            }
        }
    }
    drop(listener);
    server.finish().await;
    if kserve.is_some() {
        ended(kserve.as_mut()).await;
    }
    Ok(())
}

/// Lets the system close the connections of `listener` whose clients are gone without a word: their
/// host lost power or its network, so neither a FIN nor a reset comes. It does so after about a minute
/// of silence, or if data is not acknowledged for `unacknowledged`; otherwise a connection that waits
/// for a token would wait forever, and one that sends for 15 minutes. Accepted sockets inherit this.
fn close_half_open(listener: &TcpListener, unacknowledged: Duration) -> io::Result<()> {
    let socket = SockRef::from(listener);
    let keepalive = TcpKeepalive::new()
        .with_time(PROBE_IDLE)
        .with_interval(PROBE_INTERVAL)
        .with_retries(PROBE_RETRIES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(unacknowledged))
}

#[cfg(not(feature = "kserve"))]
fn start_grpc(
    _listener: TcpListener,
    _app: &App,
    _connections: usize,
    _stop: watch::Receiver<bool>,
) -> io::Result<oneshot::Receiver<()>> {
    let message = "this server was built without KServe's gRPC service";
    Err(io::Error::new(io::ErrorKind::Unsupported, message))
}

/// Waits for the end of the gRPC server; forever if there is none.
async fn ended(grpc: Option<&mut oneshot::Receiver<()>>) {
    match grpc {
        // The sender never sends; it is dropped when the server ends.
        Some(ended) => drop(ended.await),
        None => pending().await,
    }
}

struct Server {
    threads: Threads,
    limit: ConnectionLimit,
    spare: ConnectionLimit,
    /// Connections closed right after they were accepted.
    refused: Counter,
    stop: watch::Sender<bool>,
}

impl Server {
    fn new(app: &App, connections: usize) -> io::Result<Self> {
        Ok(Self {
            threads: Threads::start(app)?,
            limit: ConnectionLimit::new(connections, LEAST_IDLE),
            // An idle spare connection may be closed at once: a health check sends its request
            // immediately.
            spare: ConnectionLimit::new(app.config.spare_connections, Duration::ZERO),
            refused: app.metrics.http.refused.clone(),
            stop: watch::Sender::new(false),
        })
    }

    async fn accept(
        &self,
        listener: &TcpListener,
    ) -> Option<(TcpStream, ConnectionPermit, ConnectionKind)> {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                return None;
            }
        };
        if let Some(permit) = self.limit.acquire().await {
            return Some((stream, permit, ConnectionKind::Full));
        }
        let Some(permit) = self.spare.acquire().await else {
            self.refused.inc();
            return None;
        };
        Some((stream, permit, ConnectionKind::Spare))
    }

    fn hand_over(
        &self,
        stream: TcpStream,
        permit: ConnectionPermit,
        kind: ConnectionKind,
    ) -> io::Result<()> {
        // With Nagle's algorithm the first token would wait for the client's delayed
        // acknowledgement.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("TCP_NODELAY: {error}");
        }
        let stop = self.stop.subscribe();
        match stream.into_std() {
            Ok(stream) => self.threads.serve(NewConnection {
                stream,
                permit,
                kind,
                stop,
            }),
            Err(error) => {
                tracing::warn!("cannot hand a connection over: {error}");
                Ok(())
            }
        }
    }

    async fn finish(&self) {
        self.stop.send_replace(true);
        self.limit.wait_until_empty().await;
        self.spare.wait_until_empty().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn accepted_connections_are_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        close_half_open(&listener, Duration::from_secs(7)).unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let accepted = accepted.unwrap().0;
        let socket = SockRef::from(&accepted);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), PROBE_IDLE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), PROBE_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), PROBE_RETRIES);
        let limit = Some(Duration::from_secs(7));
        assert_eq!(socket.tcp_user_timeout().unwrap(), limit);
        drop(client);
    }
}
