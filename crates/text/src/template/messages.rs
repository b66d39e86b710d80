//! A request's messages and tools in the form that templates expect, quoted.

use serde_json::{Map, Value, json};

use super::Wants;
use super::prompt::Quote;
use crate::TextError;

/// Roles that are words of the protocol, not the client's text.
const ROLES: [&str; 7] = [
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
    "ipython",
];

/// How messages are to be written.
pub(super) struct Options {
    pub wants: Wants,
    pub knows_developer: bool,
    pub continue_final: bool,
}

fn field(field: String, message: impl Into<String>) -> TextError {
    TextError::Field {
        field,
        message: message.into(),
    }
}

/// What a value is, for messages.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The tools, or nothing where there are none.
pub(super) fn tools(tools: Option<&Value>) -> Result<Option<Value>, TextError> {
    match tools {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(list)) if list.is_empty() => Ok(None),
        Some(list @ Value::Array(_)) => Ok(Some(list.clone())),
        Some(other) => Err(field(
            "tools".into(),
            format!("got {}, expected an array", kind(other)),
        )),
    }
}

pub(super) fn normalise(messages: &Value, options: &Options, quote: &Quote<'_>) -> Result<Value, TextError> {
    let list = match messages {
        Value::Array(list) if !list.is_empty() => list,
        Value::Array(_) => {
            return Err(field(
                "messages".into(),
                "the array is empty; at least one message is needed",
            ));
        }
        other => {
            return Err(field(
                "messages".into(),
                format!("got {}, expected an array of messages", kind(other)),
            ));
        }
    };
    let mut out = Vec::with_capacity(list.len());
    for (i, message) in list.iter().enumerate() {
        let path = format!("messages[{i}]");
        let Value::Object(message) = message else {
            return Err(field(path, format!("got {}, expected an object", kind(message))));
        };
        out.push(Value::Object(one(message, &path, options, quote)?));
    }
    if options.continue_final {
        mark_end(out.last_mut(), quote)?;
    }
    Ok(Value::Array(out))
}

fn one(
    message: &Map<String, Value>,
    path: &str,
    options: &Options,
    quote: &Quote<'_>,
) -> Result<Map<String, Value>, TextError> {
    let role = match message.get("role") {
        Some(Value::String(role)) => role.as_str(),
        Some(other) => {
            return Err(field(
                format!("{path}.role"),
                format!("got {}, expected a string", kind(other)),
            ));
        }
        None => return Err(field(format!("{path}.role"), "missing")),
    };
    let role = if role == "developer" && !options.knows_developer {
        "system"
    } else {
        role
    };
    let quoted_role = if ROLES.contains(&role) {
        role.to_owned()
    } else {
        quote.text(role)
    };
    let text = |text: &str| {
        if role == "assistant" {
            quote.assistant_text(text)
        } else {
            quote.text(text)
        }
    };

    let mut out = Map::new();
    out.insert("role".into(), json!(quoted_role));
    let content = content(message.get("content"), path)?;
    let content = text(&content);
    let part = |text: String| json!([{"type": "text", "text": text}]);
    out.insert(
        "content".into(),
        if options.wants.content_parts {
            part(content)
        } else {
            json!(content)
        },
    );
    for (key, value) in message {
        match (key.as_str(), value) {
            ("role" | "content", _) | (_, Value::Null) => {}
            ("tool_calls", Value::Array(calls)) if calls.is_empty() => {}
            ("tool_calls", calls) => {
                out.insert(key.clone(), tool_calls(calls, path, options, quote)?);
            }
            ("reasoning_content" | "reasoning", Value::String(thought)) => {
                // Clients send either name; templates know the first.
                out.insert("reasoning_content".into(), json!(quote.assistant_text(thought)));
            }
            (_, value) => {
                out.insert(quote.text(key), quote.value(value));
            }
        }
    }
    Ok(out)
}

