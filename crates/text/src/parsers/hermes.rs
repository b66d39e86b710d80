//! `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
//!
//! The JSON decides where a call ends, not the closing tag, which may stand in an argument. A call is reported once its name is
//! there and its arguments have proved to be an object: its first bracket, a string that holds an object, `null` or nothing at
//! all. Anything else for arguments is no call and stays content. From the bracket on, arguments are reported as they come.

use super::json_stream::{FaultAt, JsonStream};
use super::tags::{Scan, scan};
use super::{ContentParser, ParsedEvent, call_id};
use crate::parsers::content::ContentOut;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Place within a call.
#[derive(Debug)]
enum State {
    Content,
    /// `{` must come.
    Brace,
    /// A key must come: an object without a name is no call, so that its end may not.
    Key,
    InKey {
        json: JsonStream,
        text: String,
    },
    Colon {
        key: String,
    },
    /// A value begins with the next character.
    Value {
        key: String,
    },
    InValue {
        key: String,
        json: JsonStream,
        text: String,
    },
    /// In an object of arguments whose call has been reported.
    InArguments {
        json: JsonStream,
    },
    /// A comma or the end of the object.
    Next,
    /// After the object: the closing tag should come.
    Tail,
    /// The call is reported but went wrong: everything up to the closing tag is dropped.
    Skip,
}

/// The parser.
pub(super) struct Hermes {
    state: State,
    /// Text that is not yet decided.
    buffer: String,
    /// Text of the call so far, after its opening tag: it becomes content if it is no call.
    raw: String,
    /// The call's name, once it has come.
    name: Option<String>,
    /// Whether the call's start has been reported.
    reported: bool,
    /// Whether its arguments are complete.
    argued: bool,
    /// Arguments that came before the name.
    early: Option<String>,
    count: usize,
    content: ContentOut,
}

impl Hermes {
    pub fn new() -> Self {
        Self {
            state: State::Content,
            buffer: String::new(),
            raw: String::new(),
            name: None,
            reported: false,
            argued: false,
            early: None,
            count: 0,
            content: ContentOut::default(),
        }
    }

    /// Goes on with the buffer; `false` where more text is needed.
    fn step(&mut self, out: &mut Vec<ParsedEvent>) -> bool {
        match &mut self.state {
            State::Content => return self.content_step(out),
            State::Tail => return self.tail_step(out),
            State::Skip => return self.skip_step(),
            State::InKey { json, text } | State::InValue { json, text, .. } => {
                let used = json.push(&self.buffer);
                let done = json.is_done();
                text.push_str(&json.take());
                return self.json_step(used, done, out);
            }
            State::InArguments { json } => {
                let used = json.push(&self.buffer);
                let done = json.is_done();
                let delta = json.take();
                self.arguments(delta, out);
                return self.json_step(used, done, out);
            }
            State::Brace | State::Key | State::Colon { .. } | State::Value { .. } | State::Next => {}
        }
        let Some((at, c)) = self.buffer.char_indices().find(|(_, c)| !c.is_whitespace()) else {
            self.eat(self.buffer.len());
            return false;
        };
        self.eat(at);
        self.punctuation(c, out)
    }

    /// Moves the beginning of the buffer to the call's raw text.
    fn eat(&mut self, bytes: usize) {
        self.raw.extend(self.buffer.drain(..bytes));
    }

    fn content_step(&mut self, out: &mut Vec<ParsedEvent>) -> bool {
        match scan(&self.buffer, &[OPEN]) {
            Scan::Found { at, .. } => {
                self.content.text(&self.buffer[..at], out);
                self.buffer.drain(..at + OPEN.len());
                self.raw.clear();
                (self.name, self.reported, self.argued, self.early) = (None, false, false, None);
                self.state = State::Brace;
                true
            }
            Scan::Clear { safe } => {
                self.content.text(&self.buffer[..safe], out);
                self.buffer.drain(..safe);
                false
            }
        }
    }

    /// Between the values of the object. `c` is the first character of the buffer.
    fn punctuation(&mut self, c: char, out: &mut Vec<ParsedEvent>) -> bool {
        let state = std::mem::replace(&mut self.state, State::Skip);
        self.state = match (state, c) {
            (State::Brace, '{') => {
                self.eat(1);
                State::Key
            }
            (State::Key, '"') => State::InKey {
                json: JsonStream::new(),
                text: String::new(),
            },
            (State::Colon { key }, ':') => {
                self.eat(1);
                State::Value { key }
            }
            (State::Value { key }, c) => {
                if self.name.is_some() && !self.argued && is_arguments(&key) && c == '{' {
                    self.report(out);
                    State::InArguments {
                        json: JsonStream::new(),
                    }
                } else {
                    State::InValue {
                        key,
                        json: JsonStream::new(),
                        text: String::new(),
                    }
                }
            }
            (State::Next, ',') => {
                self.eat(1);
                State::Key
            }
            (State::Next, '}') if self.name.is_some() => {
                self.eat(1);
                self.report(out);
                self.end_arguments(out);
                State::Tail
            }
            _ => return self.fail(out),
        };
        true
    }

