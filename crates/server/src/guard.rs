//! What stands before every handler: the host check, other sites' pages, keys, panics.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;
use crate::state::Shared;

/// Runs the checks in order; then the handler, whose panic becomes a 500.
pub async fn guard(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    let endpoint = endpoint(request.uri().path());
    let origin = request.headers().get(header::ORIGIN).cloned();
    let allowed_origin = origin.filter(|origin| origin_allowed(&shared, origin));
    let checked = check(&shared, &request).map(|tenant| request.extensions_mut().insert(tenant));
    let mut response = match checked {
        Err(error) => error.into_response(),
        Ok(_) if is_preflight(&request) => StatusCode::NO_CONTENT.into_response(),
        Ok(_) => match (CatchPanic {
            future: Box::pin(next.run(request)),
        })
        .await
        {
            Ok(response) => response,
            Err(()) => {
                shared.metrics.panicked();
                ApiError::internal("an internal fault ended this request; the server goes on").into_response()
            }
        },
    };
    if let Some(origin) = allowed_origin {
        allow(response.headers_mut(), origin);
    }
    if response.status() == StatusCode::UNAUTHORIZED {
        // A browser asks its user for the key when the page itself is opened, and only then.
        let scheme = if endpoint == "/" {
            "Basic realm=\"galvani: any name, the API key as password\""
        } else {
            "Bearer"
        };
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
    }
    shared.metrics.responded(endpoint, response.status().as_u16());
    response
}

/// The label that metrics carry: never a client's own words.
fn endpoint(path: &str) -> &'static str {
    const KNOWN: &[&str] = &[
        "/",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/health",
        "/health/live",
        "/health/ready",
        "/metrics",
        "/openapi.json",
        "/props",
        "/version",
    ];
    KNOWN
        .iter()
        .find(|known| **known == path)
        .copied()
        .unwrap_or("other")
}

/// Whose request it is: 0 where no key is asked for, else one more than the key's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenant(pub u64);

fn check(shared: &Shared, request: &Request) -> Result<Tenant, ApiError> {
    let forbidden = |message: String| ApiError::status(StatusCode::FORBIDDEN, "forbidden", message);
    let headers = request.headers();
    let host = host(request);
    if shared.loopback && !host_allowed(&shared.config.allowed_hosts, host) {
        let host: String = host.unwrap_or("none").chars().take(100).collect();
        return Err(forbidden(format!(
            "host {host:?} is not a name of this machine; a server bound to loopback answers only to localhost, \
             loopback addresses and allowed hosts (--allowed-host)"
        )));
    }
    if let Some(origin) = headers.get(header::ORIGIN)
        && !same_origin(origin, host)
        && !origin_allowed(shared, origin)
    {
        return Err(forbidden(
            "pages of this origin may not call this server (--cors-origin allows it)".to_owned(),
        ));
    }
    let path = request.uri().path();
    let open = path == "/health" || path.starts_with("/health/") || is_preflight(request);
    if open || shared.config.api_keys.is_empty() {
        return Ok(Tenant(0));
    }
    authorised(&shared.config.api_keys, headers).ok_or_else(|| {
        ApiError::status(
            StatusCode::UNAUTHORIZED,
            "invalid_api_key",
            "a valid API key is needed: send it as Authorization: Bearer KEY or x-api-key: KEY",
        )
    })
}

fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

fn host(request: &Request) -> Option<&str> {
    match request.headers().get(header::HOST) {
        Some(host) => host.to_str().ok(),
        None => request.uri().authority().map(axum::http::uri::Authority::as_str),
    }
}

/// The name without its port.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// A page whose domain was made to resolve to this machine still names its own domain.
fn host_allowed(allowed: &[String], host: Option<&str>) -> bool {
    let Some(host) = host else { return false };
    let name = host_name(host);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
        || allowed.iter().any(|entry| entry.eq_ignore_ascii_case(name))
}

