//! Host names under which the server may be addressed.
//!
//! A web page of `evil.example` may let its own name point to 127.0.0.1 after it was loaded (DNS
//! rebinding). To the browser, this server then belongs to the page. But the name is in `Host`.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};
use penstock_request::error::{ApiError, ErrorKind, Excerpt};

/// Fails unless the request names this server by an address, as localhost, or by one of `names`.
/// `*` allows every name. A request without a host comes from no browser.
pub(super) fn check(names: &[String], uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let named = match headers.get(header::HOST) {
        Some(value) => value.to_str().unwrap_or("?"),
        None => uri.authority().map_or("", |authority| authority.as_str()),
    };
    let host = without_port(named);
    if host.is_empty() || is_local(host) || names.iter().any(|name| allows(name, host)) {
        return Ok(());
    }
    let host = Excerpt::new(host);
    let message = format!(
        "this server does not accept requests for the host `{host}`; use its address or \
         `localhost`, or start it with --allowed-host {host}"
    );
    Err(ApiError::new(ErrorKind::Forbidden, message))
}

/// Returns the host of `host:port`, `[address]:port` or a host alone.
fn without_port(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    let host = authority.split(':').next().unwrap_or(authority);
    host.strip_suffix('.').unwrap_or(host)
}

/// Browsers resolve `localhost` and the names below it themselves, and nobody can own an address's
/// name.
fn is_local(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost") || host.parse::<IpAddr>().is_ok()
}

fn allows(name: &str, host: &str) -> bool {
    name == "*" || name.eq_ignore_ascii_case(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        check(&["llm.example".into()], &Uri::from_static("/"), &headers).is_ok()
    }

    #[test]
    fn addresses_localhost_and_allowed_names_are_accepted() {
        for host in [
            "127.0.0.1:3000",
            "10.1.2.3",
            "[::1]:3000",
            "[::1]",
            "localhost",
            "LOCALHOST:3000",
            "a.localhost:3000",
            "localhost.:3000",
            "LLM.example:80",
        ] {
            assert!(is_allowed(host), "{host}");
        }
        for host in [
            "evil.example:3000",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "notlocalhost",
            "sub.llm.example",
        ] {
            assert!(!is_allowed(host), "{host}");
        }
    }

    #[test]
    fn the_authority_counts_if_there_is_no_host() {
        let uri = Uri::from_static("http://evil.example/v1/models");
        let refused = check(&[], &uri, &HeaderMap::new()).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Forbidden);
        assert!(refused.message.contains("--allowed-host evil.example"));
        assert!(check(&["*".into()], &uri, &HeaderMap::new()).is_ok());
        assert!(check(&[], &Uri::from_static("/"), &HeaderMap::new()).is_ok());
    }
}
