//! From bytes to keys and tensors.

use std::collections::HashSet;

use super::metadata::{MetaArray, MetaValue, Metadata, StringArray};
use super::read::HeaderReader;
use super::{TYPES, TYPES_REFUSED};
use crate::raw::{RawTensor, TENSORS_MAX, check_overlap, tensor_bytes};
use crate::source::Source;
use crate::{LoadError, RawDtype};

/// Most keys; files have some dozens.
const KEYS_MAX: u64 = 1 << 16;
/// Longest key or tensor name, bytes.
const NAME_BYTES_MAX: u64 = 1 << 16;
/// Longest string value (a chat template, say), bytes.
const STRING_BYTES_MAX: u64 = 1 << 26;
/// Most bytes in the strings of one array, so that their ends fit 32 bits.
const STRING_ARRAY_BYTES_MAX: u64 = u32::MAX as u64;
/// Most dimensions of a tensor.
const DIMENSIONS_MAX: u32 = 4;
/// Alignment where the file gives none.
const ALIGNMENT_DEFAULT: u32 = 32;
/// Largest alignment taken; files use 32 or 64.
const ALIGNMENT_MAX: u32 = 1 << 20;
/// Smallest possible key: its length, one character, type, one byte of value.
const KEY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
/// Smallest possible tensor: name length, one character, dimension count, type, offset. (Sizes come on top, but an entry
/// without any deserves its own message.)
const TENSOR_BYTES_MIN: u64 = 8 + 1 + 4 + 4 + 8;

/// One file's header.
pub(super) struct Header {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<RawTensor>,
}

/// Reads and checks the header of `source`, which is file number `file` of the checkpoint.
pub(super) fn parse(source: &Source, file: u32) -> Result<Header, LoadError> {
    let mut reader = HeaderReader::new(source);
    check_magic(&mut reader, source)?;
    let tensor_count = reader.u64("the tensor count")?;
    let key_count = reader.u64("the key count")?;
    if tensor_count > TENSORS_MAX as u64 {
        return Err(reader.fault(format!(
            "the tensor count says {tensor_count}; at most {TENSORS_MAX} are allowed"
        )));
    }
    if key_count > KEYS_MAX {
        return Err(reader.fault(format!(
            "the key count says {key_count}; at most {KEYS_MAX} are allowed"
        )));
    }
    reader.expect_room("the key count", key_count, KEY_BYTES_MIN)?;
    let metadata = read_metadata(&mut reader, source.name(), key_count)?;
    let alignment = alignment(&metadata)?;

    let tensor_count = reader.expect_room("the tensor count", tensor_count, TENSOR_BYTES_MIN)?;
    let mut tensors = Vec::with_capacity(tensor_count);
    for index in 0..tensor_count {
        tensors.push(read_tensor(&mut reader, source.name(), index, file, alignment)?);
    }
    let data_start = reader.position().next_multiple_of(u64::from(alignment));
    for tensor in &mut tensors {
        place(tensor, source, data_start)?;
    }
    check_overlap(source, &tensors)?;
    Ok(Header { metadata, tensors })
}

fn check_magic(reader: &mut HeaderReader, source: &Source) -> Result<(), LoadError> {
    if source.len() == 0 {
        return Err(reader.fault("is empty (0 bytes)"));
    }
    if reader.remaining() < 4 || reader.array("the magic")? != *b"GGUF" {
        let what = source
            .mix_up()
            .unwrap_or("is not a GGUF file (its first four bytes are not `GGUF`)");
        return Err(reader.fault(what));
    }
    match reader.u32("the version")? {
        2 | 3 => Ok(()),
        1 => Err(reader.fault("is GGUF version 1, withdrawn in 2023; supported: 2 and 3")),
        version if matches!(version.swap_bytes(), 1..=3) => {
            Err(reader.fault("is a big-endian GGUF; supported: little-endian"))
        }
        version => Err(reader.fault(format!("is GGUF version {version}; supported: 2 and 3"))),
    }
}

