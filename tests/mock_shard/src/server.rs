//! Serving: as a process, or inside a test on a thread of its own.

use std::{
    io,
    net::ToSocketAddrs,
    path::Path,
    thread::{self, JoinHandle},
};

use penstock_engine::{generated::v1::shard_server::ShardServer, shard::Endpoint};
use tokio::{net::UnixListener, runtime::Builder, sync::watch};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::transport::Server;

pub use crate::service::Exit;
use crate::{MockConfig, fold::State, service::Service};

/// A step with many long prompts is one message.
const MAX_MESSAGE_BYTES: usize = 256 << 20;
const WINDOW_BYTES: u32 = 16 << 20;

/// A mock worker on a thread of its own. Dropping it is like killing a process: its socket and
/// all its connections are gone when `drop` returns.
#[derive(Debug)]
pub struct MockShard {
    service: Service,
    exit: watch::Sender<Exit>,
    thread: Option<JoinHandle<()>>,
}

/// What a worker holds; for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Sequences in slots.
    pub sequences: usize,
    /// Steps since it began.
    pub steps: u64,
    /// Calls of Prepare that it has not answered.
    pub preparing: usize,
    /// Calls of Prepare so far.
    pub preparations: usize,
    /// Its epoch.
    pub epoch: u64,
}

impl MockShard {
    /// Starts a worker; it listens when this returns.
    pub fn spawn(endpoint: &Endpoint, config: MockConfig) -> io::Result<Self> {
        let exit = watch::Sender::new(Exit::Running);
        let service = Service::new(config, exit.clone());
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _context = runtime.enter();
            Listener::bind(endpoint)?
        };
        let served = service.clone();
        let watched = exit.subscribe();
        let thread = thread::spawn(move || {
            let server = listener.serve(served);
            runtime.block_on(async {
                tokio::select! {
                    _ = server => {}
                    _ = ended(watched) => {}
                }
            });
            // Connections are tasks: they end here, in the middle of whatever they do.
            runtime.shutdown_background();
        });
        Ok(Self {
            service,
            exit,
            thread: Some(thread),
        })
    }

    /// What the worker holds now.
    pub fn view(&self) -> View {
        let state = self.service.state();
        state.as_ref().map_or_else(View::default, |state| View {
            sequences: state.sequences(),
            steps: State::steps(state),
            preparing: self.service.preparing(),
            preparations: self.service.preparations(),
            epoch: state.epoch(),
        })
    }

    /// Whose requests the calls of Prepare so far were for.
    pub fn clients(&self) -> Vec<String> {
        self.service.clients()
    }

    /// How the worker stands.
    pub fn exit(&self) -> Exit {
        *self.exit.borrow()
    }
}

impl Drop for MockShard {
    fn drop(&mut self) {
        self.exit.send_if_modified(|exit| {
            let running = *exit == Exit::Running;
            *exit = if running { Exit::Crashed } else { *exit };
            running
        });
        if let Some(thread) = self.thread.take() {
            // A worker that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

/// Serves until the worker is asked to shut down or crashes by script.
pub async fn serve(endpoint: &Endpoint, config: MockConfig) -> io::Result<Exit> {
    let exit = watch::Sender::new(Exit::Running);
    let listener = Listener::bind(endpoint)?;
    let service = Service::new(config, exit.clone());
    tokio::select! {
        result = listener.serve(service) => result.map(|()| Exit::Asked),
        how = ended(exit.subscribe()) => Ok(how),
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(tokio::net::TcpListener),
}

impl Listener {
    fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Unix(path) => {
                remove_socket(path)?;
                Ok(Self::Unix(UnixListener::bind(path)?))
            }
            Endpoint::Tcp(address) => {
                let first = address.to_socket_addrs()?.next();
                let address = first.ok_or_else(|| io::Error::other("the name has no address"))?;
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(tokio::net::TcpListener::from_std(listener)?))
            }
        }
    }

    async fn serve(self, service: Service) -> io::Result<()> {
        let service = ShardServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let server = Server::builder()
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .add_service(service);
        let served = match self {
            Self::Unix(socket) => {
                server
                    .serve_with_incoming(UnixListenerStream::new(socket))
                    .await
            }
            Self::Tcp(socket) => {
                server
                    .serve_with_incoming(TcpListenerStream::new(socket))
                    .await
            }
        };
        served.map_err(io::Error::other)
    }
}

/// A socket left by a dead worker is in the way of the next.
fn remove_socket(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The end of the worker; an answer to Shutdown gets a moment to leave.
async fn ended(mut exit: watch::Receiver<Exit>) -> Exit {
    let how = exit
        .wait_for(|exit| *exit != Exit::Running)
        .await
        .map_or(Exit::Asked, |how| *how);
    if how == Exit::Asked {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    how
}
