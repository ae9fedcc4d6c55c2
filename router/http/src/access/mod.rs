//! Who may use the server: API keys, the admin token, host names.

mod admin;
mod hosts;
mod keys;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::Response;
use penstock_request::error::{ApiError, ErrorKind};

pub use self::admin::Reload;
pub(super) use self::admin::routes as admin_routes;
pub use self::keys::KeyHash;
use self::keys::presented;
use super::{App, error};

/// Routes that need no key: probes of orchestrators and scrapes of Prometheus have none.
const OPEN: [&str; 9] = [
    "/health",
    "/live",
    "/ready",
    "/ping",
    "/metrics",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/{model}/ready",
    "/v2/models/{model}/versions/{version}/ready",
];

/// Who may use the server. The default: everyone, by any name, without admin routes.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// API keys, one of which a request must present; empty = none is needed.
    pub keys: Vec<KeyHash>,
    /// Token of the admin routes, which do not exist without one.
    pub admin: Option<KeyHash>,
    /// Names of this server besides addresses and localhost; `None` = any.
    pub hosts: Option<Vec<String>>,
}

impl Access {
    /// Fails unless the headers contain one of the API keys.
    pub(crate) fn check_key(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.keys.is_empty() {
            return Ok(());
        }
        check_any(&self.keys, headers, "an API key of this server")
    }

    fn check(&self, request: &Request, route: Option<&str>) -> Result<(), ApiError> {
        let (uri, headers) = (request.uri(), request.headers());
        if let Some(names) = &self.hosts {
            hosts::check(names, uri, headers)?;
        }
        match &self.admin {
            Some(token) if uri.path().starts_with(admin::PREFIX) => {
                check_any(&[*token], headers, "the token of --admin-token")
            }
            _ if is_open(reads(request.method()), route.unwrap_or_default()) => Ok(()),
            _ => self.check_key(headers),
        }
    }
}

/// Lets a request pass if it may use its route.
pub(super) async fn guard(
    State(app): State<App>,
    route: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let route = route.as_ref().map(MatchedPath::as_str);
    match app.config.access.check(&request, route) {
        Ok(()) => next.run(request).await,
        Err(refused) => error::for_path(request.uri().path(), refused),
    }
}

fn reads(method: &Method) -> bool {
    [Method::GET, Method::HEAD].contains(method)
}

/// Returns whether a route, as it is registered, needs no key; `reads`: by GET.
pub(crate) fn is_open(reads: bool, route: &str) -> bool {
    reads && (route == "/" || OPEN.contains(&route))
}

/// Fails unless the headers contain one of the keys; compares all of them, so that the time does
/// not show which one.
fn check_any(keys: &[KeyHash], headers: &HeaderMap, wanted: &str) -> Result<(), ApiError> {
    let mut presented = presented(headers).peekable();
    let problem = match presented.peek() {
        None => "is missing",
        Some(_) => "is wrong",
    };
    let matches = presented.map(|key| keys.iter().filter(|known| known.equals(&key)).count());
    if matches.sum::<usize>() > 0 {
        return Ok(());
    }
    let message = format!(
        "{wanted} is needed and {problem}; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`"
    );
    Err(ApiError::new(ErrorKind::Unauthorized, message))
}