fn read_metadata(reader: &mut HeaderReader, origin: &str, key_count: u64) -> Result<Metadata, LoadError> {
    let mut entries = Vec::with_capacity(key_count as usize);
    for index in 0..key_count {
        let key = reader.string(&format!("the name of key {index}"), NAME_BYTES_MAX)?;
        if key.is_empty() {
            return Err(reader.fault(format!("key {index} has an empty name")));
        }
        let value = read_value(reader, origin, &key)?;
        entries.push((key, value));
    }
    let mut seen = HashSet::with_capacity(entries.len());
    for (key, _) in &entries {
        if !seen.insert(key.as_str()) {
            return Err(LoadError::key(origin, key, "is there twice"));
        }
    }
    Ok(Metadata::new(origin.to_owned(), entries))
}

fn read_value(reader: &mut HeaderReader, origin: &str, key: &str) -> Result<MetaValue, LoadError> {
    let what = format!("key `{}`", crate::error::shown(key));
    Ok(match reader.u32(&what)? {
        0 => MetaValue::U8(u8::from_le_bytes(reader.array(&what)?)),
        1 => MetaValue::I8(i8::from_le_bytes(reader.array(&what)?)),
        2 => MetaValue::U16(u16::from_le_bytes(reader.array(&what)?)),
        3 => MetaValue::I16(i16::from_le_bytes(reader.array(&what)?)),
        4 => MetaValue::U32(reader.u32(&what)?),
        5 => MetaValue::I32(i32::from_le_bytes(reader.array(&what)?)),
        6 => MetaValue::F32(f32::from_le_bytes(reader.array(&what)?)),
        7 => MetaValue::Bool(truth(reader.array::<1>(&what)?[0], origin, key)?),
        8 => MetaValue::String(reader.string(&what, STRING_BYTES_MAX)?),
        9 => MetaValue::Array(read_array(reader, &what, origin, key)?),
        10 => MetaValue::U64(reader.u64(&what)?),
        11 => MetaValue::I64(i64::from_le_bytes(reader.array(&what)?)),
        12 => MetaValue::F64(f64::from_le_bytes(reader.array(&what)?)),
        kind => {
            return Err(LoadError::key(
                origin,
                key,
                format!("has type {kind}; allowed: 0 to 12"),
            ));
        }
    })
}

fn truth(byte: u8, origin: &str, key: &str) -> Result<bool, LoadError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(LoadError::key(
            origin,
            key,
            format!("is a truth value of {byte}; allowed: 0 and 1"),
        )),
    }
}

fn read_array(
    reader: &mut HeaderReader,
    what: &str,
    origin: &str,
    key: &str,
) -> Result<MetaArray, LoadError> {
    let kind = reader.u32(what)?;
    let count = reader.u64(what)?;
    Ok(match kind {
        0 => MetaArray::U8(numbers(reader, what, count, u8::from_le_bytes)?),
        1 => MetaArray::I8(numbers(reader, what, count, i8::from_le_bytes)?),
        2 => MetaArray::U16(numbers(reader, what, count, u16::from_le_bytes)?),
        3 => MetaArray::I16(numbers(reader, what, count, i16::from_le_bytes)?),
        4 => MetaArray::U32(numbers(reader, what, count, u32::from_le_bytes)?),
        5 => MetaArray::I32(numbers(reader, what, count, i32::from_le_bytes)?),
        6 => MetaArray::F32(numbers(reader, what, count, f32::from_le_bytes)?),
        7 => {
            let count = reader.expect_room(what, count, 1)?;
            let mut values = Vec::with_capacity(count);
            for _ in 0..count {
                values.push(truth(reader.array::<1>(what)?[0], origin, key)?);
            }
            MetaArray::Bool(values)
        }
        8 => MetaArray::String(strings(reader, what, count)?),
        9 => {
            return Err(LoadError::key(
                origin,
                key,
                "is an array of arrays; arrays of numbers and strings are allowed",
            ));
        }
        10 => MetaArray::U64(numbers(reader, what, count, u64::from_le_bytes)?),
        11 => MetaArray::I64(numbers(reader, what, count, i64::from_le_bytes)?),
        12 => MetaArray::F64(numbers(reader, what, count, f64::from_le_bytes)?),
        kind => {
            return Err(LoadError::key(
                origin,
                key,
                format!("is an array of type {kind}; allowed: 0 to 12"),
            ));
        }
    })
}

fn numbers<T, const N: usize>(
    reader: &mut HeaderReader,
    what: &str,
    count: u64,
    decode: fn([u8; N]) -> T,
) -> Result<Vec<T>, LoadError> {
    let count = reader.expect_room(what, count, N as u64)?;
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        values.push(decode(reader.array(what)?));
    }
    Ok(values)
}

