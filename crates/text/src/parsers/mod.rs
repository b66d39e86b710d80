//! The model's text taken apart while it comes: reasoning, content, tool calls.
//!
//! The events, joined, do not depend on how the text is cut into pieces. Rules:
//! - Reasoning loses its outer line breaks, and content those after the end of reasoning.
//! - Blanks before, between and after tool calls are dropped; all other text around them is content.
//! - What looks like a call and is none stays content, whole, and a good call after it is still found.
//! - A call that the end of the text cuts off gets its JSON closed.
//!
//! A style is a row in [`TOOL_STYLES`] or [`REASONING_STYLES`]; `docs/adding-parser.md` shows how to add one.

mod content;
mod hermes;
mod json_stream;
mod qwen3_coder;
mod reasoning;
mod schema;
mod tags;

use serde_json::Value;

pub(crate) use schema::property_types;

use crate::TextError;

/// A piece of a parsed answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParsedEvent {
    /// More of the reasoning.
    Reasoning(String),
    /// More of the answer.
    Content(String),
    /// A call begins. Comes once a call, before its arguments.
    ToolCallStart {
        /// Place among the calls, from 0.
        index: usize,
        /// A new id, `call_...`.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// More of a call's arguments: pieces of one JSON object.
    ToolCallArguments {
        /// Place among the calls.
        index: usize,
        /// More JSON text.
        delta: String,
    },
}

/// Takes a model's text apart.
pub trait OutputParser: Send {
    /// The next piece of text.
    fn push(&mut self, text: &str) -> Vec<ParsedEvent>;
    /// The end of the text. Nothing may be pushed after it.
    fn finish(&mut self) -> Vec<ParsedEvent>;
}

/// How a model marks its reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReasoningStyle {
    /// `<think>` ... `</think>` before the answer (DeepSeek, Qwen, SmolLM3 and many more).
    Think,
}

