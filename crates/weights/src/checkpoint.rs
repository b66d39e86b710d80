//! A checkpoint of either container behind one face: canonical names, the hub's config vocabulary, rows on demand.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use galvani_graph::{BackendError, Format, Weight, WeightSource};

use crate::canon::{self, NormOffset, RowOrder, TensorInfo};
use crate::gguf::Gguf;
use crate::safetensors::Safetensors;
use crate::source::Source;
use crate::{Config, LoadError, RawTensor, quant};

/// How a checkpoint is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// A folder as the hub has it.
    Safetensors,
    /// One file, or the shards of one.
    Gguf,
}

#[derive(Debug)]
enum Files {
    Safetensors(Safetensors),
    Gguf(Box<Gguf>),
}

/// An open checkpoint: headers read and checked, data read on demand.
#[derive(Debug)]
pub struct Checkpoint {
    files: Files,
    folder: Option<PathBuf>,
    origin: String,
    /// JSON in the hub's vocabulary, known to parse.
    config: Vec<u8>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, u32>,
    tied: bool,
    warnings: Vec<String>,
}

/// Bytes compared at a time when an output head is held against the embedding.
const COMPARE_BYTES: usize = 1 << 20;

impl Checkpoint {
    /// Opens a GGUF file (any shard of a split), a safetensors file with its `config.json` beside it, or a folder that
    /// holds the one or the other.
    ///
    /// # Errors
    /// When files are missing, damaged or of a kind that is not supported.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        if path.is_dir() && !path.join("config.json").is_file() {
            return Self::from_gguf(Gguf::open(&only_gguf(path)?)?);
        }
        if path.is_file() {
            let named = |ending: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(ending));
            // Caches keep files under their hashes, so the first bytes say as much as the name.
            if named("gguf") || starts_as_gguf(path)? {
                return Self::from_gguf(Gguf::open(path)?);
            }
            if !named("safetensors") && !named("json") {
                return Err(LoadError::Malformed {
                    file: path.display().to_string(),
                    reason:
                        "is no checkpoint: a GGUF file, a `.safetensors` file or a folder with one is wanted"
                            .into(),
                });
            }
        }
        let folder = if path.is_dir() {
            path
        } else {
            path.parent().unwrap_or(Path::new(""))
        };
        let file = Source::open(&folder.join("config.json"))?;
        let mut config = vec![0; usize::try_from(file.len().min(CONFIG_BYTES_MAX + 1)).unwrap_or(usize::MAX)];
        file.read_at(0, &mut config)?;
        Self::from_hub(
            Safetensors::open(path)?,
            config,
            file.name(),
            Some(folder.to_owned()),
        )
    }

    /// Takes an open safetensors checkpoint and the bytes of its `config.json`.
    ///
    /// # Errors
    /// When the config is not sound, says that the weights are quantised, or a tensor is not a plain weight.
    pub fn from_hub(
        files: Safetensors,
        config: Vec<u8>,
        origin: &str,
        folder: Option<PathBuf>,
    ) -> Result<Self, LoadError> {
        let parsed = Config::from_json(&config, origin)?;
        if parsed.has("quantization_config") {
            return Err(parsed.unsupported(
                "quantization_config",
                "float weights; for quantised ones take a GGUF file",
            ));
        }
        let model_type = parsed.str("model_type")?;
        let tensors = canon::from_hub(files.tensors(), &model_type)?;
        Self::new(
            Files::Safetensors(files),
            folder,
            origin,
            config,
            tensors,
            parsed.opt_bool("tie_word_embeddings")?,
        )
    }

    /// Takes an open GGUF checkpoint.
    ///
    /// # Errors
    /// When the architecture is not known, a key of it is missing or not understood, or a tensor is not a plain weight.
    pub fn from_gguf(files: Gguf) -> Result<Self, LoadError> {
        let divisors = files
            .tensor("rope_freqs.weight")
            .map(|raw| read_floats(&files, raw))
            .transpose()?;
        let (config, shape) = canon::translate(&files, divisors)?;
        let tensors = canon::from_gguf(files.tensors(), shape)?;
        let origin = files.metadata().origin().to_owned();
        let tied = files.tensor("output.weight").is_none();
        let config = serde_json::to_vec(&config).expect("a JSON object is always written");
        Self::new(
            Files::Gguf(Box::new(files)),
            None,
            &origin,
            config,
            tensors,
            Some(tied),
        )
    }

    fn new(
        files: Files,
        folder: Option<PathBuf>,
        origin: &str,
        config: Vec<u8>,
        tensors: Vec<TensorInfo>,
        tie: Option<bool>,
    ) -> Result<Self, LoadError> {
        let mut checkpoint = Self {
            files,
            folder,
            origin: origin.to_owned(),
            config,
            tensors,
            by_name: HashMap::new(),
            tied: false,
            warnings: Vec::new(),
        };
        checkpoint.index()?;
        checkpoint.settle_head(tie)?;
        Ok(checkpoint)
    }

    fn index(&mut self) -> Result<(), LoadError> {
        self.by_name.clear();
        for (index, tensor) in self.tensors.iter().enumerate() {
            if self.by_name.insert(tensor.name.clone(), index as u32).is_some() {
                return Err(LoadError::tensor(
                    &self.origin,
                    &tensor.name,
                    "is there twice, under two of its names",
                ));
            }
        }
        Ok(())
    }

    /// Decides whether the output head is the embedding table: it is when there is no head, or when the config says so;
    /// a head of its own that the config denies is not used, and that is said.
    fn settle_head(&mut self, tie: Option<bool>) -> Result<(), LoadError> {
        let head = self.tensor("lm_head.weight").cloned();
        self.tied = match (&head, tie) {
            (None, tie) => tie.unwrap_or(true),
            (Some(_), tie) => tie.unwrap_or(false),
        };
        let Some(head) = head.filter(|_| self.tied) else {
            return Ok(());
        };
        if !self.equals_embedding(&head)? {
            self.warnings.push(format!(
                "{}: tensor `lm_head.weight` differs from `embed_tokens.weight`, but `tie_word_embeddings` is true: \
                 the embedding is used for both",
                self.origin
            ));
        }
        self.tensors.retain(|tensor| tensor.name != "lm_head.weight");
        self.index()
    }

    fn equals_embedding(&self, head: &TensorInfo) -> Result<bool, LoadError> {
        let Some(table) = self.tensor("embed_tokens.weight") else {
            return Ok(false);
        };
        if table.dims != head.dims || table.format != head.format {
            return Ok(false);
        }
        let (a, b) = (
            self.stored(table.assembly.pieces[0].tensor),
            self.stored(head.assembly.pieces[0].tensor),
        );
        let (mut left, mut right) = (vec![0; COMPARE_BYTES], vec![0; COMPARE_BYTES]);
        for start in (0..a.byte_count()).step_by(COMPARE_BYTES) {
            let len = COMPARE_BYTES.min(a.byte_count() - start);
            self.read(a, start..start + len, &mut left[..len])?;
            self.read(b, start..start + len, &mut right[..len])?;
            if left[..len] != right[..len] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The config in the hub's vocabulary, nothing of it read yet. For GGUF, the metadata translated.
    pub fn config(&self) -> Config {
        Config::from_json(&self.config, &self.origin)
            .expect("the same bytes were parsed when this was opened")
    }

    /// A canonical tensor.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index as usize])
    }

    /// All canonical tensors.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Whether the output head is the embedding table.
    pub fn tied(&self) -> bool {
        self.tied
    }

    /// What is odd about this checkpoint without keeping it from loading; a strict caller refuses it.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The GGUF file, for its tokenizer and chat template.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.files {
            Files::Gguf(gguf) => Some(gguf),
            Files::Safetensors(_) => None,
        }
    }

    /// The folder of a safetensors checkpoint, for its tokenizer files.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The file that the config came from, for messages.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Bytes of all weight files.
    pub fn file_bytes(&self) -> u64 {
        match &self.files {
            Files::Gguf(gguf) => gguf.file_bytes(),
            Files::Safetensors(safetensors) => safetensors.file_bytes(),
        }
    }

    /// How it is stored.
    pub fn container(&self) -> Container {
        match &self.files {
            Files::Gguf(_) => Container::Gguf,
            Files::Safetensors(_) => Container::Safetensors,
        }
    }

    /// The numbers of a small tensor, such as the factors beside NVFP4 weights; `None` when there is no such tensor.
    ///
    /// # Errors
    /// When it is larger than a vector of factors would be, or cannot be read.
    pub fn factors(&self, name: &str) -> Result<Option<Vec<f32>>, LoadError> {
        let Some(info) = self.tensor(name) else {
            return Ok(None);
        };
        if info.dims.len() != 1 || info.dims[0] > FACTORS_MAX {
            let reason = format!(
                "has shape {:?}; a vector of at most {FACTORS_MAX} was expected",
                info.dims
            );
            return Err(LoadError::tensor(&self.origin, name, reason));
        }
        let mut bytes = vec![0; info.byte_count()];
        self.read_rows(info, 0..info.dims[0], 0..info.format.block_bytes(), &mut bytes)?;
        let mut numbers = vec![0.0; info.dims[0]];
        quant::dequantize(info.format, &bytes, &mut numbers)?;
        Ok(Some(numbers))
    }

    fn stored(&self, index: u32) -> &RawTensor {
        match &self.files {
            Files::Gguf(gguf) => &gguf.tensors()[index as usize],
            Files::Safetensors(safetensors) => &safetensors.tensors()[index as usize],
        }
    }

    fn read(&self, raw: &RawTensor, range: Range<usize>, out: &mut [u8]) -> Result<(), LoadError> {
        match &self.files {
            Files::Gguf(gguf) => gguf.read(raw, range, out),
            Files::Safetensors(safetensors) => safetensors.read(raw, range, out),
        }
    }

    /// Canonical rows `rows` of `info`, bytes `columns` of each.
    fn read_rows(
        &self,
        info: &TensorInfo,
        rows: Range<usize>,
        columns: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        match info.assembly.order {
            RowOrder::Halves => self.read_stored(info, rows, columns, out),
            RowOrder::Pairs { head_dim } => {
                // A head's rows lie together: read them once, then pick.
                let mut head = vec![0; head_dim * columns.len()];
                let mut out = out.chunks_exact_mut(columns.len());
                for number in rows.start / head_dim..rows.end.div_ceil(head_dim) {
                    let first = number * head_dim;
                    self.read_stored(info, first..first + head_dim, columns.clone(), &mut head)?;
                    for row in rows.start.max(first)..rows.end.min(first + head_dim) {
                        let stored = paired_row(row - first, head_dim);
                        let from = &head[stored * columns.len()..][..columns.len()];
                        out.next().expect("one place a row").copy_from_slice(from);
                    }
                }
                Ok(())
            }
        }
    }

    /// Rows in the order in which the pieces have them.
    fn read_stored(
        &self,
        info: &TensorInfo,
        rows: Range<usize>,
        columns: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        let mut piece_start = 0;
        let mut filled = 0;
        for piece in &info.assembly.pieces {
            let piece_end = piece_start + piece.row_count;
            let (from, to) = (rows.start.max(piece_start), rows.end.min(piece_end));
            if from < to {
                let raw = self.stored(piece.tensor);
                let row_bytes = raw.byte_count() / stored_rows(raw);
                let first = piece.first_row + from - piece_start;
                let len = (to - from) * columns.len();
                let target = &mut out[filled..filled + len];
                self.read_block(raw, first..first + to - from, row_bytes, columns.clone(), target)?;
                filled += len;
            }
            piece_start = piece_end;
        }
        Ok(())
    }

    fn read_block(
        &self,
        raw: &RawTensor,
        rows: Range<usize>,
        row_bytes: usize,
        columns: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        if columns.len() == row_bytes {
            return self.read(raw, rows.start * row_bytes..rows.end * row_bytes, out);
        }
        for (row, target) in rows.zip(out.chunks_exact_mut(columns.len())) {
            let start = row * row_bytes;
            self.read(raw, start + columns.start..start + columns.end, target)?;
        }
        Ok(())
    }

    /// A norm weight with 1 added, as F32.
    fn read_offset_norm(&self, info: &TensorInfo, range: Range<usize>) -> Result<Vec<u8>, LoadError> {
        let raw = self.stored(info.assembly.pieces[0].tensor);
        let format = raw.format()?;
        let mut bytes = vec![0; range.len() * format.block_bytes()];
        self.read(
            raw,
            range.start * format.block_bytes()..range.end * format.block_bytes(),
            &mut bytes,
        )?;
        let mut numbers = vec![0.0; range.len()];
        quant::dequantize(format, &bytes, &mut numbers)?;
        Ok(numbers
            .iter()
            .flat_map(|number| (number + 1.0).to_le_bytes())
            .collect())
    }
}

