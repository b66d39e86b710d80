//! Chat templates: a conversation becomes the text that the model was trained on.
//!
//! Rules, where Jinja and the hub's habits leave a choice:
//! - `content` that is `null` or missing becomes `""`: no template prints `None`.
//! - An array of text parts becomes one string, joined by line breaks; a template that only understands parts gets parts.
//!   Which one it is, is found out when it is loaded, by rendering a probe.
//! - `tool_calls[].function.arguments` is a JSON string in requests. A template that prints text gets that string unchanged;
//!   one that walks or dumps the arguments gets the mapping.
//! - A role `developer` becomes `system` where the template does not know it.
//! - `strftime_now` is UTC.
//! - A rendering has a number of steps that grows with the request, and 16 MiB of output: a template that wants more, in time
//!   or memory, is an error.
//! - Text that spells a control token, in anything the client sends, never becomes one: see [`Prompt`].

mod clock;
mod env;
mod json;
mod messages;
mod meter;
mod probe;
mod prompt;

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::markers::Markers;
use crate::{TextError, Tokenizer};
pub use prompt::Prompt;
use prompt::Quoter;

/// A template and its name in the model's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTemplate {
    /// "default", "tool_use", ...
    pub name: String,
    /// Jinja source.
    pub source: String,
}

/// A conversation to render.
#[derive(Debug, Clone)]
pub struct ChatInput<'a> {
    /// The request's `messages`.
    pub messages: &'a Value,
    /// The request's `tools`, an array, if any.
    pub tools: Option<&'a Value>,
    /// Ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Ends inside the last message, which the model goes on with.
    pub continue_final: bool,
    /// More variables, such as `enable_thinking` (the request's `chat_template_kwargs`).
    pub extra: Map<String, Value>,
}

/// What a template understands, found by rendering probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wants {
    /// Arguments of calls in the history as a mapping, not as the JSON text.
    pub arguments_mapping: bool,
    /// Message content as an array of parts only.
    pub content_parts: bool,
    /// Tools are printed at all.
    pub tools: bool,
}

/// A compiled template of one model, or two (one for requests with tools).
pub struct ChatTemplate {
    variants: Vec<Variant>,
    origin: String,
    quoter: Quoter,
    bos: Option<String>,
    eos: Option<String>,
    unk: Option<String>,
    pad: Option<String>,
}

struct Variant {
    name: String,
    source: String,
    program: env::Program,
    wants: Wants,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChatTemplate({})", self.origin)
    }
}

impl ChatTemplate {
    /// Compiles one template. `origin` says where it is from, for messages. The tokenizer gives the names of the begin and
    /// end tokens and the control texts that quoted text must not spell.
    ///
    /// # Errors
    /// A template that does not parse, with line and column.
    pub fn parse(source: &str, origin: &str, tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let one = NamedTemplate {
            name: "default".into(),
            source: source.into(),
        };
        Self::parse_named(&[one], origin, tokenizer)
    }

    /// Compiles a list of named templates: `tool_use` serves requests with tools, `default` (or else the first) all others.
    ///
    /// # Errors
    /// As [`ChatTemplate::parse`]; an empty list.
    pub fn parse_named(
        list: &[NamedTemplate],
        origin: &str,
        tokenizer: &Tokenizer,
    ) -> Result<Self, TextError> {
        let default = list.iter().find(|t| t.name == "default").or(list.first());
        let tool_use = list
            .iter()
            .find(|t| t.name == "tool_use")
            .filter(|t| default.is_some_and(|d| d.name != t.name));
        let default = default.ok_or_else(|| TextError::TemplateSyntax {
            name: origin.into(),
            line: 0,
            column: 0,
            message: "the list of templates is empty".into(),
        })?;
        let mut template = Self {
            variants: Vec::new(),
            origin: origin.into(),
            quoter: Quoter::new(tokenizer.markers()),
            bos: tokenizer.name_of(tokenizer.bos()),
            eos: tokenizer.name_of(tokenizer.eos()),
            unk: tokenizer.name_of(tokenizer.unk()),
            pad: tokenizer.name_of(tokenizer.pad()),
        };
        for named in [Some(default), tool_use].into_iter().flatten() {
            let label = if list.len() == 1 {
                origin.to_owned()
            } else {
                format!("{origin}:{}", named.name)
            };
            let mut variant = Variant {
                program: env::Program::new(&named.source, &label)?,
                name: label,
                source: named.source.clone(),
                wants: Wants {
                    arguments_mapping: false,
                    content_parts: false,
                    tools: false,
                },
            };
            variant.wants = probe::wants(|messages, tools| template.render_raw(&variant, messages, tools));
            template.variants.push(variant);
        }
        Ok(template)
    }

