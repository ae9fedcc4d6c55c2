//! Requests that are refused before their body is read: the connection stays usable, or the
//! response says that it closes.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::serving::{Served, TEST_TIMEOUT, read_until, served};

/// Long enough for the server to answer a request whose body it does not wait for.
const PAUSE: Duration = Duration::from_millis(100);

/// Sends the head of a request for an unknown route.
async fn unknown_route(served: &Served, header: &str) -> TcpStream {
    let mut socket = TcpStream::connect(served.address).await.unwrap();
    let head = format!("POST /nothing HTTP/1.1\r\nhost: x\r\n{header}\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

/// Reads a response that ends the connection.
async fn last_response(mut socket: TcpStream) -> String {
    let mut response = String::new();
    let read = timeout(TEST_TIMEOUT, socket.read_to_string(&mut response));
    read.await.unwrap().unwrap();
    assert!(response.starts_with("HTTP/1.1 404"), "{response}");
    assert!(response.contains("connection: close\r\n"), "{response}");
    response
}

#[tokio::test]
async fn a_body_that_arrives_late_does_not_close_the_connection() {
    let served = served(|_| {}).await;
    let chunks = "5\r\nab\r\nc\r\n0\r\n\r\n";
    for (header, body) in [
        ("content-length: 5", "abcde"),
        ("transfer-encoding: chunked", chunks),
    ] {
        let mut socket = unknown_route(&served, header).await;
        for part in body.as_bytes().chunks(3) {
            sleep(PAUSE).await;
            socket.write_all(part).await.unwrap();
        }
        let response = read_until(&mut socket, "there is no route").await;
        assert!(!response.contains("connection: close"), "{response}");
        socket
            .write_all(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        read_until(&mut socket, "\"version\"").await;
    }
    served.end().await;
}

#[tokio::test]
async fn a_large_body_is_not_waited_for() {
    let served = served(|_| {}).await;
    last_response(unknown_route(&served, "content-length: 1000000").await).await;
    let mut endless = unknown_route(&served, "transfer-encoding: chunked").await;
    let chunk = format!("{:x}\r\n{}\r\n", 200_000, "a".repeat(200_000));
    for _ in 0..2 {
        // The server may close the connection before it has read all.
        let _ = endless.write_all(chunk.as_bytes()).await;
    }
    let mut rest = Vec::new();
    let read = timeout(TEST_TIMEOUT, endless.read_to_end(&mut rest));
    assert!(read.await.is_ok(), "the connection stays open");
    served.end().await;
}

#[tokio::test]
async fn a_body_that_never_arrives_is_not_waited_for_long() {
    let served = served(|_| {}).await;
    last_response(unknown_route(&served, "content-length: 5").await).await;
    served.end().await;
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_is_not_asked_for_its_body() {
    let served = served(|_| {}).await;
    let header = "content-length: 5\r\nexpect: 100-continue";
    let response = last_response(unknown_route(&served, header).await).await;
    assert!(!response.contains("100 Continue"), "{response}");
    served.end().await;
}
