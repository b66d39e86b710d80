//! Rendered text in which the client's own text cannot pass for the template's.
//!
//! Before rendering, each place in the client's strings where a control text starts (or where the string's end could become
//! one together with what follows) gets a pair of private characters around its first character. Filters, tests and slices of
//! the template see ordinary strings; a string without control texts is not touched at all. After rendering, the pairs are
//! taken out and the places remembered: the tokenizer matches no control token over them.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::markup;
use crate::markers::Markers;
use crate::parsers::REASONING_TAGS;

/// Rendered text, with the places that must stay plain text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompt {
    text: String,
    /// Byte positions of characters that are part of no control token; sorted.
    quoted: Vec<usize>,
}

impl Prompt {
    /// A prompt that is all the server's own text: control tokens are parsed everywhere.
    pub fn from_template_text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            quoted: Vec::new(),
        }
    }

    /// The text, for people and for the prompt's echo.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn quoted(&self) -> &[usize] {
        &self.quoted
    }
}

/// First of the private characters that serve as marks: the end of plane 16, in which nobody has letters.
pub(super) const MARKS_FROM: char = '\u{10ff00}';

/// What may not be spelled by the client's text.
pub(super) struct Quoter {
    all: Markers,
    /// As `all`, without the tags of reasoning: the assistant's own earlier words may have them, and templates look for them.
    assistant: Markers,
    /// Proper suffixes of control texts: a string that starts with one could complete what the template began.
    suffixes: HashSet<Box<str>>,
    suffix_max: usize,
}

impl Quoter {
    pub fn new(markers: &Markers) -> Self {
        let assistant = markup(markers).filter(|m| !REASONING_TAGS.contains(&m.text.as_str()));
        let mut suffixes = HashSet::new();
        let mut suffix_max = 0;
        for marker in markup(markers) {
            for (at, _) in marker.text.char_indices().skip(1) {
                suffix_max = suffix_max.max(marker.text.len() - at);
                suffixes.insert(marker.text[at..].into());
            }
        }
        Self {
            all: Markers::new(markup(markers).cloned()),
            assistant: Markers::new(assistant.cloned()),
            suffixes,
            suffix_max,
        }
    }

    /// Begins a rendering: chooses three marks that none of the values holds.
    pub fn start<'a>(&'a self, values: [Option<&Value>; 3], extra: &Map<String, Value>) -> Quote<'a> {
        let mut used = HashSet::new();
        let mut note = |text: &str| used.extend(text.chars().filter(|&c| c >= MARKS_FROM));
        values
            .into_iter()
            .flatten()
            .for_each(|v| each_string(v, &mut note));
        for (key, value) in extra {
            note(key);
            each_string(value, &mut note);
        }
        // 254 characters to choose from; a request that uses up all of them gets those which it uses least: none is left
        // only if the client writes every one, and then its own text alone is read differently.
        let mut free = (MARKS_FROM as u32..=0x10fffd)
            .rev()
            .filter_map(char::from_u32)
            .filter(|c| !used.contains(c));
        let mut next = || free.next().unwrap_or('\u{10fffd}');
        Quote {
            quoter: self,
            open: next(),
            close: next(),
            end: next(),
        }
    }
}

fn each_string(value: &Value, note: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => note(text),
        Value::Array(list) => list.iter().for_each(|v| each_string(v, note)),
        Value::Object(map) => map.iter().for_each(|(key, v)| {
            note(key);
            each_string(v, note);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The marks of one rendering.
pub(super) struct Quote<'a> {
    quoter: &'a Quoter,
    open: char,
    close: char,
    end: char,
}

impl Quote<'_> {
    /// Quotes a string that the client wrote.
    pub fn text(&self, text: &str) -> String {
        self.quote(text, &self.quoter.all)
    }

    /// Quotes an earlier answer of the assistant.
    pub fn assistant_text(&self, text: &str) -> String {
        self.quote(text, &self.quoter.assistant)
    }

    /// Quotes all strings of a value, keys too.
    pub fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(list) => list.iter().map(|v| self.value(v)).collect(),
            Value::Object(map) => map
                .iter()
                .map(|(key, v)| (self.text(key), self.value(v)))
                .collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    /// Stands at the end of a message that is to be continued.
    pub fn end_mark(&self) -> char {
        self.end
    }

    fn quote(&self, text: &str, markers: &Markers) -> String {
        let trimmed = text.trim_end();
        let first = text.len() - text.trim_start().len();
        let completes = self.completes(&text[first..]);
        let mut out = String::with_capacity(text.len() + 8);
        for (at, c) in text.char_indices() {
            let starts = (at == first && completes)
                || markers.starts_or_may_start(text, at)
                || (at < trimmed.len() && markers.starts_or_may_start(trimmed, at));
            if starts {
                out.extend([self.open, c, self.close]);
            } else {
                out.push(c);
            }
        }
        out
    }

    /// Whether the text starts with the end of a control text.
    fn completes(&self, text: &str) -> bool {
        let ends = text
            .char_indices()
            .map(|(at, c)| at + c.len_utf8())
            .take_while(|&end| end <= self.quoter.suffix_max);
        ends.into_iter()
            .any(|end| self.quoter.suffixes.contains(&text[..end]))
    }

    /// Takes the marks out of rendered text, in place.
    pub fn finish(&self, mut text: String) -> Prompt {
        enum After {
            Text,
            /// The first mark.
            Open,
            /// The character that a first mark guards; its place.
            Inner(usize),
        }
        let mut quoted = Vec::new();
        let (mut after, mut end) = (After::Text, 0);
        text.retain(|c| {
            let before = std::mem::replace(&mut after, After::Text);
            if c == self.open {
                after = After::Open;
            } else if c == self.close {
                // Without its partner the pair was cut by the template, and what it guarded with it.
                if let After::Inner(at) = before {
                    quoted.push(at);
                }
            } else if c != self.end {
                if let After::Open = before {
                    after = After::Inner(end);
                }
                end += c.len_utf8();
                return true;
            }
            false
        });
        Prompt { text, quoted }
    }
}
