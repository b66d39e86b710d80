//! `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.
//!
//! Values are bare text; the request's schema says what JSON they become. One line break after the opening tag of a value and
//! one before its end belong to the layout. A missing `</parameter>` ends at the next `<parameter=` or `</function>`; a missing
//! `<tool_call>` is no fault.

use serde_json::Value;

use super::schema::{Types, parameters, property_types, to_json};
use super::tags::{Scan, scan};
use super::{ContentParser, ParsedEvent, call_id};
use crate::parsers::content::ContentOut;

const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
/// Bytes of a name.
const NAME_MAX: usize = 256;

#[derive(Debug, PartialEq, Eq)]
enum State {
    Content,
    /// After `<tool_call>`: a function must come.
    Opened,
    /// After `<function=`, which is not in the buffer any more; `tag` is what becomes content if no name follows.
    FunctionName {
        tag: String,
    },
    /// In a function, between parameters.
    Function,
    ParameterName,
    /// In a value that is collected.
    Value {
        key: String,
        types: Types,
    },
    /// In a string that is passed on as it comes; `fresh` until its first character.
    Text {
        fresh: bool,
    },
    /// After a function: `</tool_call>` or another function.
    FunctionDone,
}

/// The parser.
pub(super) struct Qwen3Coder {
    tools: Option<Value>,
    state: State,
    buffer: String,
    function: String,
    /// Whether the call has a parameter already.
    any: bool,
    count: usize,
    content: ContentOut,
}

impl Qwen3Coder {
    pub fn new(tools: Option<&Value>) -> Self {
        Self {
            tools: tools.cloned(),
            state: State::Content,
            buffer: String::new(),
            function: String::new(),
            any: false,
            count: 0,
            content: ContentOut::default(),
        }
    }

    /// Goes on with the buffer; `false` where more text is needed.
    fn step(&mut self, out: &mut Vec<ParsedEvent>) -> bool {
        match &self.state {
            State::Content => self.content_step(out),
            State::Opened => self.opened_step(out),
            State::FunctionName { .. } => self.function_name(out),
            State::Function => self.function_step(out),
            State::ParameterName => self.parameter_name(out),
            State::Value { .. } => self.value_step(out),
            State::Text { fresh } => {
                let fresh = *fresh;
                self.text_step(fresh, out)
            }
            State::FunctionDone => self.done_step(),
        }
    }

    fn go(&mut self, used: usize, state: State) -> bool {
        self.buffer.drain(..used);
        self.state = state;
        true
    }

    fn content_step(&mut self, out: &mut Vec<ParsedEvent>) -> bool {
        match scan(&self.buffer, &[CALL, FUNCTION]) {
            Scan::Found { at, tag } => {
                self.content.text(&self.buffer[..at], out);
                match tag {
                    0 => self.go(at + CALL.len(), State::Opened),
                    _ => self.go(at + FUNCTION.len(), State::FunctionName { tag: FUNCTION.into() }),
                }
            }
            Scan::Clear { safe } => {
                self.content.text(&self.buffer[..safe], out);
                self.buffer.drain(..safe);
                false
            }
        }
    }

    fn opened_step(&mut self, out: &mut Vec<ParsedEvent>) -> bool {
        let rest = self.buffer.trim_start();
        let blank = self.buffer.len() - rest.len();
        if rest.starts_with(FUNCTION) {
            let tag = format!("{CALL}{}{FUNCTION}", &self.buffer[..blank]);
            return self.go(blank + FUNCTION.len(), State::FunctionName { tag });
        }
        if FUNCTION.starts_with(rest) {
            return false;
        }
        self.content.text(CALL, out);
        self.go(0, State::Content)
    }

    /// A name up to `>`: its length, or that it is none, or nothing yet.
    fn name(&self) -> Option<Result<usize, ()>> {
        let end = self
            .buffer
            .find(|c: char| c == '>' || c == '<' || c.is_whitespace());
        match end {
            Some(at) if at > 0 && at <= NAME_MAX && self.buffer[at..].starts_with('>') => Some(Ok(at)),
            Some(_) => Some(Err(())),
            None if self.buffer.len() > NAME_MAX => Some(Err(())),
            None => None,
        }
    }

    fn function_name(&mut self, out: &mut Vec<ParsedEvent>) -> bool {
        match self.name() {
            None => false,
            Some(Ok(end)) => {
                self.function = self.buffer[..end].to_owned();
                self.any = false;
                self.content.call();
                let name = self.function.clone();
                out.push(ParsedEvent::ToolCallStart {
                    index: self.count,
                    id: call_id(),
                    name,
                });
                self.count += 1;
                self.arguments("{".into(), out);
                self.go(end + 1, State::Function)
            }
            Some(Err(())) => self.not_a_call(out),
        }
    }

    fn not_a_call(&mut self, out: &mut Vec<ParsedEvent>) -> bool {
        if let State::FunctionName { tag } = std::mem::replace(&mut self.state, State::Content) {
            self.content.text(&tag, out);
        }
        true
    }

    fn function_step(&mut self, out: &mut Vec<ParsedEvent>) -> bool {
        match scan(&self.buffer, &[PARAMETER, FUNCTION_END, CALL_END, FUNCTION, CALL]) {
            Scan::Found { at, tag } => match tag {
                0 => self.go(at + PARAMETER.len(), State::ParameterName),
                1 => self.end_function(at + FUNCTION_END.len(), State::FunctionDone, out),
                2 => self.end_function(at + CALL_END.len(), State::Content, out),
                // The next call begins without an end of this one.
                _ => self.end_function(at, State::Content, out),
            },
            // Between parameters only blanks are expected; anything else has no place to go.
            Scan::Clear { safe } => {
                self.buffer.drain(..safe);
                false
            }
        }
    }

