//! Tokenizers from the metadata of a GGUF file.

use std::collections::HashMap;

use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use super::bounds::Bounds;
use super::bytes::{Spelling, TokenBytes, byte_token};
use super::pipeline::{HubPipeline, Pipeline};
use super::spm::Spm;
use super::{Parts, TokenKind, Tokenizer, pre};
use crate::TextError;
use crate::markers::{Marker, Markers};

/// The keys `tokenizer.ggml.*` of a GGUF file, as they stand there.
#[derive(Debug, Clone, Default)]
pub struct GgufVocab {
    /// `model`: "gpt2" (byte-level BPE) or "llama" (SentencePiece).
    pub model: String,
    /// `pre`: name of the pre-tokenizer; byte-level BPE must have one.
    pub pre: Option<String>,
    /// `tokens`.
    pub tokens: Vec<String>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; may be empty.
    pub token_types: Vec<i32>,
    /// `merges`, as "left right".
    pub merges: Vec<String>,
    /// `scores`; SentencePiece must have them.
    pub scores: Vec<f32>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`: the end of a turn.
    pub eot: Option<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`; prompts never end with it, so it is not used.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
}

pub(super) fn load(vocab: GgufVocab) -> Result<Tokenizer, TextError> {
    let count = vocab.tokens.len();
    if count == 0 {
        return Err(TextError::tokenizer("tokenizer.ggml.tokens is empty"));
    }
    for (key, len) in [
        ("token_type", vocab.token_types.len()),
        ("scores", vocab.scores.len()),
    ] {
        if len != 0 && len != count {
            return Err(TextError::tokenizer(format!(
                "tokenizer.ggml.{key} has {len} entries for {count} tokens"
            )));
        }
    }
    match vocab.model.as_str() {
        "gpt2" => load_bpe(vocab),
        "llama" => load_spm(vocab),
        other => Err(TextError::UnknownTokenizer {
            part: "model",
            name: other.into(),
            known: "gpt2, llama".into(),
        }),
    }
}

fn load_bpe(mut vocab: GgufVocab) -> Result<Tokenizer, TextError> {
    let known = || pre::known_pre_tokenizers().join(", ");
    let unknown = |name: &str| TextError::UnknownTokenizer {
        part: "pre-tokenizer",
        name: name.into(),
        known: known(),
    };
    let name = vocab
        .pre
        .take()
        .ok_or_else(|| unknown("(tokenizer.ggml.pre is missing)"))?;
    let row = pre::find(&name).ok_or_else(|| unknown(&name))?;

    let kinds = kinds(&vocab)?;
    let markers = markers(&vocab, &kinds);
    let bytes = spelled(&vocab, &kinds, Spelling::ByteLevel)?;
    let description = format!(
        "GGUF, byte-level BPE, pre-tokenizer {name}, {} tokens, {} merges",
        vocab.tokens.len(),
        vocab.merges.len()
    );
    let merges = merges(&vocab)?;
    let table: Vocab = vocab
        .tokens
        .drain(..)
        .enumerate()
        .map(|(id, token)| (token, id as u32))
        .collect();
    let model = BPE::builder()
        .vocab_and_merges(table, merges)
        .ignore_merges(row.whole_first)
        .build()
        .map_err(|e| TextError::tokenizer(format!("tokenizer.ggml.merges: {e}")))?;
    let nfc = || NormalizerWrapper::NFC(tokenizers::normalizers::unicode::NFC);
    let pipeline = HubPipeline {
        normalizer: row.nfc.then(nfc),
        pre_tokenizer: Some(pre_tokenizer(row)?),
        pre_tokenizer_inside: None,
        model: ModelWrapper::BPE(model),
    };
    Parts {
        bounds: Bounds::byte_level(
            &bytes,
            pipeline.normalizer.as_ref(),
            pipeline.pre_tokenizer.as_ref(),
        ),
        pipeline: Pipeline::Parts(Box::new(pipeline)),
        markers,
        bytes,
        kinds,
        bos: vocab.bos,
        eos: vocab.eos,
        unk: vocab.unk,
        pad: vocab.pad,
        more_eos: vocab.eot.into_iter().collect(),
        add_bos: vocab.add_bos.unwrap_or(row.add_bos),
        blank_first: false,
        description,
    }
    .finish()
}

fn pre_tokenizer(row: &pre::PreTokenizer) -> Result<PreTokenizerWrapper, TextError> {
    let mut parts = Vec::new();
    for regex in row.regexes {
        let split = Split::new(
            SplitPattern::Regex((*regex).into()),
            SplitDelimiterBehavior::Isolated,
            false,
        )
        .map_err(|e| TextError::tokenizer(format!("pre-tokenizer {}: {e}", row.names[0])))?;
        parts.push(PreTokenizerWrapper::Split(split));
    }
    // Only maps bytes to the table's characters: the expressions above have done the cutting.
    parts.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false)));
    Ok(PreTokenizerWrapper::Sequence(Sequence::new(parts)))
}

