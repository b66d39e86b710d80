//! The fields that chat and completions share, as values that the engine takes.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use galvani_engine::SamplingParams;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::body::Body;
use crate::error::ApiError;
use crate::runtime::ModelRuntime;

/// What chat and completions share.
#[derive(Debug, Clone)]
pub struct Common {
    /// How tokens are chosen; the seed is that of the first choice.
    pub sampling: SamplingParams,
    /// Tokens before which nothing ends the answer.
    pub tokens_min: usize,
    /// Choices to return.
    pub choices: usize,
    /// Texts that end the answer.
    pub stops: Vec<String>,
    /// Tokens that end it, the model's own included unless they are to be ignored.
    pub stop_ids: Vec<u32>,
    /// Of these, the ones that the client named.
    pub client_stop_ids: Vec<u32>,
    /// Keep the stop in the answer.
    pub include_stop: bool,
    /// Leave special tokens out of the text.
    pub skip_special: bool,
    /// Alternatives to report for the prompt's tokens.
    pub prompt_logprobs: Option<usize>,
    /// Return ids.
    pub return_token_ids: bool,
    /// Name tokens by id in log-probabilities.
    pub tokens_as_ids: bool,
    /// Send events.
    pub stream: bool,
    /// What of the usage a stream tells.
    pub usage: StreamUsage,
    /// Separates prefix caches.
    pub cache_salt: u64,
    /// Lower runs first.
    pub priority: i32,
    /// Keep only so many last tokens of the prompt.
    pub truncate_prompt: Option<usize>,
    /// Name of the request in the answer's id.
    pub request_id: Option<String>,
}

/// What of the usage a stream tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamUsage {
    /// Nothing.
    None,
    /// One event at the end.
    AtEnd,
    /// Every event.
    Always,
}

impl Common {
    /// Reads the shared fields of a validated body. `tenant` names the key that the request came with.
    ///
    /// # Errors
    /// By name of the field whose inside is at fault.
    pub fn read(body: &Body, runtime: &ModelRuntime, tenant: u64) -> Result<Self, ApiError> {
        let limits = body.limits();
        let vocab = runtime.engine.config().vocab;
        let choices = bounded(body, "n", limits.choices_max)?.unwrap_or(1);
        let client_stop_ids = match body.raw("stop_token_ids") {
            Some(raw) => token_ids("stop_token_ids", raw, vocab, limits.stops_max)?,
            None => Vec::new(),
        };
        let mut stop_ids = client_stop_ids.clone();
        if !body.flag("ignore_eos", false) {
            stop_ids.extend(runtime.eos_ids.iter().filter(|id| !client_stop_ids.contains(id)));
        }
        let salt = body.text("cache_salt").unwrap_or_default();
        Ok(Self {
            sampling: sampling(body, runtime, vocab)?,
            tokens_min: body.count("min_tokens").unwrap_or(0),
            choices,
            stops: stops(body)?,
            stop_ids,
            client_stop_ids,
            include_stop: body.flag("include_stop_str_in_output", false),
            skip_special: body.flag("skip_special_tokens", true),
            prompt_logprobs: bounded(body, "prompt_logprobs", limits.logprobs_max)?,
            return_token_ids: body.flag("return_token_ids", false),
            tokens_as_ids: body.flag("return_tokens_as_token_ids", false),
            stream: body.flag("stream", false),
            usage: stream_usage(body)?,
            cache_salt: salted(tenant, &salt),
            priority: body.integer("priority").unwrap_or(0) as i32,
            truncate_prompt: body.count("truncate_prompt_tokens"),
            request_id: body.text("request_id").filter(|id| is_id(id)),
        })
    }

    /// Seed of a choice: the first has the request's own.
    pub fn seed_of(&self, choice: usize) -> u64 {
        if choice == 0 {
            self.sampling.seed
        } else {
            mix(self.sampling.seed.wrapping_add(choice as u64))
        }
    }
}