fn strings(reader: &mut HeaderReader, what: &str, count: u64) -> Result<StringArray, LoadError> {
    let count = reader.expect_room(what, count, 8)?;
    let mut ends = Vec::with_capacity(count);
    let mut text = Vec::new();
    for _ in 0..count {
        reader.string_onto(what, STRING_BYTES_MAX, &mut text)?;
        let end = u32::try_from(text.len()).map_err(|_| {
            reader.fault(format!(
                "{what}: its strings take more than {STRING_ARRAY_BYTES_MAX} bytes"
            ))
        })?;
        ends.push(end);
    }
    text.shrink_to_fit();
    let text = String::from_utf8(text).expect("each string was checked to be UTF-8");
    Ok(StringArray::new(text, ends))
}

fn alignment(metadata: &Metadata) -> Result<u32, LoadError> {
    let key = "general.alignment";
    let alignment = metadata.get_u32(key)?.unwrap_or(ALIGNMENT_DEFAULT);
    if !alignment.is_power_of_two() || alignment > ALIGNMENT_MAX {
        return Err(LoadError::key(
            metadata.origin(),
            key,
            format!("is {alignment}; allowed: a power of two up to {ALIGNMENT_MAX}"),
        ));
    }
    Ok(alignment)
}

/// Reads one tensor's entry. Its offset still counts from the start of the data.
fn read_tensor(
    reader: &mut HeaderReader,
    origin: &str,
    index: usize,
    file: u32,
    alignment: u32,
) -> Result<RawTensor, LoadError> {
    let what = format!("tensor {index}");
    let name = reader.string(&format!("the name of tensor {index}"), NAME_BYTES_MAX)?;
    if name.is_empty() {
        return Err(reader.fault(format!("tensor {index} has an empty name")));
    }
    let fault = |reason: String| LoadError::tensor(origin, &name, reason);
    let dimension_count = reader.u32(&what)?;
    if dimension_count == 0 || dimension_count > DIMENSIONS_MAX {
        return Err(fault(format!(
            "has {dimension_count} dimensions; allowed: 1 to {DIMENSIONS_MAX}"
        )));
    }
    let mut dims = Vec::with_capacity(dimension_count as usize);
    for dimension in 0..dimension_count {
        let size = reader.u64(&what)?;
        let size = usize::try_from(size)
            .ok()
            .filter(|&size| size > 0 && size <= i64::MAX as usize);
        dims.push(
            size.ok_or_else(|| fault(format!("dimension {dimension} has a size of 0 or beyond 2^63-1")))?,
        );
    }
    dims.reverse();
    let dtype = dtype(reader.u32(&what)?).map_err(fault)?;
    let byte_count = tensor_bytes(dtype, &dims).map_err(fault)?;
    let offset = reader.u64(&what)?;
    if !offset.is_multiple_of(u64::from(alignment)) {
        return Err(fault(format!(
            "offset {offset} is not a multiple of the alignment, {alignment}"
        )));
    }
    Ok(RawTensor {
        name,
        dims,
        dtype,
        file,
        offset,
        byte_count,
    })
}

fn dtype(id: u32) -> Result<RawDtype, String> {
    if let Some(row) = TYPES.iter().find(|row| row.0 == id) {
        return Ok(row.1);
    }
    let name = TYPES_REFUSED
        .iter()
        .find(|row| row.0 == id)
        .map_or("unknown", |row| row.1);
    let allowed: Vec<String> = TYPES.iter().map(|row| row.1.to_string()).collect();
    Err(format!(
        "has type {id} ({name}); supported: {}",
        allowed.join(", ")
    ))
}

/// Moves the offset to count from the start of the file, and holds the range against the file's length.
fn place(tensor: &mut RawTensor, source: &Source, data_start: u64) -> Result<(), LoadError> {
    let start = data_start.checked_add(tensor.offset);
    let end = start.and_then(|start| start.checked_add(tensor.byte_count as u64));
    match (start, end) {
        (Some(start), Some(end)) if end <= source.len() => {
            tensor.offset = start;
            Ok(())
        }
        _ => Err(LoadError::tensor(
            source.name(),
            &tensor.name,
            format!(
                "needs {} bytes at offset {}, but the file has {} bytes of data",
                tensor.byte_count,
                tensor.offset,
                source.len().saturating_sub(data_start)
            ),
        )),
    }
}
