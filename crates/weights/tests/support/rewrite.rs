//! Writes a loaded GGUF's header again, so that it can be held against the bytes it came from.

use galvani_weights::RawDtype;
use galvani_weights::gguf::{Gguf, MetaArray, MetaValue, type_id};

/// The header that says what `gguf` holds. Takes the version from `file`, and finds each tensor's offset by looking for
/// its data there.
pub fn gguf_header(gguf: &Gguf, file: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = b"GGUF".to_vec();
    out.extend(&file[4..8]);
    out.extend((gguf.tensors().len() as u64).to_le_bytes());
    out.extend((gguf.metadata().iter().len() as u64).to_le_bytes());
    for (key, value) in gguf.metadata().iter() {
        string(&mut out, key);
        write_value(&mut out, value);
    }
    let infos: usize = gguf
        .tensors()
        .iter()
        .map(|t| 8 + t.name.len() + 4 + 8 * t.dims.len() + 12)
        .sum();
    let alignment = gguf
        .metadata()
        .get_u32("general.alignment")
        .map_err(|e| e.to_string())?;
    let data_start = (out.len() + infos).next_multiple_of(alignment.unwrap_or(32) as usize);
    for tensor in gguf.tensors() {
        let mut data = vec![0; tensor.byte_count()];
        gguf.read(tensor, 0..data.len(), &mut data)
            .map_err(|e| e.to_string())?;
        let mut places = (data_start..=file.len() - data.len()).filter(|&at| file[at..].starts_with(&data));
        // Where the same bytes stand in several places, the header's own offset must be one of them.
        let stated_at = out.len() + 8 + tensor.name.len() + 4 + 8 * tensor.dims.len() + 4;
        let stated = file
            .get(stated_at..stated_at + 8)
            .ok_or("is shorter than its header")?;
        let stated = u64::from_le_bytes(stated.try_into().unwrap());
        let place = places.find(|&at| (at - data_start) as u64 == stated);
        let place =
            place.ok_or_else(|| format!("the data of `{}` is not where its offset says", tensor.name))?;
        string(&mut out, &tensor.name);
        out.extend((tensor.dims.len() as u32).to_le_bytes());
        for &size in tensor.dims.iter().rev() {
            out.extend((size as u64).to_le_bytes());
        }
        out.extend(number(tensor.dtype).to_le_bytes());
        out.extend(((place - data_start) as u64).to_le_bytes());
    }
    Ok(out)
}

fn number(dtype: RawDtype) -> u32 {
    match dtype {
        RawDtype::Format(format) => type_id(format),
        RawDtype::I8 => 24,
        RawDtype::I16 => 25,
        RawDtype::I32 => 26,
        RawDtype::I64 => 27,
        RawDtype::F64 => 28,
        other => panic!("GGUF has no {other}"),
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn write_value(out: &mut Vec<u8>, value: &MetaValue) {
    match value {
        MetaValue::U8(v) => typed(out, 0, v.to_le_bytes()),
        MetaValue::I8(v) => typed(out, 1, v.to_le_bytes()),
        MetaValue::U16(v) => typed(out, 2, v.to_le_bytes()),
        MetaValue::I16(v) => typed(out, 3, v.to_le_bytes()),
        MetaValue::U32(v) => typed(out, 4, v.to_le_bytes()),
        MetaValue::I32(v) => typed(out, 5, v.to_le_bytes()),
        MetaValue::F32(v) => typed(out, 6, v.to_le_bytes()),
        MetaValue::Bool(v) => typed(out, 7, [u8::from(*v)]),
        MetaValue::String(v) => {
            out.extend(8u32.to_le_bytes());
            string(out, v);
        }
        MetaValue::Array(v) => write_array(out, v),
        MetaValue::U64(v) => typed(out, 10, v.to_le_bytes()),
        MetaValue::I64(v) => typed(out, 11, v.to_le_bytes()),
        MetaValue::F64(v) => typed(out, 12, v.to_le_bytes()),
    }
}

fn typed<const N: usize>(out: &mut Vec<u8>, kind: u32, bytes: [u8; N]) {
    out.extend(kind.to_le_bytes());
    out.extend(bytes);
}

fn write_array(out: &mut Vec<u8>, array: &MetaArray) {
    out.extend(9u32.to_le_bytes());
    let len = (array.len() as u64).to_le_bytes();
    let mut head = |kind: u32| {
        out.extend(kind.to_le_bytes());
        out.extend(len);
    };
    match array {
        MetaArray::U8(v) => {
            head(0);
            out.extend(v);
        }
        MetaArray::I8(v) => {
            head(1);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        MetaArray::U16(v) => {
            head(2);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        MetaArray::I16(v) => {
            head(3);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        MetaArray::U32(v) => {
            head(4);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        MetaArray::I32(v) => {
            head(5);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        MetaArray::F32(v) => {
            head(6);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        MetaArray::Bool(v) => {
            head(7);
            out.extend(v.iter().map(|&x| u8::from(x)));
        }
        MetaArray::String(v) => {
            head(8);
            v.iter().for_each(|text| string(out, text));
        }
        MetaArray::U64(v) => {
            head(10);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        MetaArray::I64(v) => {
            head(11);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        MetaArray::F64(v) => {
            head(12);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
    }
}