/// Names that may go into ids and headers.
pub fn is_id(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// An `Integer` field under one of the server's limits.
///
/// # Errors
/// When it is above.
pub fn bounded(body: &Body, name: &str, max: usize) -> Result<Option<usize>, ApiError> {
    match body.count(name) {
        Some(value) if value > max => Err(ApiError::field(
            name,
            format!("got {value}, allowed: at most {max} on this server"),
        )),
        value => Ok(value),
    }
}

/// Token ids in a field, each inside the vocabulary; read straight into numbers, however many a client sends.
///
/// # Errors
/// When it is no list of ids, or longer than `count_max`.
pub fn token_ids(name: &str, raw: &RawValue, vocab: usize, count_max: usize) -> Result<Vec<u32>, ApiError> {
    let ids: Vec<u32> = serde_json::from_str(raw.get()).map_err(|_| {
        ApiError::field(
            name,
            format!("must be a list of token ids from 0 to {}", vocab - 1),
        )
    })?;
    if ids.len() > count_max {
        return Err(ApiError::field(
            name,
            format!("got {} ids, allowed: at most {count_max}", ids.len()),
        ));
    }
    match ids.iter().find(|id| **id as usize >= vocab) {
        Some(id) => Err(ApiError::field(
            name,
            format!("token {id} is outside the vocabulary of {vocab}"),
        )),
        None => Ok(ids),
    }
}

fn sampling(body: &Body, runtime: &ModelRuntime, vocab: usize) -> Result<SamplingParams, ApiError> {
    let defaults = &runtime.defaults;
    let number = |name: &str, default: f32| body.number(name).map_or(default, |value| value as f32);
    Ok(SamplingParams {
        temperature: number("temperature", defaults.temperature),
        top_k: body.count("top_k").unwrap_or(defaults.top_k),
        top_p: number("top_p", defaults.top_p),
        min_p: number("min_p", defaults.min_p),
        typical_p: number("typical_p", defaults.typical_p),
        repetition_penalty: number("repetition_penalty", defaults.repetition_penalty),
        presence_penalty: number("presence_penalty", defaults.presence_penalty),
        frequency_penalty: number("frequency_penalty", defaults.frequency_penalty),
        logit_bias: logit_bias(body, vocab)?,
        seed: body.integer("seed").map_or_else(random, |seed| seed as u64),
    })
}

fn logit_bias(body: &Body, vocab: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(Value::Object(entries)) = body.tree("logit_bias")? else {
        return Ok(Vec::new());
    };
    entries
        .iter()
        .map(|(key, value)| {
            let shown: String = key.chars().take(60).collect();
            let token = key
                .parse::<u32>()
                .ok()
                .filter(|id| (*id as usize) < vocab)
                .ok_or_else(|| {
                    ApiError::field(
                        "logit_bias",
                        format!("key {shown:?} is no token id from 0 to {}", vocab - 1),
                    )
                })?;
            let bias = value
                .as_f64()
                .filter(|bias| (-100.0..=100.0).contains(bias))
                .ok_or_else(|| {
                    ApiError::field(
                        "logit_bias",
                        format!("the value of key {shown:?} must be a number from -100 to 100"),
                    )
                })?;
            Ok((token, bias as f32))
        })
        .collect()
}

fn stops(body: &Body) -> Result<Vec<String>, ApiError> {
    let limits = body.limits();
    let stops = match body.tree("stop")? {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(items)) => items
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Ok(text),
                _ => Err(ApiError::field("stop", "must be a string or an array of strings")),
            })
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(ApiError::field("stop", "must be a string or an array of strings")),
    };
    if stops.len() > limits.stops_max {
        let message = format!("got {} texts, allowed: at most {}", stops.len(), limits.stops_max);
        return Err(ApiError::field("stop", message));
    }
    match stops
        .iter()
        .find(|text| text.is_empty() || text.len() > limits.stop_bytes_max)
    {
        Some(text) => {
            let message = format!(
                "a text of {} bytes; allowed: 1 to {}",
                text.len(),
                limits.stop_bytes_max
            );
            Err(ApiError::field("stop", message))
        }
        None => Ok(stops),
    }
}

fn stream_usage(body: &Body) -> Result<StreamUsage, ApiError> {
    let Some(options) = body.tree("stream_options")? else {
        return Ok(StreamUsage::None);
    };
    if !body.flag("stream", false) {
        return Err(ApiError::field(
            "stream_options",
            "is allowed only where stream is true",
        ));
    }
    let flag = |name: &str| match options.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(ApiError::field(
            format!("stream_options.{name}"),
            "must be true or false",
        )),
    };
    Ok(match (flag("include_usage")?, flag("continuous_usage_stats")?) {
        (false, _) => StreamUsage::None,
        (true, false) => StreamUsage::AtEnd,
        (true, true) => StreamUsage::Always,
    })
}

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// A salt that nobody outside this process can make collide: the hash is keyed by a secret of the process.
fn salted(tenant: u64, salt: &str) -> u64 {
    if tenant == 0 && salt.is_empty() {
        return 0;
    }
    let mut hasher = HASHER.build_hasher();
    hasher.write_u64(tenant);
    hasher.write(salt.as_bytes());
    hasher.finish()
}

/// A fresh number for requests that name no seed, and for ids.
pub fn random() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut hasher = HASHER.build_hasher();
    hasher.write_u64(COUNT.fetch_add(1, Ordering::Relaxed));
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    hasher.write_u128(now.as_nanos());
    hasher.finish()
}

/// The output step of SplitMix64 (Steele, Lea and Flood, 2014): neighbouring seeds give unrelated numbers.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salts_separate_tenants() {
        assert_eq!(salted(0, ""), 0);
        assert_eq!(salted(1, "a"), salted(1, "a"));
        assert_ne!(salted(1, "a"), salted(2, "a"));
        assert_ne!(salted(1, ""), salted(1, "a"));
        assert_ne!(random(), random());
    }

    #[test]
    fn ids_hold_no_odd_characters() {
        for (id, fits) in [
            ("a-B_9.", true),
            ("", false),
            ("a b", false),
            ("a\nb", false),
            ("é", false),
        ] {
            assert_eq!(is_id(id), fits, "{id:?}");
        }
    }
}
