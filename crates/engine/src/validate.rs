//! Ranges of a request's fields. Whatever passes here cannot bring the engine down.

use std::fmt::Display;

use crate::limits::{LOGPROBS_MAX, Limits};
use crate::request::{Request, SamplingParams, SubmitError};

/// Checks a request against the limits.
///
/// # Errors
/// Names the first field that is out of range.
pub fn validate(request: &Request, limits: &Limits) -> Result<(), SubmitError> {
    let prompt_tokens = request.prompt.len();
    check("prompt", prompt_tokens > 0, "0 tokens", || {
        "at least 1 token".to_owned()
    })?;
    if prompt_tokens >= limits.context_max {
        return Err(SubmitError::PromptTooLong {
            prompt_tokens,
            context_max: limits.context_max,
        });
    }
    tokens_in_vocab("prompt", request.prompt.iter().copied(), limits)?;
    tokens_in_vocab("stop_ids", request.stop_ids.iter().copied(), limits)?;
    check("tokens_max", request.tokens_max > 0, request.tokens_max, || {
        "at least 1".to_owned()
    })?;
    for (field, count) in [
        ("logprobs", request.logprobs),
        ("prompt_logprobs", request.prompt_logprobs),
    ] {
        let count = count.unwrap_or(0);
        check(field, count <= LOGPROBS_MAX, count, || {
            format!("at most {LOGPROBS_MAX}")
        })?;
    }
    sampling(&request.sampling, limits)
}

fn sampling(params: &SamplingParams, limits: &Limits) -> Result<(), SubmitError> {
    let SamplingParams {
        temperature,
        top_k: _,
        top_p,
        min_p,
        typical_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        logit_bias,
        seed: _,
    } = params;
    number(
        "temperature",
        *temperature,
        *temperature >= 0.0,
        "a finite number of at least 0",
    )?;
    number(
        "top_p",
        *top_p,
        *top_p > 0.0 && *top_p <= 1.0,
        "above 0, at most 1",
    )?;
    number("min_p", *min_p, (0.0..=1.0).contains(min_p), "from 0 to 1")?;
    number(
        "typical_p",
        *typical_p,
        *typical_p > 0.0 && *typical_p <= 1.0,
        "above 0, at most 1",
    )?;
    number(
        "repetition_penalty",
        *repetition_penalty,
        *repetition_penalty > 0.0,
        "a finite number above 0",
    )?;
    number("presence_penalty", *presence_penalty, true, "a finite number")?;
    number("frequency_penalty", *frequency_penalty, true, "a finite number")?;
    tokens_in_vocab("logit_bias", logit_bias.iter().map(|(token, _)| *token), limits)?;
    for (token, bias) in logit_bias {
        let got = format!("{bias} for token {token}");
        check("logit_bias", bias.is_finite(), got, || {
            "finite numbers".to_owned()
        })?;
    }
    Ok(())
}

fn number(field: &'static str, got: f32, fits: bool, allowed: &str) -> Result<(), SubmitError> {
    check(field, got.is_finite() && fits, got, || allowed.to_owned())
}

fn tokens_in_vocab(
    field: &'static str,
    mut tokens: impl Iterator<Item = u32>,
    limits: &Limits,
) -> Result<(), SubmitError> {
    let vocab = limits.vocab;
    match tokens.find(|token| *token as usize >= vocab) {
        None => Ok(()),
        Some(token) => check(field, false, format!("token {token}"), || {
            format!("tokens below {vocab}")
        }),
    }
}

fn check(
    field: &'static str,
    fits: bool,
    got: impl Display,
    allowed: impl FnOnce() -> String,
) -> Result<(), SubmitError> {
    if fits {
        return Ok(());
    }
    Err(SubmitError::Field {
        field,
        got: got.to_string(),
        allowed: allowed(),
    })
}
