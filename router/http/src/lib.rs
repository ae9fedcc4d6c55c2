//! The HTTP server: routes and wire formats of all APIs, a module per API family, over the text
//! layer's `Generator`.
//!
//! The launcher serves with it; the Python package reads its chat requests with it. It knows no
//! engine. API families (`native`, `openai`, `anthropic`) do not import each other; `kserve`,
//! `tokens`, `invocations` and `docs` combine them.

mod access;
mod anthropic;
mod beam;
mod blocks;
mod body;
mod config;
mod connection_limit;
mod connection_service;
mod deadline;
mod docs;
mod error;
mod half_close;
mod health;
mod ids;
mod invocations;
mod json;
#[cfg(feature = "kserve")]
mod kserve;
pub mod metrics;
mod native;
mod neutral;
mod nulls;
mod openai;
mod parsed_output;
mod request_body;
mod request_id;
mod response_headers;
mod server;
mod sse;
mod strict;
mod structured_output;
mod threads;
mod tls;
mod tokens;
mod write_timeout;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::FutureExt;
use penstock_request::error::{ApiError, ErrorKind, Excerpt, panic_message};
use penstock_text::generation::Generator;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

pub use self::access::{Access, KeyHash, KeyedTenant, Reload, Tenants};
pub use self::config::{Cors, RouterConfig};
pub use self::docs::openapi_json;
pub use self::metrics::Metrics;
pub use self::openai::parse_chat_request;
pub use self::server::{Listeners, serve};
pub use self::structured_output::parse_structured_outputs;
pub use self::tls::Tls;
use crate::body::Budget;
use crate::health::{health, live, ready};

/// Names that always refer to the served model. `huggingface_hub` sends `dummy` if it has a URL and
/// no model.
const ALIASES: [&str; 3] = ["penstock", "tgi", "dummy"];

/// State shared by all handlers.
#[derive(Clone)]
struct App {
    generator: Generator,
    metrics: Arc<Metrics>,
    config: Arc<RouterConfig>,
    bodies: Budget,
    responses: openai::ResponseStore,
    cors: Arc<CorsLayer>,
    /// The OpenAPI description, built at the first request for it.
    description: Arc<OnceLock<Bytes>>,
    /// Start of the server in Unix seconds; `created` of `/v1/models`.
    started: u64,
}

/// Returns all routes. Fails if an origin of the CORS configuration is not a valid header value.
pub fn router(
    generator: Generator,
    metrics: Arc<Metrics>,
    config: RouterConfig,
) -> std::io::Result<Router> {
    Ok(App::new(generator, metrics, config)?.routes())
}

impl App {
    fn new(
        generator: Generator,
        metrics: Arc<Metrics>,
        config: RouterConfig,
    ) -> std::io::Result<Self> {
        let held = metrics.http.body_bytes.clone();
        let store = metrics.store.clone();
        Ok(Self {
            generator,
            metrics,
            bodies: Budget::new(config.max_held_body_bytes, held),
            responses: openai::ResponseStore::new(config.response_store, store),
            cors: Arc::new(cors(&config.cors)?),
            config: Arc::new(config),
            description: Arc::default(),
            started: openai::unix_time(),
        })
    }

    /// Returns a copy that serves requests on the current runtime.
    fn on_this_runtime(&self) -> Self {
        Self {
            generator: self.generator.on_this_runtime(),
            ..self.clone()
        }
    }

    /// Fails unless `model` is a name of the served model.
    fn check_model(&self, model: Option<&str>) -> Result<(), ApiError> {
        let mut served = self.config.served_names().chain(ALIASES);
        match model {
            Some(name) if !served.any(|served| served == name) => {
                let names: Vec<&str> = self.config.served_names().collect();
                let message = format!(
                    "The model `{}` does not exist; `{}` {} served here",
                    Excerpt::new(name),
                    names.join("`, `"),
                    if names.len() == 1 { "is" } else { "are" }
                );
                let error = ApiError::new(ErrorKind::ModelNotFound, message);
                Err(ApiError {
                    param: Some("model".into()),
                    ..error
                })
            }
            _ => Ok(()),
        }
    }

    fn routes(self) -> Router {
        let routes = Router::new()
            .route("/", get(health).post(native::compatible))
            .route("/generate", post(native::generate))
            .route("/generate_stream", post(native::generate_stream))
            .route("/invocations", post(invocations::invocations))
            .route("/tokenize", post(tokens::tokenize))
            .route("/detokenize", post(tokens::detokenize))
            .route("/tokenizer_info", get(tokens::tokenizer_info))
            .route("/version", get(tokens::version))
            .route("/load", get(tokens::load))
            .route("/info", get(native::info))
            .route("/v1/chat/completions", post(openai::chat))
            .route("/v1/completions", post(openai::completions))
            .route("/v1/responses", post(openai::responses))
            .route("/v1/responses/input_tokens", post(openai::input_tokens))
            .route(
                "/v1/responses/{id}",
                get(openai::stored_response).delete(openai::delete_response),
            )
            .route("/v1/responses/{id}/input_items", get(openai::input_items))
            .route("/v1/messages", post(anthropic::messages))
            .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
            .route("/chat_tokenize", post(tokens::chat_tokenize))
            .route("/v1/models", get(openai::models))
            .route("/v1/models/{*model}", get(openai::model))
            .route("/openapi.json", get(docs::openapi))
            // TGI's paths for these two routes.
            .route("/api-doc/openapi.json", get(docs::openapi))
            .route("/ping", get(health))
            .route("/docs", get(docs::page))
            .route("/health", get(health))
            .route("/live", get(live))
            .route("/ready", get(ready))
            .route("/metrics", get(metrics));
        #[cfg(feature = "kserve")]
        let routes = routes.merge(kserve::routes());
        let routes = match self.config.access.admin {
            Some(_) => routes.merge(access::admin_routes()),
            None => routes,
        };
        let routes = routes.fallback(not_found);
        self.layered(routes.method_not_allowed_fallback(wrong_method))
    }

