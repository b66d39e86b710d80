//! Block formats: one file a family, each with the layout and the decoder.
//!
//! Decoding is the definition of a format here. It does the published arithmetic operation by operation in f32, so that
//! results equal those of the `gguf` Python package (0.19) bit for bit. It is written to be read; kernels have their own
//! code and are held against this.

mod encode;
mod float;
mod fp4;
mod grids;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod k_quants;
mod simple;
mod ternary;

use galvani_graph::Format;

use crate::LoadError;

pub use encode::encode;

/// Decodes whole blocks: `bytes` of `format` into `out`.
///
/// # Errors
/// When `bytes` is not just the length that `out.len()` numbers take.
pub fn dequantize(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), LoadError> {
    check(format, bytes.len(), out.len())?;
    match format {
        Format::F32 => blocks(bytes, out, float::f32_block),
        Format::F16 => blocks(bytes, out, float::f16_block),
        Format::BF16 => blocks(bytes, out, float::bf16_block),
        Format::Q4_0 => blocks(bytes, out, simple::q4_0),
        Format::Q4_1 => blocks(bytes, out, simple::q4_1),
        Format::Q5_0 => blocks(bytes, out, simple::q5_0),
        Format::Q5_1 => blocks(bytes, out, simple::q5_1),
        Format::Q8_0 => blocks(bytes, out, simple::q8_0),
        Format::Q2K => blocks(bytes, out, k_quants::q2_k),
        Format::Q3K => blocks(bytes, out, k_quants::q3_k),
        Format::Q4K => blocks(bytes, out, k_quants::q4_k),
        Format::Q5K => blocks(bytes, out, k_quants::q5_k),
        Format::Q6K => blocks(bytes, out, k_quants::q6_k),
        Format::Iq1S => blocks(bytes, out, iq1::iq1_s),
        Format::Iq1M => blocks(bytes, out, iq1::iq1_m),
        Format::Iq2Xxs => blocks(bytes, out, iq2::iq2_xxs),
        Format::Iq2Xs => blocks(bytes, out, iq2::iq2_xs),
        Format::Iq2S => blocks(bytes, out, iq2::iq2_s),
        Format::Iq3Xxs => blocks(bytes, out, iq3::iq3_xxs),
        Format::Iq3S => blocks(bytes, out, iq3::iq3_s),
        Format::Iq4Nl => blocks(bytes, out, iq4::iq4_nl),
        Format::Iq4Xs => blocks(bytes, out, iq4::iq4_xs),
        Format::Tq1_0 => blocks(bytes, out, ternary::tq1_0),
        Format::Tq2_0 => blocks(bytes, out, ternary::tq2_0),
        Format::Mxfp4 => blocks(bytes, out, fp4::mxfp4),
        Format::Nvfp4 => blocks(bytes, out, fp4::nvfp4),
    }
    Ok(())
}

/// Checks that bytes and numbers belong together.
fn check(format: Format, byte_count: usize, number_count: usize) -> Result<(), LoadError> {
    let fault = |reason| LoadError::Blocks {
        format,
        byte_count,
        number_count,
        reason,
    };
    let wanted = format
        .row_bytes(number_count)
        .map_err(|error| fault(error.to_string()))?;
    if wanted != byte_count {
        return Err(fault(format!("they take {wanted} bytes")));
    }
    Ok(())
}

/// Walks blocks of `BYTES` bytes and `LEN` numbers. That these are the format's own is checked at both ends: the lengths
/// were checked against [`Format`], and nothing may be left here.
fn blocks<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, bytes_left) = bytes.as_chunks::<BYTES>();
    let (outs, out_left) = out.as_chunks_mut::<LEN>();
    assert!(bytes_left.is_empty() && out_left.is_empty() && blocks.len() == outs.len());
    for (block, out) in blocks.iter().zip(outs) {
        decode(block, out);
    }
}

/// The f16 at `place`, as f32.
fn f16_at(block: &[u8], place: usize) -> f32 {
    half::f16::from_bits(u16_at(block, place)).to_f32()
}

fn u16_at(block: &[u8], place: usize) -> u16 {
    u16::from_le_bytes([block[place], block[place + 1]])
}

fn u32_at(block: &[u8], place: usize) -> u32 {
    u32::from(u16_at(block, place)) | u32::from(u16_at(block, place + 2)) << 16
}

/// Nibble `index` of a row of bytes, low one first.
fn nibble(bytes: &[u8], index: usize) -> u8 {
    (bytes[index / 2] >> (4 * (index % 2))) & 15
}

/// The sign that bit `index` of `signs` stands for.
fn sign(signs: u8, index: usize) -> f32 {
    if signs >> index & 1 == 0 { 1.0 } else { -1.0 }
}

/// Eight signs out of seven bits: the last makes the number of minus signs even.
fn even_signs(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | ((bits.count_ones() as u8 & 1) << 7)
}