    /// After a JSON scanner has had the buffer.
    fn json_step(&mut self, used: Result<usize, FaultAt>, done: bool, out: &mut Vec<ParsedEvent>) -> bool {
        match used {
            Ok(used) => self.eat(used),
            Err(FaultAt(at)) => {
                // What follows is looked for after the fault: a closing tag before it stood in a string.
                self.eat(at);
                return self.fail(out);
            }
        }
        if !done {
            return false;
        }
        match std::mem::replace(&mut self.state, State::Next) {
            State::InKey { text, .. } => match serde_json::from_str(text.trim_start()) {
                Ok(key) => self.state = State::Colon { key },
                Err(_) => return self.fail(out),
            },
            State::InValue { key, text, .. } => return self.value(&key, text.trim_start(), out),
            State::InArguments { .. } => self.argued = true,
            _ => {}
        }
        true
    }

    /// A whole value of the object.
    fn value(&mut self, key: &str, text: &str, out: &mut Vec<ParsedEvent>) -> bool {
        if key == "name" && self.name.is_none() {
            let Ok(name) = serde_json::from_str::<String>(text) else {
                return self.fail(out);
            };
            self.name = Some(name);
            if let Some(arguments) = self.early.take() {
                self.whole_arguments(arguments, out);
            }
        } else if is_arguments(key) && !self.argued && self.early.is_none() {
            let Some(arguments) = as_arguments(text) else {
                return self.fail(out);
            };
            if self.name.is_some() {
                self.whole_arguments(arguments, out);
            } else {
                self.early = Some(arguments);
            }
        }
        true
    }

    /// The start of the call, unless it has been reported.
    fn report(&mut self, out: &mut Vec<ParsedEvent>) {
        if self.reported {
            return;
        }
        self.reported = true;
        self.content.call();
        out.push(ParsedEvent::ToolCallStart {
            index: self.count,
            id: call_id(),
            name: self.name.clone().unwrap_or_default(),
        });
        self.count += 1;
    }

    fn whole_arguments(&mut self, arguments: String, out: &mut Vec<ParsedEvent>) {
        self.report(out);
        self.arguments(arguments, out);
        self.argued = true;
    }

    fn arguments(&self, delta: String, out: &mut Vec<ParsedEvent>) {
        if !delta.is_empty() {
            out.push(ParsedEvent::ToolCallArguments {
                index: self.count - 1,
                delta,
            });
        }
    }

    fn end_arguments(&mut self, out: &mut Vec<ParsedEvent>) {
        if !self.argued {
            self.arguments("{}".into(), out);
            self.argued = true;
        }
    }

    /// What came is no call, or goes wrong within one.
    fn fail(&mut self, out: &mut Vec<ParsedEvent>) -> bool {
        let state = std::mem::replace(&mut self.state, State::Skip);
        if self.reported {
            if let State::InArguments { mut json } = state {
                self.arguments(json.close(), out);
                self.argued = true;
            }
            self.end_arguments(out);
        } else {
            // The tag is content; what followed is read again, as a call may begin in it.
            self.content.text(OPEN, out);
            self.buffer.insert_str(0, &std::mem::take(&mut self.raw));
            self.state = State::Content;
        }
        true
    }

    fn tail_step(&mut self, out: &mut Vec<ParsedEvent>) -> bool {
        let rest = self.buffer.trim_start();
        if rest.starts_with(CLOSE) {
            let used = self.buffer.len() - rest.len() + CLOSE.len();
            self.buffer.drain(..used);
        } else if CLOSE.starts_with(rest) {
            return false;
        }
        // Without the tag the call is whole all the same.
        let _ = &out;
        self.state = State::Content;
        true
    }

    fn skip_step(&mut self) -> bool {
        match scan(&self.buffer, &[CLOSE]) {
            Scan::Found { at, .. } => {
                self.buffer.drain(..at + CLOSE.len());
                self.state = State::Content;
                true
            }
            Scan::Clear { safe } => {
                self.buffer.drain(..safe);
                false
            }
        }
    }
}

fn is_arguments(key: &str) -> bool {
    matches!(key, "arguments" | "parameters")
}

/// Arguments as an object's text: some models write them as a string of JSON, or `null`. Nothing where they are no object.
fn as_arguments(text: &str) -> Option<String> {
    use serde_json::Value;
    match serde_json::from_str(text).ok()? {
        Value::Null => Some("{}".into()),
        Value::Object(_) => Some(text.to_owned()),
        Value::String(inner) => {
            let value: Value = serde_json::from_str(&inner).ok()?;
            value.is_object().then_some(inner)
        }
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
    }
}

impl ContentParser for Hermes {
    fn push(&mut self, text: &str, out: &mut Vec<ParsedEvent>) {
        self.buffer.push_str(text);
        while self.step(out) {}
    }

    fn finish(&mut self, out: &mut Vec<ParsedEvent>) {
        loop {
            while self.step(out) {}
            match self.state {
                State::Content | State::Tail | State::Skip => break,
                // A call that was cut off: closed if its name is known, content if not, or if its arguments are no object yet.
                _ => {
                    let undecided = matches!(&self.state, State::InValue { key, .. } if is_arguments(key));
                    if self.name.is_some() && !undecided {
                        self.report(out);
                    }
                    self.fail(out);
                }
            }
            if matches!(self.state, State::Skip) {
                break;
            }
        }
        if matches!(self.state, State::Content) {
            let rest = std::mem::take(&mut self.buffer);
            self.content.text(&rest, out);
        }
        self.content.finish(out);
    }
}
