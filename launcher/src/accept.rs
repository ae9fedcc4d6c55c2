//! The thread that accepts connections. The engine's thread plans steps for milliseconds at a time,
//! and a bug may make it hang; connections, and so health checks, wait for neither.

use std::future::Future;
use std::io;
use std::thread;

use penstock_http::Listeners;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// A server on a thread of its own. Dropping it stops the server.
#[derive(Debug)]
pub(crate) struct Accepting {
    stop: Option<oneshot::Sender<()>>,
    result: oneshot::Receiver<io::Result<()>>,
}

/// Completes when the server must stop.
pub(crate) type Stopped = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl Accepting {
    /// Starts the thread and runs the server that `serving` creates. The server gets the listeners,
    /// registered with the thread's runtime, and ends after `Stopped`.
    ///
    /// # Errors
    /// If the system refuses a runtime or a thread.
    pub(crate) fn start<S: Future<Output = io::Result<()>>>(
        listeners: Listeners,
        serving: impl FnOnce(Listeners, Stopped) -> S + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listeners = {
            let http = listeners.http.into_std()?;
            let kserve = listeners.kserve.map(TcpListener::into_std).transpose()?;
            let _inside = runtime.enter();
            Listeners {
                http: TcpListener::from_std(http)?,
                kserve: kserve.map(TcpListener::from_std).transpose()?,
            }
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let (report, result) = oneshot::channel();
        let work = move || {
            // The sender never sends; dropping it means stop.
            let stopped = Box::pin(async move { drop(stopped.await) });
            let ended = runtime.block_on(serving(listeners, stopped));
            // Without a receiver, the process ends.
            let _ = report.send(ended);
        };
        thread::Builder::new().name("accept".into()).spawn(work)?;
        Ok(Self {
            stop: Some(stop),
            result,
        })
    }

    /// Waits for the end of a server that was not stopped.
    pub(crate) async fn ended(&mut self) -> io::Result<()> {
        result(&mut self.result).await
    }

    /// Stops the server and waits for its end.
    pub(crate) async fn stop(&mut self) -> io::Result<()> {
        drop(self.stop.take());
        result(&mut self.result).await
    }
}

async fn result(receiver: &mut oneshot::Receiver<io::Result<()>>) -> io::Result<()> {
    let panicked = |_| Err(io::Error::other("its thread has failed"));
    receiver.await.unwrap_or_else(panicked)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn connections_are_accepted_while_the_current_thread_is_busy() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut accepting = Accepting::start(listener.into(), |listeners, stopped| async move {
            let greet = async {
                loop {
                    let (mut stream, _) = listeners.http.accept().await?;
                    stream.write_all(b"alive").await?;
                }
            };
            tokio::select! {
                ended = greet => ended,
                () = stopped => Ok(()),
            }
        });
        // Blocking calls: nothing else runs on this thread meanwhile.
        let mut stream = TcpStream::connect(address).unwrap();
        stream.flush().unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "alive");
        accepting.as_mut().unwrap().stop().await.unwrap();
        assert!(TcpStream::connect(address).is_err(), "it still accepts");
    }

    #[tokio::test]
    async fn a_panic_of_the_server_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        #[allow(unreachable_code, reason = "the type of the future")]
        let accepting = Accepting::start(listener.into(), |_, _| async {
            panic!("a bug");
            Ok(())
        });
        assert!(accepting.unwrap().ended().await.is_err());
    }
}
