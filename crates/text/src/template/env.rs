//! The Jinja environment that the hub's templates expect, with limits.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value as JinjaValue};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde_json::Value;

use super::clock::strftime_now;
use super::json::{DumpOptions, dumps};
use crate::TextError;

/// Instructions of one rendering: about half a second, or some 30,000 messages.
const FUEL: u64 = 5_000_000;
/// Calls within calls.
const DEPTH: usize = 100;
/// Bytes of a rendered conversation.
const OUTPUT_MAX: usize = 64 << 20;

/// What `raise_exception` carries.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// An environment that holds one template, called "chat".
pub(super) fn environment(source: &str, name: &str) -> Result<Environment<'static>, TextError> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    env.set_syntax(syntax.expect("the default delimiters are valid"));
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(DEPTH);
    env.set_debug(true); // spans in errors, for the column
    env.add_filter("tojson", tojson);
    // Python cannot iterate over None; templates ask before they measure.
    env.add_test("iterable", |value: &JinjaValue| {
        !value.is_none() && value.try_iter().is_ok()
    });
    env.add_function("strftime_now", |format: &str| strftime_now(format));
    env.add_function(
        "raise_exception",
        |message: String| -> Result<JinjaValue, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
        },
    );
    let source = without_generation_tags(source);
    env.add_template_owned("chat", source.clone())
        .map_err(|e| syntax_error(&e, &source, name))?;
    Ok(env)
}

/// Renders the template with a context.
pub(super) fn render(
    env: &Environment<'static>,
    context: JinjaValue,
    name: &str,
) -> Result<String, TextError> {
    let template = env
        .get_template("chat")
        .expect("added when the environment was made");
    let mut out = Capped {
        bytes: Vec::new(),
        full: false,
    };
    let result = template.render_captured_to(context, &mut out).map(drop);
    match result {
        Ok(()) => Ok(String::from_utf8(out.bytes).expect("the engine writes whole strings")),
        Err(_) if out.full => Err(TextError::TemplateLimit {
            name: name.into(),
            limit: OUTPUT_MAX as u64,
            unit: "bytes of output",
        }),
        Err(error) => Err(render_error(&error, name)),
    }
}

/// Collects output up to a limit.
struct Capped {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > OUTPUT_MAX {
            self.full = true;
            return Err(io::Error::other("output limit"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn tojson(value: &JinjaValue, options: Kwargs) -> Result<JinjaValue, Error> {
    let mut dump = DumpOptions::default();
    if let Some(indent) = options
        .get::<Option<JinjaValue>>("indent")?
        .filter(|v| !v.is_none())
    {
        dump.indent = Some(match (indent.as_str(), indent.as_i64()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(width)) => " ".repeat(width.clamp(0, 64) as usize),
            (None, None) => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "tojson: indent is neither a number nor a string",
                ));
            }
        });
        dump.item_separator = ",".into();
    }
    if let Some(ensure_ascii) = options.get::<Option<bool>>("ensure_ascii")? {
        dump.ensure_ascii = ensure_ascii;
    }
    if let Some(sort_keys) = options.get::<Option<bool>>("sort_keys")? {
        dump.sort_keys = sort_keys;
    }
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators).map_err(|_| {
            Error::new(
                ErrorKind::InvalidOperation,
                "tojson: separators must be two strings",
            )
        })?;
        (dump.item_separator, dump.key_separator) = (item, key);
    }
    options.assert_all_used()?;
    let value: Value = serde_json::to_value(value)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, format!("tojson: {e}")))?;
    Ok(JinjaValue::from(dumps(&value, &dump)))
}

/// `{% generation %}` marks the assistant's tokens for training and prints nothing: each such tag becomes a comment of the
/// same length, so that places in messages stay right.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |e| e + 2);
        let words = tag[2..end].trim_end_matches("%}");
        let words = words.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        if matches!(words, "generation" | "endgeneration") && tag[..end].ends_with("%}") {
            out.push_str("{#");
            out.push_str(&tag[2..end - 2]);
            out.push_str("#}");
        } else {
            out.push_str(&tag[..end]);
        }
        rest = &tag[end..];
    }
    out + rest
}

fn syntax_error(error: &Error, source: &str, name: &str) -> TextError {
    let line = error.line().unwrap_or(0);
    let column = error
        .range()
        .and_then(|range| source.get(..range.start))
        .map_or(1, |before| {
            let start = before.rfind('\n').map_or(0, |at| at + 1);
            before[start..].chars().count() + 1
        });
    TextError::TemplateSyntax {
        name: name.into(),
        line,
        column,
        message: message(error),
    }
}

fn render_error(error: &Error, name: &str) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref::<Raised>() {
            return TextError::TemplateRaised {
                message: message.clone(),
            };
        }
        if inner
            .downcast_ref::<Error>()
            .is_some_and(|e| e.kind() == ErrorKind::OutOfFuel)
        {
            return TextError::TemplateLimit {
                name: name.into(),
                limit: FUEL,
                unit: "steps",
            };
        }
        cause = inner.source();
    }
    TextError::TemplateRender {
        name: name.into(),
        line: error.line().unwrap_or(0),
        message: message(error),
    }
}

fn message(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_comments() {
        let cases = [
            (
                "a{% generation %}b{%- endgeneration -%}c",
                "a{# generation #}b{#- endgeneration -#}c",
            ),
            (
                "{% if generation %}{{ x }}{% endif %}",
                "{% if generation %}{{ x }}{% endif %}",
            ),
            ("{%generation%}", "{#generation#}"),
            ("{% generation", "{% generation"),
            ("{%", "{%"),
            ("{%}", "{%}"),
        ];
        for (source, want) in cases {
            assert_eq!(without_generation_tags(source), want);
            assert_eq!(source.len(), want.len());
        }
    }
}
