//! Helpers of the text and HTTP tests: a backend that plays a script, a tokenizer whose tokens are
//! bytes, and a client.

#![allow(dead_code, unreachable_pub, reason = "each test uses its own part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value
)]

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderMap, Request, StatusCode},
};
use futures_core::Stream;
use http_body_util::BodyExt;
use penstock_http::{Metrics, RouterConfig};
use penstock_request::backend::{Backend, Sources, TokenSource};
use penstock_request::client::Client;
use penstock_request::deadline::Deadline;
use penstock_request::tenant::Caller;
use penstock_request::types::{End, EngineRequest, Entry, SubmitError, Token, TokenEvent};
use penstock_request::{EngineState, GenerationDefaults, Limits};
use penstock_text::chat::ChatTemplate;
use penstock_text::{Generator, ModelText};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokenizers::Tokenizer;
use tokio::sync::mpsc;
use tower::ServiceExt;

pub use crate::byte_tokenizer::{EOS, byte_tokenizer};

/// Prompt and output tokens together.
pub const MAX_TOTAL: u32 = 100;

/// The backend's reply to one choice of a request.
pub enum ScriptedReply {
    /// Yields these events, then nothing more.
    Play(Vec<TokenEvent>),
    /// Yields the events that the test sends.
    Follow(mpsc::UnboundedReceiver<TokenEvent>),
    /// Refuses the request.
    Refuse(SubmitError),
}

/// A backend that plays one reply per choice and records the requests.
#[derive(Clone, Default)]
pub struct ScriptedBackend(Arc<BackendState>);

#[derive(Default)]
struct BackendState {
    acts: Mutex<VecDeque<ScriptedReply>>,
    requests: Mutex<Vec<EngineRequest>>,
    clients: Mutex<Vec<Option<Client>>>,
    /// Deadline of the last request.
    deadline: Mutex<Option<Deadline>>,
    callers: Mutex<Vec<Caller>>,
    state: Mutex<Option<EngineState>>,
    /// Prompt and output tokens together, if not `MAX_TOTAL`.
    length: Mutex<Option<u32>>,
    /// Size of the vocabulary, if not 257.
    vocabulary: Mutex<Option<u32>>,
    /// Tokens of each prompt that are in the prefix cache.
    cached: Mutex<Option<u32>>,
    overdue: AtomicBool,
    finished: AtomicUsize,
    aborted: AtomicUsize,
}

struct ScriptedSource {
    events: Events,
    shared: Arc<BackendState>,
    over: bool,
}

enum Events {
    Script(VecDeque<TokenEvent>),
    Live(mpsc::UnboundedReceiver<TokenEvent>),
}

impl ScriptedBackend {
    pub fn act(&self, act: ScriptedReply) -> &Self {
        self.0.acts.lock().unwrap().push_back(act);
        self
    }

    /// Plays an output of one event per text; each byte is a token.
    pub fn play(&self, texts: &[&str], end: End) -> &Self {
        self.act(ScriptedReply::Play(script(texts, end)))
    }

    /// Plays the events that are sent into the returned channel.
    pub fn follow(&self) -> mpsc::UnboundedSender<TokenEvent> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.act(ScriptedReply::Follow(receiver));
        sender
    }

    pub fn set_state(&self, state: EngineState) {
        *self.0.state.lock().unwrap() = Some(state);
    }

    pub fn set_step_overdue(&self, overdue: bool) {
        self.0.overdue.store(overdue, Ordering::SeqCst);
    }

    pub fn set_length(&self, tokens: u32) {
        *self.0.length.lock().unwrap() = Some(tokens);
    }

    pub fn set_vocabulary(&self, tokens: u32) {
        *self.0.vocabulary.lock().unwrap() = Some(tokens);
    }

    /// Sets the number of tokens of each later prompt that are in the prefix cache.
    pub fn set_cached(&self, tokens: u32) {
        *self.0.cached.lock().unwrap() = Some(tokens);
    }

    pub fn requests(&self) -> Vec<EngineRequest> {
        self.0.requests.lock().unwrap().clone()
    }

    /// Returns the clients of the requests.
    pub fn clients(&self) -> Vec<Option<Client>> {
        self.0.clients.lock().unwrap().clone()
    }

    /// Returns the deadline of the last request.
    pub fn deadline(&self) -> Option<Deadline> {
        *self.0.deadline.lock().unwrap()
    }

    /// Returns the caller of the last request.
    pub fn last_caller(&self) -> Caller {
        let callers = self.0.callers.lock().unwrap();
        callers.last().expect("no request came").clone()
    }

    pub fn last(&self) -> EngineRequest {
        self.requests().pop().expect("no request came")
    }

    pub fn finished(&self) -> usize {
        self.0.finished.load(Ordering::SeqCst)
    }

    pub fn aborted(&self) -> usize {
        self.0.aborted.load(Ordering::SeqCst)
    }

    /// Returns the source of the next reply.
    fn source(&self) -> Result<Box<dyn TokenSource>, SubmitError> {
        let act = self.0.acts.lock().unwrap().pop_front();
        let events = match act.expect("no act left") {
            ScriptedReply::Play(events) => Events::Script(events.into()),
            ScriptedReply::Follow(events) => Events::Live(events),
            ScriptedReply::Refuse(error) => return Err(error),
        };
        Ok(Box::new(ScriptedSource {
            events,
            shared: Arc::clone(&self.0),
            over: false,
        }))
    }
}

