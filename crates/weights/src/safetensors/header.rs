//! One file's header.

use std::borrow::Cow;
use std::fmt;

use galvani_graph::Format;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::error::shown;
use crate::raw::{RawTensor, TENSORS_MAX, tensor_bytes};
use crate::source::Source;
use crate::{LoadError, RawDtype};

/// Longest header, bytes; the format's reference reader has the same limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Most dimensions of a tensor.
const DIMENSIONS_MAX: usize = 8;
/// Most entries of `__metadata__`.
const NOTES_MAX: usize = 1 << 14;

const DTYPES: [(&str, RawDtype); 16] = [
    ("F32", RawDtype::Format(Format::F32)),
    ("F16", RawDtype::Format(Format::F16)),
    ("BF16", RawDtype::Format(Format::BF16)),
    ("BOOL", RawDtype::Bool),
    ("U8", RawDtype::U8),
    ("I8", RawDtype::I8),
    ("U16", RawDtype::U16),
    ("I16", RawDtype::I16),
    ("U32", RawDtype::U32),
    ("I32", RawDtype::I32),
    ("U64", RawDtype::U64),
    ("I64", RawDtype::I64),
    ("F64", RawDtype::F64),
    ("F8_E4M3", RawDtype::F8E4M3),
    ("F8_E5M2", RawDtype::F8E5M2),
    ("F8_E8M0", RawDtype::F8E8M0),
];

pub(super) struct Header {
    pub(super) tensors: Vec<RawTensor>,
    pub(super) notes: Vec<(String, String)>,
}

/// Reads and checks the header of `source`, which is file number `file` of the checkpoint.
pub(super) fn parse(source: &Source, file: u32) -> Result<Header, LoadError> {
    let fault = |reason: String| LoadError::malformed(source.name(), reason);
    let text = read_text(source)?;
    let text = std::str::from_utf8(&text)
        .map_err(|error| fault(format!("its header is not UTF-8 at byte {}", error.valid_up_to())))?;
    let entries: Entries = serde_json::from_str(text)
        .map_err(|error| fault(format!("its header is not sound JSON: {error}")))?;
    let data_start = 8 + text.len() as u64;
    let data_len = source.len() - data_start;
    let mut tensors = Vec::with_capacity(entries.tensors.len());
    for (name, entry) in entries.tensors {
        tensors.push(place(source, file, name, &entry, data_start)?);
    }
    check_tiling(source, &tensors, data_start, data_len)?;
    Ok(Header {
        tensors,
        notes: entries.notes,
    })
}

/// The bytes of the JSON header.
fn read_text(source: &Source) -> Result<Vec<u8>, LoadError> {
    let fault = |reason: String| LoadError::malformed(source.name(), reason);
    let len = source.len();
    if len == 0 {
        return Err(fault("is empty (0 bytes)".to_owned()));
    }
    if let Some(mix_up) = source.mix_up() {
        return Err(fault(mix_up.to_owned()));
    }
    if len < 8 {
        return Err(fault(format!(
            "is {len} bytes, too short to be safetensors: the header length alone takes 8"
        )));
    }
    let mut length = [0; 8];
    source.read_at(0, &mut length)?;
    let header_len = u64::from_le_bytes(length);
    if header_len > len - 8 {
        return Err(fault(format!(
            "is {len} bytes, but its header says that it takes {header_len} after the first 8: cut short, or not safetensors"
        )));
    }
    if header_len > HEADER_BYTES_MAX {
        return Err(fault(format!(
            "has a header of {header_len} bytes; at most {HEADER_BYTES_MAX} are allowed"
        )));
    }
    let mut text = vec![0; header_len as usize];
    source.read_at(8, &mut text)?;
    Ok(text)
}

fn place(
    source: &Source,
    file: u32,
    name: String,
    entry: &Entry,
    data_start: u64,
) -> Result<RawTensor, LoadError> {
    let fault = |reason: String| LoadError::tensor(source.name(), &name, reason);
    let Some(row) = DTYPES.iter().find(|row| row.0 == entry.dtype) else {
        let allowed: Vec<&str> = DTYPES.iter().map(|row| row.0).collect();
        return Err(fault(format!(
            "has dtype `{}`; supported: {}",
            shown(&entry.dtype),
            allowed.join(", ")
        )));
    };
    let dtype = row.1;
    let byte_count = tensor_bytes(dtype, &entry.shape.0).map_err(fault)?;
    let (begin, end) = entry.data_offsets;
    if end.checked_sub(begin) != Some(byte_count as u64) {
        return Err(fault(format!(
            "has data_offsets [{begin}, {end}], but {dtype} {:?} takes {byte_count} bytes",
            entry.shape.0
        )));
    }
    let data_len = source.len() - data_start;
    if end > data_len {
        return Err(fault(format!(
            "needs data up to byte {end}, but the file has {data_len} bytes of data: cut short"
        )));
    }
    Ok(RawTensor {
        name,
        dims: entry.shape.0.clone(),
        dtype,
        file,
        offset: data_start + begin,
        byte_count,
    })
}

/// The data must be tiled by the tensors: no hole, no overlap, nothing behind.
fn check_tiling(
    source: &Source,
    tensors: &[RawTensor],
    data_start: u64,
    data_len: u64,
) -> Result<(), LoadError> {
    crate::raw::check_overlap(source, tensors)?;
    let used: u64 = tensors.iter().map(|tensor| tensor.byte_count as u64).sum();
    if used == data_len {
        return Ok(());
    }
    let end = tensors
        .iter()
        .map(|tensor| tensor.offset + tensor.byte_count as u64)
        .max();
    let end = end.unwrap_or(data_start) - data_start;
    Err(LoadError::malformed(
        source.name(),
        if end < data_len {
            format!("its tensors end at byte {end} of the data, but {data_len} bytes follow the header")
        } else {
            format!("its tensors cover {used} of {data_len} bytes of data: there are holes between them")
        },
    ))
}

/// The header's object, in order.
struct Entries {
    tensors: Vec<(String, Entry)>,
    notes: Vec<(String, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

struct Shape(Vec<usize>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Entries {
            tensors: Vec::new(),
            notes: Vec::new(),
        };
        let mut notes_seen = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if std::mem::replace(&mut notes_seen, true) {
                    return Err(A::Error::custom("`__metadata__` is there twice"));
                }
                entries.notes = map.next_value::<Notes>()?.0;
                continue;
            }
            if entries.tensors.len() == TENSORS_MAX {
                return Err(A::Error::custom(format!("more than {TENSORS_MAX} tensors")));
            }
            entries.tensors.push((name, map.next_value()?));
        }
        Ok(entries)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
        let mut dims = Vec::new();
        while let Some(size) = seq.next_element()? {
            if dims.len() == DIMENSIONS_MAX {
                return Err(A::Error::custom(format!(
                    "a shape of more than {DIMENSIONS_MAX} dimensions"
                )));
            }
            dims.push(size);
        }
        Ok(Shape(dims))
    }
}

struct Notes(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Notes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NotesVisitor)
    }
}

struct NotesVisitor;

impl<'de> Visitor<'de> for NotesVisitor {
    type Value = Notes;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Notes, A::Error> {
        let mut notes = Vec::new();
        while let Some((key, value)) = map.next_entry::<Cow<str>, Cow<str>>()? {
            if notes.len() == NOTES_MAX {
                return Err(A::Error::custom(format!(
                    "more than {NOTES_MAX} entries in `__metadata__`"
                )));
            }
            notes.push((key.into_owned(), value.into_owned()));
        }
        Ok(Notes(notes))
    }
}
