//! The index of a sharded checkpoint: `{"weight_map": {tensor: file}}`.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::LoadError;
use crate::error::shown;
use crate::raw::TENSORS_MAX;
use crate::source::Source;

/// Longest index, bytes.
const INDEX_BYTES_MAX: u64 = 1 << 26;
/// Most files: each is kept open.
const FILES_MAX: usize = 1024;

pub(super) struct Index {
    /// Plain file names, in the order of their first mention.
    pub(super) files: Vec<String>,
    /// (tensor, index into `files`)
    pub(super) weights: Vec<(String, u32)>,
}

impl Index {
    pub(super) fn read(path: &Path) -> Result<Self, LoadError> {
        let source = Source::open(path)?;
        let fault = |reason: String| LoadError::malformed(source.name(), reason);
        if source.len() > INDEX_BYTES_MAX {
            return Err(fault(format!(
                "is {} bytes; at most {INDEX_BYTES_MAX} are allowed",
                source.len()
            )));
        }
        if let Some(mix_up) = source.mix_up() {
            return Err(fault(mix_up.to_owned()));
        }
        let mut text = vec![0; source.len() as usize];
        source.read_at(0, &mut text)?;
        let parsed: Parsed =
            serde_json::from_slice(&text).map_err(|error| fault(format!("is not a sound index: {error}")))?;
        let index = parsed.weight_map;
        if index.files.is_empty() {
            return Err(fault("lists no file".to_owned()));
        }
        if let Some(file) = index.files.iter().find(|file| !is_plain_name(file)) {
            return Err(fault(format!(
                "names the file `{}`; allowed: plain names in its own folder",
                shown(file)
            )));
        }
        Ok(index)
    }
}

/// Whether a name stays in the folder.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0', ':'])
}

/// The whole file. Its other members are totals for people.
#[derive(Deserialize)]
struct Parsed {
    weight_map: Index,
    #[serde(default, rename = "metadata")]
    _metadata: IgnoredAny,
}

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(IndexVisitor)
    }
}

struct IndexVisitor;

impl<'de> Visitor<'de> for IndexVisitor {
    type Value = Index;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensor: file")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Index, A::Error> {
        let mut files: Vec<String> = Vec::new();
        let mut numbers: HashMap<String, u32> = HashMap::new();
        let mut weights = Vec::new();
        while let Some((name, file)) = map.next_entry::<String, String>()? {
            let number = match numbers.get(&file) {
                Some(&number) => number,
                None if files.len() == FILES_MAX => {
                    return Err(A::Error::custom(format!("more than {FILES_MAX} files")));
                }
                None => {
                    files.push(file.clone());
                    numbers.insert(file, files.len() as u32 - 1);
                    files.len() as u32 - 1
                }
            };
            if weights.len() == TENSORS_MAX {
                return Err(A::Error::custom(format!("more than {TENSORS_MAX} tensors")));
            }
            weights.push((name, number));
        }
        Ok(Index { files, weights })
    }
}
