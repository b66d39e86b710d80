//! Errors as clients see them: OpenAI's shape, naming the field.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use galvani_engine::SubmitError;
use galvani_text::TextError;
use serde_json::{Value, json};

/// An error on its way to a client.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// For a person: the thing, the value, what would be allowed.
    pub message: String,
    /// Field at fault.
    pub param: Option<String>,
    /// For a program.
    pub code: Option<&'static str>,
    /// Seconds after which another try makes sense.
    pub retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, code: Option<&'static str>, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code,
            retry_after: None,
        }
    }

    /// 400 about a field.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("{param}: {}", message.into());
        Self {
            param: Some(param),
            ..Self::new(StatusCode::BAD_REQUEST, Some("invalid_value"), message)
        }
    }

    /// 400 about the request as a whole.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Some("invalid_request"), message)
    }

    /// 400 where the prompt leaves no room.
    pub fn context(prompt_tokens: usize, context_max: usize, param: &str) -> Self {
        let message = format!(
            "{param}: the prompt has {prompt_tokens} tokens; the context of this model as served is {context_max} \
             tokens, of which at least one is for the answer"
        );
        Self {
            param: Some(param.to_owned()),
            ..Self::new(StatusCode::BAD_REQUEST, Some("context_length_exceeded"), message)
        }
    }

    /// What is wrong with a prompt, given as `param`, that could not be tokenised; 400 with both lengths where it is too long
    /// for its tokens to be counted.
    pub fn prompt(error: TextError, context_max: usize, param: &str) -> Self {
        let TextError::TooLong { bytes, tokens, .. } = error else {
            return error.into();
        };
        Self {
            message: format!(
                "{param}: the prompt has {bytes} bytes, which are {tokens} tokens or more; the context of this model as \
                 served is {context_max} tokens, of which at least one is for the answer"
            ),
            ..Self::context(tokens, context_max, param)
        }
    }

    /// Another status, with a code.
    pub fn status(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self::new(status, Some(code), message)
    }

    /// 404 for a model that is not served.
    pub fn model_not_found(asked: &str, served: &[String]) -> Self {
        let asked: String = asked.chars().take(200).collect();
        let message = format!(
            "model: {asked:?} is not served here; served: {}",
            served.join(", ")
        );
        Self {
            param: Some("model".to_owned()),
            ..Self::new(StatusCode::NOT_FOUND, Some("model_not_found"), message)
        }
    }

    /// 429: no room now.
    pub fn too_many(message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(1),
            ..Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                Some("rate_limit_exceeded"),
                message,
            )
        }
    }

    /// 503: not now.
    pub fn unavailable(code: &'static str, message: impl Into<String>, retry_after: u32) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, Some(code), message)
        }
    }

    /// 500: a fault of ours.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, Some("internal_error"), message)
    }

    /// The same error about another field.
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// OpenAI's name for the class of error.
    pub fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            503 => "service_unavailable_error",
            _ => "server_error",
        }
    }

    /// The body.
    pub fn to_json(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind(), "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.to_json())).into_response();
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::QueueFull { .. } => Self::too_many(format!("{error}; try again later")),
            SubmitError::PromptTooLong {
                prompt_tokens,
                context_max,
            } => Self::context(prompt_tokens, context_max, "prompt"),
            SubmitError::Field {
                field,
                ref got,
                ref allowed,
            } => Self::field(field, format!("got {got}, allowed: {allowed}")),
            SubmitError::Broken { .. } => Self::unavailable("engine_broken", error.to_string(), 60),
            SubmitError::ShuttingDown => Self::unavailable("shutting_down", "the server is shutting down", 5),
        }
    }
}
