//! From a tile of results to the output rows.

use std::ops::Range;

use super::act::Chunk;
use super::tile::TileOut;
use super::{Epilogue, OutView};
use crate::pack::TILE_ROWS;
use crate::simd::Simd;

/// (result of one row and tile, bias, residual, its multiplier, output): 16 numbers each.
pub(super) type PutFn = unsafe fn(*const f32, *const f32, *const f32, f32, *mut f32);

/// Where results go.
pub(super) struct Target<'a> {
    pub out: OutView,
    pub column: usize,
    pub bias: Option<&'a [f32]>,
    pub epilogue: Epilogue,
    pub put: PutFn,
}

impl Target<'_> {
    /// Asks for the output lines that [`Target::put`] will write, for writing: what a long product hides is not waited for
    /// afterwards. Rows lie far apart, so that no hardware prefetcher helps.
    ///
    /// # Safety
    /// As [`Target::put`].
    #[inline]
    pub unsafe fn claim(&self, chunk: &Chunk<'_>, columns: Range<usize>) {
        for i in 0..chunk.count {
            // SAFETY: the output has these columns; a prefetch changes nothing.
            unsafe {
                let line = self.out.row(chunk.output(i)).add(self.column + columns.start);
                #[cfg(target_arch = "x86_64")]
                std::arch::asm!(
                    "prefetchw [{}]",
                    in(reg) line,
                    options(nostack, preserves_flags, readonly)
                );
                #[cfg(not(target_arch = "x86_64"))]
                let _ = line;
            }
        }
    }

    /// Writes the results of one tile; `columns` are those of the product.
    ///
    /// # Safety
    /// As [`super::linear_part`]; `values` has the chunk's rows.
    #[inline]
    pub unsafe fn put(&self, values: *const TileOut, chunk: &Chunk<'_>, columns: Range<usize>) {
        let values: *const [f32; TILE_ROWS] = values.cast();
        let at = self.column + columns.start;
        let bias = self
            .bias
            .map_or(std::ptr::null(), |bias| bias[columns.clone()].as_ptr());
        for i in 0..chunk.count {
            let row = chunk.output(i);
            // SAFETY: the output has these columns, and they are this worker's.
            unsafe {
                let value: *const f32 = values.add(i).cast();
                let (residual, scale) = match self.epilogue {
                    Epilogue::Store => (std::ptr::null(), 0.0),
                    Epilogue::AddScaled { residual, scale } => (residual.row(row).add(at), scale),
                };
                let out = self.out.row(row).add(at);
                if columns.len() == TILE_ROWS {
                    (self.put)(value, bias, residual, scale, out);
                } else {
                    self.put_some(value, bias, residual, scale, out, columns.len());
                }
            }
        }
    }

    /// The last tile of a matrix: `len` columns, by way of whole tiles.
    ///
    /// # Safety
    /// `len` numbers behind each pointer that is not null.
    unsafe fn put_some(
        &self,
        value: *const f32,
        bias: *const f32,
        residual: *const f32,
        scale: f32,
        out: *mut f32,
        len: usize,
    ) {
        let copy = |from: *const f32| {
            let mut whole = [0f32; TILE_ROWS];
            if !from.is_null() {
                // SAFETY: the caller's contract.
                unsafe { std::ptr::copy_nonoverlapping(from, whole.as_mut_ptr(), len) };
            }
            whole
        };
        let or_null = |from: *const f32, whole: &[f32; TILE_ROWS]| {
            if from.is_null() { from } else { whole.as_ptr() }
        };
        let (bias_whole, residual_whole) = (copy(bias), copy(residual));
        let (bias, residual) = (or_null(bias, &bias_whole), or_null(residual, &residual_whole));
        let mut whole = [0f32; TILE_ROWS];
        // SAFETY: whole tiles; the caller's contract.
        unsafe {
            (self.put)(value, bias, residual, scale, whole.as_mut_ptr());
            std::ptr::copy_nonoverlapping(whole.as_ptr(), out, len);
        }
    }
}

/// `out = residual + scale * (value + bias)`; a null pointer leaves its part out.
///
/// # Safety
/// The contract of [`Simd`]; 16 numbers behind each pointer that is not null.
#[inline(always)]
pub(super) unsafe fn put<S: Simd>(
    value: *const f32,
    bias: *const f32,
    residual: *const f32,
    scale: f32,
    out: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut y = S::load_f(value);
        if !bias.is_null() {
            y = S::add(y, S::load_f(bias));
        }
        if !residual.is_null() {
            y = S::fma(S::splat_f(scale), y, S::load_f(residual));
        }
        S::store_f(out, y);
    }
}
