//! The threads that serve connections. Each thread has its own runtime, and a connection stays on
//! its thread: the connection's state stays in one core's cache, and waking its task costs no
//! system call.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use penstock_request::client::Client;
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};

use super::App;
use super::connection_limit::{ConnectionPermit, ConnectionState};
use super::connection_service::ConnectionService;
use super::half_close::{ClientStream, HalfClose};
use super::tls::Tls;
use super::write_timeout::WriteTimeout;

/// Time within which a connection beyond the limit must send its request.
const SPARE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a connection's read buffer.
const READ_BUFFER: usize = 64 << 10;

/// A connection on its way to its serving thread.
pub(super) struct NewConnection {
    pub(super) stream: std::net::TcpStream,
    /// Permit that counts the connection against the limit; released when the connection ends.
    pub(super) permit: ConnectionPermit,
    pub(super) kind: ConnectionKind,
    /// Becomes true when the connection may serve no further request.
    pub(super) stop: watch::Receiver<bool>,
}

/// The routes that a connection may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    /// All routes, with keep-alive.
    Full,
    /// A single response, to a health check or a 503: the connection limit is reached.
    Spare,
}

/// All serving threads. Dropping them closes all open connections.
pub(super) struct Threads(Vec<Thread>);

struct Thread {
    new_connections: mpsc::UnboundedSender<(NewConnection, Arc<()>)>,
    /// Cloned by every open connection; its reference count is the thread's load.
    load: Arc<()>,
}

/// The state of a serving thread.
struct Service {
    full: ServedRoutes,
    spare: ServedRoutes,
    write_timeout: Duration,
    tls: Option<Tls>,
    /// Gauge of open connections.
    open: Gauge,
}

/// Routes with the HTTP settings under which they are served.
struct ServedRoutes {
    router: Router,
    http: http1::Builder,
}

/// Counts a connection as open until it is dropped.
struct OpenGauge(Gauge);

impl Threads {
    pub(super) fn start(app: &App) -> io::Result<Self> {
        let start = |index| Thread::start(index, app);
        (0..app.config.serving_threads.get())
            .map(start)
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Gives a connection to the thread that has the fewest connections. Fails if that thread has
    /// ended, which only a bug can cause; the server must then stop, since it would lose
    /// connections.
    pub(super) fn serve(&self, new_connection: NewConnection) -> io::Result<()> {
        let idle = self
            .0
            .iter()
            .min_by_key(|thread| Arc::strong_count(&thread.load));
        let sent = idle.map(|thread| {
            thread
                .new_connections
                .send((new_connection, Arc::clone(&thread.load)))
        });
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(io::Error::other("a serving thread has failed")),
        }
    }
}

impl Thread {
    fn start(index: usize, app: &App) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let service = {
            let _inside = runtime.enter();
            Service::new(app.on_this_runtime())
        };
        // The connection limit bounds this queue.
        let (new_connections, mut inbox) = mpsc::unbounded_channel();
        let work = async move {
            while let Some((new_connection, load)) = inbox.recv().await {
                service.spawn(new_connection, load);
            }
        };
        let thread = thread::Builder::new().name(format!("http-{index}"));
        thread.spawn(move || runtime.block_on(work))?;
        let load = Arc::default();
        Ok(Self {
            new_connections,
            load,
        })
    }
}

