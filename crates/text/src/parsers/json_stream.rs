//! One JSON value that comes in pieces: finds its end, and at any moment knows what can be passed on so that the value can
//! still be closed.

/// Depth that readers of the value will accept.
const DEPTH_MAX: usize = 100;

/// A text is no JSON.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
struct NotJson;

/// The byte of a pushed text at which it ceases to be JSON.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) struct FaultAt(pub usize);

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum State {
    /// A value must come.
    Value,
    /// After `[`: a value or `]`.
    FirstItem,
    /// After `{`: a key or `}`.
    FirstKey,
    /// After a comma in an object.
    Key,
    Colon,
    /// After a value: a comma or the end of what it is in.
    Next,
    /// In a string; `key` tells which.
    Text {
        key: bool,
    },
    /// After a backslash.
    Escape {
        key: bool,
    },
    /// In `\uXXXX`: so many digits have come.
    Unicode {
        key: bool,
        digits: u8,
        value: u16,
    },
    /// In a number or a word.
    Bare,
    Done,
}

/// The scanner.
#[derive(Debug)]
pub(super) struct JsonStream {
    state: State,
    /// Closing brackets of what is open.
    open: Vec<char>,
    /// May be passed on.
    ready: String,
    /// Waits until it can no longer be cut badly: keys without values, half escapes, numbers.
    held: String,
    /// A high surrogate escape that waits for its partner.
    surrogate: Option<u16>,
    /// Whether anything has been passed on.
    begun: bool,
}

impl JsonStream {
    pub fn new() -> Self {
        Self {
            state: State::Value,
            open: Vec::new(),
            ready: String::new(),
            held: String::new(),
            surrogate: None,
            begun: false,
        }
    }

    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes text up to the end of the value; tells how many bytes. A fault is told with its place, so that the text before it
    /// counts as taken however the text was cut.
    pub fn push(&mut self, text: &str) -> Result<usize, FaultAt> {
        for (at, c) in text.char_indices() {
            if self.state == State::Bare && !is_bare(c) {
                self.end_bare().map_err(|NotJson| FaultAt(at))?;
            }
            if self.state == State::Done {
                return Ok(at);
            }
            self.char(c).map_err(|NotJson| FaultAt(at))?;
        }
        Ok(text.len())
    }

    /// What may be passed on since the last call.
    pub fn take(&mut self) -> String {
        self.begun |= !self.ready.is_empty();
        std::mem::take(&mut self.ready)
    }

    /// What closes the value if the text ends here, after everything that [`JsonStream::take`] gave. A value that has not
    /// begun becomes an empty object.
    pub fn close(&mut self) -> String {
        let mut out = self.take();
        if !self.begun && out.is_empty() {
            self.state = State::Done;
            return "{}".into();
        }
        if matches!(
            self.state,
            State::Text { key: false } | State::Escape { key: false } | State::Unicode { key: false, .. }
        ) {
            out.push('"');
        }
        out.extend(self.open.drain(..).rev());
        self.state = State::Done;
        out
    }

    fn commit(&mut self) {
        self.ready.push_str(&self.held);
        self.held.clear();
    }

    fn char(&mut self, c: char) -> Result<(), NotJson> {
        match self.state {
            State::Text { key } => self.text(c, key),
            State::Escape { key } => self.escape(c, key)?,
            State::Unicode { key, digits, value } => self.unicode(c, key, digits, value)?,
            State::Bare => self.held.push(c),
            _ if matches!(c, ' ' | '\t' | '\n' | '\r') => self.held.push(c),
            State::Value => self.value(c)?,
            State::FirstItem if c == ']' => self.close_one(c)?,
            State::FirstItem => self.value(c)?,
            State::FirstKey if c == '}' => self.close_one(c)?,
            State::FirstKey | State::Key if c == '"' => {
                self.held.push(c);
                self.state = State::Text { key: true };
            }
            State::Colon if c == ':' => {
                self.held.push(c);
                self.state = State::Value;
            }
            State::Next => match (c, self.open.last()) {
                (',', Some(close)) => {
                    self.held.push(c);
                    self.state = if *close == '}' { State::Key } else { State::Value };
                }
                (close, Some(want)) if close == *want => self.close_one(c)?,
                _ => return Err(NotJson),
            },
            State::FirstKey | State::Key | State::Colon | State::Done => return Err(NotJson),
        }
        Ok(())
    }

