//! The bytes of every token, in one allocation.

use crate::TextError;

/// Bytes by id.
#[derive(Debug, Clone, Default)]
pub(super) struct TokenBytes {
    data: Vec<u8>,
    /// `ends[id]` is one past the last byte of token `id`.
    ends: Vec<u32>,
}

impl TokenBytes {
    pub fn new<B: AsRef<[u8]>>(tokens: impl IntoIterator<Item = B>) -> Result<Self, TextError> {
        let mut all = Self::default();
        for token in tokens {
            all.data.extend_from_slice(token.as_ref());
            let end = u32::try_from(all.data.len())
                .map_err(|_| TextError::tokenizer("the vocabulary has more than 4 GiB of text"))?;
            all.ends.push(end);
        }
        Ok(all)
    }

    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)? as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        Some(&self.data[start..end])
    }

    /// Bytes of the longest token, where each single byte is a token, so that no text is left out or taken as one unknown.
    pub fn longest_if_complete(&self) -> Option<usize> {
        let (mut singles, mut longest) = ([false; 256], 0);
        for id in 0..self.ends.len() as u32 {
            let bytes = self.get(id)?;
            longest = longest.max(bytes.len());
            if let [byte] = bytes {
                singles[*byte as usize] = true;
            }
        }
        // These bytes are in no UTF-8, and vocabularies leave them out.
        let never = |byte: usize| matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff);
        let complete = (0..256).all(|byte| singles[byte] || never(byte));
        complete.then_some(longest)
    }
}

/// How a vocabulary spells bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// One printable character for each byte (GPT-2's table).
    ByteLevel,
    /// UTF-8 with U+2581 for a blank; a byte outside the vocabulary is `<0xE2>`.
    Blanks,
}

impl Spelling {
    /// The bytes that a vocabulary entry spells.
    pub fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            Spelling::ByteLevel => {
                let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
                // An entry outside the table can only be matched as a whole: it spells itself.
                bytes.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Spelling::Blanks => match byte_token(token) {
                Some(byte) => vec![byte],
                None => token.replace('\u{2581}', " ").into_bytes(),
            },
        }
    }
}

/// The byte of a name such as `<0x0A>`.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2)
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// Whether GPT-2's table shows a byte as itself.
const fn shows_itself(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The bytes that do not show themselves, in order: the one at place `i` is shown as U+0100 + `i`.
const HIDDEN: [u8; 68] = {
    let mut hidden = [0; 68];
    let (mut byte, mut at) = (0, 0);
    while byte < 256 {
        if !shows_itself(byte as u8) {
            hidden[at] = byte as u8;
            at += 1;
        }
        byte += 1;
    }
    hidden
};

/// The byte of a character of GPT-2's table: printable Latin-1 stands for itself, the 68 others follow from U+0100 in order.
fn byte_of(c: char) -> Option<u8> {
    match c as u32 {
        code @ 0..256 => Some(code as u8).filter(|&b| shows_itself(b)),
        code => HIDDEN.get(code as usize - 256).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_covers_each_byte_once() {
        let mut seen = [false; 256];
        for code in 0..0x200u32 {
            if let Some(byte) = char::from_u32(code).and_then(byte_of) {
                assert!(
                    !std::mem::replace(&mut seen[byte as usize], true),
                    "{byte:#x} twice"
                );
            }
        }
        assert!(seen.iter().all(|&s| s));
        for (token, want) in [
            ("\u{120}a", &b" a"[..]),
            ("\u{10a}", b"\n"),
            ("\u{f0}\u{141}", b"\xf0\x9f"),
            ("\u{4e2d}", "\u{4e2d}".as_bytes()),
        ] {
            assert_eq!(Spelling::ByteLevel.bytes(token), want, "{token:?}");
        }
        for (token, want) in [
            ("\u{2581}a", &b" a"[..]),
            ("<0x0A>", b"\n"),
            ("<0xFF>", b"\xff"),
            ("<0x0>", b"<0x0>"),
        ] {
            assert_eq!(Spelling::Blanks.bytes(token), want, "{token:?}");
        }
    }
}
