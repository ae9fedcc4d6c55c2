//! The threads that serve connections. Each has a runtime of its own, and a connection stays on the
//! thread that it was given to: its state stays in one core's cache, and waking its task costs no
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
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use super::App;
use super::patience::Patient;
use crate::client::Client;

/// Bytes that a connection buffers of what it reads.
const READ_BUFFER: usize = 64 << 10;

/// A connection on its way to its thread.
pub(super) struct Arrival {
    pub(super) stream: std::net::TcpStream,
    /// Its place among the connections that may be open, given back when it ends.
    pub(super) place: OwnedSemaphorePermit,
    /// Changes when the connection may take no further request.
    pub(super) stop: watch::Receiver<bool>,
}

/// All of them. When they are dropped, the connections that are open are cut off.
pub(super) struct Threads(Vec<Thread>);

struct Thread {
    arrivals: mpsc::UnboundedSender<(Arrival, Arc<()>)>,
    /// Cloned by every open connection.
    load: Arc<()>,
}

/// What a thread needs to serve a connection.
struct Service {
    router: Router,
    http: http1::Builder,
    write_timeout: Duration,
    /// How many connections there are, for the metrics.
    open: Gauge,
}

impl Threads {
    pub(super) fn start(app: &App) -> io::Result<Self> {
        let start = |index| Thread::start(index, app);
        (0..app.config.serving_threads.get())
            .map(start)
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Gives a connection to the thread that has the fewest.
    pub(super) fn serve(&self, arrival: Arrival) {
        let idle = self
            .0
            .iter()
            .min_by_key(|thread| Arc::strong_count(&thread.load));
        if let Some(thread) = idle {
            // A thread only ends with this sender.
            let _ = thread.arrivals.send((arrival, Arc::clone(&thread.load)));
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
        // Bounded by the places.
        let (arrivals, mut inbox) = mpsc::unbounded_channel();
        let work = async move {
            while let Some((arrival, load)) = inbox.recv().await {
                service.spawn(arrival, load);
            }
        };
        let thread = thread::Builder::new().name(format!("http-{index}"));
        thread.spawn(move || runtime.block_on(work))?;
        let load = Arc::default();
        Ok(Self { arrivals, load })
    }
}

impl Service {
    fn new(app: App) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(app.config.header_timeout)
            .max_buf_size(READ_BUFFER)
            // A frame is small: copying it costs less than a vector of its pieces.
            .writev(false);
        Self {
            http,
            write_timeout: app.config.write_timeout,
            open: app.generator.metrics().http.connections.clone(),
            router: app.routes(),
        }
    }

    fn spawn(&self, arrival: Arrival, load: Arc<()>) {
        let Arrival {
            stream,
            place,
            stop,
        } = arrival;
        let opened = stream.peer_addr().map(|address| Client::at(address.ip()));
        let opened = opened.and_then(|client| Ok((client, TcpStream::from_std(stream)?)));
        let (client, stream) = match opened {
            Ok(opened) => opened,
            Err(error) => return tracing::warn!("cannot serve a connection: {error}"),
        };
        let service = TowerToHyperService::new(self.router.clone());
        let io = TokioIo::new(Patient::new(stream, self.write_timeout));
        let connection = self.http.serve_connection(io, service);
        let open = self.open.clone();
        open.inc();
        tokio::spawn(client.scope(async move {
            if let Err(error) = until_stopped(connection, stop).await {
                tracing::debug!("connection ended: {error}");
            }
            open.dec();
            drop((place, load));
        }));
    }
}

type Connection = http1::Connection<TokioIo<Patient>, TowerToHyperService<Router>>;

/// Serves a connection; after the stop it ends with the response that it is sending.
async fn until_stopped(
    connection: Connection,
    mut stop: watch::Receiver<bool>,
) -> hyper::Result<()> {
    let mut connection = pin!(connection);
    let told = stop.clone();
    let mut stopping = Box::pin(stop.changed());
    let mut listens = false;
    let ended = poll_fn(|cx| {
        if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
            return Poll::Ready(Some(ended));
        }
        // A task keeps its waker, so that it need not listen anew for every token: that takes a
        // lock which all connections share.
        if listens && matches!(told.has_changed(), Ok(false)) {
            return Poll::Pending;
        }
        listens = true;
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
