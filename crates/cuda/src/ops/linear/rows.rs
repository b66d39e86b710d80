//! The kernel rows of the linears: every format in every shape class.

use crate::kernels::{Fact, KernelRow};
use crate::layout::PackedFormat;
use crate::ops::linear::formats::{FORMATS, LinearFormat};

/// Token tiles (of eight) that the skinny kernel takes in one weight pass.
pub const TOKEN_TILES: [u32; 3] = [1, 2, 4];
/// Threads of the tiled kernel's block.
pub const TILED_THREADS: u32 = 128;
/// Threads of the kernels around a library's product.
pub const PLAIN_THREADS: u32 = 256;
/// The kernel after a library's product.
pub const FINISH: &str = "linear_finish";

/// Symbol of the skinny kernel.
pub fn skinny(format: &LinearFormat, token_tiles: u32) -> String {
    format!("linear_{}_skinny_mt{token_tiles}", format.name)
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
/// or scales fill many registers themselves get some more, in smaller blocks.
pub const fn skinny_bounds(format: &LinearFormat, token_tiles: u32) -> (u32, u32) {
    use PackedFormat as F;
    let wide = match format.packed {
        F::F16 | F::Fp8Block | F::Int4G128Zero | F::Mxfp4 | F::Q5K | F::Q6K => true,
        F::Int8G32 | F::Int8G64 | F::Int8G128 | F::Int8G32Zero | F::Int8G64Zero | F::Int8G128Zero => true,
        F::Fp8 | F::Int4G32 | F::Int4G64 | F::Int4G128 | F::Int4G32Zero | F::Int4G64Zero => false,
        F::Nvfp4 | F::Iq4Nl | F::Iq4Xs | F::Q2K | F::Q3K | F::Q4K => false,
    };
    match token_tiles {
        1 if matches!(format.packed, F::F16) => (128, 7),
        1 => (256, 4),
        2 if wide => (128, 5),
        2 => (256, 3),
        _ => (256, 2),
    }
}

/// Blocks of the tiled kernel that a multiprocessor holds.
pub const fn tiled_blocks(format: &LinearFormat) -> u32 {
    if matches!(format.packed, PackedFormat::F16) {
        2
    } else {
        3
    }
}

/// Dynamic shared memory of a skinny block: each warp's sums.
pub const fn skinny_shared_bytes(warps: u32, token_tiles: u32) -> u32 {
    warps * token_tiles * 1024
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
        for tiles in TOKEN_TILES {
            let mut defines = format_defines(format);
            defines.push(("TOKEN_TILES", tiles.to_string()));
            let (threads, blocks) = skinny_bounds(format, tiles);
            rows.push(KernelRow {
                shared_bytes: skinny_shared_bytes(threads / 32, tiles),
                requires: &[Fact::Hmma884, Fact::Ldg128, Fact::NoCall],
                ..KernelRow::plain(
                    skinny(format, tiles),
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
            for tiles in TOKEN_TILES {
                assert!(has(&skinny(format, tiles)), "{} {tiles}", format.name);
            }
            assert!(has(&tiled(format)) && has(&dequant(format)), "{}", format.name);
        }
        assert_eq!(rows.len(), 1 + 5 * FORMATS.len());
        assert!(rows.iter().all(|row| row.shared_bytes <= 48 * 1024));
    }
}
