//! f32 products: `[k][16]` weights in f32, f16 or bf16, one multiply-add for each k in ascending order.

use galvani_graph::Format;

use crate::pack::TILE_ROWS;
use crate::simd::Simd;

/// Encodings of a float tile.
pub(super) const F32: u8 = 0;
/// See [`F32`].
pub(super) const F16: u8 = 1;
/// See [`F32`].
pub(super) const BF16: u8 = 2;

/// The encoding of a float format.
pub(super) fn encoding(format: Format) -> u8 {
    if format == Format::F16 {
        F16
    } else if format == Format::BF16 {
        BF16
    } else {
        F32
    }
}

/// `R` rows of activations against a float tile of encoding `E`.
///
/// # Safety
/// The contract of [`Simd`]; the tile has `k` rows of 16; `x` has `R` pointers to `k` numbers.
#[inline(always)]
pub(super) unsafe fn rows<S: Simd, const E: u8, const R: usize>(
    tile: *const u8,
    k: usize,
    x: *const *const f32,
    out: *mut [f32; TILE_ROWS],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc: [S::F; R] = [S::splat_f(0.0); R];
        let x = *x.cast::<[*const f32; R]>();
        for i in 0..k {
            let w = match E {
                F16 => S::f16(tile.add(32 * i)),
                BF16 => S::bf16(tile.add(32 * i)),
                _ => S::load_f(tile.add(64 * i).cast()),
            };
            for r in 0..R {
                acc[r] = S::fma(w, S::splat_at(x[r].add(i)), acc[r]);
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            S::store_f(out.add(r).cast(), *acc);
        }
    }
}
