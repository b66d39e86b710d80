//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use galvani_text::parsers::{self, ParserStyle};
use galvani_text::{ChatInput, ChatTemplate, Prompt, Tokenizer};
use serde_json::{Map, Value, json};

use super::chat_stream::ChatStream;
use super::{admit, counted_max, finish, request_id};
use crate::answer::{Answer, Totals, chat_logprobs, finish_reason, now, prompt_logprobs, stop_reason};
use crate::body::Body;
use crate::constraint::{self, Plan};
use crate::error::ApiError;
use crate::fields::on;
use crate::generate::{Ask, Sequences};
use crate::guard::Tenant;
use crate::messages::{self, ToolChoice};
use crate::params::{Common, bounded};
use crate::pipe::Pipe;
use crate::runtime::ModelRuntime;
use crate::sse;
use crate::state::Shared;

/// A request, ready for the engine.
struct Job {
    common: Common,
    prompt: Vec<u32>,
    tokens_max: usize,
    logprobs: Option<usize>,
    plan: Option<Plan>,
    style: ParserStyle,
    tools: Option<Value>,
    in_reasoning: bool,
    include_reasoning: bool,
    first_call_only: bool,
    ignored: Vec<String>,
}

/// What both kinds of answer carry.
#[derive(Clone)]
pub(super) struct Head {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub prompt: Vec<u32>,
    pub return_token_ids: bool,
    pub tokens_as_ids: bool,
    pub with_logprobs: bool,
    pub include_reasoning: bool,
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
    let masks = constraint::masks(shared, &runtime, job.plan.take(), job.common.choices).await?;
    let head = Head {
        id: format!("chatcmpl-{}", job.common.request_id.as_deref().unwrap_or(id)),
        created: now(),
        model: runtime.name.clone(),
        prompt: job.prompt.clone(),
        return_token_ids: job.common.return_token_ids,
        tokens_as_ids: job.common.tokens_as_ids,
        with_logprobs: job.logprobs.is_some(),
        include_reasoning: job.include_reasoning,
    };
    shared.metrics.asked(job.tokens_max, job.common.choices);
    let asks = masks
        .into_iter()
        .enumerate()
        .map(|(choice, mask)| {
            let parser = parsers::make(job.style, job.tools.as_ref(), job.in_reasoning);
            let pipe = Pipe::new(
                &runtime.tokenizer,
                &job.common,
                Some(parser),
                job.first_call_only,
                false,
            );
            Ask {
                prompt: job.prompt.clone(),
                tokens_max: job.tokens_max,
                choice,
                mask,
                pipe,
            }
        })
        .collect();
    let sequences = Sequences::submit(shared, &runtime, ticket, &job.common, job.logprobs, asks)
        .map_err(|error| rename(error, "messages"))?;
    if job.common.stream {
        let encoder = ChatStream::new(head, runtime, job.common.choices, job.common.usage);
        return Ok(sse::response(sequences, encoder, shared.config.keep_alive));
    }
    whole(&head, &runtime, sequences, job.common.choices).await
}

/// The engine calls all prompts `prompt`.
fn rename(error: ApiError, param: &str) -> ApiError {
    if error.param.as_deref() == Some("prompt") {
        error.with_param(param)
    } else {
        error
    }
}