/// Most factors beside a weight: one for each expert.
const FACTORS_MAX: usize = 1 << 16;

/// Largest `config.json`; the reader itself refuses less than this.
const CONFIG_BYTES_MAX: u64 = 1 << 26;

/// The stored row, inside a head of interleaved pairs, of canonical row `row`.
fn paired_row(row: usize, head_dim: usize) -> usize {
    let half = head_dim / 2;
    2 * (row % half) + row / half
}

/// Rows of a stored tensor; those of a vector are of one number.
fn stored_rows(raw: &RawTensor) -> usize {
    match raw.dims.as_slice() {
        [] => 1,
        [len] => *len,
        [outer @ .., _] => outer.iter().product(),
    }
}

fn read_floats(gguf: &Gguf, raw: &RawTensor) -> Result<Vec<f32>, LoadError> {
    let mut bytes = vec![0; raw.byte_count()];
    gguf.read(raw, 0..bytes.len(), &mut bytes)?;
    let mut numbers = vec![0.0; raw.element_count()];
    quant::dequantize(raw.format()?, &bytes, &mut numbers)?;
    Ok(numbers)
}

/// The GGUF file of a folder, when there is one (or the shards of one).
fn only_gguf(folder: &Path) -> Result<PathBuf, LoadError> {
    let shown = folder.display().to_string();
    let entries = std::fs::read_dir(folder).map_err(|source| LoadError::Io {
        file: shown.clone(),
        action: "list",
        source,
    })?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| {
            path.extension()
                .is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"))
        })
        .collect();
    found.sort_unstable();
    let is_later_shard = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains("-of-") && !name.contains("-00001-of-")
    };
    found.retain(|path| !is_later_shard(path));
    match found.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(LoadError::malformed(
            &shown,
            "has neither a `config.json` nor a GGUF file",
        )),
        several => Err(LoadError::malformed(
            &shown,
            format!(
                "has no `config.json` and {} GGUF files: name the one to load",
                several.len()
            ),
        )),
    }
}

