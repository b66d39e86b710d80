//! Finds out what a template understands, by rendering small conversations and looking for their words.

use serde_json::{Value, json};

use super::Wants;

/// Runs the probes. `render` gives the text of messages and tools, or nothing where the template refuses them.
pub(super) fn wants(render: impl Fn(Value, Value) -> Option<String>) -> Wants {
    let printed =
        |text: Option<String>, words: &[&str]| text.is_some_and(|t| words.iter().all(|w| t.contains(w)));

    let user = |content: Value| json!({"role": "user", "content": content});
    let as_text = printed(
        render(json!([user(json!("probe-words"))]), Value::Null),
        &["probe-words"],
    );
    let parts = json!([{"type": "text", "text": "probe-words"}]);
    let as_parts = || {
        printed(
            render(json!([user(parts.clone())]), Value::Null),
            &["probe-words"],
        )
    };
    let content_parts = !as_text && as_parts();
    let content = |text: &str| {
        if content_parts {
            json!([{"type": "text", "text": text}])
        } else {
            json!(text)
        }
    };

    let tools = json!([{"type": "function", "function": {
        "name": "probe_tool",
        "description": "probe-description",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string", "description": "probe"}}, "required": ["probe_key"]},
    }}]);
    let shows_tools = printed(
        render(json!([user(content("probe-words"))]), tools.clone()),
        &["probe_tool"],
    );

    let history = |arguments: Value| {
        json!([
            user(content("probe-words")),
            {"role": "assistant", "content": content(""), "tool_calls": [
                {"id": "probe0001", "type": "function", "function": {"name": "probe_tool", "arguments": arguments}},
            ]},
            {"role": "tool", "tool_call_id": "probe0001", "name": "probe_tool", "content": content("probe-result")},
        ])
    };
    let source = r#"{"probe_key": "probe_value"}"#;
    let with = |arguments: Value, words: &[&str]| {
        printed(render(history(arguments.clone()), tools.clone()), words)
            || printed(render(history(arguments), Value::Null), words)
    };
    // A template that dumps a string as JSON would print it with escaped quotes: that is no match.
    let text = with(json!(source), &[source]);
    let mapping = || with(json!({"probe_key": "probe_value"}), &["probe_key", "probe_value"]);
    Wants {
        arguments_mapping: !text && mapping(),
        content_parts,
        tools: shows_tools,
    }
}