fn same_origin(origin: &HeaderValue, host: Option<&str>) -> bool {
    let origin = origin
        .to_str()
        .ok()
        .and_then(|o| o.split_once("://"))
        .map(|(_, authority)| authority);
    origin.is_some() && origin == host
}

fn origin_allowed(shared: &Shared, origin: &HeaderValue) -> bool {
    shared
        .config
        .cors_origins
        .iter()
        .any(|entry| entry == "*" || entry.as_bytes() == origin.as_bytes())
}

fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, POST"),
    );
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("authorization, content-type, x-api-key, x-request-id"),
    );
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("x-request-id, retry-after"),
    );
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
}

/// A key in any of the places where clients put it. Browsers ask their user for it (Basic, any user name).
fn authorised(keys: &[String], headers: &HeaderMap) -> Option<Tenant> {
    let given = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let from_header = given("x-api-key").map(str::to_owned);
    let from_authorization = given("authorization").and_then(|value| {
        let (scheme, rest) = value.split_once(' ')?;
        if scheme.eq_ignore_ascii_case("bearer") {
            Some(rest.trim().to_owned())
        } else if scheme.eq_ignore_ascii_case("basic") {
            let pair = String::from_utf8(base64(rest.trim())?).ok()?;
            pair.split_once(':').map(|(_, password)| password.to_owned())
        } else {
            None
        }
    });
    let mut tenant = 0;
    for given in [from_header, from_authorization].into_iter().flatten() {
        // Every key is compared in full, so that time tells neither which key nor where it differs.
        for (i, key) in keys.iter().enumerate() {
            tenant |= (i as u64 + 1) * u64::from(equal(key.as_bytes(), given.as_bytes()));
        }
    }
    (tenant > 0).then_some(Tenant(tenant))
}

/// Equality in a time that depends on the given bytes' length alone.
fn equal(key: &[u8], given: &[u8]) -> bool {
    let mut difference = key.len() ^ given.len();
    for (i, byte) in given.iter().enumerate() {
        let other = if key.is_empty() { 0 } else { key[i % key.len()] };
        difference |= usize::from(std::hint::black_box(byte ^ other));
    }
    difference == 0
}

/// RFC 4648 section 4, padding optional.
fn base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

/// A future whose panic ends in `Err`.
struct CatchPanic<F> {
    future: Pin<Box<F>>,
}

impl<F: Future> Future for CatchPanic<F> {
    type Output = Result<F::Output, ()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Self::Output> {
        match catch_unwind(AssertUnwindSafe(|| self.future.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_hosts() {
        let extra = ["box.lan".to_owned()];
        for (host, expected) in [
            (Some("localhost"), true),
            (Some("LOCALHOST:8000"), true),
            (Some("127.0.0.1:8000"), true),
            (Some("127.9.9.9"), true),
            (Some("[::1]:8000"), true),
            (Some("box.lan:80"), true),
            (Some("evil.example"), false),
            (Some("evil.example:8000"), false),
            (Some("localhost.evil.example"), false),
            (Some("10.0.0.1"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(host_allowed(&extra, host), expected, "{host:?}");
        }
    }

    #[test]
    fn keys_are_compared_in_full() {
        for (key, given, expected) in [
            ("abc", "abc", true),
            ("abc", "abd", false),
            ("abc", "ab", false),
            ("abc", "abcabc", false),
            ("abc", "", false),
            ("", "", true),
        ] {
            assert_eq!(equal(key.as_bytes(), given.as_bytes()), expected, "{key} {given}");
        }
    }

    #[tokio::test]
    async fn a_panic_ends_in_an_error() {
        let good = CatchPanic {
            future: Box::pin(async { 1 }),
        };
        assert_eq!(good.await, Ok(1));
        let bad = CatchPanic {
            future: Box::pin(async { assert!(std::hint::black_box(false), "a handler's mistake") }),
        };
        assert_eq!(bad.await, Err(()));
    }

    #[test]
    fn base64_reads_what_browsers_send() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("dTprZXk=", "u:key"),
        ] {
            assert_eq!(base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(base64("a b"), None);
    }
}