impl WeightSource for Checkpoint {
    fn rows(&self, weight: &Weight, rows: Range<usize>) -> Result<Cow<'_, [u8]>, BackendError> {
        let wrong = |reason: String| BackendError::Weight {
            name: weight.name.clone(),
            reason,
        };
        let info = self
            .tensor(&weight.name)
            .ok_or_else(|| wrong("is not in the checkpoint".into()))?;
        let part = Part::of(info, weight).map_err(&wrong)?;
        if rows.is_empty() {
            return Ok(Cow::Borrowed(&[]));
        }
        let rows = if weight.dims.len() == 1 {
            part.columns.clone()
        } else {
            rows
        };
        if info.assembly.offset == NormOffset::One {
            return self
                .read_offset_norm(info, rows)
                .map(Cow::Owned)
                .map_err(|e| wrong(e.to_string()));
        }
        let columns = if weight.dims.len() == 1 {
            0..info.format.block_bytes()
        } else {
            part.column_bytes.clone()
        };
        let mut out = vec![0; rows.len() * columns.len()];
        let mut filled = 0;
        let mut row = rows.start;
        while row < rows.end {
            let (source, len) = part.stretch(row, rows.end);
            let target = &mut out[filled..filled + len * columns.len()];
            self.read_rows(info, source..source + len, columns.clone(), target)
                .map_err(|e| wrong(e.to_string()))?;
            filled += len * columns.len();
            row += len;
        }
        Ok(Cow::Owned(out))
    }
}

