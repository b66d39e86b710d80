//! The Jinja environment that the hub's templates expect, with limits.

use std::io;
use std::sync::Arc;

use minijinja::machinery::{CompiledTemplate, TemplateConfig, eval, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value as JinjaValue};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use serde_json::{Map, Value};

use super::clock::strftime_now;
use super::json::{DumpOptions, dumps_up_to};
use super::meter::{self, TooDeep};
use crate::TextError;

/// Steps of a rendering that the template has in any case. One instruction is a step, and so are 64 bytes of text that the
/// template makes, prints or filters: steps bound a rendering's memory, to 32 MB here, as well as its time.
const STEPS_BASE: u64 = 500_000;
/// Steps that each value of the request adds: a message is at least three values.
const STEPS_PER_VALUE: u64 = 1000;
/// Bytes of the request's text that add one step: each byte may be copied sixteen times.
const BYTES_PER_STEP: u64 = 4;
/// Steps of the largest request: a second at most.
const STEPS_MAX: u64 = 2_000_000;
const STEPS: &str = "steps (64 bytes of text that is made count as one)";
/// Calls within calls.
const DEPTH: usize = 100;
/// Bytes of a rendered conversation: 16 MiB, some four million tokens.
const OUTPUT_MAX: usize = 16 << 20;

/// What `raise_exception` carries.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// A template's source, known to parse, and what it may call.
pub(super) struct Program {
    source: String,
    env: Environment<'static>,
}

impl Program {
    /// Checks a template.
    pub fn new(source: &str, name: &str) -> Result<Self, TextError> {
        let source = without_generation_tags(source);
        compile(&source).map_err(|e| syntax_error(&e, &source, name))?;
        Ok(Self {
            source,
            env: environment(),
        })
    }
}

fn compile(source: &str) -> Result<CompiledTemplate<'_>, Error> {
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    let config = TemplateConfig {
        syntax_config: syntax.expect("the default delimiters are valid"),
        default_auto_escape: Arc::new(|_| AutoEscape::None),
    };
    let mut template = CompiledTemplate::new("chat", source, &config)?;
    template.instructions = meter::rewrite(&template.instructions);
    for block in template.blocks.values_mut() {
        *block = meter::rewrite(block);
    }
    Ok(template)
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
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
    meter::install(&mut env);
    env
}

/// Renders the template with a context.
pub(super) fn render(
    program: &Program,
    context: Map<String, Value>,
    name: &str,
) -> Result<String, TextError> {
    // The copy shares its parts with the original; only the steps are its own.
    let mut env = program.env.clone();
    let steps = steps(&context);
    env.set_fuel(Some(steps));
    // The compiled form borrows its source: making it anew takes less time than a rendering.
    let template = compile(&program.source).map_err(|e| syntax_error(&e, &program.source, name))?;
    let context = JinjaValue::from(Serde(Value::Object(context)));
    let mut text = String::new();
    // What is written is paid for with steps, so that the text stays small until its size is looked at.
    let mut out = make_string_output(&mut text);
    let result = eval(
        &env,
        &template.instructions,
        context,
        &template.blocks,
        &mut out,
        AutoEscape::None,
    );
    result.map_err(|error| render_error(&error, name, steps))?;
    if text.len() > OUTPUT_MAX {
        return Err(TextError::TemplateLimit {
            name: name.into(),
            limit: OUTPUT_MAX as u64,
            unit: "bytes of output",
        });
    }
    Ok(text)
}

/// The steps that a request is worth.
fn steps(context: &Map<String, Value>) -> u64 {
    fn count(value: &Value, values: &mut u64, bytes: &mut u64) {
        *values += 1;
        match value {
            Value::String(text) => *bytes += text.len() as u64,
            Value::Array(list) => list.iter().for_each(|v| count(v, values, bytes)),
            Value::Object(map) => map.iter().for_each(|(key, v)| {
                *bytes += key.len() as u64;
                count(v, values, bytes);
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let (mut values, mut bytes) = (0, 0);
    context.values().for_each(|v| count(v, &mut values, &mut bytes));
    let more = values.saturating_mul(STEPS_PER_VALUE) + bytes / BYTES_PER_STEP;
    STEPS_MAX.min(STEPS_BASE + more)
}

/// Measures JSON before its tree is built: a lazy value of a few bytes may be a list of a hundred million items.
struct Measure {
    /// Steps that the tree is worth: one for each token and for 16 bytes of text.
    steps: u64,
    bytes: u64,
    most: u64,
}

impl io::Write for Measure {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len() as u64;
        self.steps += 1;
        if self.used() > self.most {
            return Err(io::Error::other("step limit"));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Measure {
    fn used(&self) -> u64 {
        self.steps + self.bytes / 16
    }
}

/// The value as a tree, if the steps that are left pay for it.
fn tree(state: &State<'_, '_>, value: &JinjaValue) -> Result<Value, Error> {
    let failed = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, format!("tojson: {e}"));
    let mut measure = Measure {
        steps: 0,
        bytes: 0,
        most: steps_left(state),
    };
    let measured = serde_json::to_writer(&mut measure, value);
    state.consume_fuel(measure.used())?;
    measured.map_err(failed)?;
    serde_json::to_value(value).map_err(failed)
}

fn steps_left(state: &State<'_, '_>) -> u64 {
    state.fuel_levels().map_or(STEPS_MAX, |(_, left)| left)
}

fn tojson(state: &State<'_, '_>, value: &JinjaValue, options: Kwargs) -> Result<JinjaValue, Error> {
    let mut dump = DumpOptions::default();
    if let Some(indent) = options
        .get::<Option<JinjaValue>>("indent")?
        .filter(|v| !v.is_none())
    {
        dump.indent = Some(match (indent.as_str(), indent.as_i64()) {
            (Some(text), _) => text.chars().take(64).collect(),
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
    let value = tree(state, value)?;
    let most = OUTPUT_MAX.min(steps_left(state) as usize * 16);
    match dumps_up_to(&value, &dump, most) {
        Some(text) => Ok(JinjaValue::from(text)),
        None => Err(Error::from(ErrorKind::OutOfFuel)),
    }
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

fn render_error(error: &Error, name: &str, steps: u64) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref::<Raised>() {
            return TextError::TemplateRaised {
                message: message.clone(),
            };
        }
        if inner.is::<TooDeep>() {
            return TextError::TemplateLimit {
                name: name.into(),
                limit: TooDeep::LEVELS_MAX,
                unit: "levels of lists and maps",
            };
        }
        if inner
            .downcast_ref::<Error>()
            .is_some_and(|e| e.kind() == ErrorKind::OutOfFuel)
        {
            return TextError::TemplateLimit {
                name: name.into(),
                limit: steps,
                unit: STEPS,
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
