//! `/v1/completions`: text in, text out.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use galvani_text::{Special, Tokenizer};
use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::chat::{check_model, room, truncate};
use super::text_stream::TextStream;
use super::{admit, counted_max, finish, request_id};
use crate::answer::{Answer, TextLogprobs, Totals, finish_reason, now, prompt_logprobs, stop_reason};
use crate::body::Body;
use crate::constraint::{self, Plan};
use crate::error::ApiError;
use crate::fields::on;
use crate::generate::{Ask, Sequences};
use crate::guard::Tenant;
use crate::params::{Common, bounded, token_ids};
use crate::pipe::Pipe;
use crate::runtime::ModelRuntime;
use crate::sse;
use crate::state::Shared;

/// Most tokens where the request names no limit, as OpenAI's API says.
const TOKENS_MAX: usize = 16;

/// A prompt.
#[derive(Clone)]
pub(super) struct Input {
    pub tokens: Vec<u32>,
    /// Text to echo.
    pub text: String,
}

/// A request, ready for the engine.
struct Job {
    common: Common,
    inputs: Vec<Input>,
    tokens_max: Vec<usize>,
    /// Sequences a prompt; at least the choices returned.
    best_of: usize,
    silent: bool,
    plan: Option<Plan>,
    head: Head,
    ignored: Vec<String>,
}

/// What both kinds of answer carry.
#[derive(Clone)]
pub(super) struct Head {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub logprobs: Option<usize>,
    pub echo: bool,
    pub return_token_ids: bool,
    pub tokens_as_ids: bool,
    pub prompt_logprobs: bool,
}

pub(super) async fn answer(
    State(shared): State<Arc<Shared>>,
    Extension(tenant): Extension<Tenant>,
    request: Request,
) -> Response {
    let id = request_id(request.headers());
    let mut ignored = Vec::new();
    let result = handle(&shared, tenant, request, &id, &mut ignored).await;
    finish(&shared, &ignored, &id, result)
}

async fn handle(
    shared: &Arc<Shared>,
    tenant: Tenant,
    request: Request,
    id: &str,
    ignored: &mut Vec<String>,
) -> Result<Response, ApiError> {
    let (runtime, ticket, mut job) = admit(shared, tenant, request, prepare).await?;
    *ignored = std::mem::take(&mut job.ignored);
    job.head.id = format!("cmpl-{}", job.common.request_id.as_deref().unwrap_or(id));
    let count = job.inputs.len() * job.best_of;
    let masks = constraint::masks(shared, &runtime, job.plan.take(), count).await?;
    let ranked = job.best_of > job.common.choices;
    shared.metrics.asked(
        job.tokens_max.iter().copied().max().unwrap_or(0),
        job.common.choices,
    );
    let asks = masks
        .into_iter()
        .enumerate()
        .map(|(i, mask)| {
            let input = i / job.best_of;
            Ask {
                prompt: job.inputs[input].tokens.clone(),
                tokens_max: job.tokens_max[input],
                choice: i % job.best_of,
                mask,
                pipe: Pipe::new(&runtime.tokenizer, &job.common, None, false, job.silent),
            }
        })
        .collect();
    // Ranking needs the log-probability of each token, whether or not the client wants to see it.
    let logprobs = job.head.logprobs.or(ranked.then_some(0));
    let mut common = job.common.clone();
    if job.head.echo && job.head.logprobs.is_some() {
        common.prompt_logprobs = common.prompt_logprobs.max(job.head.logprobs);
    }
    let sequences = Sequences::submit(shared, &runtime, ticket, &common, logprobs, asks)?;
    if job.common.stream {
        let encoder = TextStream::new(
            job.head,
            runtime,
            job.inputs,
            job.common.choices,
            job.common.usage,
        );
        return Ok(sse::response(sequences, encoder, shared.config.keep_alive));
    }
    whole(&runtime, sequences, &job).await
}

