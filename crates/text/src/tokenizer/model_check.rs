//! What the reader of BPE models takes on trust. It panics where that does not hold, so it is checked before.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::TextError;

/// The `model` of a tokenizer.json, as far as it matters here.
#[derive(Deserialize)]
struct Head {
    #[serde(rename = "type")]
    kind: Option<String>,
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    vocab: Longest,
    merges: Option<Vec<MergeBytes>>,
}

/// Checks a model's JSON.
///
/// # Errors
/// - A prefix of subwords: the reader cuts it off each merge without looking whether it is there. No byte-level or
///   SentencePiece vocabulary has one.
/// - A merge that makes a longer token than there is: the reader's buffer is as long as the longest.
pub(super) fn check(text: &str) -> Result<(), TextError> {
    let fault = |reason: String| Err(TextError::tokenizer(format!("tokenizer.json: model: {reason}")));
    let head: Head = match serde_json::from_str(text) {
        Ok(head) => head,
        Err(error) => return fault(error.to_string()),
    };
    if head.kind.as_deref() == Some("WordPiece") {
        return Ok(());
    }
    if let Some(prefix) = head.continuing_subword_prefix.filter(|prefix| !prefix.is_empty()) {
        return fault(format!(
            "continuing_subword_prefix is {prefix:?}; supported: none"
        ));
    }
    let merges = head.merges.unwrap_or_default();
    match merges.iter().position(|merge| merge.0 > head.vocab.0) {
        Some(index) => fault(format!(
            "merge {index} makes a token of {} bytes, but the longest in the vocabulary has {}",
            merges[index].0, head.vocab.0
        )),
        None => Ok(()),
    }
}

/// Bytes of the longest key of a vocabulary; 0 for one that is a list.
#[derive(Default)]
struct Longest(usize);

impl<'de> Deserialize<'de> for Longest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Longest;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a vocabulary")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Longest, A::Error> {
                let mut longest = 0;
                while let Some((key, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                    longest = longest.max(key.len());
                }
                Ok(Longest(longest))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Longest, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Longest(0))
            }
        }
        deserializer.deserialize_any(Keys)
    }
}

/// Bytes of the token that a merge makes: `"a b"` or `["a", "b"]`.
struct MergeBytes(usize);

impl<'de> Deserialize<'de> for MergeBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts;
        impl<'de> Visitor<'de> for Parts {
            type Value = MergeBytes;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a merge")
            }

            fn visit_str<E>(self, text: &str) -> Result<MergeBytes, E> {
                Ok(MergeBytes(text.len().saturating_sub(1)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<MergeBytes, A::Error> {
                let mut bytes = 0;
                while let Some(part) = seq.next_element::<String>()? {
                    bytes += part.len();
                }
                Ok(MergeBytes(bytes))
            }
        }
        deserializer.deserialize_any(Parts)
    }
}
