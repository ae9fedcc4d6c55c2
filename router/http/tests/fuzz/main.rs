//! Hostile requests to every route of a running server over a mock worker. Each gets a response,
//! none is a server error, and a stream beside them is not disturbed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../text/tests/all/byte_tokenizer.rs"]
mod byte_tokenizer;
mod fuzz_requests;
#[path = "../all/scripted/mod.rs"]
mod scripted;
#[path = "../../../engine/tests/all/support/mod.rs"]
mod support;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http_body_util::{BodyExt, Full};
use hyper::{Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use penstock_engine::{Engine, EngineConfig, EngineMetrics};
use penstock_http::{Metrics, RouterConfig, serve};
use penstock_mock_shard::{Eos, Geometry, MockConfig};
use penstock_text::chat::ChatTemplate;
use penstock_text::{Generator, ModelText};
use prometheus_client::registry::Registry;
use scripted::{EOS, TEMPLATE, byte_tokenizer};
use serde_json::{Value, json};
use support::{MockWorkers, checked, ready};
use tokio::net::{TcpListener, TcpStream};

use fuzz_requests::{Hostile, Random, Wrong, fields};

/// Number of concurrent clients.
const CLIENTS: u64 = 6;
/// Requests per client, unless FUZZ_REQUESTS was set when this was built.
const REQUESTS: usize = 250;
/// Maximum time of a response.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of an error response.
const LONGEST: usize = 3000;

fn requests() -> usize {
    option_env!("FUZZ_REQUESTS").map_or(REQUESTS, |number| number.parse().unwrap())
}

async fn start() -> SocketAddr {
    let geometry = Geometry {
        vocab: EOS + 1,
        sequence_tokens: 128,
        ..Geometry::default()
    };
    let eos = Eos { id: EOS, every: 40 };
    let workers = MockWorkers::one(MockConfig {
        geometry,
        eos,
        ..checked()
    });
    let mut registry = Registry::default();
    let metrics = EngineMetrics::register(&mut registry);
    let engine = Engine::start(Box::new(workers), EngineConfig::default(), metrics);
    ready(&engine).await;
    let source = format!(
        "{{% if tools %}}{{{{ tools | tojson }}}}<tool_call>{{\"name\":{{% endif %}}<think>{TEMPLATE}"
    );
    let template = ChatTemplate::new(&source, Vec::new()).unwrap();
    let text = ModelText::new(byte_tokenizer(), Some(template), vec![EOS]);
    let config = RouterConfig::new("brook");
    let metrics = Arc::new(Metrics::new(registry));
    let generator = Generator::new(engine, text, &config.text, metrics.text());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(
        listener,
        generator,
        metrics,
        config,
        std::future::pending(),
    ));
    address
}