fn prepare(shared: &Shared, runtime: &ModelRuntime, tenant: Tenant, bytes: &Bytes) -> Result<Job, ApiError> {
    let limits = &shared.config.limits;
    let body = Body::parse(bytes, on::TEXT, limits, shared.config.strict)?;
    check_model(&body, runtime)?;
    let common = Common::read(&body, runtime, tenant.0)?;
    let best_of = bounded(&body, "best_of", limits.choices_max)?.unwrap_or(common.choices);
    if best_of < common.choices {
        return Err(ApiError::field(
            "best_of",
            format!("got {best_of}, allowed: at least n, which is {}", common.choices),
        ));
    }
    if best_of > common.choices && common.stream {
        return Err(ApiError::field(
            "best_of",
            "more than n is not possible in a stream: the best is known at the end",
        ));
    }
    let logprobs = bounded(&body, "logprobs", limits.logprobs_max)?;
    let echo = body.flag("echo", false);
    let asked = body.count("max_tokens").unwrap_or(TOKENS_MAX);
    if asked == 0 && !echo {
        return Err(ApiError::field(
            "max_tokens",
            "got 0, allowed: at least 1, or 0 with echo",
        ));
    }
    let mut inputs = prompts(&body, runtime, common.truncate_prompt)?;
    let sequences = inputs.len() * best_of;
    if sequences > limits.sequences_max {
        let message = format!(
            "{} prompts of {best_of} answers; allowed: {} in all",
            inputs.len(),
            limits.sequences_max
        );
        return Err(ApiError::field("prompt", message));
    }
    let mut tokens_max = Vec::with_capacity(inputs.len());
    for input in &mut inputs {
        truncate(&mut input.tokens, common.truncate_prompt);
        // The engine makes one token at least; `silent` keeps it from a client that wants none.
        tokens_max.push(room(input.tokens.len(), Some(asked.max(1)), runtime, "prompt")?);
    }
    let head = Head {
        id: String::new(),
        created: now(),
        model: runtime.name.clone(),
        logprobs,
        echo,
        return_token_ids: common.return_token_ids,
        tokens_as_ids: common.tokens_as_ids,
        prompt_logprobs: common.prompt_logprobs.is_some(),
    };
    let plan = constraint::read(&body)?;
    Ok(Job {
        inputs,
        tokens_max,
        best_of,
        silent: asked == 0,
        plan,
        head,
        ignored: body.ignored,
        common,
    })
}

/// The prompts, in any of the four forms.
fn prompts(body: &Body, runtime: &ModelRuntime, truncate: Option<usize>) -> Result<Vec<Input>, ApiError> {
    let wrong = |text: &str| Err(ApiError::field("prompt", text));
    let Some(raw) = body.raw("prompt") else {
        return wrong("is needed: a text, a list of texts, token ids, or a list of lists of token ids");
    };
    let special = body.flag("add_special_tokens", true);
    let vocab = runtime.engine.config().vocab;
    let most = counted_max(runtime.context_max, truncate);
    let from_text = |text: &str| {
        let encoded = runtime
            .tokenizer
            .encode_up_to(text, Special::Parse, special, most);
        let tokens = encoded.map_err(|error| ApiError::prompt(error, runtime.context_max, "prompt"))?;
        if tokens.is_empty() {
            return Err(ApiError::field(
                "prompt",
                "is empty, and this model has no begin token to start from",
            ));
        }
        Ok(Input {
            tokens,
            text: text.to_owned(),
        })
    };
    let from_ids = |raw: &RawValue| {
        let tokens = token_ids("prompt", raw, vocab, usize::MAX)?;
        if tokens.is_empty() {
            return Err(ApiError::field("prompt", "a list of token ids is empty"));
        }
        let text = decode(&runtime.tokenizer, &tokens);
        Ok(Input { tokens, text })
    };
    if raw.get().starts_with('"') {
        let text: String = body.text("prompt").unwrap_or_default();
        return Ok(vec![from_text(&text)?]);
    }
    // Numbers first: a long list of ids must not become a list of values.
    let first = raw.get()[1..].trim_start().as_bytes().first().copied();
    match first {
        Some(b'0'..=b'9' | b'-') => return Ok(vec![from_ids(raw)?]),
        Some(b'"' | b'[') => {}
        _ => return wrong("a list must hold texts, token ids, or lists of token ids, and must not be empty"),
    }
    let prompts_max = body.limits().prompts_max;
    let mut json = serde_json::Deserializer::from_str(raw.get());
    let items = AtMost(prompts_max).deserialize(&mut json).map_err(|_| {
        ApiError::field(
            "prompt",
            format!("has more than {prompts_max} prompts, which is the limit"),
        )
    })?;
    items
        .iter()
        .map(|item| match (item.get().as_bytes()[0], first) {
            (b'"', Some(b'"')) => {
                let text: String = serde_json::from_str(item.get())
                    .map_err(|error| ApiError::field("prompt", error.to_string()))?;
                from_text(&text)
            }
            (b'[', Some(b'[')) => from_ids(item),
            _ => Err(ApiError::field(
                "prompt",
                "a list must hold texts alone or lists of token ids alone",
            )),
        })
        .collect()
}

