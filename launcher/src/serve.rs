//! `penstock serve`: binds the listener, loads the model, serves until a signal, then drains.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_http::{Listeners, RouterConfig, serve};
use penstock_request::{Limits, RequestLimits};
use penstock_text::chat::{Chat, ChatMessage, RequestTemplates};
use penstock_text::{Generator, TextConfig};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::accept::Accepting;
use crate::access::Exposure;
use crate::chat;
use crate::cli::{ChatArgs, EngineArgs, HttpArgs, LifeArgs, ServeArgs};
use crate::descriptors::Descriptors;
use crate::error::{Failure, Outcome};
use crate::interpreter::Interpreter;
use crate::launch::{Launch, RunningEngine};
use crate::logs;
use crate::progress::Phases;
use crate::settings::Sources;
use crate::signals::{self, Signals};
use crate::terminal::print_note;
use crate::values::{LogFormat, LogLevel};
use crate::workers::WorkerOptions;

/// The backlog of the listening socket.
const BACKLOG: u32 = 4096;
/// The time for remaining tasks after a drain before they are cancelled.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// An engine behind a listener.
struct Server {
    running: RunningEngine,
    model: String,
    address: SocketAddr,
    /// The address of KServe's gRPC server, if enabled.
    kserve: Option<SocketAddr>,
    accepting: Accepting,
}

/// Serves until a signal or until the engine fails.
///
/// # Errors
/// The reason why the server could not start, or why it stopped.
pub fn run(args: &ServeArgs, sources: &Sources, host: Option<&Interpreter>) -> Outcome<()> {
    let began = Instant::now();
    logs::start(args.log.log_format, args.log.log_level);
    logs::log_panics();
    within_runtime(async {
        let exposure = args.http.access.open(args.http.host)?;
        // Clients can connect from now on. They get answers once the tokenizer is loaded, and a 503
        // until the weights are.
        let http = bind(args.http.host, args.http.port)?;
        let kserve = args.http.kserve_grpc_port;
        let kserve = kserve.map(|port| bind(args.http.host, port)).transpose()?;
        let listeners = Listeners { http, kserve };
        let mut launch = prepare(&args.engine, sources, host).await?;
        args.life.apply(&args.engine, &mut launch);
        let _reloading = signals::on_hangup(&exposure)?;
        let config = exposure.apply(router_config(&launch, Some(&args.http)));
        let mut server = Server::start(listeners, launch, config)?;
        let mut signals = Signals::listen(Duration::from_secs(args.http.grace))?;
        let mut phases = Phases::default();
        let limits = tokio::select! {
            limits = server.running.ready(|phase, done, total| phases.update(phase, done, total)) => {
                limits?
            }
            () = signals.next() => return server.drain(Duration::ZERO, &mut signals).await,
        };
        drop(phases);
        server.announce(args, &exposure, &limits, began.elapsed());
        let outcome = tokio::select! {
            () = signals.next() => Ok(()),
            reason = server.running.stopped() => Err(Failure::runtime(reason)),
            ended = server.accepting.ended() => Err(server_ended(ended)),
        };
        outcome?;
        print_note(&format!(
            "stopping: running requests have {} s to finish",
            args.http.grace
        ));
        server
            .drain(Duration::from_secs(args.http.grace), &mut signals)
            .await
    })
}

/// Chats in the terminal with a running server, or with a temporary one.
///
/// # Errors
/// If there is no server and none can be started.
pub fn run_chat(args: &ChatArgs, sources: &Sources, host: Option<&Interpreter>) -> Outcome<()> {
    within_runtime(async {
        if let Some(url) = &args.url {
            return chat::run(url, args).await;
        }
        logs::start(LogFormat::Text, LogLevel::Error);
        logs::log_panics();
        let listener = bind(Ipv4Addr::LOCALHOST.into(), 0)?;
        let launch = prepare(&args.engine, sources, host).await?;
        let config = Exposure::local().apply(router_config(&launch, None));
        let server = Server::start(listener.into(), launch, config)?;
        let mut phases = Phases::default();
        server
            .running
            .ready(|phase, done, total| phases.update(phase, done, total))
            .await?;
        drop(phases);
        let outcome = chat::run(&url("http", server.address), args).await;
        server.running.stop(Duration::ZERO).await;
        outcome
    })
}

impl LifeArgs {
    fn apply(&self, engine: &EngineArgs, launch: &mut Launch) {
        launch.worker_options = WorkerOptions {
            attach: self.attach.clone(),
            keep_seconds: self.keep_workers.0,
            standby: self.standby,
        };
        launch.exit_after_losses = self.exit_after_losses;
        launch.max_restart_wait = Duration::from_secs(self.max_restart_wait.0.into());
        if self.attach.is_some() && engine.kv_memory.is_none() {
            // Resolved from the memory that is free, which the running workers have reduced.
            launch.plan.memory.kv_bytes.value = None;
        }
    }
}