    /// Returns the routes of a connection beyond the limit: health checks; everything else gets
    /// 503.
    fn spare_routes(self) -> Router {
        let routes = Router::new()
            .route("/", get(health).post(full))
            .route("/ping", get(health))
            .route("/health", get(health))
            .route("/live", get(live))
            .route("/ready", get(ready))
            .route("/metrics", get(metrics));
        #[cfg(feature = "kserve")]
        let routes = routes.merge(kserve::health_routes());
        let routes = routes.fallback(full).method_not_allowed_fallback(full);
        self.layered(routes)
    }

    /// Adds what every request passes, the last layer first. Preflight requests of browsers, which
    /// have no key, do not pass the guard.
    fn layered(self, routes: Router<Self>) -> Router {
        routes
            .layer(middleware::from_fn(deadline::with_deadline))
            .layer(middleware::from_fn_with_state(self.clone(), access::guard))
            .layer(middleware::from_fn_with_state(self.clone(), count))
            .layer(CorsLayer::clone(&self.cors))
            .layer(middleware::from_fn(request_id::identify))
            .with_state(self)
    }
}

async fn full(uri: Uri) -> Response {
    let message = "all connections are taken; send the request again, or raise the server's limit of \
                   open files";
    let error = ApiError::new(ErrorKind::Unavailable, message).retry(Duration::from_secs(1));
    error::for_path(uri.path(), error)
}

/// Metrics in the Prometheus text format.
#[utoipa::path(
    get, path = "/metrics", tag = "operations",
    responses((status = 200, body = String, content_type = "text/plain"))
)]
async fn metrics(State(app): State<App>) -> Response {
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (kind, app.metrics.expose()).into_response()
}

async fn not_found(uri: Uri) -> Response {
    let path = Excerpt::new(uri.path());
    let reason = reason_for(uri.path());
    let message = format!("there is no route `{path}`{reason}; /docs lists all routes");
    error::for_path(uri.path(), ApiError::new(ErrorKind::NotFound, message))
}

/// Returns why there is no route of this path, if that is not obvious.
fn reason_for(path: &str) -> &'static str {
    match path {
        #[cfg(feature = "kserve")]
        path if path.starts_with(kserve::REPOSITORY_MODELS) => {
            "; models cannot be loaded or unloaded by request"
        }
        _ => "",
    }
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    let (path, method) = (Excerpt::new(uri.path()), Excerpt::new(method.as_str()));
    let message = format!("`{path}` does not take {method}; /docs lists all routes");
    error::for_path(uri.path(), ApiError::new(ErrorKind::Method, message))
}

async fn count(
    State(app): State<App>,
    route: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().to_owned();
    // Without this, a panic ends the connection's task without a response and is not counted.
    let handled = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let response = handled.unwrap_or_else(|panic| failed(&path, &*panic));
    let route = route.as_ref().map_or("other", MatchedPath::as_str);
    let status = response.status().as_u16();
    tracing::debug!(route, status, "response");
    app.metrics.http.response(route, status);
    response
}

/// Logs a panic of a handler and returns its response, a 500.
fn failed(path: &str, panic: &(dyn std::any::Any + Send)) -> Response {
    tracing::error!("a request to {path} failed: {}", panic_message(panic));
    let message = "the server failed on this request; its log says why";
    error::for_path(path, ApiError::new(ErrorKind::Internal, message))
}

fn cors(cors: &Cors) -> std::io::Result<CorsLayer> {
    let origin = match cors {
        Cors::Any => AllowOrigin::any(),
        Cors::Origins(origins) => {
            let parsed: Result<Vec<HeaderValue>, _> = origins
                .iter()
                .map(|origin| HeaderValue::from_str(origin))
                .collect();
            let parsed = parsed.map_err(|e| {
                std::io::Error::new(
                    std::io::ErrorKind::InvalidInput,
                    format!("CORS origin: {e}"),
                )
            })?;
            AllowOrigin::list(parsed)
        }
    };
    let methods = [Method::GET, Method::POST, Method::DELETE];
    Ok(CorsLayer::new()
        .allow_methods(methods)
        // `*` does not cover the Authorization header.
        .allow_headers(AllowHeaders::mirror_request())
        .allow_origin(origin))
}
