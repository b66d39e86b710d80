//! PTX text to tokens. A word keeps its dots (`ld.global.u32`, `%tid.x`), so an instruction is one token.

use crate::PtxError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Starts with a letter, `_`, `$`, `%` or `.`.
    Word,
    /// Starts with a digit.
    Number,
    Text,
    Punct(u8),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Token<'t> {
    pub kind: Kind,
    pub text: &'t str,
    pub line: u32,
}

pub(crate) fn lex(text: &str) -> Result<Vec<Token<'_>>, PtxError> {
    let bytes = text.as_bytes();
    let (mut at, mut line) = (0, 1_u32);
    let mut tokens = Vec::new();
    while at < bytes.len() {
        let start = at;
        let kind = match bytes[at] {
            b'\n' => {
                line = line.saturating_add(1);
                at += 1;
                continue;
            }
            b' ' | b'\t' | b'\r' | 0x0c => {
                at += 1;
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = find(bytes, at, b"\n").unwrap_or(bytes.len());
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = find(bytes, at + 2, b"*/").ok_or_else(|| syntax(line, "a comment has no end"))?;
                line = line.saturating_add(bytes[at..end].iter().filter(|b| **b == b'\n').count() as u32);
                at = end + 2;
                continue;
            }
            b'"' => {
                let end = find(bytes, at + 1, b"\"").ok_or_else(|| syntax(line, "a string has no end"))?;
                at = end + 1;
                Kind::Text
            }
            byte if byte.is_ascii_digit() => {
                at = word_end(bytes, at);
                Kind::Number
            }
            byte if is_word(byte) => {
                at = word_end(bytes, at);
                Kind::Word
            }
            byte if byte.is_ascii_graphic() => {
                at += 1;
                Kind::Punct(byte)
            }
            byte => return Err(syntax(line, &format!("byte 0x{byte:02x} is not PTX"))),
        };
        tokens.push(Token {
            kind,
            text: &text[start..at],
            line,
        });
    }
    Ok(tokens)
}

fn syntax(line: u32, what: &str) -> PtxError {
    PtxError::Syntax {
        line,
        what: what.to_owned(),
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// The end of the word at `at`. `::` inside a word belongs to it (`.L1::no_allocate`), a single colon ends a label.
fn word_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        match bytes.get(at) {
            Some(byte) if is_word(*byte) => at += 1,
            Some(b':')
                if bytes.get(at + 1) == Some(&b':')
                    && bytes.get(at + 2).is_some_and(u8::is_ascii_alphanumeric) =>
            {
                at += 2;
            }
            _ => return at,
        }
    }
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    (from..bytes.len()).find(|at| bytes[*at..].starts_with(what))
}