fn within_runtime(body: impl Future<Output = Outcome<()>>) -> Outcome<()> {
    // Only the engine's thread: connections have threads of their own.
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::runtime(format!("cannot start the runtime: {error}")))?;
    let outcome = runtime.block_on(body);
    // Remaining tasks are cancelled; dropping a worker kills it.
    runtime.shutdown_timeout(LAST_MOMENT);
    outcome
}

/// Prepares the engine on a blocking thread.
async fn prepare(
    engine: &EngineArgs,
    sources: &Sources,
    host: Option<&Interpreter>,
) -> Outcome<Launch> {
    let (engine, sources, host) = (engine.clone(), sources.clone(), host.cloned());
    let job = move || Launch::prepare(&engine, &sources, host.as_ref());
    tokio::task::spawn_blocking(job)
        .await
        .unwrap_or_else(|error| Err(Failure::runtime(format!("preparing failed: {error}"))))
}

fn bind(host: IpAddr, port: u16) -> Outcome<TcpListener> {
    let address = SocketAddr::new(host, port);
    let listen = || {
        let socket = if host.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                "another process listens there. Stop it, or choose another port with --port."
            }
            std::io::ErrorKind::AddrNotAvailable => {
                "no interface of this host has that address. Choose another with --host."
            }
            std::io::ErrorKind::PermissionDenied => {
                "ports below 1024 are reserved. Choose another with --port."
            }
            _ => "Choose another with --host and --port.",
        };
        Failure::runtime(format!("cannot listen on {address}: {error}; {hint}"))
    })
}

/// Returns the served model name that responses contain, and the model's other names.
fn served_names(launch: &Launch, http: Option<&HttpArgs>) -> (String, Vec<String>) {
    let mut names: Vec<String> = Vec::new();
    for name in http.map_or(&[][..], |http| &http.served_model_name) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    if names.is_empty() {
        return (launch.name.clone(), names);
    }
    (names.remove(0), names)
}

fn router_config(launch: &Launch, http: Option<&HttpArgs>) -> RouterConfig {
    let (model_id, more_model_ids) = served_names(launch, http);
    let defaults = RouterConfig::new(model_id);
    let bodies = http.and_then(|http| usize::try_from(http.body_memory.0).ok());
    let config = RouterConfig {
        more_model_ids,
        model_revision: launch.revision.clone(),
        max_held_body_bytes: bodies.unwrap_or(defaults.max_held_body_bytes),
        text: TextConfig {
            limits: RequestLimits {
                watermark: launch.watermark,
                ..defaults.text.limits
            },
            ..defaults.text
        },
        ..defaults
    };
    let Some(http) = http else {
        return config;
    };
    let store = usize::try_from(http.response_store.0);
    http.limits.apply(RouterConfig {
        response_store: store.unwrap_or(config.response_store),
        text: TextConfig {
            templates: if http.no_request_chat_template {
                RequestTemplates::Refused
            } else {
                launch.templates()
            },
            system_prompt: http.system_prompt.as_deref().map(Arc::from),
            tool_format: http.tool_parser.format(),
            reasoning_format: http.reasoning_parser.format(),
            ..config.text
        },
        max_connections: connections(launch, config.max_connections),
        ..config
    })
}

/// Returns the number of connections that file descriptors allow; `wanted` at most.
fn connections(launch: &Launch, wanted: usize) -> usize {
    let decided = Descriptors::raise().connections(wanted, launch.plan.tp.value);
    if decided.value < wanted {
        let (connections, why) = (decided.value, decided.why);
        tracing::warn!("at most {connections} connections: {why}; `ulimit -Hn` raises it");
    }
    decided.value
}

/// Fails at start-up if the chat template rejects a system message.
fn check_system_prompt(config: &TextConfig, generator: &Generator) -> Outcome<()> {
    let (Some(system), Some(template)) =
        (&config.system_prompt, &generator.model_text().chat_template)
    else {
        return Ok(());
    };
    let chat = Chat {
        messages: vec![ChatMessage {
            role: "user".to_owned(),
            content: Some("hello".to_owned()),
            ..ChatMessage::default()
        }],
        system: Some(Arc::clone(system)),
        ..Chat::default()
    };
    let refused = |error| Failure::runtime(format!("--system-prompt cannot be used: {error}"));
    template.render(&chat).map_err(refused).map(drop)
}

impl Server {
    fn start(listeners: Listeners, launch: Launch, config: RouterConfig) -> Outcome<Self> {
        let model = config.model_id.clone();
        let address = listeners.http.local_addr();
        let address = address.map_err(|error| Failure::runtime(error.to_string()))?;
        let kserve = listeners.kserve.as_ref();
        let kserve = kserve.and_then(|listener| listener.local_addr().ok());
        let running = launch.start(&config.text)?;
        check_system_prompt(&config.text, &running.generator)?;
        let (generator, metrics) = (running.generator.clone(), Arc::clone(&running.metrics));
        let accepting = Accepting::start(listeners, |listeners, stopped| {
            serve(listeners, generator, metrics, config, stopped)
        });
        let accepting =
            accepting.map_err(|error| Failure::runtime(format!("cannot serve: {error}")))?;
        Ok(Self {
            running,
            model,
            address,
            kserve,
            accepting,
        })
    }

