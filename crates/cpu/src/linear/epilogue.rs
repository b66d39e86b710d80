//! From a tile of results to the output rows.

use std::ops::Range;

use super::act::Chunk;
use super::tile::TileOut;
use super::{Epilogue, OutView};

/// Where results go.
pub(super) struct Target<'a> {
    pub out: OutView,
    pub column: usize,
    pub bias: Option<&'a [f32]>,
    pub epilogue: Epilogue,
}

impl Target<'_> {
    /// Writes the results of one tile; `columns` are those of the product.
    ///
    /// # Safety
    /// As [`super::linear_part`].
    #[inline]
    pub unsafe fn put(&self, values: &TileOut, chunk: &Chunk<'_>, columns: Range<usize>) {
        for i in 0..chunk.count {
            let row = chunk.output(i);
            let mut y = values.rows[i];
            let y = &mut y[..columns.len()];
            if let Some(bias) = self.bias {
                for (y, b) in y.iter_mut().zip(&bias[columns.clone()]) {
                    *y += b;
                }
            }
            let at = self.column + columns.start;
            // SAFETY: the output has these columns, and they are this worker's.
            unsafe {
                if let Epilogue::AddScaled { residual, scale } = self.epilogue {
                    let residual = residual.row(row).add(at);
                    for (j, y) in y.iter_mut().enumerate() {
                        *y = scale.mul_add(*y, *residual.add(j));
                    }
                }
                std::ptr::copy_nonoverlapping(y.as_ptr(), self.out.row(row).add(at), y.len());
            }
        }
    }
}