    fn value(&mut self, c: char) -> Result<(), NotJson> {
        self.held.push(c);
        match c {
            '{' | '[' => {
                if self.open.len() >= DEPTH_MAX {
                    return Err(NotJson);
                }
                self.open.push(if c == '{' { '}' } else { ']' });
                self.state = if c == '{' {
                    State::FirstKey
                } else {
                    State::FirstItem
                };
                self.commit();
            }
            '"' => {
                self.state = State::Text { key: false };
                self.commit();
            }
            c if is_bare(c) => self.state = State::Bare,
            _ => return Err(NotJson),
        }
        Ok(())
    }

    fn close_one(&mut self, c: char) -> Result<(), NotJson> {
        if self.open.pop() != Some(c) {
            return Err(NotJson);
        }
        self.held.push(c);
        self.end_value();
        Ok(())
    }

    fn end_value(&mut self) {
        self.commit();
        self.state = if self.open.is_empty() {
            State::Done
        } else {
            State::Next
        };
    }

    fn end_bare(&mut self) -> Result<(), NotJson> {
        let word = self.held.trim_start_matches([' ', '\t', '\n', '\r']);
        // The key and colon of an object's member are held as well.
        let word = word.rsplit(|c: char| !is_bare(c)).next().unwrap_or("");
        match serde_json::from_str::<serde_json::Value>(word) {
            Ok(_) => {
                self.end_value();
                Ok(())
            }
            Err(_) => Err(NotJson),
        }
    }

    fn text(&mut self, c: char, key: bool) {
        if c != '\\' {
            self.end_surrogate();
        }
        match c {
            '"' => {
                self.held.push(c);
                if key {
                    self.state = State::Colon;
                } else {
                    self.end_value();
                }
            }
            '\\' => {
                self.state = State::Escape { key };
            }
            // Models write raw line breaks and tabs in strings, which JSON does not allow.
            c if (c as u32) < 0x20 => self.held.push_str(&format!("\\u{:04x}", c as u32)),
            c => self.held.push(c),
        }
        if matches!(self.state, State::Text { key: false }) {
            self.commit();
        }
    }

    fn escape(&mut self, c: char, key: bool) -> Result<(), NotJson> {
        match c {
            'u' => {
                self.state = State::Unicode {
                    key,
                    digits: 0,
                    value: 0,
                }
            }
            '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => {
                self.end_surrogate();
                self.held.extend(['\\', c]);
                self.end_escape(key);
            }
            _ => return Err(NotJson),
        }
        Ok(())
    }

    fn unicode(&mut self, c: char, key: bool, digits: u8, value: u16) -> Result<(), NotJson> {
        let digit = c.to_digit(16).ok_or(NotJson)? as u16;
        let value = value << 4 | digit;
        if digits < 3 {
            self.state = State::Unicode {
                key,
                digits: digits + 1,
                value,
            };
            return Ok(());
        }
        match (self.surrogate.take(), value) {
            (Some(high), 0xDC00..=0xDFFF) => self.held.push_str(&format!("\\u{high:04x}\\u{value:04x}")),
            (before, value) => {
                if before.is_some() {
                    self.held.push_str("\\ufffd");
                }
                match value {
                    0xD800..=0xDBFF => self.surrogate = Some(value),
                    0xDC00..=0xDFFF => self.held.push_str("\\ufffd"),
                    _ => self.held.push_str(&format!("\\u{value:04x}")),
                }
            }
        }
        self.end_escape(key);
        Ok(())
    }

    /// A surrogate without its partner is no character.
    fn end_surrogate(&mut self) {
        if self.surrogate.take().is_some() {
            self.held.push_str("\\ufffd");
        }
    }

    fn end_escape(&mut self, key: bool) {
        self.state = State::Text { key };
        if !key {
            self.commit();
        }
    }
}

