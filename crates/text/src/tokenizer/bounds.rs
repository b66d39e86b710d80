//! What can be said of a text's tokens before it is encoded, so that a text that is far too long costs little.

use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::processors::byte_level::ByteLevel;
use tokenizers::tokenizer::SplitDelimiterBehavior;

use super::bytes::{Spelling, TokenBytes};
use super::pre;

/// Bytes that are encoded in one go where a text can be cut: the library holds some 90 bytes for each.
pub(super) const CHUNK_BYTES: usize = 32 << 10;

/// Text may shrink by this factor when it is brought to normal form C (three Hangul letters become one).
const NFC_SHRINKS: usize = 3;

/// What holds for each text of a vocabulary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Most bytes of text that a token can stand for; `None` where there is no such number.
    pub token_bytes_max: Option<usize>,
    /// Whether parts that are cut at [`cut`] have the tokens of the whole.
    pub cuts: bool,
}

impl Bounds {
    /// For byte-level vocabularies with these parts.
    pub fn byte_level(
        bytes: &TokenBytes,
        normalizer: Option<&NormalizerWrapper>,
        pre_tokenizer: Option<&PreTokenizerWrapper>,
    ) -> Self {
        let shrinks = match normalizer {
            None => Some(1),
            Some(NormalizerWrapper::NFC(_)) => Some(NFC_SHRINKS),
            Some(_) => None,
        };
        Self {
            token_bytes_max: shrinks.and_then(|factor| Some(bytes.longest_if_complete()? * factor)),
            cuts: shrinks.is_some() && pre_tokenizer.is_some_and(cuts),
        }
    }

    /// For SentencePiece vocabularies, whose pieces may reach over blanks.
    pub fn blanks(bytes: &TokenBytes) -> Self {
        Self {
            token_bytes_max: bytes.longest_if_complete(),
            cuts: false,
        }
    }

    /// For a tokenizer.json.
    pub fn hub(
        spelling: Spelling,
        bytes: &TokenBytes,
        normalizer: Option<&NormalizerWrapper>,
        pre_tokenizer: Option<&PreTokenizerWrapper>,
    ) -> Self {
        match spelling {
            Spelling::ByteLevel => Self::byte_level(bytes, normalizer, pre_tokenizer),
            // Normalizers of this kind may do anything; those without one are rare.
            Spelling::Blanks => Self::default(),
        }
    }

    /// Fewest tokens of so many bytes.
    pub fn tokens_min(self, text_bytes: usize) -> usize {
        self.token_bytes_max
            .map_or(0, |most| text_bytes.div_ceil(most.max(1)))
    }
}

/// Whether a pre-tokenizer cuts at all places of [`cut`] in any case: each of its expressions is one of those in
/// [`pre`] for which that was looked through, and one at least leaves no text out.
fn cuts(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    let parts = match pre_tokenizer {
        PreTokenizerWrapper::Sequence(list) => list.as_ref(),
        one => std::slice::from_ref(one),
    };
    let mut covered = false;
    for part in parts {
        match part {
            PreTokenizerWrapper::Split(split) => {
                let SplitPattern::Regex(regex) = &split.pattern else {
                    return false;
                };
                let isolated = matches!(split.behavior, SplitDelimiterBehavior::Isolated);
                if !isolated || split.invert || !pre::cuts_between_words(regex) {
                    return false;
                }
                covered |= pre::covers(regex);
            }
            PreTokenizerWrapper::ByteLevel(ByteLevel {
                add_prefix_space: false,
                use_regex,
                ..
            }) => covered |= use_regex,
            _ => return false,
        }
    }
    covered
}

/// The first place at or after `from` where a text can be cut: before a blank between a letter or digit and a letter, or
/// between a letter and a mark of punctuation.
///
/// No expression of [`pre`] matches across such a place, or looks across it: a blank only begins a match, or stands in a run
/// of blanks; nothing but an apostrophe or a combining mark follows a letter in a match. Normal form C joins nothing there.
pub(super) fn cut(text: &str, from: usize) -> Option<usize> {
    let start = (from..text.len()).find(|&at| text.is_char_boundary(at))?;
    let mut chars = text[start..].char_indices().peekable();
    let mut before = text[..start].chars().next_back();
    while let Some((at, c)) = chars.next() {
        let after = chars.peek().map(|(_, c)| *c);
        let word = c == ' '
            && before.is_some_and(|b| b.is_ascii_alphanumeric())
            && after.is_some_and(|a| a.is_ascii_alphabetic());
        let mark = matches!(
            c,
            '.' | ',' | ':' | ';' | '!' | '?' | ')' | '\u{3001}' | '\u{3002}' | '\u{ff0c}'
        ) && before.is_some_and(is_letter);
        if word || mark {
            return Some(start + at);
        }
        before = Some(c);
    }
    None
}

/// Letters that are no marks, in scripts where that is plain to see.
fn is_letter(c: char) -> bool {
    c.is_ascii_alphabetic()
        || matches!(c, '\u{4e00}'..='\u{9fff}' | '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fa}')
}