/// The text of a message's content.
fn content(content: Option<&Value>, path: &str) -> Result<String, TextError> {
    match content {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts: Result<Vec<&str>, TextError> = parts
                .iter()
                .enumerate()
                .map(|(j, part)| part_text(part, &format!("{path}.content[{j}]")))
                .collect();
            Ok(texts?.join("\n"))
        }
        Some(other) => Err(field(
            format!("{path}.content"),
            format!(
                "got {}, expected a string, null or an array of parts",
                kind(other)
            ),
        )),
    }
}

fn part_text<'a>(part: &'a Value, path: &str) -> Result<&'a str, TextError> {
    if let Value::String(text) = part {
        return Ok(text);
    }
    let (key, found) = match part.get("type").and_then(Value::as_str) {
        Some("text" | "input_text" | "output_text") => ("text", part.get("text")),
        Some("refusal") => ("refusal", part.get("refusal")),
        Some(other) => {
            return Err(field(
                format!("{path}.type"),
                format!("got \"{other}\"; this model reads \"text\" only"),
            ));
        }
        None => return Err(field(format!("{path}.type"), "missing; expected \"text\"")),
    };
    found
        .and_then(Value::as_str)
        .ok_or_else(|| field(format!("{path}.{key}"), "expected a string"))
}

fn tool_calls(calls: &Value, path: &str, options: &Options, quote: &Quote<'_>) -> Result<Value, TextError> {
    let Value::Array(calls) = calls else {
        return Err(field(
            format!("{path}.tool_calls"),
            format!("got {}, expected an array", kind(calls)),
        ));
    };
    let mut out = Vec::with_capacity(calls.len());
    for (j, call) in calls.iter().enumerate() {
        let path = format!("{path}.tool_calls[{j}]");
        let Some(function) = call.get("function").and_then(Value::as_object) else {
            return Err(field(
                format!("{path}.function"),
                "missing; expected an object with `name` and `arguments`",
            ));
        };
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(field(format!("{path}.function.name"), "expected a string"));
        }
        let arguments = arguments(
            function.get("arguments"),
            &format!("{path}.function.arguments"),
            options.wants,
        )?;
        let mut call = quote.value(call);
        if call.get("type").is_none() {
            call["type"] = json!("function");
        }
        call["function"]["arguments"] = quote.value(&arguments);
        out.push(call);
    }
    Ok(Value::Array(out))
}

/// Arguments of a call in the history: the client's text, or the mapping it spells.
fn arguments(value: Option<&Value>, path: &str, wants: Wants) -> Result<Value, TextError> {
    match value {
        Some(mapping @ Value::Object(_)) if wants.arguments_mapping => Ok(mapping.clone()),
        Some(mapping @ Value::Object(_)) => Ok(json!(super::json::dumps(
            mapping,
            &super::json::DumpOptions::default()
        ))),
        None | Some(Value::Null) if wants.arguments_mapping => Ok(json!({})),
        None | Some(Value::Null) => Ok(json!("{}")),
        Some(Value::String(text)) if !wants.arguments_mapping => Ok(json!(text)),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(json!({})),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(mapping @ Value::Object(_)) => Ok(mapping),
            Ok(Value::Null) => Ok(json!({})),
            Ok(other) => Err(field(
                path.into(),
                format!("the JSON is {}, expected an object", kind(&other)),
            )),
            Err(error) => Err(field(path.into(), format!("not JSON: {error}"))),
        },
        Some(other) => Err(field(
            path.into(),
            format!("got {}, expected a string of JSON", kind(other)),
        )),
    }
}

fn mark_end(last: Option<&mut Value>, quote: &Quote<'_>) -> Result<(), TextError> {
    let content = last.and_then(|m| m.get_mut("content"));
    let text = match content {
        Some(Value::Array(parts)) => parts.last_mut().and_then(|p| p.get_mut("text")),
        other => other,
    };
    match text {
        Some(Value::String(text)) if !text.is_empty() => {
            text.push(quote.end_mark());
            Ok(())
        }
        _ => Err(field(
            "continue_final_message".into(),
            "the last message has no text to continue",
        )),
    }
}
