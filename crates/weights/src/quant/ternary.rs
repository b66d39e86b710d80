//! TQ1_0, TQ2_0: 256 numbers of -1, 0, 1 and one f16 scale.

use super::f16_at;

/// `qs[48], qh[4], d`: five trits a byte (four in `qh`), read off the top of byte / 256 in base 3.
pub(super) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = f16_at(block, 52);
    // (bytes, first number): trit t of byte m is number first + t * bytes.len() + m
    let parts = [(&block[..32], 0), (&block[32..48], 160), (&block[48..52], 240)];
    for (bytes, first) in parts {
        let trit_count = if first == 240 { 4 } else { 5 };
        for (m, &byte) in bytes.iter().enumerate() {
            let mut fraction = byte;
            for t in 0..trit_count {
                let trit = ((u16::from(fraction) * 3) >> 8) as i8 - 1;
                out[first + t * bytes.len() + m] = d * f32::from(trit);
                fraction = fraction.wrapping_mul(3);
            }
        }
    }
}

/// `qs[64], d`: two bits a number, w = d (q - 1). Numbers e = 128 h + 32 j + l share byte 32 h + l.
pub(super) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = f16_at(block, 64);
    for (e, out) in out.iter_mut().enumerate() {
        let q = block[32 * (e / 128) + e % 32] >> (2 * (e / 32 % 4)) & 3;
        *out = d * f32::from(q as i8 - 1);
    }
}