/// Items of a list, read no further than the limit.
struct AtMost(usize);

impl<'de> DeserializeSeed<'de> for AtMost {
    type Value = Vec<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for AtMost {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            if items.len() == self.0 {
                return Err(A::Error::custom("too many"));
            }
            items.push(item);
        }
        Ok(items)
    }
}

fn decode(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    tokenizer.decode(tokens, false)
}

/// Mean log-probability of a token: what `best_of` ranks by.
fn score(answer: &Answer) -> f64 {
    let sum: f64 = answer
        .logprobs
        .iter()
        .map(|item| f64::from(crate::answer::finite(item.logprob)))
        .sum();
    sum / answer.logprobs.len().max(1) as f64
}

async fn whole(runtime: &ModelRuntime, mut sequences: Sequences, job: &Job) -> Result<Response, ApiError> {
    let (head, best_of, n) = (&job.head, job.best_of, job.common.choices);
    let mut answers: Vec<Answer> = (0..job.inputs.len() * best_of)
        .map(|_| Answer::default())
        .collect();
    while !sequences.done() {
        for step in sequences.next().await {
            answers[step.sequence].add(step);
        }
    }
    if let Some(error) = answers.iter().find_map(Answer::fault) {
        return Err(error.clone());
    }
    let mut totals = Totals::default();
    let mut choices = Vec::with_capacity(job.inputs.len() * n);
    for (i, input) in job.inputs.iter().enumerate() {
        let group = i * best_of..(i + 1) * best_of;
        for (k, sequence) in group.clone().enumerate() {
            let mut usage = sequences.final_usage(sequence);
            usage.generated_tokens = if job.silent { 0 } else { usage.generated_tokens };
            totals.add(k == 0, input.tokens.len(), usage);
        }
        let mut ranked: Vec<usize> = group.collect();
        if best_of > n {
            ranked.sort_by(|a, b| score(&answers[*b]).total_cmp(&score(&answers[*a])));
        }
        for sequence in &ranked[..n] {
            choices.push(choice_of(
                head,
                runtime,
                choices.len(),
                input,
                &answers[*sequence],
            ));
        }
    }
    Ok(Json(json!({
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": null,
        "choices": choices,
        "usage": totals.to_json(),
    }))
    .into_response())
}

fn choice_of(head: &Head, runtime: &ModelRuntime, index: usize, input: &Input, answer: &Answer) -> Value {
    let tokenizer = &runtime.tokenizer;
    let text = if head.echo {
        format!("{}{}", input.text, answer.content)
    } else {
        answer.content.clone()
    };
    let logprobs = head.logprobs.map(|alternatives| {
        let mut shape = TextLogprobs::default();
        let mut offset = 0;
        if head.echo {
            echo_logprobs(
                &mut shape,
                tokenizer,
                input,
                answer.prompt.as_deref(),
                head,
                &mut offset,
            );
        }
        let items = answer.logprobs.iter().map(|item| (item.token, Some(item)));
        shape.add(tokenizer, items, head.tokens_as_ids, alternatives, &mut offset);
        shape.to_json()
    });
    let end = answer.end.as_ref();
    let mut choice = json!({
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": end.map(|end| finish_reason(end, false)),
        "stop_reason": end.map(stop_reason),
    });
    if head.prompt_logprobs {
        choice["prompt_logprobs"] = answer
            .prompt
            .as_ref()
            .map_or(Value::Null, |prompt| prompt_logprobs(tokenizer, prompt));
    }
    if head.return_token_ids {
        choice["token_ids"] = json!(answer.tokens);
        choice["prompt_token_ids"] = json!(input.tokens);
    }
    choice
}

/// The prompt's part of the log-probabilities.
pub(super) fn echo_logprobs(
    shape: &mut TextLogprobs,
    tokenizer: &Tokenizer,
    input: &Input,
    prompt: Option<&[Option<galvani_engine::TokenLogprob>]>,
    head: &Head,
    offset: &mut usize,
) {
    let items = input.tokens.iter().enumerate().map(|(i, token)| {
        let logprob = prompt.and_then(|prompt| prompt.get(i)).and_then(Option::as_ref);
        (*token, logprob)
    });
    shape.add(
        tokenizer,
        items,
        head.tokens_as_ids,
        head.logprobs.unwrap_or(0),
        offset,
    );
}
