//! Checkpoints split over several files, `NAME-00001-of-00003.gguf`.
//!
//! Each shard has its own tensors and the keys `split.no` (from 0), `split.count` and `split.tensors.count` (of all
//! shards together); only the first has the other keys.

use std::path::{Path, PathBuf};

use super::header::{Header, parse};
use super::{Gguf, Metadata};
use crate::LoadError;
use crate::raw::TensorSet;
use crate::source::Source;

/// Most shards: each keeps a file open.
const SHARDS_MAX: usize = 1024;

/// What a shard says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    /// From 0.
    pub(super) index: usize,
    pub(super) count: usize,
    /// Tensors of all shards.
    tensor_count: Option<usize>,
}

impl Split {
    /// `None` where the file is whole.
    pub(super) fn of(metadata: &Metadata) -> Result<Option<Self>, LoadError> {
        let count = metadata.get_usize("split.count")?.unwrap_or(0);
        if count <= 1 {
            return Ok(None);
        }
        let fault = |key, reason| Err(LoadError::key(metadata.origin(), key, reason));
        if count > SHARDS_MAX {
            return fault(
                "split.count",
                format!("is {count}; at most {SHARDS_MAX} shards are allowed"),
            );
        }
        let index = metadata.need("split.no", metadata.get_usize("split.no")?)?;
        if index >= count {
            return fault("split.no", format!("is {index}; allowed: 0 to {}", count - 1));
        }
        Ok(Some(Self {
            index,
            count,
            tensor_count: metadata.get_usize("split.tensors.count")?,
        }))
    }
}

/// Opens a checkpoint from any of its files.
pub(super) fn open(path: &Path) -> Result<Gguf, LoadError> {
    let source = Source::open(path)?;
    let header = parse(&source, 0)?;
    match Split::of(&header.metadata)? {
        None => Ok(Gguf {
            metadata: header.metadata,
            set: TensorSet::new(vec![source], header.tensors)?,
        }),
        Some(split) => open_all(path, split),
    }
}

fn open_all(path: &Path, split: Split) -> Result<Gguf, LoadError> {
    let paths = shard_paths(path, split)?;
    let missing: Vec<String> = paths
        .iter()
        .filter(|path| !path.is_file())
        .map(|path| path.display().to_string())
        .collect();
    if !missing.is_empty() {
        return Err(LoadError::malformed(
            &path.display().to_string(),
            format!(
                "is one of {} shards, but these are missing: {}",
                split.count,
                missing.join(", ")
            ),
        ));
    }
    let mut metadata = None;
    let mut sources = Vec::with_capacity(split.count);
    let mut tensors = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let source = Source::open(path)?;
        let header = parse(&source, index as u32)?;
        check_shard(&header, index, split)?;
        if index == 0 {
            metadata = Some(header.metadata);
        }
        tensors.extend(header.tensors);
        sources.push(source);
    }
    let metadata = metadata.expect("a split has at least two shards");
    let set = TensorSet::new(sources, tensors)?;
    let stated = split.tensor_count.unwrap_or(set.tensors.len());
    if stated != set.tensors.len() {
        return Err(LoadError::key(
            metadata.origin(),
            "split.tensors.count",
            format!(
                "is {stated}, but the {} shards hold {} tensors",
                split.count,
                set.tensors.len()
            ),
        ));
    }
    Ok(Gguf { metadata, set })
}

/// The shard at place `index` must say so, and agree with the one that we came from.
fn check_shard(header: &Header, index: usize, split: Split) -> Result<(), LoadError> {
    let wanted = Split { index, ..split };
    match Split::of(&header.metadata)? {
        Some(found) if found == wanted => Ok(()),
        found => Err(LoadError::malformed(
            header.metadata.origin(),
            format!("does not belong to this split: its split keys say {found:?}, its place {wanted:?}"),
        )),
    }
}

/// The paths of all shards, by the name of the one given.
fn shard_paths(path: &Path, split: Split) -> Result<Vec<PathBuf>, LoadError> {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let ending = format!("-{:05}-of-{:05}.gguf", split.index + 1, split.count);
    let Some(stem) = name.strip_suffix(&ending) else {
        return Err(LoadError::malformed(
            &path.display().to_string(),
            format!("is a shard of a split, so its name must end in `{ending}` for the others to be found"),
        ));
    };
    let shards = (1..=split.count)
        .map(|number| path.with_file_name(format!("{stem}-{number:05}-of-{:05}.gguf", split.count)));
    Ok(shards.collect())
}
