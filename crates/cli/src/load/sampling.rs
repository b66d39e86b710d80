//! Sampling as the publisher recommends it: `generation_config.json` beside the weights, `general.sampling.*` in a GGUF.

use galvani_engine::SamplingParams;
use serde_json::Value;

use super::Opened;
use crate::error::CliError;
use crate::flags::SampleArgs;

/// The publisher's values, where there are any.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[allow(missing_docs)]
pub struct Defaults {
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
}

impl Defaults {
    /// Reads them.
    ///
    /// # Errors
    /// When the file is there and is not JSON, or a key of the metadata has another type.
    pub fn read(opened: &Opened) -> Result<Self, CliError> {
        let mut found = Self::default();
        if let Some(folder) = opened.checkpoint.folder() {
            let path = folder.join("generation_config.json");
            if path.is_file() {
                let bytes = std::fs::read(&path).map_err(CliError::io(&path))?;
                found = Self::from_json(&bytes)
                    .map_err(|error| CliError::Failed(format!("{}: {error}", path.display())))?;
            }
        }
        if let Some(gguf) = opened.checkpoint.gguf() {
            let metadata = gguf.metadata();
            found.temperature = metadata.get_f32("general.sampling.temp")?;
            found.top_k = metadata.get_usize("general.sampling.top_k")?;
            found.top_p = metadata.get_f32("general.sampling.top_p")?;
            found.min_p = metadata.get_f32("general.sampling.min_p")?;
            found.repetition_penalty = metadata.get_f32("general.sampling.penalty_repeat")?;
        }
        if opened.is_default && found == Self::default() {
            // As on the model's page.
            found = Self {
                temperature: Some(0.2),
                top_p: Some(0.9),
                ..found
            };
        }
        Ok(found)
    }

    fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let value: Value = serde_json::from_slice(bytes)?;
        let number = |key: &str| value.get(key).and_then(Value::as_f64).map(|v| v as f32);
        Ok(Self {
            temperature: number("temperature"),
            top_k: value
                .get("top_k")
                .and_then(Value::as_u64)
                .and_then(|k| usize::try_from(k).ok()),
            top_p: number("top_p"),
            min_p: number("min_p"),
            repetition_penalty: number("repetition_penalty"),
        })
    }

    /// The flags' values, else the publisher's, else our own.
    pub fn params(&self, flags: &SampleArgs) -> SamplingParams {
        let clock = || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(0, |d| d.as_nanos() as u64)
        };
        SamplingParams {
            temperature: flags.temperature.or(self.temperature).unwrap_or(0.7),
            top_k: flags.top_k.or(self.top_k).unwrap_or(0),
            top_p: flags.top_p.or(self.top_p).unwrap_or(1.0),
            min_p: flags.min_p.or(self.min_p).unwrap_or(0.0),
            repetition_penalty: flags
                .repetition_penalty
                .or(self.repetition_penalty)
                .unwrap_or(1.0),
            seed: flags.seed.unwrap_or_else(clock),
            ..SamplingParams::greedy()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_publishers_file_is_read() {
        let cases = [
            (
                r#"{"temperature": 0.6, "top_k": 20, "top_p": 0.95}"#,
                Some((Some(0.6), Some(20), Some(0.95))),
            ),
            (
                r#"{"do_sample": true, "eos_token_id": [1, 2]}"#,
                Some((None, None, None)),
            ),
            (r#"{"top_k": -1}"#, Some((None, None, None))),
            ("{", None),
        ];
        for (text, want) in cases {
            let got = Defaults::from_json(text.as_bytes())
                .ok()
                .map(|d| (d.temperature, d.top_k, d.top_p));
            assert_eq!(got, want, "{text}");
        }
    }
}
