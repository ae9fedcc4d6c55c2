//! Who may use the server: API keys, the admin token, host names.

mod admin;
mod caller;
mod hosts;
mod keys;
mod tenants;

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::Response;
use penstock_request::error::{ApiError, ErrorKind};
use penstock_request::tenant::{ActiveRequest, Caller};

pub use self::admin::Reload;
pub(super) use self::admin::routes as admin_routes;
pub use self::keys::KeyHash;
use self::keys::presented;
pub use self::tenants::{KeyedTenant, Tenants};
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
    /// API keys without a tenant. A request must present one of these or of a tenant's, if there are
    /// any.
    pub keys: Vec<KeyHash>,
    /// Tenants, by their keys.
    pub tenants: Tenants,
    /// Token of the admin routes, which do not exist without one.
    pub admin: Option<KeyHash>,
    /// Names of this server besides addresses and localhost; `None` = any.
    pub hosts: Option<Vec<String>>,
}

impl Access {
    /// Returns on whose behalf a request with these headers runs. Fails unless they contain one of
    /// the keys, if there are any.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let caller = caller::described(headers)?;
        if self.keys.is_empty() && self.tenants.is_empty() {
            return Ok(caller);
        }
        let presented: Vec<KeyHash> = presented(headers).collect();
        let tenant = self.tenants.find(&presented);
        if tenant.is_none() && !tenants::matches(&self.keys, &presented) {
            return Err(refusal(&presented, "an API key of this server"));
        }
        Ok(Caller { tenant, ..caller })
    }

    fn check(&self, request: &Request, route: Option<&str>) -> Result<Caller, ApiError> {
        let (uri, headers) = (request.uri(), request.headers());
        if let Some(names) = &self.hosts {
            hosts::check(names, uri, headers)?;
        }
        match &self.admin {
            Some(token) if uri.path().starts_with(admin::PREFIX) => {
                let presented: Vec<KeyHash> = presented(headers).collect();
                match tenants::matches(&[*token], &presented) {
                    true => Ok(Caller::default()),
                    false => Err(refusal(&presented, "the token of --admin-token")),
                }
            }
            _ if is_open(reads(request.method()), route.unwrap_or_default()) => {
                Ok(Caller::default())
            }
            _ => self.caller(headers),
        }
    }
}

/// Counts a request as one of its tenant's. Fails if the tenant has reached a limit.
pub(crate) fn begin(caller: &Caller) -> Result<Option<ActiveRequest>, ApiError> {
    let tenant = caller.tenant.as_ref().map(Arc::clone);
    tenant
        .map(|tenant| tenant.begin(Instant::now()))
        .transpose()
}

/// Lets a request pass if it may use its route, and runs it on behalf of its caller.
pub(super) async fn guard(
    State(app): State<App>,
    route: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let route = route.as_ref().map(MatchedPath::as_str);
    let checked = app.config.access.check(&request, route);
    let begun = checked.and_then(|caller| {
        // Reads of objects and of the server's state cost nothing.
        let active = match reads(request.method()) {
            true => None,
            false => begin(&caller)?,
        };
        Ok((caller, active))
    });
    let (caller, active) = match begun {
        Ok(begun) => begun,
        Err(refused) => return error::for_path(request.uri().path(), refused),
    };
    let response = caller.scope(next.run(request)).await;
    match active {
        Some(active) => response.map(|body| tenants::counted(body, active)),
        None => response,
    }
}

fn reads(method: &Method) -> bool {
    [Method::GET, Method::HEAD].contains(method)
}

/// Returns whether a route, as it is registered, needs no key; `reads`: by GET.
pub(crate) fn is_open(reads: bool, route: &str) -> bool {
    reads && (route == "/" || OPEN.contains(&route))
}

/// Returns the error of a request without a valid key.
fn refusal(presented: &[KeyHash], wanted: &str) -> ApiError {
    let problem = if presented.is_empty() {
        "is missing"
    } else {
        "is wrong"
    };
    let message = format!(
        "{wanted} is needed and {problem}; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`"
    );
    ApiError::new(ErrorKind::Unauthorized, message)
}