#[async_trait]
impl Backend for ScriptedBackend {
    async fn submit(&self, request: EngineRequest) -> Result<Sources, SubmitError> {
        let branches = request.choices;
        self.0.requests.lock().unwrap().push(request);
        self.0.clients.lock().unwrap().push(Client::current());
        *self.0.deadline.lock().unwrap() = Deadline::current();
        self.0.callers.lock().unwrap().push(Caller::current());
        (0..branches).map(|_| self.source()).collect()
    }

    fn on_this_runtime(&self) -> Arc<dyn Backend> {
        Arc::new(self.clone())
    }

    fn state(&self) -> EngineState {
        self.0
            .state
            .lock()
            .unwrap()
            .clone()
            .unwrap_or(EngineState::Ready)
    }

    fn overdue(&self) -> Option<Duration> {
        let overdue = self.0.overdue.load(Ordering::SeqCst);
        overdue.then_some(Duration::from_secs(1))
    }

    fn limits(&self) -> Option<Limits> {
        if matches!(self.state(), EngineState::Loading { .. }) {
            return None;
        }
        Some(Limits {
            max_sequence_tokens: self.0.length.lock().unwrap().unwrap_or(MAX_TOTAL),
            max_slots: 8,
            max_step_tokens: 512,
            vocab_size: self.0.vocabulary.lock().unwrap().unwrap_or(257),
            kv_tokens: 4096,
            device_name: "Script 1".into(),
            model_backend: "transformers".into(),
            limitations: vec!["no --ep".into()],
        })
    }
}

impl Stream for ScriptedSource {
    type Item = TokenEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<TokenEvent>> {
        let polled = match &mut self.events {
            Events::Script(events) => Poll::Ready(events.pop_front()),
            Events::Live(events) => events.poll_recv(cx),
        };
        if let Poll::Ready(Some(event)) = &polled {
            self.over |= event.end.is_some();
        }
        polled
    }
}

impl TokenSource for ScriptedSource {
    fn finish(mut self: Box<Self>) {
        self.over = true;
        self.shared.finished.fetch_add(1, Ordering::SeqCst);
    }

    fn entered(&self) -> Option<Entry> {
        let cached = *self.shared.cached.lock().unwrap();
        cached.map(|cached_tokens| Entry {
            at: Instant::now(),
            cached_tokens,
        })
    }
}

