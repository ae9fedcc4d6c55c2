//! SIGTERM, SIGINT and SIGHUP while an engine runs. Before that, and in Python's `LLM`, the process keeps
//! its own handlers.
//!
//! A separate thread receives them, so that they end the process even if the engine's thread hangs.

use std::future::pending;
use std::io;
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::access::Exposure;
use crate::error::{Failure, Outcome};
use crate::terminal;

/// The time to stop in addition to the grace period. Workers that ignore every request to stop take
/// three times three seconds.
const ENDING: Duration = Duration::from_secs(25);

/// The signals that request a shutdown.
#[derive(Debug)]
pub struct Signals(mpsc::Receiver<()>);

/// SIGTERM and SIGINT, which do not end the process from then on.
#[derive(Debug)]
pub struct SignalStreams {
    terminate: Signal,
    interrupt: Signal,
}

/// Stops the reaction to SIGHUP when it is dropped.
#[derive(Debug)]
pub struct Reloading(Option<JoinHandle<()>>);

/// Reads the files of `exposure` again at each SIGHUP. Without files, the signal keeps its default
/// effect: it ends the process, as when a terminal closes.
///
/// # Errors
/// If the system refuses to install a handler.
pub fn on_hangup(exposure: &Exposure) -> Outcome<Reloading> {
    if !exposure.has_files() {
        return Ok(Reloading(None));
    }
    let mut hangups = signal(SignalKind::hangup())
        .map_err(|error| Failure::runtime(format!("cannot listen to SIGHUP: {error}")))?;
    let reload = exposure.reload();
    Ok(Reloading(Some(tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            match reload.run() {
                Ok(()) => terminal::print_note("SIGHUP: the files were read again"),
                Err(why) => tracing::warn!("SIGHUP: the former settings stay: {why}"),
            }
        }
    }))))
}

impl Drop for Reloading {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl Signals {
    /// Installs the handlers. If the process has not ended `grace` and `ENDING` after the first
    /// signal, or `ENDING` after a further one, the thread ends it with exit code 1.
    ///
    /// # Errors
    /// If the system refuses to install a handler.
    pub fn listen(grace: Duration) -> Outcome<Self> {
        Self::listen_for(grace, ENDING)
            .map_err(|error| Failure::runtime(format!("cannot listen to signals: {error}")))
    }

    fn listen_for(grace: Duration, ending: Duration) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let mut streams = {
            let _inside = runtime.enter();
            SignalStreams::listen()?
        };
        // Capacity 2: a second signal must arrive while the first is handled; further ones add
        // nothing.
        let (sender, receiver) = mpsc::channel(2);
        let watch = async move {
            let mut limit = ending + grace;
            streams.next().await;
            loop {
                // A full channel already holds enough signals.
                let _ = sender.try_send(());
                tokio::select! {
                    _ = streams.next() => limit = ending,
                    () = sleep_until(Instant::now() + limit) => end(limit),
                }
            }
        };
        let thread = thread::Builder::new().name("signals".into());
        thread.spawn(move || runtime.block_on(watch))?;
        Ok(Self(receiver))
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            // The thread panicked, which the log reports.
            pending::<()>().await;
        }
    }
}

impl SignalStreams {
    /// Listens to the signals. Needs a runtime.
    ///
    /// # Errors
    /// If the system refuses to install a handler.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal and returns its kind.
    pub async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        }
    }
}

/// Ends the process. Its workers end too, because each holds the end of a pipe.
fn end(waited: Duration) -> ! {
    let seconds = waited.as_secs_f64();
    tracing::error!("the server has not stopped {seconds} s after the signal: exiting now");
    terminal::flush();
    std::process::exit(1);
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use nix::sys::signal::{Signal as Number, kill};
    use nix::unistd::Pid;

    use super::*;

    /// A server whose engine hangs, in its own process.
    #[test]
    #[ignore = "run by the test below"]
    fn stuck() {
        let limits = (Duration::from_millis(10), Duration::from_millis(100));
        let signals = Signals::listen_for(limits.0, limits.1).unwrap();
        println!("\nlistening");
        loop {
            thread::park();
            std::hint::black_box(&signals);
        }
    }

    #[test]
    fn a_stuck_process_exits_after_its_grace_period() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "signals::tests::stuck",
                "--nocapture",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "listening"));
        kill(
            Pid::from_raw(i32::try_from(child.id()).unwrap()),
            Number::SIGTERM,
        )
        .unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1));
    }
}
