//! Text to token ids and back.
//!
//! Both sources, tokenizer.json and GGUF metadata, end in the same structure: markers (control and added tokens, matched by
//! [`crate::markers`] before anything else), a pipeline for the text between them, and the bytes of every token.

mod bounds;
mod bytes;
mod gguf;
mod hub;
mod model_check;
mod pipeline;
mod pre;
mod spm;

use crate::markers::{Found, Markers};
use crate::{Prompt, TextError};
use bounds::{Bounds, CHUNK_BYTES};
use bytes::TokenBytes;
pub use gguf::GgufVocab;
pub use hub::HubFiles;
use pipeline::Pipeline;
pub use pre::known_pre_tokenizers;

/// What to do with text that spells a control token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// `<|im_end|>` becomes the control token: for templates and raw completions.
    Parse,
    /// `<|im_end|>` is nine ordinary characters: for text that somebody typed. Added tokens made of blanks only (runs of line
    /// breaks or spaces, as Gemma has) still match, as they cannot act as markup.
    Plain,
}

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text.
    Normal,
    /// A control token, such as the end of a turn: no text for a reader.
    Control,
    /// Added by the vocabulary's maker and matched as a whole, but shown, such as `<tool_call>` in Qwen's.
    UserDefined,
    /// One byte, for text that no other token spells.
    Byte,
    /// The unknown token, or a hole in the vocabulary.
    Unused,
}

/// A tokenizer of one model.
pub struct Tokenizer {
    pipeline: Pipeline,
    bounds: Bounds,
    markers: Markers,
    bytes: TokenBytes,
    kinds: Vec<TokenKind>,
    bos: Option<u32>,
    eos: Option<u32>,
    unk: Option<u32>,
    pad: Option<u32>,
    eos_ids: Vec<u32>,
    add_bos: bool,
    /// Whether encoding puts a blank before the text, which decoding takes away again.
    blank_first: bool,
    description: String,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({})", self.description)
    }
}

impl Tokenizer {
    /// From the hub's files.
    ///
    /// # Errors
    /// A file that does not parse, or a part of it that is not known.
    pub fn from_hub(files: HubFiles<'_>) -> Result<Self, TextError> {
        hub::load(files)
    }

    /// From the metadata of a GGUF file.
    ///
    /// # Errors
    /// Keys that are missing or contradict each other; a model or pre-tokenizer that is not known, by name.
    pub fn from_gguf(vocab: GgufVocab) -> Result<Self, TextError> {
        gguf::load(vocab)
    }

    /// Ids of a text. With `add_bos`, and if this vocabulary asks for it, the first id is the begin token, exactly once even
    /// where the text itself starts with it.
    ///
    /// # Errors
    /// Where the pipeline of a tokenizer.json fails on the text.
    pub fn encode(&self, text: &str, special: Special, add_bos: bool) -> Result<Vec<u32>, TextError> {
        self.encode_up_to(text, special, add_bos, usize::MAX)
    }

    /// As [`Tokenizer::encode`], for `most` tokens: a text of more is refused at the least cost, often before any of it is
    /// encoded.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`]; [`TextError::TooLong`].
    pub fn encode_up_to(
        &self,
        text: &str,
        special: Special,
        add_bos: bool,
        most: usize,
    ) -> Result<Vec<u32>, TextError> {
        let mut ids = self.encode_parts(text, &[], special, (most, CHUNK_BYTES))?;
        if add_bos {
            self.ensure_bos(&mut ids);
        }
        Ok(ids)
    }

