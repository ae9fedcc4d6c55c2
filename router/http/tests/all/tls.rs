//! The server on a socket with TLS. `certificates/` has two pairs for localhost, of these tests
//! only, valid for a hundred years.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use penstock_http::Tls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::scripted::event;
use crate::serving::{Served, TEST_TIMEOUT, read_until, served, until};

/// A folder with a certificate and its key, removed at the end.
struct Pair(PathBuf);

impl Pair {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("penstock-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let pair = Self(folder);
        pair.replace("first");
        pair
    }

    fn replace(&self, name: &str) {
        fs::copy(source(name, "pem"), self.0.join("cert.pem")).unwrap();
        fs::copy(source(name, "key"), self.0.join("key.pem")).unwrap();
    }

    fn open(&self) -> Tls {
        Tls::open(&self.0.join("cert.pem"), &self.0.join("key.pem")).unwrap()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn source(name: &str, kind: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/certificates");
    folder.join(format!("{name}.{kind}"))
}

async fn connect(served: &Served, trusted: &str) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(source(trusted, "pem")).unwrap())
        .unwrap();
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let socket = TcpStream::connect(served.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await
}

async fn generate(stream: &mut TlsStream<TcpStream>) {
    let body = r#"{"inputs":"hi"}"#;
    let head = format!(
        "POST /generate_stream HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn a_stream_is_sent_at_once_and_disconnecting_aborts() {
    let pair = Pair::new("stream");
    let served = served(|config| config.tls = Some(pair.open())).await;
    let tokens = served.server.backend.follow();
    let mut stream = connect(&served, "first").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    generate(&mut stream).await;
    for text in ["A", "B"] {
        tokens.send(event(text)).unwrap();
        read_until(&mut stream, &format!("\"text\":\"{text}\"")).await;
    }
    assert_eq!(served.server.backend.aborted(), 0);
    drop(stream);
    until(|| served.server.backend.aborted() == 1).await;
    served.end().await;
}

#[tokio::test]
async fn a_half_closed_client_gets_its_answer_and_a_closed_one_is_noticed() {
    let pair = Pair::new("half");
    let served = served(|config| config.tls = Some(pair.open())).await;
    let tokens = served.server.backend.follow();
    let mut stream = connect(&served, "first").await.unwrap();
    generate(&mut stream).await;
    stream.shutdown().await.unwrap();
    read_until(&mut stream, "H").await;
    tokens.send(event("A")).unwrap();
    read_until(&mut stream, "\"text\":\"A\"").await;
    assert_eq!(served.server.backend.aborted(), 0);
    drop(stream);
    until(|| served.server.backend.aborted() == 1).await;
    served.end().await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_dropped() {
    let pair = Pair::new("slow");
    let served = served(|config| {
        config.tls = Some(pair.open());
        config.write_timeout = Duration::from_millis(200);
    })
    .await;
    let tokens = served.server.backend.follow();
    let mut stream = connect(&served, "first").await.unwrap();
    generate(&mut stream).await;
    let text = "x".repeat(1 << 12);
    timeout(TEST_TIMEOUT, async {
        // More than the buffers of both ends hold.
        while served.server.backend.aborted() == 0 {
            let _ = tokens.send(event(&text));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
    drop(stream);
    served.end().await;
}

#[tokio::test]
async fn a_new_certificate_is_used_after_a_reload_and_a_broken_one_is_not() {
    let pair = Pair::new("reload");
    let tls = pair.open();
    let served = served(|config| config.tls = Some(tls.clone())).await;
    pair.replace("second");
    assert!(connect(&served, "second").await.is_err());
    tls.reload().unwrap();
    assert!(connect(&served, "second").await.is_ok());
    assert!(connect(&served, "first").await.is_err());
    // The key of another certificate.
    fs::copy(source("first", "key"), pair.0.join("key.pem")).unwrap();
    assert!(tls.reload().unwrap_err().contains("cert.pem"));
    assert!(connect(&served, "second").await.is_ok());
    served.end().await;
}

#[tokio::test]
async fn a_client_without_tls_gets_no_answer() {
    let pair = Pair::new("plain");
    let served = served(|config| config.tls = Some(pair.open())).await;
    let mut socket = served.generate("/generate").await;
    let mut answer = Vec::new();
    let read = timeout(TEST_TIMEOUT, socket.read_to_end(&mut answer)).await;
    // A TLS alert, or a reset.
    drop(read.unwrap());
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert!(served.server.backend.requests().is_empty());
    served.end().await;
}
