//! `<think>` ... `</think>` before the answer.

use super::tags::{Scan, scan};

pub(super) const OPEN: &str = "<think>";
pub(super) const CLOSE: &str = "</think>";

/// Text of a step, told apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Split {
    pub reasoning: String,
    pub content: String,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum State {
    /// Nothing but blanks so far. The tag may come now; where the prompt has opened reasoning it may be repeated.
    Start { inside: bool },
    /// In reasoning; `begun` once something other than line breaks has come.
    Inside { begun: bool },
    /// After reasoning; line breaks before the answer are dropped.
    After,
    /// In the answer.
    Content,
}

/// Splits reasoning from content. Only the first block counts: a tag inside the answer is content.
pub(super) struct Reasoning {
    state: State,
    held: String,
}

impl Reasoning {
    pub fn new(starts_inside: bool) -> Self {
        Self {
            state: State::Start {
                inside: starts_inside,
            },
            held: String::new(),
        }
    }

    pub fn push(&mut self, text: &str) -> Split {
        let mut out = Split::default();
        if self.state == State::Content {
            out.content.push_str(text);
            return out;
        }
        self.held.push_str(text);
        while self.step(&mut out) {}
        out
    }

    pub fn finish(&mut self) -> Split {
        let mut out = Split::default();
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Start { inside: false } | State::Content => out.content = held,
            State::Start { inside: true } => out.reasoning = held.trim_matches(['\n', '\r']).to_owned(),
            State::Inside { .. } => out.reasoning = held.trim_end_matches(['\n', '\r']).to_owned(),
            State::After => {}
        }
        self.state = State::Content;
        out
    }

    /// Goes on with what is held; `false` where more text is needed.
    fn step(&mut self, out: &mut Split) -> bool {
        match self.state {
            State::Start { inside } => self.start(inside),
            State::Inside { begun } => self.inside(begun, out),
            State::After => {
                let keep = self.held.trim_start_matches(['\n', '\r']);
                if keep.is_empty() {
                    self.held.clear();
                    return false;
                }
                out.content.push_str(keep);
                self.held.clear();
                self.state = State::Content;
                false
            }
            State::Content => {
                out.content.push_str(&std::mem::take(&mut self.held));
                false
            }
        }
    }

    fn start(&mut self, inside: bool) -> bool {
        let blank = self.held.len() - self.held.trim_start().len();
        let rest = &self.held[blank..];
        if rest.starts_with(OPEN) {
            self.held.drain(..blank + OPEN.len());
            self.state = State::Inside { begun: false };
            return true;
        }
        if OPEN.starts_with(rest) {
            return false; // blanks only, or the beginning of the tag
        }
        self.state = if inside {
            State::Inside { begun: false }
        } else {
            State::Content
        };
        true
    }

    fn inside(&mut self, begun: bool, out: &mut Split) -> bool {
        let mut begun = begun;
        if !begun {
            let breaks = self.held.len() - self.held.trim_start_matches(['\n', '\r']).len();
            self.held.drain(..breaks);
            begun = !self.held.is_empty();
        }
        let found = scan(&self.held, &[CLOSE]);
        let (until, close) = match found {
            Scan::Found { at, .. } => (at, true),
            Scan::Clear { safe } => (safe, false),
        };
        // Line breaks at the end may turn out to be the outer ones.
        let safe = self.held[..until].trim_end_matches(['\n', '\r']).len();
        out.reasoning.push_str(&self.held[..safe]);
        if close {
            self.held.drain(..until + CLOSE.len());
            self.state = State::After;
        } else {
            self.held.drain(..safe);
            self.state = State::Inside { begun };
        }
        close
    }
}