    /// Ids of a rendered conversation: control tokens come from the template's own text only, never from what is quoted in it.
    /// The begin token comes first exactly once if the vocabulary asks for it, whether or not the template writes it.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<u32>, TextError> {
        self.encode_prompt_up_to(prompt, usize::MAX)
    }

    /// As [`Tokenizer::encode_prompt`], for `most` tokens.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_up_to`].
    pub fn encode_prompt_up_to(&self, prompt: &Prompt, most: usize) -> Result<Vec<u32>, TextError> {
        let limits = (most, CHUNK_BYTES);
        let mut ids = self.encode_parts(prompt.text(), prompt.quoted(), Special::Parse, limits)?;
        self.ensure_bos(&mut ids);
        Ok(ids)
    }

    fn ensure_bos(&self, ids: &mut Vec<u32>) {
        let Some(bos) = self.bos.filter(|_| self.add_bos) else {
            return;
        };
        let have = ids.iter().take_while(|&&id| id == bos).count();
        match have {
            0 => ids.insert(0, bos),
            _ => drop(ids.drain(1..have)),
        }
    }

    /// Encodes `text`; no control token may cover a byte of `quoted` (sorted). More than `most` tokens are an error.
    fn encode_parts(
        &self,
        text: &str,
        quoted: &[usize],
        special: Special,
        (most, chunk_bytes): (usize, usize),
    ) -> Result<Vec<u32>, TextError> {
        let found = self.markers.find(text, |marker, range| {
            let free = || {
                let next = quoted.partition_point(|&q| q < range.start);
                quoted.get(next).is_none_or(|&q| q >= range.end)
            };
            marker.is_blank() || (special == Special::Parse && free())
        });
        let check = |tokens: usize| match tokens > most {
            true => Err(TextError::TooLong {
                bytes: text.len(),
                tokens,
                tokens_max: most,
            }),
            false => Ok(()),
        };
        let marked: usize = found.iter().map(|marker| marker.range.len()).sum();
        check(found.len() + self.bounds.tokens_min(text.len() - marked))?;
        let mut ids = Vec::with_capacity(most.min(text.len() / 3) + 1);
        let mut at = 0;
        let end = Found {
            range: text.len()..text.len(),
            id: 0,
        };
        for (i, next) in found.iter().chain([&end]).enumerate() {
            while at < next.range.start {
                let rest = &text[at..next.range.start];
                let cut = Some(rest).filter(|_| self.bounds.cuts);
                let cut = cut.and_then(|rest| bounds::cut(rest, chunk_bytes));
                let part = &rest[..cut.unwrap_or(rest.len())];
                self.pipeline.encode(part, at == 0, &mut ids)?;
                check(ids.len())?;
                at += part.len();
            }
            if i < found.len() {
                ids.push(next.id);
            }
            at = next.range.end;
        }
        check(ids.len())?;
        Ok(ids)
    }

    /// Text of ids. Bytes that are no UTF-8 become U+FFFD; ids outside the vocabulary give nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        let mut blank_first = self.blank_first;
        for &id in ids {
            let special = self.is_special(id);
            if !(special && skip_special)
                && let Some(mut piece) = self.token_bytes(id)
            {
                if blank_first && !special && piece.first() == Some(&b' ') {
                    piece = &piece[1..];
                }
                bytes.extend_from_slice(piece);
            }
            // The blank stands before the first ordinary token only.
            blank_first &= special;
        }
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }

    /// The bytes a token stands for; a control token's are its name.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id)
    }

    /// A token for people: its bytes as text, with U+FFFD where they are none.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.token_bytes(id)
            .map(|b| String::from_utf8_lossy(b).into_owned())
    }

    /// The id of a control or added token, by its name.
    pub fn special_id(&self, name: &str) -> Option<u32> {
        self.markers.list().iter().find(|m| m.text == name).map(|m| m.id)
    }

    /// What a token is for.
    pub fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Unused)
    }

    /// Whether a token is a control token, which has no text for a reader.
    pub fn is_special(&self, id: u32) -> bool {
        self.kind(id) == TokenKind::Control
    }

    /// One more than the largest id. The model's own vocabulary may be padded to more.
    pub fn vocab_size(&self) -> usize {
        self.kinds.len()
    }

    /// The begin token.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The end token of the configuration; [`Tokenizer::eos_ids`] has all.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Every token that ends a turn or a text, in ascending order.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The padding token.
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// The token for text that nothing spells.
    pub fn unk(&self) -> Option<u32> {
        self.unk
    }

    /// Whether a text starts with the begin token.
    pub fn adds_bos(&self) -> bool {
        self.add_bos && self.bos.is_some()
    }

    /// The text of a token, for a template's `bos_token` and the like.
    pub(crate) fn name_of(&self, id: Option<u32>) -> Option<String> {
        id.and_then(|id| self.token_text(id))
    }

    pub(crate) fn markers(&self) -> &Markers {
        &self.markers
    }

    /// Source, model, pre-tokenizer and sizes, for a person.
    pub fn describe(&self) -> &str {
        &self.description
    }
}

/// Names of control tokens that end a turn or a text in the vocabularies at large. A vocabulary that has one as a *control*
/// token ends with it, whatever its configuration says of the one end token that it can name.
const END_NAMES: [&str; 13] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|eot|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<turn|>",
    "<EOT>",
    "<eos>",
    "[e~[",
];

/// Everything that a loader finds out, before it is put together.
struct Parts {
    pipeline: Pipeline,
    bounds: Bounds,
    markers: Markers,
    bytes: TokenBytes,
    kinds: Vec<TokenKind>,
    bos: Option<u32>,
    eos: Option<u32>,
    unk: Option<u32>,
    pad: Option<u32>,
    more_eos: Vec<u32>,
    add_bos: bool,
    blank_first: bool,
    description: String,
}

impl Parts {
    fn finish(self) -> Result<Tokenizer, TextError> {
        let size = self.kinds.len();
        for (name, id) in [
            ("bos", self.bos),
            ("eos", self.eos),
            ("unk", self.unk),
            ("pad", self.pad),
        ] {
            if id.is_some_and(|id| id as usize >= size) {
                return Err(TextError::tokenizer(format!(
                    "{name} token {} is outside the vocabulary of {size}",
                    id.unwrap_or(0)
                )));
            }
        }
        let mut eos_ids: Vec<u32> = self
            .eos
            .into_iter()
            .chain(self.more_eos)
            .filter(|&id| (id as usize) < size)
            .collect();
        for marker in self.markers.list() {
            if END_NAMES.contains(&marker.text.as_str())
                && self.kinds[marker.id as usize] == TokenKind::Control
            {
                eos_ids.push(marker.id);
            }
        }
        eos_ids.sort_unstable();
        eos_ids.dedup();
        Ok(Tokenizer {
            pipeline: self.pipeline,
            bounds: self.bounds,
            markers: self.markers,
            bytes: self.bytes,
            kinds: self.kinds,
            bos: self.bos,
            eos: self.eos,
            unk: self.unk,
            pad: self.pad,
            eos_ids,
            add_bos: self.add_bos,
            blank_first: self.blank_first,
            description: self.description,
        })
    }
}

#[cfg(test)]
mod tests;
