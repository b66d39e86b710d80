//! F32, F16, BF16: numbers one by one, little-endian.

pub(super) fn f32_block(block: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*block);
}

pub(super) fn f16_block(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = half::f16::from_le_bytes(*block).to_f32();
}

/// The upper half of an f32.
pub(super) fn bf16_block(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*block)) << 16);
}