    /// Lets running requests finish within `grace`, then cuts the rest with an error that says so.
    /// Until then, connections are accepted: new requests and health checks get a 503. A further
    /// signal cuts at once.
    async fn drain(mut self, grace: Duration, signals: &mut Signals) -> Outcome<()> {
        tokio::select! {
            () = self.running.stop(grace) => {
                self.close().await;
                Ok(())
            }
            () = signals.next() => {
                // Workers may take longer to end; they end with this process.
                let _ = timeout(LAST_MOMENT, self.running.stop(Duration::ZERO)).await;
                self.close().await;
                Err(Failure::runtime("a second signal: running requests were aborted"))
            }
        }
    }

    /// Ends the connections. Open responses end with the engine; idle connections are closed.
    async fn close(&mut self) {
        let _ = timeout(LAST_MOMENT, self.accepting.stop()).await;
    }

    fn announce(&self, args: &ServeArgs, exposure: &Exposure, limits: &Limits, took: Duration) {
        let generator = &self.running.generator;
        let model = self.model.as_str();
        let (url, seconds) = (url(exposure.scheme(), self.address), took.as_secs_f64());
        let (device, tokens) = (&limits.device_name, limits.kv_tokens);
        let model_backend = limits.model_backend.as_str();
        if args.log.log_format == LogFormat::Json {
            tracing::info!(
                url,
                model,
                model_backend,
                device,
                kv_tokens = tokens,
                seconds,
                "serving"
            );
            return;
        }
        let library = match model_backend {
            "transformers" => " through transformers",
            _ => "",
        };
        let chats = generator.model_text().chat_template.is_some();
        print_note(&format!(
            "serving {model}{library} at {url} on {device}: room for {tokens} KV tokens, ready after \
             {seconds:.1} s"
        ));
        if let (Some(directory), 1..) = (&self.running.workers_directory, args.life.keep_workers.0)
        {
            print_note(&format!(
                "the workers outlive this process by {}: attach with --attach {}",
                args.life.keep_workers,
                directory.display()
            ));
        }
        if let Some(address) = self.kserve {
            print_note(&format!("KServe gRPC at {}", reachable(address)));
        }
        let example = example(&url, model, chats, exposure);
        print_note(&format!("all routes: {url}/docs\ntry it:\n  {example}"));
    }
}

fn server_ended(ended: std::io::Result<()>) -> Failure {
    let why = match ended {
        Ok(()) => "it stopped accepting".to_owned(),
        Err(error) => error.to_string(),
    };
    Failure::runtime(format!("the HTTP server ended: {why}"))
}

/// Returns the URL for clients on this host.
fn url(scheme: &str, address: SocketAddr) -> String {
    format!("{scheme}://{}", reachable(address))
}

fn reachable(address: SocketAddr) -> SocketAddr {
    let host = match address.ip() {
        ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(host, address.port())
}

/// Returns a curl command that streams.
fn example(url: &str, model: &str, chats: bool, exposure: &Exposure) -> String {
    let model = serde_json::Value::from(model);
    let (path, prompt) = if chats {
        (
            "chat/completions",
            r#""messages":[{"role":"user","content":"Tell me a story about a fox."}]"#,
        )
    } else {
        (
            "completions",
            r#""prompt":"Once upon a time","max_tokens":100"#,
        )
    };
    let key = match exposure.needs_key() {
        true => " -H \"authorization: Bearer $KEY\"",
        false => "",
    };
    format!(
        "curl -N {url}/v1/{path} -H 'content-type: application/json'{key} \
         -d '{{\"model\":{model},\"stream\":true,{prompt}}}'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_addresses_become_reachable_urls() {
        assert_eq!(
            url("http", "0.0.0.0:3000".parse().unwrap()),
            "http://127.0.0.1:3000"
        );
        let secure = url("https", "[::1]:80".parse().unwrap());
        assert_eq!(secure, "https://[::1]:80");
    }

    #[test]
    fn the_example_is_json() {
        for chats in [true, false] {
            let line = example("http://h", "a\"b", chats, &Exposure::local());
            let body = line.split('\'').nth(3).unwrap();
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["model"], "a\"b");
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let taken = bind(Ipv4Addr::LOCALHOST.into(), 0).unwrap();
        let port = taken.local_addr().unwrap().port();
        let failure = bind(Ipv4Addr::LOCALHOST.into(), port).unwrap_err();
        assert_eq!(failure.exit_code(), 1);
        assert!(failure.message.contains(&port.to_string()), "{failure}");
        assert!(failure.message.contains("--port"), "{failure}");
    }
}
