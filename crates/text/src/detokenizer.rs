//! Tokens to text, one at a time, in whole characters.

use std::sync::Arc;

use crate::Tokenizer;

/// Joins the bytes of tokens and gives out only whole characters: a character may be spread over several tokens.
///
/// Bytes that cannot become a character give one U+FFFD for each maximal wrong part (the Unicode Standard, section 3.9), the
/// same as [`String::from_utf8_lossy`] on all bytes at once.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    /// An unfinished character: at most three bytes.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// A new stream. With `skip_special`, control tokens give no text.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        Self {
            tokenizer,
            skip_special,
            pending: Vec::new(),
        }
    }

    /// Text that is complete with this token; often empty within a character. Ids outside the vocabulary give none.
    pub fn push(&mut self, token: u32) -> String {
        if self.skip_special && self.tokenizer.is_special(token) {
            return String::new();
        }
        let Some(bytes) = self.tokenizer.token_bytes(token) else {
            return String::new();
        };
        push_bytes(&mut self.pending, bytes)
    }

    /// The end: an unfinished character becomes one U+FFFD.
    pub fn finish(&mut self) -> String {
        if std::mem::take(&mut self.pending).is_empty() {
            String::new()
        } else {
            "\u{fffd}".to_owned()
        }
    }
}

/// Appends bytes to an unfinished character and takes out what is decided.
pub(crate) fn push_bytes(pending: &mut Vec<u8>, bytes: &[u8]) -> String {
    pending.extend_from_slice(bytes);
    let mut out = String::new();
    let mut at = 0;
    while at < pending.len() {
        match std::str::from_utf8(&pending[at..]) {
            Ok(text) => {
                out.push_str(text);
                at = pending.len();
            }
            Err(error) => {
                let good = at + error.valid_up_to();
                out.push_str(&String::from_utf8_lossy(&pending[at..good]));
                at = good;
                match error.error_len() {
                    Some(bad) => {
                        out.push('\u{fffd}');
                        at += bad;
                    }
                    None => break,
                }
            }
        }
    }
    pending.drain(..at);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(pieces: &[&[u8]]) -> (Vec<String>, bool) {
        let mut pending = Vec::new();
        let parts = pieces.iter().map(|p| push_bytes(&mut pending, p)).collect();
        (parts, !pending.is_empty())
    }

    #[test]
    fn a_character_over_several_tokens() {
        let (parts, open) = run(&[b"\xF0\x9F", b"\x98", b"\xB8", b"!"]);
        assert_eq!(parts, ["", "", "\u{1f638}", "!"]);
        assert!(!open);
        let (parts, open) = run(&[b"\xF0\x9F"]);
        assert_eq!((parts, open), (vec![String::new()], true));
        let (parts, _) = run(&[b"a\xF0\x9F", b"b"]);
        assert_eq!(parts, ["a", "\u{fffd}b"]);
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(bytes in proptest::collection::vec(prop_oneof![Just(0x61u8), Just(0xF0), Just(0x9F), Just(0x98), Just(0xB8), Just(0xC3), any::<u8>()], 0..24), cut in 0usize..25) {
            let cut = cut.min(bytes.len());
            let mut pending = Vec::new();
            let mut got = push_bytes(&mut pending, &bytes[..cut]);
            got += &push_bytes(&mut pending, &bytes[cut..]);
            if !pending.is_empty() {
                prop_assert!(pending.len() < 4);
                got.push('\u{fffd}');
            }
            prop_assert_eq!(got, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