impl Drop for ScriptedSource {
    fn drop(&mut self) {
        if !self.over {
            self.shared.aborted.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Returns one event per text; the last one ends the output, with an end token if `end` says so.
pub fn script(texts: &[&str], end: End) -> Vec<TokenEvent> {
    let mut events: Vec<_> = texts.iter().map(|text| event(text)).collect();
    let last = events.last_mut().expect("a script has events");
    if end == End::StopToken {
        last.tokens.push(Token {
            id: EOS,
            logprob: -0.25,
        });
    }
    last.end = Some(end);
    events
}

/// Returns the bytes of `text` as tokens of one event.
pub fn event(text: &str) -> TokenEvent {
    let tokens = text.bytes().map(|byte| Token {
        id: u32::from(byte),
        logprob: -0.5,
    });
    TokenEvent {
        tokens: tokens.collect(),
        ..TokenEvent::default()
    }
}

/// `{role}:{content}` per line; refuses the role `wizard`.
pub const TEMPLATE: &str = "{% for m in messages %}\
    {% if m.role == 'wizard' %}{{ raise_exception('unknown role wizard') }}{% endif %}\
    {{ m.role }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/// A server over a scripted backend.
pub struct Server {
    pub backend: ScriptedBackend,
    pub generator: Generator,
    pub metrics: Arc<Metrics>,
    pub config: RouterConfig,
    pub router: Router,
}

pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Server {
    pub fn new() -> Self {
        Self::with(Some(TEMPLATE), |_| {})
    }

    pub fn with(template: Option<&str>, change: impl FnOnce(&mut RouterConfig)) -> Self {
        Self::speaking(byte_tokenizer(), template, change)
    }

    /// Returns a server with another tokenizer.
    pub fn speaking(
        tokenizer: Tokenizer,
        template: Option<&str>,
        change: impl FnOnce(&mut RouterConfig),
    ) -> Self {
        let template = template.map(|source| ChatTemplate::new(source, Vec::new()).unwrap());
        Self::of(ModelText::new(tokenizer, template, vec![EOS]), change)
    }

    /// Returns a server of a model whose generation_config.json has these members.
    pub fn with_defaults(members: &Value) -> Self {
        let template = ChatTemplate::new(TEMPLATE, Vec::new()).unwrap();
        let mut text = ModelText::new(byte_tokenizer(), Some(template), vec![EOS]);
        let defaults = GenerationDefaults::from_config(members.as_object().unwrap()).unwrap();
        text.defaults = Arc::new(defaults);
        Self::of(text, |_| {})
    }

    fn of(text: ModelText, change: impl FnOnce(&mut RouterConfig)) -> Self {
        let mut config = RouterConfig::new("brook");
        config.max_body_bytes = 64 << 10;
        change(&mut config);
        let backend = ScriptedBackend::default();
        let metrics = Arc::new(Metrics::new(Registry::default()));
        let generator = Generator::new(backend.clone(), text, &config.text, metrics.text());
        let router =
            penstock_http::router(generator.clone(), Arc::clone(&metrics), config.clone()).unwrap();
        Self {
            backend,
            generator,
            metrics,
            config,
            router,
        }
    }

    /// Returns the paths of all routes, which axum lists only in its debug output.
    pub fn paths(&self) -> Vec<String> {
        let text = format!("{:?}", self.router);
        let own = text.split("fallback_router").next().unwrap();
        let (_, nodes) = own.split_once("Node { paths: {").unwrap();
        let named = nodes.split("RouteId(").skip(1);
        named
            .map(|entry| entry.split('"').nth(1).unwrap().to_owned())
            .collect()
    }

    pub async fn post(&self, path: &str, body: Value) -> Reply {
        self.send("POST", path, body.to_string()).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, "").await
    }

    pub async fn send(&self, method: &str, path: &str, body: impl Into<Body>) -> Reply {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", "application/json");
        self.request(request.body(body.into()).unwrap()).await
    }

    pub async fn request(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply {
            status: parts.status,
            headers: parts.headers,
            body,
        }
    }
}

pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";

/// Adds fields to a body.
pub fn with(mut body: Value, fields: Value) -> Value {
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

/// Returns a chat with more fields.
pub fn chat(fields: Value) -> Value {
    let messages = json!([{"role": "user", "content": "hi"}]);
    with(json!({"messages": messages}), fields)
}

/// Returns a completion with more fields.
pub fn completion(fields: Value) -> Value {
    with(json!({"prompt": "hi"}), fields)
}

/// Returns the status of invalid input: 400 on the routes of OpenAI and Anthropic, 422 on others.
pub fn invalid(path: &str) -> u16 {
    if path.starts_with("/v1/") { 400 } else { 422 }
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    /// Returns the data of all events.
    pub fn data(&self) -> Vec<String> {
        let text = self.text();
        let events = text
            .strip_suffix("\n\n")
            .expect("ends with an event")
            .split("\n\n");
        events
            .map(|e| e.strip_prefix("data: ").expect("has data").to_owned())
            .collect()
    }

    /// Returns the parsed data of all events except `[DONE]`.
    pub fn events(&self) -> Vec<Value> {
        let data = self.data().into_iter().filter(|data| data != "[DONE]");
        data.map(|data| serde_json::from_str(&data).unwrap())
            .collect()
    }

    /// Returns the message of an error in either format.
    pub fn message(&self) -> String {
        let error = &self.json()["error"];
        error
            .as_str()
            .or(error["message"].as_str())
            .expect("has a message")
            .to_owned()
    }
}
