//! The grammar of a tool call that a request demands.

use serde_json::{Value, json};

use super::Constraint;
use super::factory::bounded_blanks;
use crate::TextError;
use crate::parsers::{ToolStyle, property_types};

/// What a request demands (`tool_choice`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolChoice<'a> {
    /// Any of the tools (`"required"`).
    Required,
    /// This one.
    Named(&'a str),
}

/// A constraint under which the model writes calls of these tools in its own style, and nothing else. With `parallel` it may
/// write several.
///
/// # Errors
/// No tools, a tool without a name, or a name that no tool has.
pub fn tool_call_constraint(
    style: ToolStyle,
    tools: &Value,
    choice: ToolChoice<'_>,
    parallel: bool,
) -> Result<Constraint, TextError> {
    let field = |field: &str, message: String| TextError::Field {
        field: field.into(),
        message,
    };
    let mut functions = Vec::new();
    for (i, tool) in tools.as_array().into_iter().flatten().enumerate() {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name").and_then(Value::as_str);
        let name =
            name.ok_or_else(|| field(&format!("tools[{i}].function.name"), "expected a string".into()))?;
        if choice == ToolChoice::Required || choice == ToolChoice::Named(name) {
            let parameters = function.get("parameters").filter(|p| p.is_object()).cloned();
            functions.push((
                name,
                parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}})),
            ));
        }
    }
    if functions.is_empty() {
        return Err(match choice {
            ToolChoice::Required => field(
                "tools",
                "`tool_choice` demands a call, but there are no tools".into(),
            ),
            ToolChoice::Named(name) => {
                field("tool_choice.function.name", format!("no tool is named `{name}`"))
            }
        });
    }
    let more = if parallel { " (\"\\n\" call)*" } else { "" };
    let names: Vec<String> = (0..functions.len()).map(|i| format!("f{i}")).collect();
    let mut lark = format!(
        "start: call{more}\ncall: \"<tool_call>\\n\" ({}) \"\\n</tool_call>\"\n",
        names.join(" | ")
    );
    for (i, (name, parameters)) in functions.iter().enumerate() {
        match style {
            ToolStyle::Hermes => hermes(i, name, parameters, &mut lark),
            ToolStyle::Qwen3Coder => qwen3_coder(i, name, parameters, &mut lark),
        }
    }
    Ok(Constraint::Lark(lark))
}

/// A string as a terminal.
fn terminal(text: &str) -> String {
    Value::from(text).to_string()
}

/// A rule for JSON of a schema.
fn json_rule(rule: &str, schema: &Value, lark: &mut String) {
    lark.push_str(&format!("{rule}: %json {}\n", bounded_blanks(schema)));
}

fn hermes(i: usize, name: &str, parameters: &Value, lark: &mut String) {
    let head = format!("{{\"name\": {}, \"arguments\": ", Value::from(name));
    lark.push_str(&format!("f{i}: {} a{i} \"}}\"\n", terminal(&head)));
    json_rule(&format!("a{i}"), parameters, lark);
}

/// Required parameters first, in the schema's order, then the others, each at most once.
fn qwen3_coder(i: usize, name: &str, parameters: &Value, lark: &mut String) {
    let empty = serde_json::Map::new();
    let properties = parameters
        .get("properties")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    let required: Vec<&str> = parameters
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut body = String::new();
    let mut rules = String::new();
    let is_required = |name: &str| required.contains(&name);
    let first = properties.iter().filter(|p| is_required(p.0));
    for (j, (key, schema)) in first
        .chain(properties.iter().filter(|p| !is_required(p.0)))
        .enumerate()
    {
        let rule = format!("f{i}p{j}");
        body.push_str(&format!(" {rule}{}", if is_required(key) { "" } else { "?" }));
        let open = terminal(&format!("<parameter={key}>\n"));
        let types = property_types(Some(parameters), key);
        if types.string {
            rules.push_str(&format!("{rule}: {open} {rule}v\n"));
            match schema
                .get("enum")
                .and_then(Value::as_array)
                .filter(|e| e.iter().all(Value::is_string))
            {
                Some(values) => {
                    let close =
                        |v: &Value| terminal(&format!("{}\n</parameter>\n", v.as_str().unwrap_or("")));
                    rules.push_str(&format!(
                        "{rule}v: {}\n",
                        values.iter().map(close).collect::<Vec<_>>().join(" | ")
                    ));
                }
                // Lazy: ends with the first end tag.
                None => rules.push_str(&format!("{rule}v[suffix=\"\\n</parameter>\\n\"]: /(?s:.*)/\n")),
            }
        } else {
            rules.push_str(&format!("{rule}: {open} {rule}v \"\\n</parameter>\\n\"\n"));
            json_rule(
                &format!("{rule}v"),
                &with_definitions(schema, parameters),
                &mut rules,
            );
        }
    }
    lark.push_str(&format!(
        "f{i}: {}{body} \"</function>\"\n",
        terminal(&format!("<function={name}>\n"))
    ));
    lark.push_str(&rules);
}

/// A property's schema with the definitions that its references name.
fn with_definitions(schema: &Value, root: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(map) = &mut schema {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(key) {
                map.entry(key).or_insert_with(|| definitions.clone());
            }
        }
    }
    schema
}
