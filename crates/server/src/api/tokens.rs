//! `/tokenize`, `/detokenize`, `/apply-template`: what a prompt really is.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use galvani_text::Special;
use serde_json::{Value, json};

use super::chat::{Conversation, check_model};
use super::{blocking, counted_max, finish, read_body, request_id};
use crate::body::Body;
use crate::error::ApiError;
use crate::fields::on;
use crate::generate::Ticket;
use crate::params::token_ids;
use crate::runtime::ModelRuntime;
use crate::state::Shared;

/// Tokens that are told of any text, however small the context: people measure what they mean to cut.
const TOKENS_MAX: usize = 1 << 16;

type Work = fn(&Body, &ModelRuntime) -> Result<Value, ApiError>;

pub(super) async fn tokenize(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    run(shared, request, on::TOKENIZE, to_tokens).await
}

pub(super) async fn detokenize(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    run(shared, request, on::DETOKENIZE, to_text).await
}

pub(super) async fn apply_template(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    run(shared, request, on::TEMPLATE, to_prompt).await
}

async fn run(shared: Arc<Shared>, request: Request, endpoint: u8, work: Work) -> Response {
    let id = request_id(request.headers());
    let mut ignored = Vec::new();
    let result = async {
        let runtime = shared.ready()?;
        let _ticket = Ticket::take(&shared)?;
        let bytes: Bytes = read_body(&shared, request).await?;
        let state = shared.clone();
        let (value, names) = blocking(move || {
            let body = Body::parse(&bytes, endpoint, &state.config.limits, state.config.strict)?;
            check_model(&body, &runtime)?;
            Ok::<_, ApiError>((work(&body, &runtime)?, body.ignored))
        })
        .await?;
        ignored = names;
        Ok(Json(value).into_response())
    }
    .await;
    finish(&shared, &ignored, &id, result)
}

fn to_tokens(body: &Body, runtime: &ModelRuntime) -> Result<Value, ApiError> {
    let text = body.text("prompt").or_else(|| body.text("content"));
    let most = counted_max(runtime.context_max, None).max(TOKENS_MAX);
    let (encoded, param) = match (text, body.has("messages")) {
        (Some(_), true) => return Err(ApiError::field("prompt", "excludes messages")),
        (Some(text), false) => {
            let special = body.flag("add_special_tokens", true);
            let encoded = runtime
                .tokenizer
                .encode_up_to(&text, Special::Parse, special, most);
            (encoded, "prompt")
        }
        (None, true) => {
            let conversation = Conversation::read(body)?;
            let prompt = conversation.render(conversation.template(runtime)?, conversation.tools())?;
            (runtime.tokenizer.encode_prompt_up_to(&prompt, most), "messages")
        }
        (None, false) => return Err(ApiError::field("prompt", "is needed, or messages")),
    };
    let tokens = encoded.map_err(|error| ApiError::prompt(error, runtime.context_max, param))?;
    let mut answer = json!({"count": tokens.len(), "max_model_len": runtime.context_max, "tokens": tokens});
    if body.flag("return_token_strs", false) {
        answer["token_strs"] = tokens
            .iter()
            .map(|token| json!(runtime.tokenizer.token_text(*token).unwrap_or_default()))
            .collect();
    }
    Ok(answer)
}

fn to_text(body: &Body, runtime: &ModelRuntime) -> Result<Value, ApiError> {
    let raw = body
        .raw("tokens")
        .ok_or_else(|| ApiError::field("tokens", "is needed: a list of token ids"))?;
    let vocab = runtime.engine.config().vocab;
    let tokens = token_ids("tokens", raw, vocab, usize::MAX)?;
    let text = runtime.tokenizer.decode(&tokens, false);
    // The second name is the one that llama.cpp's clients read.
    Ok(json!({"prompt": text, "content": text}))
}

fn to_prompt(body: &Body, runtime: &ModelRuntime) -> Result<Value, ApiError> {
    let conversation = Conversation::read(body)?;
    let prompt = conversation.render(conversation.template(runtime)?, conversation.tools())?;
    Ok(json!({"prompt": prompt.text()}))
}
