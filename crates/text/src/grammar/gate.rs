//! A constraint that waits for the end of reasoning.

use llguidance::toktrie::TokTrie;

/// Watches for a tag. Until it has come everything but an end token is allowed; line breaks right after it too.
pub(super) struct Gate {
    tag: Vec<u8>,
    /// The last bytes of the text, at most as many as the tag has.
    tail: Vec<u8>,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    Closed,
    /// The tag has come; so many line-break tokens may still come.
    LineBreaks(u8),
    Open,
}

impl Gate {
    pub fn new(tag: &str) -> Self {
        Self {
            tag: tag.as_bytes().to_vec(),
            tail: Vec::new(),
            state: State::Closed,
        }
    }

    /// Whether the constraint holds.
    pub fn is_open(&self) -> bool {
        self.state != State::Closed
    }

    /// Takes a token unless it is the constraint's to take.
    pub fn takes(&mut self, trie: &TokTrie, token: u32) -> bool {
        let bytes = text(trie, token);
        match self.state {
            State::Open => false,
            State::LineBreaks(left) => {
                let takes = left > 0 && is_line_break(bytes);
                self.state = if takes {
                    State::LineBreaks(left - 1)
                } else {
                    State::Open
                };
                takes
            }
            State::Closed => {
                self.tail.extend_from_slice(bytes);
                if self.tail.windows(self.tag.len()).any(|w| w == self.tag) {
                    self.state = State::LineBreaks(2);
                }
                let surplus = self.tail.len().saturating_sub(self.tag.len());
                self.tail.drain(..surplus);
                true
            }
        }
    }

    /// Everything that has a name, but end tokens: reasoning must be closed first.
    pub fn closed_mask(named: &[u32], eos_ids: &[u32], allowed: &mut [u32]) {
        for (to, from) in allowed.iter_mut().zip(named) {
            *to |= from;
        }
        for &id in eos_ids {
            if let Some(word) = allowed.get_mut(id as usize / 32) {
                *word &= !(1 << (id % 32));
            }
        }
    }

    /// Adds line breaks while they may come.
    pub fn add_line_breaks(&self, trie: &TokTrie, allowed: &mut [u32]) {
        if !matches!(self.state, State::LineBreaks(1..)) {
            return;
        }
        for breaks in [&b"\n"[..], b"\n\n"] {
            if let Some(id) = trie.token_id_at_bytes(breaks)
                && let Some(word) = allowed.get_mut(id as usize / 32)
            {
                *word |= 1 << (id % 32);
            }
        }
    }
}

/// A token's bytes; a control token's name.
fn text(trie: &TokTrie, token: u32) -> &[u8] {
    if token as usize >= trie.vocab_size() {
        return &[];
    }
    let bytes = trie.token(token);
    bytes
        .strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER])
        .unwrap_or(bytes)
}

fn is_line_break(bytes: &[u8]) -> bool {
    matches!(bytes, b"\n" | b"\n\n")
}
