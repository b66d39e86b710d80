//! The routes. An endpoint is a file here and a line in [`router`].

mod chat;
mod chat_stream;
mod completions;
mod models;
mod service;
mod text_stream;
mod tokens;

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;

use crate::error::ApiError;
use crate::generate::Ticket;
use crate::guard::{self, Tenant};
use crate::runtime::ModelRuntime;
use crate::state::Shared;

/// All routes over this state. Works without a socket.
pub fn router(shared: Arc<Shared>) -> Router {
    let mut routes = Router::new()
        .route("/v1/chat/completions", post(chat::answer))
        .route("/v1/completions", post(completions::answer))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/health", get(service::ready))
        .route("/health/ready", get(service::ready))
        .route("/health/live", get(service::live))
        .route("/metrics", get(service::metrics))
        .route("/props", get(service::props))
        .route("/version", get(service::version))
        .route("/openapi.json", get(service::openapi));
    if shared.config.page {
        routes = routes.route("/", get(service::page));
    }
    routes
        .fallback(|| async {
            ApiError::status(
                StatusCode::NOT_FOUND,
                "not_found",
                "there is no such path (see /openapi.json)",
            )
        })
        .method_not_allowed_fallback(|| async {
            ApiError::status(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this path does not take this method (see /openapi.json)",
            )
        })
        .layer(from_fn_with_state(shared.clone(), guard::guard))
        .with_state(shared)
}

/// First steps of every request that generates: a ready model, a place among the requests, the body, and what `prepare`
/// makes of it, off the threads that serve sockets.
///
/// # Errors
/// 503, 429, those of [`read_body`] and of `prepare`.
async fn admit<J: Send + 'static>(
    shared: &Arc<Shared>,
    tenant: Tenant,
    request: Request,
    prepare: fn(&Shared, &ModelRuntime, Tenant, &Bytes) -> Result<J, ApiError>,
) -> Result<(Arc<ModelRuntime>, Ticket, J), ApiError> {
    let runtime = shared.ready()?;
    let ticket = Ticket::take(shared)?;
    let bytes = read_body(shared, request).await?;
    let (state, model) = (shared.clone(), runtime.clone());
    let job = blocking(move || prepare(&state, &model, tenant, &bytes)).await?;
    Ok((runtime, ticket, job))
}

/// Most tokens that a prompt is counted to. One that is somewhat too long is told its length; of one that is far too long, the
/// rest is not looked at. Where only its last tokens are wanted, all have to be found.
fn counted_max(context_max: usize, truncate: Option<usize>) -> usize {
    match truncate {
        Some(_) => usize::MAX,
        None => context_max.saturating_mul(2).saturating_add(4096),
    }
}

/// A request's body, bounded in size and time.
///
/// # Errors
/// 415 for another type than JSON (which also keeps other sites' forms out), 413 and 408 for bodies beyond the limits.
async fn read_body(shared: &Shared, request: Request) -> Result<Bytes, ApiError> {
    let limits = &shared.config.limits;
    let (parts, body) = request.into_parts();
    check_type(&parts.headers)?;
    let too_large = || {
        ApiError::status(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_large",
            format!("the body has more than {} bytes", limits.body_bytes_max),
        )
    };
    if body.size_hint().lower() > limits.body_bytes_max as u64 {
        return Err(too_large());
    }
    let collected = tokio::time::timeout(limits.body_time_max, collect(body, limits.body_bytes_max)).await;
    match collected {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Ok(None)) => Err(too_large()),
        Ok(Err(error)) => Err(ApiError::bad_request(format!(
            "the body could not be read: {error}"
        ))),
        Err(_) => Err(ApiError::status(
            StatusCode::REQUEST_TIMEOUT,
            "body_timeout",
            format!("the body did not arrive within {:?}", limits.body_time_max),
        )),
    }
}

fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("none");
    let essence = given.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let shown: String = given.chars().take(60).collect();
    Err(ApiError::status(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        format!("content-type is {shown:?}; send application/json"),
    ))
}

/// `None` when there are more bytes than allowed. What is stored grows with what came, not with what was announced.
async fn collect(mut body: Body, bytes_max: usize) -> Result<Option<Bytes>, axum::Error> {
    let mut all: Vec<u8> = Vec::new();
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(data) = frame?.into_data() else { continue };
        if all.len() + data.len() > bytes_max {
            return Ok(None);
        }
        all.extend_from_slice(&data);
    }
    Ok(Some(Bytes::from(all)))
}

/// Runs work that takes milliseconds (parsing, rendering, tokenising) off the threads that serve sockets.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only a runtime that is being dropped cancels; nobody sees the answer then.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Puts the names of ignored fields and the request's id on a response, and new names into the log, once each.
fn finish(shared: &Shared, ignored: &[String], id: &str, result: Result<Response, ApiError>) -> Response {
    for name in shared.metrics.ignored(ignored) {
        tracing::warn!(
            field = name,
            "requests carry a field that no endpoint knows; it is ignored"
        );
    }
    let mut response = result.unwrap_or_else(IntoResponse::into_response);
    if !ignored.is_empty()
        && let Ok(value) = HeaderValue::from_str(&ignored.join(","))
    {
        response.headers_mut().insert("x-galvani-ignored-fields", value);
    }
    if let Ok(value) = HeaderValue::from_str(id) {
        response.headers_mut().insert("x-request-id", value);
    }
    response
}

/// The client's id of a request, or a fresh one.
fn request_id(headers: &HeaderMap) -> String {
    match headers.get("x-request-id").and_then(|value| value.to_str().ok()) {
        Some(id) if crate::params::is_id(id) => id.to_owned(),
        _ => format!("{:016x}", crate::params::random()),
    }
}