fn prepare(shared: &Shared, runtime: &ModelRuntime, tenant: Tenant, bytes: &Bytes) -> Result<Job, ApiError> {
    let body = Body::parse(bytes, on::CHAT, &shared.config.limits, shared.config.strict)?;
    check_model(&body, runtime)?;
    let mut common = Common::read(&body, runtime, tenant.0)?;
    let logprobs = match (
        body.flag("logprobs", false),
        bounded(&body, "top_logprobs", shared.config.limits.logprobs_max)?,
    ) {
        (true, top) => Some(top.unwrap_or(0)),
        (false, None | Some(0)) => None,
        (false, Some(_)) => {
            return Err(ApiError::field(
                "top_logprobs",
                "is allowed only where logprobs is true",
            ));
        }
    };
    if let Some(Value::Array(modalities)) = body.tree("modalities")?
        && modalities.iter().any(|modality| modality != "text")
    {
        return Err(ApiError::field("modalities", "allowed: [\"text\"]"));
    }
    let conversation = Conversation::read(&body)?;
    let choice = messages::tool_choice(body.tree("tool_choice")?.as_ref(), &conversation.tool_names)?;
    let template = conversation.template(runtime)?;
    let tools = conversation.tools.clone().filter(|_| choice != ToolChoice::None);
    if tools.is_some() && !template.wants(true).tools {
        return Err(ApiError::field(
            "tools",
            "the chat template of this model takes no tools",
        ));
    }
    let prompt = conversation.render(template, tools.as_ref())?;
    let most = counted_max(runtime.context_max, common.truncate_prompt);
    let encoded = runtime.tokenizer.encode_prompt_up_to(&prompt, most);
    let mut tokens = encoded.map_err(|error| ApiError::prompt(error, runtime.context_max, "messages"))?;
    truncate(&mut tokens, common.truncate_prompt);
    let asked = body
        .count("max_completion_tokens")
        .or(body.count("max_tokens"))
        .or(runtime.defaults.tokens_max);
    let tokens_max = room(tokens.len(), asked, runtime, "messages")?;

    let in_reasoning = runtime.styles.starts_in_reasoning(prompt.text());
    let mut style = runtime.styles;
    if tools.is_none() {
        style.tools = None;
    } else if style.tools.is_none() {
        return Err(ApiError::field(
            "tools",
            "how this model writes calls is not known (see /props)",
        ));
    }
    let first_call_only = !body.flag("parallel_tool_calls", true);
    let plan = match (constraint::read(&body)?, &choice) {
        (plan, ToolChoice::None | ToolChoice::Auto) => plan,
        (Some(_), _) => {
            return Err(ApiError::field(
                "tool_choice",
                "a forced call excludes response_format and other constraints",
            ));
        }
        (None, ToolChoice::Required) => {
            Some(constraint::calls(&style, tools.as_ref(), None, first_call_only)?)
        }
        (None, ToolChoice::Named(name)) => Some(constraint::calls(&style, tools.as_ref(), Some(name), true)?),
    };
    let plan = plan.map(|plan| plan.after_reasoning(&style, in_reasoning));
    common.skip_special &= !marks_are_special(&style, &runtime.tokenizer);
    Ok(Job {
        prompt: tokens,
        tokens_max,
        logprobs,
        plan,
        style,
        tools,
        in_reasoning,
        include_reasoning: body.flag("include_reasoning", true),
        first_call_only: first_call_only || matches!(choice, ToolChoice::Named(_)),
        ignored: body.ignored,
        common,
    })
}

/// Whether the marks that a parser looks for are control tokens, which would be left out of the text before it sees them.
fn marks_are_special(style: &ParserStyle, tokenizer: &Tokenizer) -> bool {
    let reasoning = style.reasoning.map(|_| &["<think>", "</think>"][..]);
    let tools = style.tools.map(|_| &["<tool_call>", "</tool_call>"][..]);
    let marks = [reasoning, tools].into_iter().flatten().flatten();
    marks
        .filter_map(|mark| tokenizer.special_id(mark))
        .any(|id| tokenizer.is_special(id))
}

/// Checks `model` against the names served.
///
/// # Errors
/// 404.
pub(super) fn check_model(body: &Body, runtime: &ModelRuntime) -> Result<(), ApiError> {
    match body.text("model") {
        Some(name) if !runtime.answers_to(&name) => Err(ApiError::model_not_found(&name, &runtime.names())),
        _ => Ok(()),
    }
}

/// Keeps the last tokens.
pub(super) fn truncate(tokens: &mut Vec<u32>, keep: Option<usize>) {
    if let Some(keep) = keep
        && tokens.len() > keep
    {
        tokens.drain(..tokens.len() - keep);
    }
}

/// Most tokens to generate: what was asked for, cut to what the context still holds.
///
/// # Errors
/// 400 when that is nothing.
pub(super) fn room(
    prompt_tokens: usize,
    asked: Option<usize>,
    runtime: &ModelRuntime,
    param: &str,
) -> Result<usize, ApiError> {
    match runtime.context_max.checked_sub(prompt_tokens) {
        None | Some(0) => Err(ApiError::context(prompt_tokens, runtime.context_max, param)),
        Some(left) => Ok(asked.unwrap_or(left).min(left)),
    }
}

/// The part of a body that templates see.
pub(super) struct Conversation {
    messages: Value,
    tools: Option<Value>,
    tool_names: Vec<String>,
    extra: Map<String, Value>,
    add_generation_prompt: bool,
    continue_final: bool,
}