fn is_bare(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ends_where_the_value_ends() {
        type Outcome = Result<(usize, bool), FaultAt>;
        let cases: [(&str, Outcome); 20] = [
            (r#"{"a": [1, 2.5e3, "x\"}"], "b": {}} tail"#, Ok((34, true))),
            (r#""x" y"#, Ok((3, true))),
            ("12,", Ok((2, true))),
            ("12", Ok((2, false))),
            ("tru ", Err(FaultAt(3))),
            ("01 ", Err(FaultAt(2))),
            ("{'a': 1}", Err(FaultAt(1))),
            ("[1,]", Err(FaultAt(3))),
            ("{,}", Err(FaultAt(1))),
            (r#"{"a" 1}"#, Err(FaultAt(5))),
            (r#"{"a": 1 "b": 2}"#, Err(FaultAt(8))),
            ("[1}", Err(FaultAt(2))),
            ("[}", Err(FaultAt(1))),
            (r#""\x""#, Err(FaultAt(2))),
            (r#""\u12g4""#, Err(FaultAt(5))),
            ("[]", Ok((2, true))),
            ("  {}x", Ok((4, true))),
            ("}", Err(FaultAt(0))),
            ("{\"a\":}", Err(FaultAt(5))),
            ("{\"a\": 5}", Ok((8, true))),
        ];
        for (text, want) in cases {
            let mut stream = JsonStream::new();
            let got = stream.push(text).map(|used| (used, stream.is_done()));
            assert_eq!(got, want, "{text}");
        }
        assert_eq!(
            JsonStream::new().push(&"[".repeat(DEPTH_MAX + 1)),
            Err(FaultAt(DEPTH_MAX))
        );
    }

    #[test]
    fn closes_anywhere() {
        let text = r#"{"a\u00e9": [1, -2.5e3, true, null, "x\"\\\u00e9\ud83d\ude38\ud83d z"], "b": {"c": {}}, "d": ""}"#;
        let mut last = 0;
        for end in (0..=text.len()).filter(|&e| text.is_char_boundary(e)) {
            let mut stream = JsonStream::new();
            assert_eq!(stream.push(&text[..end]), Ok(end));
            let mut out = stream.take();
            let begun = out.len();
            out += &stream.close();
            assert!(
                serde_json::from_str::<serde_json::Value>(&out).is_ok(),
                "{end}: {out}"
            );
            assert!(begun >= last, "what was passed on stays");
            last = begun;
        }
    }

    #[test]
    fn repairs() {
        let mut stream = JsonStream::new();
        assert!(stream.push("[\"a\nb\t\", \"\\ud83dx\", \"\\ude38\"]").is_ok());
        assert_eq!(stream.take(), r#"["a\u000ab\u0009", "\ufffdx", "\ufffd"]"#);
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(text in r#"[\[\]{}",: \\u0-9a-cdtrue-]{0,24}"#, cut in 0usize..25) {
            let cut = cut.min(text.len());
            let run = |pieces: &[&str]| {
                let mut stream = JsonStream::new();
                let (mut out, mut used) = (String::new(), 0);
                for piece in pieces {
                    let took = stream.push(piece).map_err(|FaultAt(at)| FaultAt(used + at))?;
                    used += took;
                    out += &stream.take();
                    if took < piece.len() {
                        break;
                    }
                }
                out += &stream.close();
                Ok::<_, FaultAt>((out, used))
            };
            let whole = run(&[&text]);
            if let Ok((out, _)) = &whole {
                prop_assert!(serde_json::from_str::<serde_json::Value>(out).is_ok(), "{out}");
            }
            prop_assert_eq!(run(&[&text[..cut], &text[cut..]]), whole);
        }
    }
}