    fn end_function(&mut self, used: usize, state: State, out: &mut Vec<ParsedEvent>) -> bool {
        self.arguments("}".into(), out);
        self.go(used, state)
    }

    fn parameter_name(&mut self, out: &mut Vec<ParsedEvent>) -> bool {
        match self.name() {
            None => false,
            Some(Err(())) => self.go(0, State::Function),
            Some(Ok(end)) => {
                let key = self.buffer[..end].to_owned();
                let types = property_types(parameters(self.tools.as_ref(), &self.function), &key);
                if !types.only_string() {
                    return self.go(end + 1, State::Value { key, types });
                }
                self.member(&key, "\"", out);
                self.go(end + 1, State::Text { fresh: true })
            }
        }
    }

    /// Begins a member of the arguments.
    fn member(&mut self, key: &str, value: &str, out: &mut Vec<ParsedEvent>) {
        let comma = if std::mem::replace(&mut self.any, true) {
            ", "
        } else {
            ""
        };
        self.arguments(format!("{comma}{}: {value}", Value::from(key)), out);
    }

    fn arguments(&self, delta: String, out: &mut Vec<ParsedEvent>) {
        out.push(ParsedEvent::ToolCallArguments {
            index: self.count - 1,
            delta,
        });
    }

    /// Where a value ends: the bytes before its end tag, and those to drop with the tag.
    fn value_end(&self) -> Scan {
        scan(&self.buffer, &[PARAMETER_END, PARAMETER, FUNCTION_END])
    }

    /// Goes on after a value that ends at `at`; only its own end tag is used up.
    fn after_value(&mut self, at: usize, tag: usize) -> bool {
        self.go(
            at + if tag == 0 { PARAMETER_END.len() } else { 0 },
            State::Function,
        )
    }

    fn value_step(&mut self, out: &mut Vec<ParsedEvent>) -> bool {
        let Scan::Found { at, tag } = self.value_end() else {
            return false;
        };
        self.whole_value(at, out);
        self.after_value(at, tag)
    }

    fn whole_value(&mut self, end: usize, out: &mut Vec<ParsedEvent>) {
        if let State::Value { key, types } = &self.state {
            let text = &self.buffer[..end];
            let text = text.strip_prefix('\n').unwrap_or(text);
            let json = to_json(text.strip_suffix('\n').unwrap_or(text), *types);
            let key = key.clone();
            self.member(&key, &json, out);
        }
    }

    fn text_step(&mut self, fresh: bool, out: &mut Vec<ParsedEvent>) -> bool {
        let mut fresh = fresh;
        if fresh && !self.buffer.is_empty() {
            if self.buffer.starts_with('\n') {
                self.buffer.drain(..1);
            }
            fresh = false;
        }
        match self.value_end() {
            Scan::Found { at, tag } => {
                self.text(at, out);
                self.arguments("\"".into(), out);
                self.after_value(at, tag)
            }
            Scan::Clear { safe } => {
                // A line break at the end may belong to the layout.
                let safe = safe - usize::from(self.buffer[..safe].ends_with('\n'));
                let more = escaped(&self.buffer[..safe]);
                if !more.is_empty() {
                    self.arguments(more, out);
                }
                self.go(safe, State::Text { fresh });
                false
            }
        }
    }

    /// The last part of a string, before `end`.
    fn text(&mut self, end: usize, out: &mut Vec<ParsedEvent>) {
        let text = &self.buffer[..end];
        let more = escaped(text.strip_suffix('\n').unwrap_or(text));
        if !more.is_empty() {
            self.arguments(more, out);
        }
    }

    fn done_step(&mut self) -> bool {
        let rest = self.buffer.trim_start();
        let blank = self.buffer.len() - rest.len();
        if rest.starts_with(CALL_END) {
            return self.go(blank + CALL_END.len(), State::Content);
        }
        if CALL_END.starts_with(rest) {
            return false;
        }
        self.go(0, State::Content)
    }

    /// The text ends inside a value: it is closed with what is there, without the beginning of an end tag.
    fn cut(&mut self, out: &mut Vec<ParsedEvent>) {
        let end = match self.value_end() {
            Scan::Clear { safe } => safe,
            Scan::Found { at, .. } => at,
        };
        match self.state {
            State::Text { .. } => {
                self.text(end, out);
                self.arguments("\"".into(), out);
            }
            _ => self.whole_value(end, out),
        }
        self.arguments("}".into(), out);
    }
}

/// Text as the inside of a JSON string.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

impl ContentParser for Qwen3Coder {
    fn push(&mut self, text: &str, out: &mut Vec<ParsedEvent>) {
        self.buffer.push_str(text);
        while self.step(out) {}
    }

    fn finish(&mut self, out: &mut Vec<ParsedEvent>) {
        while self.step(out) {}
        match &self.state {
            State::Value { .. } | State::Text { .. } => self.cut(out),
            State::Function | State::ParameterName => self.arguments("}".into(), out),
            State::Opened => self.content.text(CALL, out),
            State::FunctionName { tag } => {
                let tag = tag.clone();
                self.content.text(&tag, out);
            }
            State::Content | State::FunctionDone => {}
        }
        if matches!(
            self.state,
            State::Content | State::Opened | State::FunctionName { .. }
        ) {
            let rest = std::mem::take(&mut self.buffer);
            self.content.text(&rest, out);
        }
        self.content.finish(out);
    }
}
