//! Accepts connections and serves each in a task of its own, with bounds on number and time.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::patience::Patient;
use super::router;
use crate::config::RouterConfig;
use crate::generation::Generator;

/// Bytes that a connection buffers of what it reads.
const READ_BUFFER: usize = 64 << 10;
/// Wait after the system refused a connection, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` completes; then accepts nothing more, lets the open responses end and
/// returns. Whoever wants them to end in bounded time drains the engine.
pub async fn serve(
    listener: TcpListener,
    generator: Generator,
    config: RouterConfig,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let server = Server::new(generator, config)?;
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = server.accept(&listener) => {
                if let Some((stream, place)) = accepted {
                    server.spawn(stream, place);
                }
            }
        }
    }
    drop(listener);
    server.finish().await;
    Ok(())
}

struct Server {
    router: Router,
    generator: Generator,
    http: http1::Builder,
    places: Arc<Semaphore>,
    max_connections: u32,
    write_timeout: Duration,
    stop: watch::Sender<bool>,
}

impl Server {
    fn new(generator: Generator, config: RouterConfig) -> io::Result<Self> {
        let max_connections = u32::try_from(config.max_connections.max(1)).unwrap_or(u32::MAX);
        let write_timeout = config.write_timeout;
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(config.header_timeout)
            .max_buf_size(READ_BUFFER);
        Ok(Self {
            router: router(generator.clone(), config)?,
            generator,
            http,
            places: Arc::new(Semaphore::new(max_connections as usize)),
            max_connections,
            write_timeout,
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

    fn spawn(&self, stream: TcpStream, place: OwnedSemaphorePermit) {
        // Without it the first token waits for the client's delayed acknowledgement.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("TCP_NODELAY: {error}");
        }
        let service = TowerToHyperService::new(self.router.clone());
        let io = TokioIo::new(Patient::new(stream, self.write_timeout));
        let connection = self.http.serve_connection(io, service);
        let mut stop = self.stop.subscribe();
        let open = self.generator.metrics().http.connections.clone();
        open.inc();
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            let stopping = async { stop.wait_for(|stop| *stop).await.is_ok() };
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                _ = stopping => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!("connection ended: {error}");
            }
            open.dec();
            drop(place);
        });
    }

    async fn finish(&self) {
        self.stop.send_replace(true);
        // All places are free again when all connections have ended.
        let _ = self.places.acquire_many(self.max_connections).await;
    }
}