/// Which part of a canonical tensor a weight is.
struct Part {
    /// Rows of each expert (of the only one) in the tensor, and those of the weight.
    source_rows: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    column_bytes: Range<usize>,
}

impl Part {
    fn of(info: &TensorInfo, weight: &Weight) -> Result<Self, String> {
        let last = info.dims.len() - 1;
        let source_rows = if last == 0 {
            info.dims[0]
        } else {
            info.dims[last - 1]
        };
        let columns = weight.column_range.clone().unwrap_or(0..info.dims[last]);
        let rows = weight.row_range.clone().unwrap_or(0..source_rows);
        let mut dims = info.dims.clone();
        dims[last] = columns.len();
        if last > 0 {
            dims[last - 1] = rows.len();
        }
        let inside = rows.end <= source_rows && columns.end <= info.dims[last];
        if dims != weight.dims || info.format != weight.format || !inside {
            return Err(format!(
                "is {:?} {} in the checkpoint, not {weight}",
                info.dims, info.format
            ));
        }
        let bytes = |numbers: usize| format_bytes(info.format, numbers);
        let column_bytes = bytes(columns.start)?..bytes(columns.end)?;
        Ok(Self {
            source_rows,
            rows,
            columns,
            column_bytes,
        })
    }

    /// The canonical row behind row `row` of the weight, and how many follow it without a gap before `end`.
    fn stretch(&self, row: usize, end: usize) -> (usize, usize) {
        if self.rows.len() == self.source_rows {
            return (row, end - row);
        }
        let (expert, inner) = (row / self.rows.len(), row % self.rows.len());
        let source = expert * self.source_rows + self.rows.start + inner;
        (source, (self.rows.len() - inner).min(end - row))
    }
}

fn format_bytes(format: Format, numbers: usize) -> Result<usize, String> {
    format.row_bytes(numbers).map_err(|error| error.to_string())
}

/// Whether the file begins with GGUF's magic.
fn starts_as_gguf(path: &Path) -> Result<bool, LoadError> {
    let file = Source::open(path)?;
    let mut magic = [0; 4];
    if file.len() < 4 {
        return Ok(false);
    }
    file.read_at(0, &mut magic)?;
    Ok(&magic == b"GGUF")
}
