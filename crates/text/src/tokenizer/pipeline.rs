//! From text without markers to ids.

use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{
    Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
};

use super::spm::Spm;
use crate::TextError;

/// Either the parts of a tokenizer.json, or SentencePiece's merges by score.
pub(super) enum Pipeline {
    Parts(Box<HubPipeline>),
    Spm(Spm),
}

/// Normalizer, pre-tokenizer and model as the `tokenizers` crate has them; markers are handled outside.
pub(super) struct HubPipeline {
    pub normalizer: Option<NormalizerWrapper>,
    pub pre_tokenizer: Option<PreTokenizerWrapper>,
    /// For text after a marker, where it differs (a blank is put before the very first piece only).
    pub pre_tokenizer_inside: Option<PreTokenizerWrapper>,
    pub model: ModelWrapper,
}

impl Pipeline {
    /// Appends the ids of `text`; `first` says that nothing, not even a marker, stands before it.
    pub fn encode(&self, text: &str, first: bool, ids: &mut Vec<u32>) -> Result<(), TextError> {
        match self {
            Pipeline::Spm(spm) => {
                spm.encode(text, ids);
                Ok(())
            }
            Pipeline::Parts(parts) => parts.encode(text, first, ids),
        }
    }
}

impl HubPipeline {
    fn encode(&self, text: &str, first: bool, ids: &mut Vec<u32>) -> Result<(), TextError> {
        let failed = |part: &str, e: tokenizers::Error| TextError::tokenizer(format!("{part} fails: {e}"));
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = &self.normalizer {
            normalizer
                .normalize(&mut normalized)
                .map_err(|e| failed("normalizer", e))?;
            // The next part sees only the result: positions in the source are of no use here.
            normalized = NormalizedString::from(normalized.get());
        }
        let mut pieces = PreTokenizedString::from(normalized);
        let inside = self.pre_tokenizer_inside.as_ref().filter(|_| !first);
        if let Some(pre_tokenizer) = inside.or(self.pre_tokenizer.as_ref()) {
            pre_tokenizer
                .pre_tokenize(&mut pieces)
                .map_err(|e| failed("pre-tokenizer", e))?;
        }
        for (piece, _, _) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            if !piece.is_empty() {
                let tokens = self.model.tokenize(piece).map_err(|e| failed("model", e))?;
                ids.extend(tokens.iter().map(|t| t.id));
            }
        }
        Ok(())
    }
}