/// How a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ToolStyle {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen 2.5 and 3, SmolLM3).
    Hermes,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>` (Qwen3-Coder, Qwen 3.5).
    Qwen3Coder,
}

/// How a model's answers are written. `None` takes the text as it comes; set `tools` to `None` where the request has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ParserStyle {
    /// Reasoning.
    pub reasoning: Option<ReasoningStyle>,
    /// Tool calls.
    pub tools: Option<ToolStyle>,
}

/// A row of the registry.
#[derive(Debug)]
pub struct StyleRow<S: 'static> {
    /// The name for flags.
    pub name: &'static str,
    /// Names that other servers use for it.
    pub aliases: &'static [&'static str],
    /// The style.
    pub style: S,
    /// A template holds all of these where its model writes this style. Rows are tried in order.
    pub template_signs: &'static [&'static str],
}

/// All styles of reasoning.
pub static REASONING_STYLES: &[StyleRow<ReasoningStyle>] = &[StyleRow {
    name: "think",
    aliases: &[
        "deepseek_r1",
        "deepseek-r1",
        "qwen3",
        "deepseek",
        "qwen",
        "smollm3",
    ],
    style: ReasoningStyle::Think,
    template_signs: &["</think>"],
}];

/// All styles of tool calls.
pub static TOOL_STYLES: &[StyleRow<ToolStyle>] = &[
    StyleRow {
        name: "qwen3_coder",
        aliases: &["qwen3_xml", "qwen3-coder", "qwen_coder"],
        style: ToolStyle::Qwen3Coder,
        template_signs: &["<tool_call>", "<function=", "<parameter="],
    },
    StyleRow {
        name: "hermes",
        aliases: &["qwen", "qwen25", "qwen3", "smollm3"],
        style: ToolStyle::Hermes,
        template_signs: &["<tool_call>", "</tool_call>"],
    },
];

/// Tags of reasoning, which an assistant's earlier words may hold.
pub(crate) const REASONING_TAGS: [&str; 2] = [reasoning::OPEN, reasoning::CLOSE];

fn by_name<S: Copy>(rows: &[StyleRow<S>], kind: &'static str, name: &str) -> Result<S, TextError> {
    let row = rows.iter().find(|r| r.name == name || r.aliases.contains(&name));
    row.map(|r| r.style).ok_or_else(|| TextError::UnknownStyle {
        kind,
        name: name.into(),
        known: rows.iter().map(|r| r.name).collect::<Vec<_>>().join(", "),
    })
}

impl ReasoningStyle {
    /// The style of a name.
    ///
    /// # Errors
    /// A name that no row has, with those that there are.
    pub fn by_name(name: &str) -> Result<Self, TextError> {
        by_name(REASONING_STYLES, "reasoning", name)
    }

    /// The text that ends reasoning.
    pub fn close(self) -> &'static str {
        match self {
            ReasoningStyle::Think => reasoning::CLOSE,
        }
    }
}

impl ToolStyle {
    /// The style of a name.
    ///
    /// # Errors
    /// A name that no row has, with those that there are.
    pub fn by_name(name: &str) -> Result<Self, TextError> {
        by_name(TOOL_STYLES, "tool call", name)
    }
}

impl ParserStyle {
    /// The styles that a chat template teaches.
    pub fn detect(template: &str) -> Self {
        fn find<S: Copy>(rows: &[StyleRow<S>], template: &str) -> Option<S> {
            rows.iter()
                .find(|r| r.template_signs.iter().all(|sign| template.contains(sign)))
                .map(|r| r.style)
        }
        Self {
            reasoning: find(REASONING_STYLES, template),
            tools: find(TOOL_STYLES, template),
        }
    }

    /// Whether a prompt ends inside reasoning: its template has opened it and the model goes on.
    pub fn starts_in_reasoning(&self, prompt: &str) -> bool {
        match self.reasoning {
            Some(ReasoningStyle::Think) => prompt.trim_end().ends_with(reasoning::OPEN),
            None => false,
        }
    }
}

/// A parser for one answer. `tools` are the request's, whose schemas give arguments their types; `starts_in_reasoning` says
/// that the prompt has opened the reasoning already.
pub fn make(style: ParserStyle, tools: Option<&Value>, starts_in_reasoning: bool) -> Box<dyn OutputParser> {
    let reasoning = style
        .reasoning
        .map(|ReasoningStyle::Think| reasoning::Reasoning::new(starts_in_reasoning));
    let tools: Box<dyn ContentParser> = match style.tools {
        None => Box::new(Plain),
        Some(ToolStyle::Hermes) => Box::new(hermes::Hermes::new()),
        Some(ToolStyle::Qwen3Coder) => Box::new(qwen3_coder::Qwen3Coder::new(tools)),
    };
    Box::new(Both { reasoning, tools })
}

/// The part after reasoning.
trait ContentParser: Send {
    fn push(&mut self, text: &str, out: &mut Vec<ParsedEvent>);
    fn finish(&mut self, out: &mut Vec<ParsedEvent>);
}

/// Text without tool calls.
struct Plain;

impl ContentParser for Plain {
    fn push(&mut self, text: &str, out: &mut Vec<ParsedEvent>) {
        if !text.is_empty() {
            out.push(ParsedEvent::Content(text.to_owned()));
        }
    }

    fn finish(&mut self, _out: &mut Vec<ParsedEvent>) {}
}

struct Both {
    reasoning: Option<reasoning::Reasoning>,
    tools: Box<dyn ContentParser>,
}

impl OutputParser for Both {
    fn push(&mut self, text: &str) -> Vec<ParsedEvent> {
        let mut out = Vec::new();
        match &mut self.reasoning {
            None => self.tools.push(text, &mut out),
            Some(reasoning) => {
                let split = reasoning.push(text);
                if !split.reasoning.is_empty() {
                    out.push(ParsedEvent::Reasoning(split.reasoning));
                }
                self.tools.push(&split.content, &mut out);
            }
        }
        out
    }

    fn finish(&mut self) -> Vec<ParsedEvent> {
        let mut out = Vec::new();
        if let Some(reasoning) = &mut self.reasoning {
            let split = reasoning.finish();
            if !split.reasoning.is_empty() {
                out.push(ParsedEvent::Reasoning(split.reasoning));
            }
            self.tools.push(&split.content, &mut out);
        }
        self.tools.finish(&mut out);
        out
    }
}

/// A whole parsed answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParsedMessage {
    /// All reasoning.
    pub reasoning: String,
    /// All content.
    pub content: String,
    /// The calls in order.
    pub calls: Vec<ParsedCall>,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParsedCall {
    /// Its id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Text of a JSON object.
    pub arguments: String,
}

impl ParsedMessage {
    /// Adds an event.
    pub fn add(&mut self, event: ParsedEvent) {
        match event {
            ParsedEvent::Reasoning(text) => self.reasoning += &text,
            ParsedEvent::Content(text) => self.content += &text,
            ParsedEvent::ToolCallStart { id, name, .. } => {
                self.calls.push(ParsedCall {
                    id,
                    name,
                    arguments: String::new(),
                });
            }
            ParsedEvent::ToolCallArguments { index, delta } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments += &delta;
                }
            }
        }
    }
}

/// Parses a whole text at once.
pub fn parse_whole(parser: &mut dyn OutputParser, text: &str) -> ParsedMessage {
    let mut message = ParsedMessage::default();
    parser.push(text).into_iter().for_each(|e| message.add(e));
    parser.finish().into_iter().for_each(|e| message.add(e));
    message
}

/// A new id for a call: `call_` and 24 hexadecimal digits, not to be guessed and not repeated.
fn call_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // Each RandomState has keys from the system's randomness.
    let (a, b) = (
        RandomState::new().hash_one(count),
        RandomState::new().hash_one(!count),
    );
    format!("call_{a:016x}{:08x}", b as u32)
}

#[cfg(test)]
mod tests;
