//! Paths for operators: health, metrics, properties, version, the document, the page.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::state::{Health, Shared};

/// The chat page. Its policy lets it load nothing from elsewhere and be framed by nobody.
const PAGE: &str = include_str!("../page/index.html");
const PAGE_POLICY: &str = "default-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
     img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

/// 200 once requests are taken; 503 with a body that says why not before that and while draining.
pub(super) async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let (status, text, retry) = match shared.health() {
        Health::Ready => return Json(json!({"status": "ok"})).into_response(),
        Health::Loading(progress) => ("loading", progress, 1),
        Health::Draining => ("draining", "the server is shutting down".to_owned(), 5),
        Health::Failed(message) => ("failed", format!("the model could not be loaded: {message}"), 60),
    };
    let error = ApiError::unavailable(
        match status {
            "loading" => "model_loading",
            "draining" => "shutting_down",
            _ => "model_failed",
        },
        text,
        retry,
    );
    let mut body = error.to_json();
    body["status"] = json!(status);
    let mut response = (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    response
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from(retry));
    response
}

/// 200 as long as the process answers.
pub(super) async fn live() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let text = shared.metrics.render(shared.runtime().as_deref());
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION"), "name": "galvani"}))
}

pub(super) async fn openapi() -> Json<Value> {
    Json(crate::openapi::document())
}

pub(super) async fn page() -> Response {
    let mut response = Html(PAGE).into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(PAGE_POLICY),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

pub(super) async fn props(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    let runtime = shared.ready()?;
    let defaults = &runtime.defaults;
    let limits = &shared.config.limits;
    let engine = runtime.engine.config();
    Ok(Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model_name": runtime.name,
        "aliases": runtime.aliases,
        "model": runtime.info,
        "context_max": runtime.context_max,
        "tokenizer": runtime.tokenizer.describe(),
        "eos_token_ids": runtime.eos_ids,
        "chat_template": {
            "present": runtime.template.is_some(),
            "source": runtime.template.as_ref().map(|template| template.origin()),
        },
        "parsers": {
            "reasoning": runtime.styles.reasoning.as_ref().map(|style| format!("{style:?}")),
            "tools": runtime.styles.tools.as_ref().map(|style| format!("{style:?}")),
        },
        "structured_output": runtime.grammar.is_some(),
        "defaults": {
            "temperature": defaults.temperature,
            "top_k": defaults.top_k,
            "top_p": defaults.top_p,
            "min_p": defaults.min_p,
            "typical_p": defaults.typical_p,
            "repetition_penalty": defaults.repetition_penalty,
            "presence_penalty": defaults.presence_penalty,
            "frequency_penalty": defaults.frequency_penalty,
            "max_tokens": defaults.tokens_max,
        },
        "engine": {
            "sequences_max": engine.sequences_max,
            "queue_max": engine.queue_max,
            "step_tokens_max": engine.step_tokens_max,
            "page_tokens": engine.page_tokens,
            "page_count": engine.page_count,
            "prefix_cache": engine.prefix_cache,
        },
        "limits": {
            "body_bytes": limits.body_bytes_max,
            "requests": limits.requests_max,
            "connections": limits.connections_max,
            "n": limits.choices_max,
            "prompts": limits.prompts_max,
            "logprobs": limits.logprobs_max,
            "stops": limits.stops_max,
            "messages": limits.messages_max,
            "tools": limits.tools_max,
        },
        "unknown_fields": if shared.config.strict { "refused" } else { "ignored and counted" },
        "health": format!("{:?}", shared.health()).to_lowercase(),
    })))
}
