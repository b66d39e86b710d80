//! `/v1/models` and `/v1/models/{id}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::runtime::ModelRuntime;
use crate::state::Shared;

fn entry(runtime: &ModelRuntime, id: &str) -> Value {
    json!({
        "id": id,
        "object": "model",
        "created": runtime.created,
        "owned_by": "galvani",
        "root": runtime.name,
        "parent": if id == runtime.name { Value::Null } else { json!(runtime.name) },
        "max_model_len": runtime.context_max,
    })
}

pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    let runtime = shared.ready()?;
    let data: Vec<Value> = runtime.names().iter().map(|id| entry(&runtime, id)).collect();
    Ok(Json(json!({"object": "list", "data": data})))
}

pub(super) async fn one(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let runtime = shared.ready()?;
    if !runtime.answers_to(&id) {
        return Err(ApiError::model_not_found(&id, &runtime.names()));
    }
    Ok(Json(entry(&runtime, &id)))
}