    /// Where the template is from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Jinja source, of the variant for requests with or without tools.
    pub fn source(&self, with_tools: bool) -> &str {
        &self.variant(with_tools).source
    }

    /// What the variant for requests with or without tools understands.
    pub fn wants(&self, with_tools: bool) -> Wants {
        self.variant(with_tools).wants
    }

    fn variant(&self, with_tools: bool) -> &Variant {
        let second = self.variants.get(1).filter(|_| with_tools);
        second.unwrap_or(&self.variants[0])
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// A message of the wrong form, by field; what the template raises; a limit.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<Prompt, TextError> {
        let tools = messages::tools(input.tools)?;
        let variant = self.variant(tools.is_some());
        let quote = self
            .quoter
            .start([Some(input.messages), input.tools, None], &input.extra);
        let knows_developer = variant.source.contains("developer");
        let options = messages::Options {
            wants: variant.wants,
            knows_developer,
            continue_final: input.continue_final,
        };
        let messages = messages::normalise(input.messages, &options, &quote)?;

        let mut context = self.constants();
        for (key, value) in &input.extra {
            if context.contains_key(key)
                || ["messages", "tools", "add_generation_prompt"].contains(&key.as_str())
                || key.starts_with(meter::RESERVED)
            {
                return Err(TextError::Field {
                    field: format!("chat_template_kwargs.{key}"),
                    message: "this variable is set by the server".into(),
                });
            }
            context.insert(key.clone(), quote.value(value));
        }
        context.insert("messages".into(), messages);
        context.insert("tools".into(), tools.map_or(Value::Null, |t| quote.value(&t)));
        context.insert(
            "add_generation_prompt".into(),
            json!(input.add_generation_prompt && !input.continue_final),
        );
        let mut text = env::render(&variant.program, context, &variant.name)?;
        if input.continue_final {
            let cut = text.rfind(quote.end_mark()).ok_or_else(|| TextError::Field {
                field: "continue_final_message".into(),
                message: "the chat template does not print the last message's content, so that it cannot be continued".into(),
            })?;
            text.truncate(cut);
        }
        Ok(quote.finish(text))
    }

    /// Variables that are the same in every request.
    fn constants(&self) -> Map<String, Value> {
        let mut map = Map::new();
        for (key, value) in [
            ("bos_token", &self.bos),
            ("eos_token", &self.eos),
            ("unk_token", &self.unk),
            ("pad_token", &self.pad),
        ] {
            // A template may concatenate it: an absent token is an empty string.
            map.insert(key.into(), json!(value.as_deref().unwrap_or("")));
        }
        map.insert("documents".into(), Value::Null);
        map
    }

    /// Renders for a probe, without quoting.
    fn render_raw(&self, variant: &Variant, messages: Value, tools: Value) -> Option<String> {
        let mut context = self.constants();
        context.insert("messages".into(), messages);
        context.insert("tools".into(), tools);
        context.insert("add_generation_prompt".into(), json!(false));
        env::render(&variant.program, context, &variant.name).ok()
    }
}

/// The templates in a tokenizer_config.json: `chat_template` is one source or a list of named ones. Empty where it has none.
///
/// # Errors
/// JSON that does not parse, or a `chat_template` of another form.
pub fn templates_from_tokenizer_config(bytes: &[u8]) -> Result<Vec<NamedTemplate>, TextError> {
    let config: Value = serde_json::from_slice(bytes)
        .map_err(|e| TextError::tokenizer(format!("tokenizer_config.json: {e}")))?;
    let wrong = |what: &str| TextError::tokenizer(format!("tokenizer_config.json: chat_template {what}"));
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(source)) => Ok(vec![NamedTemplate {
            name: "default".into(),
            source: source.clone(),
        }]),
        Some(Value::Array(list)) => {
            let text = |entry: &Value, key: &str| {
                let text = entry.get(key).and_then(Value::as_str).map(str::to_owned);
                text.ok_or_else(|| wrong(&format!("has an entry without a string `{key}`")))
            };
            let mut seen = HashSet::new();
            list.iter()
                .map(|entry| {
                    let named = NamedTemplate {
                        name: text(entry, "name")?,
                        source: text(entry, "template")?,
                    };
                    if !seen.insert(named.name.clone()) {
                        return Err(wrong(&format!("names `{}` twice", named.name)));
                    }
                    Ok(named)
                })
                .collect()
        }
        Some(_) => Err(wrong("is neither a string nor a list of named templates")),
    }
}

/// Markers that quoted text must not spell: all but blanks.
fn markup(markers: &Markers) -> impl Iterator<Item = &crate::markers::Marker> {
    markers.list().iter().filter(|m| !m.is_blank())
}

#[cfg(test)]
mod tests;
