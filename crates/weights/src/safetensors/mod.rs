//! safetensors: one file, or several with an index, or a folder with either.
//!
//! Layout: u64 header length (little-endian), a JSON object of `name: {dtype, shape, data_offsets: [begin, end]}` with
//! an optional `__metadata__` of strings, then the data. Offsets count from the end of the header. As the format's own
//! definition demands, the data has no holes, no overlap and nothing after it.

mod header;
mod index;

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::LoadError;
use crate::raw::{RawTensor, TensorSet};
use crate::source::Source;

/// Name of the index of a sharded checkpoint.
const INDEX_NAME: &str = "model.safetensors.index.json";
/// Name of an unsharded checkpoint in its folder.
const SINGLE_NAME: &str = "model.safetensors";

/// An open safetensors checkpoint: all its files, their headers checked.
#[derive(Debug)]
pub struct Safetensors {
    set: TensorSet,
    notes: Vec<(String, String)>,
}

impl Safetensors {
    /// Opens a file, an index (`*.index.json`), or a folder that holds `model.safetensors.index.json`,
    /// `model.safetensors` or a single file of another name. A shard given by itself is opened through the index beside it.
    ///
    /// # Errors
    /// When a file is missing, cannot be read, or is not sound.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        match find(path)? {
            Found::File(path) => Self::from_sources(vec![Source::open(&path)?]),
            Found::Index(path) => Self::open_index(&path),
        }
    }

    /// Takes a whole file from memory; `name` stands in messages.
    ///
    /// # Errors
    /// As [`Safetensors::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, LoadError> {
        Self::from_sources(vec![Source::from_bytes(name, bytes)])
    }

    fn from_sources(sources: Vec<Source>) -> Result<Self, LoadError> {
        let mut tensors = Vec::new();
        let mut notes = Vec::new();
        for (file, source) in sources.iter().enumerate() {
            let header = header::parse(source, file as u32)?;
            tensors.extend(header.tensors);
            if file == 0 {
                notes = header.notes;
            }
        }
        Ok(Self {
            set: TensorSet::new(sources, tensors)?,
            notes,
        })
    }

    fn open_index(path: &Path) -> Result<Self, LoadError> {
        let index = index::Index::read(path)?;
        let missing: Vec<&str> = index
            .files
            .iter()
            .filter(|file| !path.with_file_name(file).is_file())
            .map(String::as_str)
            .collect();
        if !missing.is_empty() {
            return Err(LoadError::malformed(
                &path.display().to_string(),
                format!("names files that are not there: {}", missing.join(", ")),
            ));
        }
        let sources: Result<Vec<Source>, LoadError> = index
            .files
            .iter()
            .map(|file| Source::open(&path.with_file_name(file)))
            .collect();
        let this = Self::from_sources(sources?)?;
        for (name, file) in &index.weights {
            let found = this.set.tensor(name).map(|tensor| tensor.file);
            if found != Some(*file) {
                let wanted = &index.files[*file as usize];
                return Err(LoadError::tensor(
                    &path.display().to_string(),
                    name,
                    format!("should be in `{wanted}` by the index, but is not there"),
                ));
            }
        }
        Ok(this)
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> &[RawTensor] {
        &self.set.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&RawTensor> {
        self.set.tensor(name)
    }

    /// The `__metadata__` of the first file, as (key, value).
    pub fn notes(&self) -> &[(String, String)] {
        &self.notes
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.set.byte_count()
    }

    /// Reads bytes `byte_range` of a tensor of this checkpoint into `out`, which has just that length (asserted).
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(
        &self,
        tensor: &RawTensor,
        byte_range: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        self.set.read(tensor, byte_range, out)
    }
}

enum Found {
    File(PathBuf),
    Index(PathBuf),
}

fn find(path: &Path) -> Result<Found, LoadError> {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    if path.is_dir() {
        return find_in_folder(path);
    }
    if name.ends_with(".index.json") {
        return Ok(Found::Index(path.to_owned()));
    }
    // One shard of several is useless alone: take the index that lists it.
    let index = path.with_file_name(INDEX_NAME);
    if name != SINGLE_NAME
        && index.is_file()
        && index::Index::read(&index)?.files.iter().any(|file| file == name)
    {
        return Ok(Found::Index(index));
    }
    Ok(Found::File(path.to_owned()))
}

fn find_in_folder(folder: &Path) -> Result<Found, LoadError> {
    let index = folder.join(INDEX_NAME);
    if index.is_file() {
        return Ok(Found::Index(index));
    }
    let single = folder.join(SINGLE_NAME);
    if single.is_file() {
        return Ok(Found::File(single));
    }
    let shown = folder.display().to_string();
    let entries = std::fs::read_dir(folder).map_err(|source| LoadError::Io {
        file: shown.clone(),
        action: "list",
        source,
    })?;
    let mut others: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "safetensors"))
        .collect();
    others.sort_unstable();
    match others.as_slice() {
        [only] => Ok(Found::File(only.clone())),
        [] => Err(LoadError::malformed(
            &shown,
            format!(
                "has no safetensors file; looked for `{INDEX_NAME}`, `{SINGLE_NAME}` and a single `*.safetensors`"
            ),
        )),
        several => Err(LoadError::malformed(
            &shown,
            format!(
                "has {} safetensors files but no `{INDEX_NAME}` to join them",
                several.len()
            ),
        )),
    }
}