fn merges(vocab: &GgufVocab) -> Result<Vec<(String, String)>, TextError> {
    let longest = vocab.tokens.iter().map(String::len).max().unwrap_or(0);
    let split = |(i, merge): (usize, &String)| {
        let wrong =
            |what: &str| TextError::tokenizer(format!("tokenizer.ggml.merges[{i}] is {merge:?}, {what}"));
        // Byte-level vocabularies spell a blank otherwise: the first one is the border.
        let at = merge.find(' ').filter(|&at| at > 0 && at + 1 < merge.len());
        let at = at.ok_or_else(|| wrong("not \"left right\""))?;
        if merge.len() - 1 > longest {
            // The library's buffer is as long as the longest token: it would panic.
            return Err(wrong("which makes a longer token than there is"));
        }
        Ok((merge[..at].to_owned(), merge[at + 1..].to_owned()))
    };
    vocab.merges.iter().enumerate().map(split).collect()
}

fn load_spm(mut vocab: GgufVocab) -> Result<Tokenizer, TextError> {
    if vocab.scores.is_empty() {
        return Err(TextError::tokenizer(
            "tokenizer.ggml.scores is missing: the model `llama` needs it",
        ));
    }
    let kinds = kinds(&vocab)?;
    let markers = markers(&vocab, &kinds);
    let bytes = spelled(&vocab, &kinds, Spelling::Blanks)?;
    let blank_first = vocab.add_space_prefix.unwrap_or(true);
    let description = format!("GGUF, SentencePiece, {} tokens", vocab.tokens.len());
    let mut byte_ids = Box::new([None; 256]);
    let mut table = HashMap::with_capacity(vocab.tokens.len());
    for (id, token) in vocab.tokens.drain(..).enumerate() {
        let (kind, score) = (kinds[id], vocab.scores[id]);
        if score.is_nan() {
            return Err(TextError::tokenizer(format!(
                "tokenizer.ggml.scores[{id}] is not a number"
            )));
        }
        match kind {
            TokenKind::Byte => {
                let byte = byte_token(&token).ok_or_else(|| {
                    TextError::tokenizer(format!(
                        "token {id} is a byte token named {token:?}, not like <0x0A>"
                    ))
                })?;
                byte_ids[byte as usize] = Some(id as u32);
            }
            TokenKind::Normal | TokenKind::UserDefined => {
                table.entry(token.into_boxed_str()).or_insert((id as u32, score));
            }
            TokenKind::Control | TokenKind::Unused => {}
        }
    }
    Parts {
        bounds: Bounds::blanks(&bytes),
        pipeline: Pipeline::Spm(Spm {
            tokens: table,
            bytes: byte_ids,
            unk: vocab.unk,
            blank_first,
        }),
        markers,
        bytes,
        kinds,
        bos: vocab.bos,
        eos: vocab.eos,
        unk: vocab.unk,
        pad: vocab.pad,
        more_eos: vocab.eot.into_iter().collect(),
        add_bos: vocab.add_bos.unwrap_or(true),
        blank_first,
        description,
    }
    .finish()
}

fn kinds(vocab: &GgufVocab) -> Result<Vec<TokenKind>, TextError> {
    let kind = |id: usize| {
        Ok(match vocab.token_types.get(id).copied().unwrap_or(1) {
            1 => TokenKind::Normal,
            2 | 5 => TokenKind::Unused,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            6 => TokenKind::Byte,
            other => {
                return Err(TextError::tokenizer(format!(
                    "tokenizer.ggml.token_type[{id}] is {other}; allowed: 1 to 6"
                )));
            }
        })
    };
    (0..vocab.tokens.len()).map(kind).collect()
}

fn markers(vocab: &GgufVocab, kinds: &[TokenKind]) -> Markers {
    let marked = |kind: TokenKind| matches!(kind, TokenKind::Control | TokenKind::UserDefined);
    let escaped = vocab.model == "llama";
    Markers::new((0..kinds.len()).filter(|&id| marked(kinds[id])).map(|id| {
        // SentencePiece vocabularies spell the blanks of added tokens like all others.
        let text = if escaped {
            vocab.tokens[id].replace('\u{2581}', " ")
        } else {
            vocab.tokens[id].clone()
        };
        Marker {
            text,
            id: id as u32,
            strip_left: false,
            strip_right: false,
            single_word: false,
        }
    }))
}

fn spelled(vocab: &GgufVocab, kinds: &[TokenKind], spelling: Spelling) -> Result<TokenBytes, TextError> {
    TokenBytes::new(
        vocab
            .tokens
            .iter()
            .zip(kinds)
            .map(|(token, kind)| match (kind, spelling) {
                (TokenKind::Control, _) | (TokenKind::UserDefined, Spelling::ByteLevel) => {
                    token.clone().into_bytes()
                }
                _ => spelling.bytes(token),
            }),
    )
}