impl Service {
    fn new(app: App) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(app.config.header_timeout)
            .max_buf_size(READ_BUFFER)
            // Frames are small: copying one costs less than gathering its pieces.
            .writev(false);
        let mut once = http.clone();
        once.header_read_timeout(app.config.header_timeout.min(SPARE_TIMEOUT))
            .keep_alive(false);
        Self {
            write_timeout: app.config.write_timeout,
            tls: app.config.tls.clone(),
            open: app.metrics.http.connections.clone(),
            spare: ServedRoutes {
                router: app.clone().spare_routes(),
                http: once,
            },
            full: ServedRoutes {
                router: app.routes(),
                http,
            },
        }
    }

    fn spawn(&self, new_connection: NewConnection, load: Arc<()>) {
        let NewConnection {
            stream,
            permit,
            kind,
            stop,
        } = new_connection;
        let opened = stream.peer_addr().map(|address| Client::at(address.ip()));
        let opened = opened.and_then(|client| Ok((client, TcpStream::from_std(stream)?)));
        let (client, stream) = match opened {
            Ok(opened) => opened,
            Err(error) => return tracing::warn!("cannot serve a connection: {error}"),
        };
        let routes = match kind {
            ConnectionKind::Full => &self.full,
            ConnectionKind::Spare => &self.spare,
        };
        let (state, router) = (permit.state(), routes.router.clone());
        let stream = WriteTimeout::new(stream, self.write_timeout);
        let service = ConnectionService {
            router,
            state: Arc::clone(&state),
        };
        let (http, tls) = (routes.http.clone(), self.tls.clone());
        let open = OpenGauge::count(&self.open);
        tokio::spawn(client.scope(async move {
            match encrypted(stream, tls, &state).await {
                Ok(stream) => {
                    let io = TokioIo::new(HalfClose::new(stream, Arc::clone(&state)));
                    let connection = http.serve_connection(io, service);
                    if let Err(error) = until_stopped(connection, stop, &state).await {
                        tracing::debug!("connection ended: {error}");
                    }
                }
                Err(error) => tracing::debug!("no TLS connection: {error}"),
            }
            drop((open, permit, load));
        }));
    }
}

/// Shakes hands if the server speaks TLS.
async fn encrypted(
    stream: WriteTimeout,
    tls: Option<Tls>,
    state: &ConnectionState,
) -> io::Result<ClientStream> {
    match tls {
        None => Ok(ClientStream::Plain(stream)),
        Some(tls) => Ok(ClientStream::Tls(Box::new(
            tls.accept(stream, state).await?,
        ))),
    }
}

impl OpenGauge {
    fn count(open: &Gauge) -> Self {
        open.inc();
        Self(open.clone())
    }
}

impl Drop for OpenGauge {
    fn drop(&mut self) {
        self.0.dec();
    }
}

type Connection = http1::Connection<TokioIo<HalfClose>, ConnectionService>;

/// Serves a connection until it ends. After `stop`, it ends with the response in progress. A
/// connection that must close ends at once: it is idle.
async fn until_stopped(
    connection: Connection,
    mut stop: watch::Receiver<bool>,
    state: &ConnectionState,
) -> hyper::Result<()> {
    let mut connection = pin!(connection);
    let stopped = stop.clone();
    let mut stopping = Box::pin(stop.changed());
    let mut listens = false;
    let ended = poll_fn(|cx| {
        if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
            return Poll::Ready(Some(ended));
        }
        // The task's waker stays registered, so do not register it again for every token: that
        // takes a lock shared by all connections.
        if listens && matches!(stopped.has_changed(), Ok(false)) && !state.must_close() {
            return Poll::Pending;
        }
        listens = true;
        if state.register_must_close(cx.waker()) {
            return Poll::Ready(Some(Ok(())));
        }
        stopping.as_mut().poll(cx).map(|_| None)
    });
    match ended.await {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tokio::net::TcpListener;

    use super::super::connection_limit::ConnectionLimit;
    use super::*;

    /// A thread that has ended has the fewest connections, so it gets the next one.
    #[tokio::test]
    async fn an_ended_serving_thread_is_an_error() {
        let thread = || {
            let (new_connections, inbox) = mpsc::unbounded_channel();
            let load = Arc::default();
            let thread = Thread {
                new_connections,
                load,
            };
            (thread, inbox)
        };
        let ((ended, inbox), (alive, mut connections)) = (thread(), thread());
        drop(inbox);
        let threads = Threads(vec![alive, ended]);
        let limit = ConnectionLimit::new(2, Duration::ZERO);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut open = Vec::new();
        for fails in [false, true] {
            let stream = std::net::TcpStream::connect(address).unwrap();
            let new_connection = NewConnection {
                stream,
                permit: limit.acquire().await.unwrap(),
                kind: ConnectionKind::Full,
                stop: watch::channel(false).1,
            };
            assert_eq!(threads.serve(new_connection).is_err(), fails);
            open.extend(connections.try_recv());
        }
        assert_eq!(open.len(), 1);
    }
}