/// Returns the status and the body of the response.
async fn send(address: SocketAddr, request: &Hostile) -> (u16, String) {
    let exchange = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let body = Full::new(Bytes::from(request.body.clone()));
        let http = Request::builder()
            .method(request.method)
            .uri(&request.path)
            .header("host", "penstock")
            .header("content-type", request.media_type)
            .body(body);
        let response = sender.send_request(http.unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    let shown = String::from_utf8_lossy(&request.body[..request.body.len().min(500)]);
    let (method, path) = (request.method, &request.path);
    tokio::time::timeout(TEST_TIMEOUT, exchange)
        .await
        .unwrap_or_else(|_| panic!("no response to {method} {path} {shown}"))
}

/// Describes an error response that names the wrong field neither in its message nor as `param`. A
/// field inside the field counts, too.
fn unnamed(request: &Hostile, answer: &str, wrong: &Wrong) -> Option<String> {
    let error: Value = serde_json::from_str(answer).unwrap();
    let param = error["error"]["param"].as_str().unwrap_or_default();
    let message = error["error"].as_str();
    let message = message.or(error["error"]["message"].as_str()).unwrap();
    let names = |field: &String| message.contains(field) || param.starts_with(field);
    if wrong.names.iter().any(names) {
        return None;
    }
    let shown = String::from_utf8_lossy(&request.body[..request.body.len().min(300)]);
    let (path, field) = (&request.path, &wrong.names[0]);
    Some(format!("{path} `{field}`: {answer:.300}\n    {shown}"))
}

fn check(request: &Hostile, status: u16, answer: &str) {
    let shown = String::from_utf8_lossy(&request.body[..request.body.len().min(500)]);
    let case = format!(
        "{status} to {} {} {shown}\n{answer:.500}",
        request.method, request.path
    );
    assert!(status < 500 && status != 424, "{case}");
    if status >= 400 && request.method != "HEAD" {
        assert!(answer.len() < LONGEST, "{case}");
        let error = &serde_json::from_str::<Value>(answer).expect(&case)["error"];
        let message = error.as_str().or(error["message"].as_str()).expect(&case);
        assert!(!message.is_empty(), "{case}");
    }
    assert!(
        status >= 400 || !answer.contains("data: {\"error\""),
        "{case}"
    );
}

async fn metric(address: SocketAddr, name: &str) -> String {
    let request = Hostile {
        method: "GET",
        path: "/metrics".into(),
        media_type: "",
        body: Vec::new(),
    };
    let (_, text) = send(address, &request).await;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.expect(name).to_owned()
}

/// Returns a request whose response must always be the same.
fn steady() -> Hostile {
    let parameters = json!({"max_new_tokens": 60, "details": true});
    let body = json!({"inputs": "steady", "parameters": parameters});
    Hostile {
        method: "POST",
        path: "/generate_stream".into(),
        media_type: "application/json",
        body: body.to_string().into_bytes(),
    }
}

async fn settles(address: SocketAddr, name: &str) {
    let settled = async {
        while metric(address, name).await != "0" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, settled)
        .await
        .expect(name);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_requests_do_not_disturb_others() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |news| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        usual(news);
    }));
    let address = start().await;
    let alone = send(address, &steady()).await;
    assert_eq!(alone.0, 200);
    let clients = (0..CLIENTS).map(|seed| {
        tokio::spawn(async move {
            let mut random = Random(seed);
            let mut refused = 0;
            for _ in 0..requests() {
                let request = random.request();
                let (status, answer) = send(address, &request).await;
                check(&request, status, &answer);
                refused += usize::from(status >= 400);
            }
            refused
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut undisturbed = 0;
    while !clients.iter().all(tokio::task::JoinHandle::is_finished) {
        assert_eq!(send(address, &steady()).await, alone);
        undisturbed += 1;
    }
    let mut refused = 0;
    for client in clients {
        refused += client.await.unwrap();
    }
    let sent = requests() * CLIENTS as usize;
    assert!(
        undisturbed > 0 && refused > sent / 3 && refused < sent,
        "{undisturbed} {refused}"
    );
    for gauge in [
        "penstock_requests_open",
        "penstock_http_body_bytes",
        "penstock_kv_blocks_dead",
        "penstock_kv_blocks{state=\"leased\"}",
    ] {
        settles(address, gauge).await;
    }
    assert_eq!(PANICS.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_name_the_wrong_field() {
    let address = start().await;
    let clients = (0..CLIENTS).map(|seed| {
        tokio::spawn(async move {
            let (fields, mut random) = (fields(), Random(seed + 1000));
            let (mut refused, mut silent) = (0, BTreeMap::new());
            for _ in 0..requests() {
                let (request, wrong) = random.wrong_field(&fields);
                let (status, answer) = send(address, &request).await;
                check(&request, status, &answer);
                if status >= 400 {
                    refused += 1;
                    // A body that is too long is refused before its fields are read.
                    if status == 413 {
                        continue;
                    }
                    if let Some(case) = unnamed(&request, &answer, &wrong) {
                        silent.insert((request.path, wrong.names[0].clone()), case);
                    }
                }
            }
            (refused, silent)
        })
    });
    let (mut refused, mut silent) = (0, BTreeMap::new());
    for client in clients.collect::<Vec<_>>() {
        let (more, cases) = client.await.unwrap();
        refused += more;
        silent.extend(cases);
    }
    let cases: Vec<_> = silent.into_values().collect();
    assert!(cases.is_empty(), "{}", cases.join("\n"));
    assert!(refused > requests() * CLIENTS as usize / 3, "{refused}");
    for gauge in ["penstock_requests_open", "penstock_kv_blocks_dead"] {
        settles(address, gauge).await;
    }
}
