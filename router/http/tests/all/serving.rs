//! The server on a socket: streaming, disconnecting clients, timeouts and shutdown.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::needless_pass_by_value,
    unreachable_pub
)]

use std::sync::Arc;
use std::{net::SocketAddr, time::Duration};

use penstock_http::{RouterConfig, serve};
use penstock_request::client::Client;
use penstock_request::types::{End, TokenEvent};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};

use crate::scripted::{ScriptedReply, Server, event};

pub const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A server on a socket.
pub struct Served {
    pub server: Server,
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

pub async fn served(change: impl FnOnce(&mut RouterConfig)) -> Served {
    let server = Server::with(None, change);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async move { drop(stopped.await) };
    let (generator, config) = (server.generator.clone(), server.config.clone());
    let metrics = Arc::clone(&server.metrics);
    let task = tokio::spawn(serve(listener, generator, metrics, config, shutdown));
    Served {
        server,
        address,
        stop: Some(stop),
        task,
    }
}

impl Served {
    pub async fn generate(&self, path: &str) -> TcpStream {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        let body = r#"{"inputs":"hi"}"#;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        socket
    }

    pub async fn end(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        timeout(TEST_TIMEOUT, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

/// Reads until `wanted` was received.
pub async fn read_until(socket: &mut (impl AsyncRead + Unpin), wanted: &str) -> String {
    let mut seen = Vec::new();
    let mut part = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&seen).into_owned();
        if text.contains(wanted) {
            return text;
        }
        let read = timeout(TEST_TIMEOUT, socket.read(&mut part))
            .await
            .expect(wanted)
            .unwrap();
        assert!(read > 0, "closed before {wanted}: {text}");
        seen.extend_from_slice(&part[..read]);
    }
}

pub async fn until(condition: impl Fn() -> bool) {
    timeout(TEST_TIMEOUT, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("it never became true");
}

#[tokio::test]
async fn events_are_sent_at_once_and_disconnecting_aborts() {
    let served = served(|_| {}).await;
    let tokens = served.server.backend.follow();
    let mut socket = served.generate("/generate_stream").await;
    tokens.send(event("A")).unwrap();
    read_until(&mut socket, "\"text\":\"A\"").await;
    tokens.send(event("B")).unwrap();
    read_until(&mut socket, "\"text\":\"B\"").await;
    assert_eq!(served.server.backend.aborted(), 0);
    drop(socket);
    until(|| served.server.backend.aborted() == 1).await;
    served.end().await;
}

#[tokio::test]
async fn disconnecting_before_the_first_token_aborts() {
    let served = served(|_| {}).await;
    for path in ["/generate", "/generate_stream"] {
        let before = served.server.backend.aborted();
        let _tokens = served.server.backend.follow();
        let socket = served.generate(path).await;
        until(|| served.server.backend.requests().len() == before + 1).await;
        drop(socket);
        until(|| served.server.backend.aborted() == before + 1).await;
    }
    let local = Client::at([127, 0, 0, 1].into());
    assert_eq!(served.server.backend.clients(), [Some(local); 2]);
    served.end().await;
}

#[tokio::test]
async fn keep_alive_comments_are_sent_while_no_tokens_come() {
    let served = served(|config| config.keep_alive = Duration::from_millis(50)).await;
    let tokens = served.server.backend.follow();
    let mut socket = served.generate("/generate_stream").await;
    read_until(&mut socket, ":\n\n\r\n3\r\n:\n\n").await;
    tokens
        .send(TokenEvent {
            end: Some(End::Length),
            ..event("A")
        })
        .unwrap();
    read_until(&mut socket, "\"generated_text\":\"A\"").await;
    served.end().await;
}

#[tokio::test]
async fn shutdown_waits_for_open_streams() {
    let mut served = served(|_| {}).await;
    let tokens = served.server.backend.follow();
    let mut socket = served.generate("/generate_stream").await;
    tokens.send(event("A")).unwrap();
    read_until(&mut socket, "\"text\":\"A\"").await;
    let idle = TcpStream::connect(served.address).await.unwrap();
    served.stop.take().unwrap().send(()).unwrap();
    timeout(TEST_TIMEOUT, async {
        while TcpStream::connect(served.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("nothing more is accepted");
    assert!(!served.task.is_finished(), "a response is open");
    tokens
        .send(TokenEvent {
            end: Some(End::Length),
            ..event("B")
        })
        .unwrap();
    read_until(&mut socket, "\"generated_text\":\"AB\"").await;
    drop(idle);
    timeout(TEST_TIMEOUT, served.task)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_slow_request_head_times_out() {
    let served = served(|config| config.header_timeout = Duration::from_millis(100)).await;
    let mut slow = TcpStream::connect(served.address).await.unwrap();
    slow.write_all(b"POST /generate HT").await.unwrap();
    let mut rest = Vec::new();
    timeout(TEST_TIMEOUT, slow.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    drop(slow);
    served.end().await;
}

#[tokio::test]
async fn a_slow_request_body_times_out() {
    let served = served(|config| config.body_timeout = Duration::from_millis(100)).await;
    let mut slow = TcpStream::connect(served.address).await.unwrap();
    let head = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                content-length: 100\r\n\r\n{";
    slow.write_all(head.as_bytes()).await.unwrap();
    read_until(&mut slow, "408").await;
    drop(slow);
    served.end().await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_times_out() {
    let served = served(|config| config.write_timeout = Duration::from_millis(100)).await;
    // More than the socket buffers of both ends hold.
    let text = "x".repeat(10_000);
    let events = vec![event(&text); 20];
    served.server.backend.act(ScriptedReply::Play(events));
    let socket = served.generate("/generate_stream").await;
    until(|| served.server.backend.aborted() == 1).await;
    drop(socket);
    served.end().await;
}

/// Returns the response to a request on a connection of its own.
async fn response_to(address: SocketAddr, head: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!("{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(TEST_TIMEOUT, socket.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    answer
}

#[tokio::test]
async fn beyond_the_connection_limit_health_is_answered_and_the_rest_refused() {
    let served = served(|config| {
        config.max_connections = 1;
        config.spare_connections = 2;
    })
    .await;
    let tokens = served.server.backend.follow();
    let mut busy = served.generate("/generate_stream").await;
    tokens.send(event("A")).unwrap();
    read_until(&mut busy, "\"text\":\"A\"").await;
    // Open more silent connections than the limit.
    let mut silent = Vec::new();
    for _ in 0..5 {
        silent.push(TcpStream::connect(served.address).await.unwrap());
    }
    for (head, status) in [
        ("GET /health", "HTTP/1.1 200"),
        ("GET /live", "HTTP/1.1 200"),
        ("GET /ready", "HTTP/1.1 200"),
        ("GET /metrics", "HTTP/1.1 200"),
        ("GET /info", "HTTP/1.1 503"),
        ("POST /v1/chat/completions", "HTTP/1.1 503"),
    ] {
        let answer = response_to(served.address, head).await;
        assert!(answer.starts_with(status), "{head}: {answer}");
        if status.ends_with("503") {
            assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
            assert!(answer.contains("all connections are taken"), "{answer}");
        }
    }
    // The open stream goes on.
    tokens
        .send(TokenEvent {
            end: Some(End::Length),
            ..event("B")
        })
        .unwrap();
    read_until(&mut busy, "\"generated_text\":\"AB\"").await;
    drop((busy, silent));
    served.end().await;
}

#[tokio::test]
async fn idle_connection_is_closed_for_a_new_one() {
    let served = served(|config| config.max_connections = 2).await;
    let backend = &served.server.backend;
    let tokens = backend.follow();
    let mut busy = served.generate("/generate_stream").await;
    tokens.send(event("A")).unwrap();
    read_until(&mut busy, "\"text\":\"A\"").await;
    let mut silent = TcpStream::connect(served.address).await.unwrap();
    // Not at once: a request might be on its way.
    timeout(TEST_TIMEOUT, async {
        while !response_to(served.address, "GET /info")
            .await
            .contains("200 OK")
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("there is a place");
    let end = timeout(TEST_TIMEOUT, silent.read(&mut [0])).await.unwrap();
    assert!(matches!(end, Ok(0) | Err(_)), "it was closed");
    tokens.send(event("B")).unwrap();
    read_until(&mut busy, "\"text\":\"B\"").await;
    drop((tokens, busy));
    served.end().await;
}

#[tokio::test]
async fn a_half_closed_client_gets_its_answer() {
    let served = served(|_| {}).await;
    for path in ["/generate", "/generate_stream"] {
        let before = served.server.backend.requests().len();
        let tokens = served.server.backend.follow();
        let mut socket = served.generate(path).await;
        socket.shutdown().await.unwrap();
        until(|| served.server.backend.requests().len() == before + 1).await;
        // The server sends the first byte early, to probe the connection.
        let mut first = [0];
        timeout(TEST_TIMEOUT, socket.read_exact(&mut first))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(first, *b"H");
        for (text, end) in [("A", None), ("B", None), ("C", Some(End::Length))] {
            let event = TokenEvent { end, ..event(text) };
            tokens.send(event).unwrap();
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        let mut rest = String::new();
        timeout(TEST_TIMEOUT, socket.read_to_string(&mut rest))
            .await
            .expect("the connection ends after the response")
            .unwrap();
        assert!(rest.starts_with("TTP/1.1 200 OK\r\n"), "{rest}");
        assert!(rest.contains("\"generated_text\":\"ABC\""), "{rest}");
        assert_eq!(served.server.backend.aborted(), 0);
    }
    served.end().await;
}

#[tokio::test]
async fn a_connection_half_closed_in_the_middle_of_its_request_is_closed() {
    let served = served(|_| {}).await;
    let mut socket = TcpStream::connect(served.address).await.unwrap();
    let head = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                content-length: 100\r\n\r\n{";
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.shutdown().await.unwrap();
    let mut answer = String::new();
    // Well before the body timeout.
    timeout(TEST_TIMEOUT, socket.read_to_string(&mut answer))
        .await
        .expect("the connection ends")
        .unwrap();
    assert!(!answer.contains(" 200 "), "{answer}");
    drop(socket);
    served.end().await;
}

#[tokio::test]
async fn handler_panic_returns_500_and_harms_no_other_request() {
    let served = served(|_| {}).await;
    // The script has no reply for it, so the backend panics.
    let mut socket = served.generate("/generate").await;
    let answer = read_until(&mut socket, "the server failed on this request").await;
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    let act = || ScriptedReply::Play(crate::scripted::script(&["x"], End::Length));
    served.server.backend.act(act());
    let mut again = served.generate("/generate").await;
    read_until(&mut again, "generated_text").await;
    drop((socket, again));
    served.end().await;
}
