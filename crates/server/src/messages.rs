//! Conversations and tools: their shape, checked and made uniform before a template sees them.

use galvani_text::TextError;
use serde_json::{Map, Value, json};

use crate::config::Limits;
use crate::error::ApiError;

const ROLES: &[&str] = &["system", "developer", "user", "assistant", "tool"];

/// Checks a conversation and makes it uniform: content is always a string, reasoning is under both of its names.
///
/// # Errors
/// By path of the first thing at fault; `messages` itself where a message is none at all.
pub fn check(messages: Option<Value>, limits: &Limits) -> Result<Vec<Value>, ApiError> {
    let whole = |text: String| ApiError::field("messages", text);
    let Some(Value::Array(messages)) = messages else {
        return Err(whole("is needed: an array of at least one message".to_owned()));
    };
    if messages.is_empty() || messages.len() > limits.messages_max {
        return Err(whole(format!(
            "got {} messages, allowed: 1 to {}",
            messages.len(),
            limits.messages_max
        )));
    }
    messages
        .into_iter()
        .enumerate()
        .map(|(i, message)| {
            let Value::Object(message) = message else {
                return Err(whole(format!(
                    "messages[{i}] must be an object with role and content"
                )));
            };
            match message.get("role").and_then(Value::as_str) {
                Some(role) if ROLES.contains(&role) => {}
                Some("function") => {
                    return Err(whole(format!(
                        "messages[{i}].role: use \"tool\", not \"function\""
                    )));
                }
                Some(role) => {
                    let role: String = role.chars().take(60).collect();
                    return Err(whole(format!(
                        "messages[{i}].role: got {role:?}, allowed: {}",
                        ROLES.join(", ")
                    )));
                }
                None => {
                    return Err(whole(format!(
                        "messages[{i}].role is needed: one of {}",
                        ROLES.join(", ")
                    )));
                }
            }
            message_of(i, message)
        })
        .collect()
}

fn message_of(i: usize, mut message: Map<String, Value>) -> Result<Value, ApiError> {
    let path = |name: &str| format!("messages[{i}].{name}");
    let assistant = message.get("role").is_some_and(|role| role == "assistant");
    let content = match message.get("content") {
        None | Some(Value::Null) if assistant => String::new(),
        None | Some(Value::Null) => {
            return Err(ApiError::field(
                path("content"),
                "is needed: a string or an array of text parts",
            ));
        }
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => join(&path("content"), parts)?,
        Some(_) => {
            return Err(ApiError::field(
                path("content"),
                "must be a string or an array of text parts",
            ));
        }
    };
    message.insert("content".to_owned(), Value::String(content));
    let reasoning = match (message.get("reasoning_content"), message.get("reasoning")) {
        (Some(Value::String(text)), _) | (_, Some(Value::String(text))) => Some(text.clone()),
        (None | Some(Value::Null), None | Some(Value::Null)) => None,
        _ => return Err(ApiError::field(path("reasoning_content"), "must be a string")),
    };
    for name in ["reasoning_content", "reasoning"] {
        match &reasoning {
            Some(text) => drop(message.insert(name.to_owned(), Value::String(text.clone()))),
            None => drop(message.shift_remove(name)),
        }
    }
    for name in ["tool_call_id", "name", "refusal"] {
        match message.get(name) {
            None | Some(Value::String(_)) => {}
            Some(Value::Null) => drop(message.shift_remove(name)),
            Some(_) => return Err(ApiError::field(path(name), "must be a string")),
        }
    }
    match message.get_mut("tool_calls") {
        None => {}
        Some(Value::Null) => drop(message.shift_remove("tool_calls")),
        Some(Value::Array(calls)) if calls.is_empty() => drop(message.shift_remove("tool_calls")),
        Some(Value::Array(calls)) => {
            for (j, call) in calls.iter_mut().enumerate() {
                call_of(&format!("messages[{i}].tool_calls[{j}]"), call)?;
            }
        }
        Some(_) => return Err(ApiError::field(path("tool_calls"), "must be an array")),
    }
    Ok(Value::Object(message))
}

/// Text parts, a line each, as the templates of text models expect one string.
fn join(path: &str, parts: &[Value]) -> Result<String, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (k, part) in parts.iter().enumerate() {
        let kind = part.get("type").and_then(Value::as_str);
        let text = match (part, kind) {
            (Value::String(text), _) => Some(text.as_str()),
            (_, Some("text" | "input_text" | "output_text") | None) => {
                part.get("text").and_then(Value::as_str)
            }
            (_, Some("refusal")) => part.get("refusal").and_then(Value::as_str),
            (_, Some(other)) => {
                let other: String = other.chars().take(60).collect();
                return Err(ApiError::field(
                    format!("{path}[{k}].type"),
                    format!("got {other:?}; this model takes text parts only"),
                ));
            }
        };
        texts.push(text.ok_or_else(|| ApiError::field(format!("{path}[{k}].text"), "is needed: a string"))?);
    }
    Ok(texts.join("\n"))
}

