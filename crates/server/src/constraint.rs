//! What shape an answer must have: read from any of the fields that say so, compiled off the threads that serve sockets.

use std::sync::Arc;

use galvani_engine::TokenMask;
use galvani_text::grammar::{Budget, Constraint, Matcher, ToolChoice, tool_call_constraint};
use galvani_text::parsers::ParserStyle;
use serde_json::Value;

use crate::body::Body;
use crate::error::ApiError;
use crate::runtime::ModelRuntime;
use crate::state::Shared;

/// A constraint and the field that it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    constraint: Constraint,
    param: String,
    /// Text after which the constraint begins to hold.
    after: Option<&'static str>,
}

impl Plan {
    /// A plan that holds from the first token on.
    pub fn new(constraint: Constraint, param: &str) -> Self {
        Self {
            constraint,
            param: param.to_owned(),
            after: None,
        }
    }

    /// The same, but reasoning that the prompt has opened comes first and is free.
    pub fn after_reasoning(self, style: &ParserStyle, in_reasoning: bool) -> Self {
        let close = style.reasoning.map(|reasoning| reasoning.close());
        Self {
            after: close.filter(|_| in_reasoning),
            ..self
        }
    }

    fn mask(&self, matcher: Matcher) -> Box<dyn TokenMask> {
        Box::new(Mask(match self.after {
            Some(tag) => matcher.after(tag),
            None => matcher,
        }))
    }
}

/// The constraint of a body, if it has one.
///
/// # Errors
/// When a field's inside is wrong, or two fields ask for different shapes.
pub fn read(body: &Body) -> Result<Option<Plan>, ApiError> {
    let mut plans = Vec::new();
    if body_has(body, "response_format") {
        plans.extend(response_format(body)?);
    }
    plans.extend(structured_outputs(body)?);
    if let Some(schema) = body.tree("guided_json")? {
        plans.push(Plan::new(
            Constraint::JsonSchema(schema_of("guided_json", schema)?),
            "guided_json",
        ));
    }
    if let Some(source) = body.text("guided_regex") {
        plans.push(Plan::new(Constraint::Regex(source), "guided_regex"));
    }
    if let Some(choices) = body.tree("guided_choice")? {
        plans.push(Plan::new(
            Constraint::Choice(texts("guided_choice", &choices)?),
            "guided_choice",
        ));
    }
    if let Some(source) = body.text("guided_grammar") {
        plans.push(Plan::new(Constraint::Lark(source), "guided_grammar"));
    }
    if plans.len() > 1 {
        let message = format!("excludes {}: one constraint a request", plans[0].param);
        return Err(ApiError::field(plans[1].param.clone(), message));
    }
    Ok(plans.pop())
}

/// The shape of an answer that calls: any of the tools, or the named one.
///
/// # Errors
/// When the tools cannot be held to.
pub fn calls(
    style: &ParserStyle,
    tools: Option<&Value>,
    named: Option<&str>,
    first_only: bool,
) -> Result<Plan, ApiError> {
    let (Some(style), Some(tools)) = (style.tools, tools) else {
        return Err(ApiError::field("tool_choice", "needs tools"));
    };
    let choice = named.map_or(ToolChoice::Required, ToolChoice::Named);
    Ok(Plan::new(
        tool_call_constraint(style, tools, choice, !first_only)?,
        "tools",
    ))
}

/// Completions have no `response_format`.
fn body_has(body: &Body, name: &str) -> bool {
    body.knows(name) && body.has(name)
}

fn response_format(body: &Body) -> Result<Option<Plan>, ApiError> {
    let Some(format) = body.tree("response_format")? else {
        return Ok(None);
    };
    let param = "response_format";
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Plan::new(Constraint::JsonObject, param))),
        Some("json_schema") => {
            let inner = format.get("json_schema");
            let schema = inner
                .and_then(|inner| inner.get("schema"))
                .or_else(|| format.get("schema"));
            let param = "response_format.json_schema.schema";
            let schema = schema.ok_or_else(|| ApiError::field(param, "is needed: a JSON schema"))?;
            Ok(Some(Plan::new(
                Constraint::JsonSchema(schema_of(param, schema.clone())?),
                param,
            )))
        }
        other => {
            let other: String = other.unwrap_or("none").chars().take(60).collect();
            let message = format!("got {other:?}, allowed: text, json_object, json_schema");
            Err(ApiError::field("response_format.type", message))
        }
    }
}

