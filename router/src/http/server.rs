//! Accepts connections, with a bound on their number, and hands them to the serving threads.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::threads::{Arrival, Threads};
use super::{App, kserve};
use crate::config::RouterConfig;
use crate::generation::Generator;

/// Wait after the system refused a connection, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where clients are listened for.
#[derive(Debug)]
pub struct Listeners {
    /// All HTTP routes.
    pub http: TcpListener,
    /// KServe's gRPC, if it is offered.
    pub kserve: Option<TcpListener>,
}

impl From<TcpListener> for Listeners {
    fn from(http: TcpListener) -> Self {
        Self { http, kserve: None }
    }
}

/// Serves until `shutdown` completes; then accepts nothing more, lets the open responses end and
/// returns. Whoever wants them to end in bounded time drains the engine.
pub async fn serve(
    listeners: impl Into<Listeners>,
    generator: Generator,
    config: RouterConfig,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let Listeners {
        http: listener,
        kserve,
    } = listeners.into();
    let app = App::new(generator, config)?;
    let server = Server::new(&app)?;
    let kserve = kserve.map(|grpc| kserve::grpc::start(grpc, &app, server.stop.subscribe()));
    let kserve = kserve.transpose()?;
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = server.accept(&listener) => {
                if let Some((stream, place)) = accepted {
                    server.hand_over(stream, place);
                }
            }
        }
    }
    drop(listener);
    server.finish().await;
    if let Some(ended) = kserve {
        // It sends nothing: it closes.
        let _ = ended.await;
    }
    Ok(())
}

struct Server {
    threads: Threads,
    places: Arc<Semaphore>,
    max_connections: u32,
    stop: watch::Sender<bool>,
}

impl Server {
    fn new(app: &App) -> io::Result<Self> {
        let max_connections = u32::try_from(app.config.max_connections.max(1)).unwrap_or(u32::MAX);
        Ok(Self {
            threads: Threads::start(app)?,
            places: Arc::new(Semaphore::new(max_connections as usize)),
            max_connections,
            stop: watch::Sender::new(false),
        })
    }

    async fn accept(&self, listener: &TcpListener) -> Option<(TcpStream, OwnedSemaphorePermit)> {
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        match listener.accept().await {
            Ok((stream, _)) => Some((stream, place)),
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                None
            }
        }
    }

    fn hand_over(&self, stream: TcpStream, place: OwnedSemaphorePermit) {
        // Without it the first token waits for the client's delayed acknowledgement.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("TCP_NODELAY: {error}");
        }
        let stop = self.stop.subscribe();
        match stream.into_std() {
            Ok(stream) => self.threads.serve(Arrival {
                stream,
                place,
                stop,
            }),
            Err(error) => tracing::warn!("cannot hand a connection over: {error}"),
        }
    }

    async fn finish(&self) {
        self.stop.send_replace(true);
        // All places are free again when all connections have ended.
        let _ = self.places.acquire_many(self.max_connections).await;
    }
}