impl Conversation {
    /// Reads and checks it.
    ///
    /// # Errors
    /// By field.
    pub fn read(body: &Body) -> Result<Self, ApiError> {
        let messages = messages::check(body.tree("messages")?, body.limits())?;
        let tools = body
            .tree("tools")?
            .filter(|tools| tools.as_array().is_some_and(|list| !list.is_empty()));
        let tool_names = messages::check_tools(tools.as_ref(), body.limits())?;
        let mut extra = match body.tree("chat_template_kwargs")? {
            Some(Value::Object(extra)) => extra,
            _ => Map::new(),
        };
        if let Some(effort) = body.text("reasoning_effort") {
            if effort == "none" {
                extra.entry("enable_thinking").or_insert(json!(false));
            }
            extra.entry("reasoning_effort").or_insert(json!(effort));
        }
        let continue_final = body.flag("continue_final_message", false);
        let add_generation_prompt = body.flag("add_generation_prompt", !continue_final);
        if continue_final && add_generation_prompt {
            return Err(ApiError::field(
                "continue_final_message",
                "excludes add_generation_prompt",
            ));
        }
        Ok(Self {
            messages: Value::Array(messages),
            tools,
            tool_names,
            extra,
            add_generation_prompt,
            continue_final,
        })
    }

    /// The model's template.
    ///
    /// # Errors
    /// 400 when it has none.
    pub fn template<'a>(&self, runtime: &'a ModelRuntime) -> Result<&'a ChatTemplate, ApiError> {
        runtime.template.as_deref().ok_or_else(|| {
            let message =
                "the model has no chat template, pass --chat-template (completions work without one)";
            ApiError {
                code: Some("no_chat_template"),
                ..ApiError::field("messages", message)
            }
        })
    }

    /// The prompt.
    ///
    /// # Errors
    /// What the template or the messages' inside say.
    pub fn render(&self, template: &ChatTemplate, tools: Option<&Value>) -> Result<Prompt, ApiError> {
        Ok(template.render(&ChatInput {
            messages: &self.messages,
            tools,
            add_generation_prompt: self.add_generation_prompt,
            continue_final: self.continue_final,
            extra: self.extra.clone(),
        })?)
    }

    /// The tools as given.
    pub fn tools(&self) -> Option<&Value> {
        self.tools.as_ref()
    }
}

async fn whole(
    head: &Head,
    runtime: &ModelRuntime,
    mut sequences: Sequences,
    choices: usize,
) -> Result<Response, ApiError> {
    let mut answers: Vec<Answer> = (0..choices).map(|_| Answer::default()).collect();
    while !sequences.done() {
        for step in sequences.next().await {
            answers[step.sequence].add(step);
        }
    }
    if let Some(error) = answers.iter().find_map(Answer::fault) {
        return Err(error.clone());
    }
    let mut totals = Totals::default();
    let mut list = Vec::with_capacity(choices);
    for (index, answer) in answers.iter().enumerate() {
        totals.add(index == 0, head.prompt.len(), sequences.final_usage(index));
        list.push(choice_of(head, runtime, index, answer));
    }
    let mut response = json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": null,
        "choices": list,
        "usage": totals.to_json(),
    });
    if head.return_token_ids {
        response["prompt_token_ids"] = json!(head.prompt);
    }
    if let Some(prompt) = answers.first().and_then(|answer| answer.prompt.as_ref()) {
        response["prompt_logprobs"] = prompt_logprobs(&runtime.tokenizer, prompt);
    }
    Ok(Json(response).into_response())
}

fn choice_of(head: &Head, runtime: &ModelRuntime, index: usize, answer: &Answer) -> Value {
    let calls = !answer.calls.is_empty();
    let content = if calls && answer.content.is_empty() {
        Value::Null
    } else {
        json!(answer.content)
    };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if head.include_reasoning && !answer.reasoning.is_empty() {
        message["reasoning_content"] = json!(answer.reasoning);
        message["reasoning"] = json!(answer.reasoning);
    }
    if calls {
        message["tool_calls"] = answer
            .calls
            .iter()
            .map(|call| {
                json!({
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                })
            })
            .collect();
    }
    let end = answer.end.as_ref();
    let logprobs = head
        .with_logprobs
        .then(|| chat_logprobs(&runtime.tokenizer, &answer.logprobs, head.tokens_as_ids));
    let mut choice = json!({
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": end.map(|end| finish_reason(end, calls)),
        "stop_reason": end.map(stop_reason),
    });
    if head.return_token_ids {
        choice["token_ids"] = json!(answer.tokens);
    }
    choice
}