fn structured_outputs(body: &Body) -> Result<Vec<Plan>, ApiError> {
    let Some(Value::Object(outputs)) = body.tree("structured_outputs")? else {
        return Ok(Vec::new());
    };
    let mut plans = Vec::new();
    for (kind, value) in outputs.iter().filter(|(_, value)| !value.is_null()) {
        let param = format!("structured_outputs.{}", kind.chars().take(60).collect::<String>());
        let text = || {
            let text = value.as_str().map(str::to_owned);
            text.ok_or_else(|| ApiError::field(param.clone(), "must be a string"))
        };
        let constraint = match kind.as_str() {
            "json" => Constraint::JsonSchema(schema_of(&param, value.clone())?),
            "json_object" if value == false => continue,
            "json_object" => Constraint::JsonObject,
            "regex" => Constraint::Regex(text()?),
            "choice" => Constraint::Choice(texts(&param, value)?),
            "grammar" => Constraint::Lark(text()?),
            _ => {
                return Err(ApiError::field(
                    param,
                    "allowed: json, json_object, regex, choice, grammar",
                ));
            }
        };
        plans.push(Plan::new(constraint, &param));
    }
    Ok(plans)
}

/// A schema, as an object or as JSON text.
fn schema_of(param: &str, value: Value) -> Result<Value, ApiError> {
    let value = match value {
        Value::String(text) => serde_json::from_str(&text)
            .map_err(|error| ApiError::field(param, format!("is no JSON: {error}")))?,
        other => other,
    };
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(value),
        _ => Err(ApiError::field(param, "must be a JSON schema: an object")),
    }
}

fn texts(param: &str, value: &Value) -> Result<Vec<String>, ApiError> {
    let list = value.as_array().filter(|list| !list.is_empty());
    let texts = list.and_then(|list| list.iter().map(|item| item.as_str().map(str::to_owned)).collect());
    texts.ok_or_else(|| ApiError::field(param, "must be an array of at least one string"))
}

/// Compiles a plan for each of `count` sequences, within the server's budget of time and of compilations at once.
///
/// # Errors
/// 400 when it is wrong or costs too much, 503 when too many are being compiled.
pub async fn masks(
    shared: &Arc<Shared>,
    runtime: &Arc<ModelRuntime>,
    plan: Option<Plan>,
    count: usize,
) -> Result<Vec<Option<Box<dyn TokenMask>>>, ApiError> {
    let Some(plan) = plan else {
        return Ok((0..count).map(|_| None).collect());
    };
    let Some(grammar) = runtime.grammar.clone() else {
        return Err(ApiError::field(
            plan.param,
            "structured output is not available with this model (see /props)",
        ));
    };
    let limits = &shared.config.limits;
    let budget = Budget {
        time: limits.grammar_time_max,
        source_bytes: limits.grammar_bytes_max,
    };
    let plan = Arc::new(plan);
    let (kept, held) = (grammar.clone(), plan.clone());
    let found = crate::api::blocking(move || {
        let one = || {
            kept.cached(&held.constraint, budget)
                .map(|matcher| held.mask(matcher))
        };
        (0..count).map(|_| one().map(Some)).collect::<Option<Vec<_>>>()
    })
    .await;
    if let Some(masks) = found {
        return Ok(masks);
    }
    let permit = tokio::time::timeout(
        limits.grammar_time_max,
        shared.grammar_jobs.clone().acquire_owned(),
    )
    .await;
    let permit = match permit {
        Ok(Ok(permit)) => permit,
        Ok(Err(_)) | Err(_) => {
            return Err(ApiError::unavailable(
                "grammar_busy",
                "too many constraints are being compiled",
                1,
            ));
        }
    };
    crate::api::blocking(move || {
        let _permit = permit;
        (0..count)
            .map(|_| {
                let matcher = grammar
                    .compile(&plan.constraint, budget)
                    .map_err(|error| ApiError::from(error).with_param(plan.param.clone()))?;
                Ok(Some(plan.mask(matcher)))
            })
            .collect()
    })
    .await
}

/// A matcher as the engine wants it.
struct Mask(Matcher);

impl TokenMask for Mask {
    fn allowed(&mut self, allowed: &mut [u32]) -> Result<(), String> {
        self.0.allowed(allowed).map_err(|error| error.to_string())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.0.accept(token).map_err(|error| error.to_string())
    }

    fn is_complete(&self) -> bool {
        self.0.is_complete()
    }
}
