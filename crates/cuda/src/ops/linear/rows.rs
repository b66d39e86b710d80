//! The kernel rows of the linears: every format in every shape class.

use crate::kernels::{Fact, KernelRow};
use crate::layout::PackedFormat;
use crate::ops::linear::formats::{FORMATS, LinearFormat};

/// What a block of the skinny kernel takes in one weight pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SkinnyShape {
    /// Columns: a tile, or half of one.
    pub columns: u32,
    /// Tiles of eight tokens.
    pub token_tiles: u32,
}

/// The shapes. Volta's lanes hold one column each, later ones' a column for each eight; half tiles fill the multiprocessors where columns
/// are few, and later registers where tokens are.
pub const SHAPES: [SkinnyShape; 4] = [shape(32, 1), shape(16, 1), shape(32, 2), shape(32, 4)];

const fn shape(columns: u32, token_tiles: u32) -> SkinnyShape {
    SkinnyShape { columns, token_tiles }
}

impl SkinnyShape {
    /// Numbers of k that a warp takes at one time: 2048 weights, but for the whole tiles of later architectures.
    pub const fn span(self, volta: bool) -> u32 {
        if volta && self.columns == 32 { 64 } else { 128 }
    }

    /// Dynamic shared memory of a block: each warp's sums; of half a tile, Volta's warps have two terms each.
    pub const fn shared_bytes(self, warps: u32) -> u32 {
        warps * self.token_tiles * 1024
    }

    /// Sums of a block, in bytes.
    pub const fn sums_bytes(self) -> u32 {
        self.token_tiles * self.columns * 32
    }
}
/// Threads of the tiled kernel's block.
pub const TILED_THREADS: u32 = 128;
/// Threads of the kernels around a library's product.
pub const PLAIN_THREADS: u32 = 256;
/// The kernel after a library's product.
pub const FINISH: &str = "linear_finish";

/// Symbol of the skinny kernel.
pub fn skinny(format: &LinearFormat, shape: SkinnyShape) -> String {
    let half = if shape.columns == 16 { "_half" } else { "" };
    format!("linear_{}_skinny_mt{}{half}", format.name, shape.token_tiles)
}

/// Symbol of the tiled kernel.
pub fn tiled(format: &LinearFormat) -> String {
    format!("linear_{}_tiled_m64", format.name)
}

/// Symbol of the kernel that writes weights as plain f16 rows.
pub fn dequant(format: &LinearFormat) -> String {
    format!("linear_{}_dequant", format.name)
}

/// (threads, blocks of a multiprocessor) of the skinny kernel: what the registers of its sums leave room for. Formats whose codes
/// or scales fill many registers themselves get some more, in smaller blocks; a few with several token tiles more yet.
pub const fn skinny_bounds(format: &LinearFormat, shape: SkinnyShape) -> (u32, u32) {
    use PackedFormat as F;
    let wide = match format.packed {
        F::F16 | F::Fp8Block | F::Int4G128Zero | F::Mxfp4 | F::Q5K | F::Q6K => true,
        F::Int8G32 | F::Int8G64 | F::Int8G128 | F::Int8G32Zero | F::Int8G64Zero | F::Int8G128Zero => true,
        F::Fp8 | F::Int4G32 | F::Int4G64 | F::Int4G128 | F::Int4G32Zero | F::Int4G64Zero => false,
        F::Nvfp4 | F::Iq4Nl | F::Iq4Xs | F::Q2K | F::Q3K | F::Q4K => false,
    };
    let widest = match format.packed {
        F::Int8G32Zero | F::Q6K => shape.token_tiles == 2,
        F::Int4G64Zero | F::Int8G64Zero | F::Int8G128Zero | F::Q3K => shape.token_tiles == 4,
        _ => false,
    };
    match shape.token_tiles {
        2 if widest => (128, 4),
        4 if widest => (128, 3),
        1 if matches!(format.packed, F::F16) => (128, 7),
        1 => (512, 2),
        2 if wide => (128, 5),
        2 => (256, 3),
        _ => (256, 2),
    }
}

/// Numbers of k of a stage of the tiled kernel.
pub const fn tiled_span(volta: bool) -> u32 {
    if volta { 64 } else { 128 }
}

/// Blocks of the tiled kernel that a multiprocessor holds.
pub const fn tiled_blocks(format: &LinearFormat) -> u32 {
    if matches!(format.packed, PackedFormat::F16) {
        2
    } else {
        3
    }
}

/// The table.
pub fn rows() -> Vec<KernelRow> {
    let mut rows = vec![KernelRow::plain(
        FINISH.to_owned(),
        "linear_finish.cu",
        Vec::new(),
        PLAIN_THREADS,
        4,
    )];
    for format in FORMATS {
        for shape in SHAPES {
            let mut defines = format_defines(format);
            defines.push(("TOKEN_TILES", shape.token_tiles.to_string()));
            defines.push(("COLUMNS", shape.columns.to_string()));
            let (threads, blocks) = skinny_bounds(format, shape);
            rows.push(KernelRow {
                shared_bytes: shape.shared_bytes(threads / 32),
                requires: &[Fact::Hmma884, Fact::Ldg128, Fact::NoCall],
                ..KernelRow::plain(
                    skinny(format, shape),
                    "linear_skinny.cu",
                    defines,
                    threads,
                    blocks,
                )
            });
        }
        rows.push(KernelRow {
            requires: &[Fact::Hmma884, Fact::Ldg128, Fact::Lds128, Fact::NoCall],
            ..KernelRow::plain(
                tiled(format),
                "linear_tiled.cu",
                format_defines(format),
                TILED_THREADS,
                tiled_blocks(format),
            )
        });
        rows.push(KernelRow {
            requires: &[Fact::Stg128, Fact::NoCall],
            ..KernelRow::plain(
                dequant(format),
                "linear_dequant.cu",
                format_defines(format),
                PLAIN_THREADS,
                4,
            )
        });
    }
    rows
}

pub(crate) fn format_defines(format: &LinearFormat) -> Vec<(&'static str, String)> {
    vec![
        ("FORMAT", format.device_type.to_owned()),
        ("FORMAT_HEADER", format!("\"{}\"", format.header)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_every_shape_class() {
        let rows = rows();
        let has = |symbol: &str| rows.iter().any(|row| row.symbol == symbol);
        for format in FORMATS {
            for shape in SHAPES {
                assert!(has(&skinny(format, shape)), "{} {shape:?}", format.name);
            }
            assert!(has(&tiled(format)) && has(&dequant(format)), "{}", format.name);
        }
        assert_eq!(rows.len(), 1 + (SHAPES.len() + 2) * FORMATS.len());
        assert!(rows.iter().all(|row| row.shared_bytes <= 48 * 1024));
    }
}