fn call_of(path: &str, call: &mut Value) -> Result<(), ApiError> {
    let Value::Object(call) = call else {
        return Err(ApiError::field(
            path,
            "must be an object with id, type and function",
        ));
    };
    match call.get("type") {
        None | Some(Value::Null) => drop(call.insert("type".to_owned(), json!("function"))),
        Some(kind) if kind == "function" => {}
        Some(_) => return Err(ApiError::field(format!("{path}.type"), "must be \"function\"")),
    }
    let Some(Value::Object(function)) = call.get_mut("function") else {
        return Err(ApiError::field(
            format!("{path}.function"),
            "is needed: an object with name and arguments",
        ));
    };
    if !function.get("name").is_some_and(Value::is_string) {
        return Err(ApiError::field(
            format!("{path}.function.name"),
            "is needed: a string",
        ));
    }
    let wrong = |found: &str| {
        Err(ApiError::field(
            format!("{path}.function.arguments"),
            format!("must be a JSON object, as text or as it is; got {found}"),
        ))
    };
    match function.get("arguments") {
        None | Some(Value::Null) => drop(function.insert("arguments".to_owned(), json!("{}"))),
        Some(Value::Object(_)) => {}
        Some(Value::String(text)) if text.trim().is_empty() => {}
        Some(Value::String(text)) => match serde_json::from_str::<Value>(text) {
            Ok(Value::Object(_) | Value::Null) => {}
            Ok(Value::Array(_)) => return wrong("an array"),
            Ok(_) => return wrong("another JSON value"),
            Err(_) => return wrong("text that is no JSON"),
        },
        Some(_) => return wrong("another JSON value"),
    }
    Ok(())
}

/// What the model may, must or must not call.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolChoice {
    /// No tools are given, or none may be called.
    None,
    /// The model decides.
    Auto,
    /// At least one call.
    Required,
    /// This function.
    Named(String),
}

/// Checks the tools.
///
/// # Errors
/// By path of the first thing at fault.
pub fn check_tools(tools: Option<&Value>, limits: &Limits) -> Result<Vec<String>, ApiError> {
    let Some(Value::Array(tools)) = tools else {
        return Ok(Vec::new());
    };
    if tools.len() > limits.tools_max {
        return Err(ApiError::field(
            "tools",
            format!("got {}, allowed: at most {}", tools.len(), limits.tools_max),
        ));
    }
    let mut names: Vec<String> = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        let path = format!("tools[{i}]");
        if tool.get("type").is_some_and(|kind| kind != "function") {
            return Err(ApiError::field(format!("{path}.type"), "must be \"function\""));
        }
        let Some(function) = tool.get("function").and_then(Value::as_object) else {
            return Err(ApiError::field(
                format!("{path}.function"),
                "is needed: an object with name and parameters",
            ));
        };
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > 128 || !name.chars().all(fits) {
            return Err(ApiError::field(
                format!("{path}.function.name"),
                "is needed: 1 to 128 of the characters a-z A-Z 0-9 _ - .",
            ));
        }
        if names.iter().any(|seen| seen == name) {
            return Err(ApiError::field(
                format!("{path}.function.name"),
                format!("{name:?} is given twice"),
            ));
        }
        if function
            .get("parameters")
            .is_some_and(|p| !p.is_object() && !p.is_null())
        {
            return Err(ApiError::field(
                format!("{path}.function.parameters"),
                "must be a JSON schema: an object",
            ));
        }
        if function
            .get("description")
            .is_some_and(|d| !d.is_string() && !d.is_null())
        {
            return Err(ApiError::field(
                format!("{path}.function.description"),
                "must be a string",
            ));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

/// Reads `tool_choice` against the names of the tools.
///
/// # Errors
/// When it is none of the forms, or needs a tool that is not there.
pub fn tool_choice(choice: Option<&Value>, names: &[String]) -> Result<ToolChoice, ApiError> {
    let wrong = |text: String| Err(ApiError::field("tool_choice", text));
    let named = |name: &str| {
        if names.iter().any(|known| known == name) {
            Ok(ToolChoice::Named(name.to_owned()))
        } else {
            let name: String = name.chars().take(100).collect();
            wrong(format!("no tool is named {name:?}; tools: {}", names.join(", ")))
        }
    };
    match choice {
        None | Some(Value::Null) if names.is_empty() => Ok(ToolChoice::None),
        None | Some(Value::Null) => Ok(ToolChoice::Auto),
        Some(Value::String(text)) => match text.as_str() {
            "none" => Ok(ToolChoice::None),
            "auto" if names.is_empty() => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" if names.is_empty() => wrong("\"required\" needs tools".to_owned()),
            "required" => Ok(ToolChoice::Required),
            _ => wrong("allowed: none, auto, required, or an object naming a function".to_owned()),
        },
        Some(object) => match object
            .get("function")
            .and_then(|f| f.get("name"))
            .and_then(Value::as_str)
        {
            Some(name) if object.get("type").is_none_or(|kind| kind == "function") => named(name),
            _ => wrong("must be {\"type\": \"function\", \"function\": {\"name\": ...}}".to_owned()),
        },
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        let message = error.to_string();
        match error.field() {
            Some(field) => {
                let field = field.to_owned();
                Self {
                    param: Some(field),
                    ..Self::bad_request(message)
                }
            }
            None if error.is_request_fault() => Self::bad_request(message),
            None => Self::internal(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(message: Value) -> Result<Value, ApiError> {
        check(Some(json!([message])), &Limits::standard()).map(|mut list| list.remove(0))
    }

    #[test]
    fn messages_that_are_none_are_refused_as_a_whole() {
        for messages in [None, Some(json!(null)), Some(json!("x")), Some(json!([]))] {
            assert_eq!(
                check(messages, &Limits::standard())
                    .expect_err("refused")
                    .param
                    .as_deref(),
                Some("messages")
            );
        }
        for message in [
            json!(123),
            json!({}),
            json!({"role": "robot", "content": "x"}),
            json!({"role": 1}),
        ] {
            assert_eq!(
                one(message).expect_err("refused").param.as_deref(),
                Some("messages")
            );
        }
    }

    #[test]
    fn content_becomes_a_string() {
        for (message, content) in [
            (json!({"role": "user", "content": "a"}), "a"),
            (json!({"role": "assistant", "content": null}), ""),
            (json!({"role": "assistant"}), ""),
            (
                json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
                "a\nb",
            ),
            (json!({"role": "user", "content": []}), ""),
        ] {
            assert_eq!(one(message).expect("fits")["content"], content);
        }
        for (message, param) in [
            (json!({"role": "user"}), "messages[0].content"),
            (json!({"role": "user", "content": null}), "messages[0].content"),
            (json!({"role": "user", "content": 1}), "messages[0].content"),
            (
                json!({"role": "user", "content": [{"type": "image_url"}]}),
                "messages[0].content[0].type",
            ),
            (
                json!({"role": "user", "content": [{"type": "text"}]}),
                "messages[0].content[0].text",
            ),
            (
                json!({"role": "assistant", "tool_calls": {}}),
                "messages[0].tool_calls",
            ),
            (
                json!({"role": "assistant", "tool_calls": [1]}),
                "messages[0].tool_calls[0]",
            ),
            (
                json!({"role": "tool", "content": "x", "tool_call_id": 1}),
                "messages[0].tool_call_id",
            ),
        ] {
            assert_eq!(one(message).expect_err("refused").param.as_deref(), Some(param));
        }
    }

    #[test]
    fn arguments_are_objects_in_either_form() {
        let call = |arguments: Value| {
            one(
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}),
            )
        };
        for good in [
            json!("{\"a\":3}"),
            json!(""),
            json!("{}"),
            json!("null"),
            json!({"a": 3}),
            json!(null),
        ] {
            assert!(call(good.clone()).is_ok(), "{good}");
        }
        for bad in [json!("[1]"), json!("not json"), json!(1), json!([]), json!("1")] {
            let error = call(bad.clone()).expect_err("refused");
            assert_eq!(
                error.param.as_deref(),
                Some("messages[0].tool_calls[0].function.arguments"),
                "{bad}"
            );
        }
    }

    #[test]
    fn tool_choices() {
        let names = ["f".to_owned()];
        for (choice, names, expected) in [
            (json!(null), &names[..], Some(ToolChoice::Auto)),
            (json!(null), &[], Some(ToolChoice::None)),
            (json!("none"), &names, Some(ToolChoice::None)),
            (json!("auto"), &names, Some(ToolChoice::Auto)),
            (json!("required"), &names, Some(ToolChoice::Required)),
            (json!("required"), &[], None),
            (json!("other"), &names, None),
            (
                json!({"type": "function", "function": {"name": "f"}}),
                &names,
                Some(ToolChoice::Named("f".into())),
            ),
            (
                json!({"type": "function", "function": {"name": "g"}}),
                &names,
                None,
            ),
            (json!({"type": "function"}), &names, None),
        ] {
            assert_eq!(tool_choice(Some(&choice), names).ok(), expected, "{choice}");
        }
    }
}
