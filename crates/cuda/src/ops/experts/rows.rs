//! The kernel rows of the experts.

use crate::kernels::{Fact, KernelRow};
use crate::layout::PackedFormat;
use crate::ops::linear::formats::{FORMATS, LinearFormat};
use crate::ops::linear::rows::format_defines;

/// Row tiles (of eight slots) that the grouped kernels take in one weight pass.
pub const ROW_TILES: [u32; 2] = [1, 2];
/// Warps that share a k in the gate's or up's product. Part of the result's bits: the same for every path and bucket.
pub const GATED_PARTS: u32 = 8;
/// The same of the down product.
pub const DOWN_PARTS: u32 = 4;
/// Threads of the gated kernel: half of the warps for the gate, half for the up.
pub const GATED_THREADS: u32 = 64 * GATED_PARTS;
/// Threads of the grouped down kernel.
pub const DOWN_THREADS: u32 = 32 * DOWN_PARTS;
/// Threads of the tiled kernels.
pub const TILED_THREADS: u32 = 128;
/// Slots of their row blocks.
pub const TILED_ROWS: u32 = 64;
/// Threads of the combination.
pub const COMBINE_THREADS: u32 = 128;
/// Threads of the router.
pub const ROUTE_THREADS: u32 = 256;
/// Experts at most.
pub const EXPERTS_MAX: u32 = 512;
/// Experts a token at most.
pub const TOP_K_MAX: u32 = 32;
/// Dynamic shared memory of a router's block at most: what needs no leave of the driver.
pub const SHARED_MAX: u32 = 48 * 1024 - 64;
/// The combination's symbol.
pub const COMBINE: &str = "experts_combine";

/// A router's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteShape {
    /// Whether the matrix is f32 and not f16.
    pub f32_matrix: bool,
    /// Tokens of a block.
    pub tokens: u32,
    /// Rows of the router's matrix that a warp has a part of.
    pub experts: u32,
}

/// Warps that share a row of the router's matrix. Part of the logits' bits.
pub const ROUTE_SPLIT: u32 = 4;

/// One token at a time is spread over as many blocks as can be; more share what they read.
pub const ROUTE_SHAPES: [RouteShape; 4] = [
    shape(false, 1, 1),
    shape(false, 8, 2),
    shape(true, 1, 1),
    shape(true, 8, 2),
];

const fn shape(f32_matrix: bool, tokens: u32, experts: u32) -> RouteShape {
    RouteShape {
        f32_matrix,
        tokens,
        experts,
    }
}

impl RouteShape {
    /// Rows of the router's matrix of a block.
    pub const fn block_rows(&self) -> u32 {
        ROUTE_THREADS / 32 / ROUTE_SPLIT * self.experts
    }

    /// Its symbol.
    pub fn symbol(&self) -> String {
        let matrix = if self.f32_matrix { "f32" } else { "f16" };
        format!("route_{matrix}_t{}", self.tokens)
    }
}

/// Symbol of the gated kernel.
pub fn gated(format: &LinearFormat, row_tiles: u32) -> String {
    format!("experts_gated_{}_rt{row_tiles}", format.name)
}

/// Symbol of the grouped down kernel.
pub fn down(format: &LinearFormat, row_tiles: u32) -> String {
    format!("experts_down_{}_rt{row_tiles}", format.name)
}

/// Symbol of the direct down kernel.
pub fn down_direct(format: &LinearFormat) -> String {
    format!("experts_down_{}_direct", format.name)
}

/// Pieces of k that a warp of the direct gated kernel and of the direct down kernel has in flight: two where the registers of two
/// blocks of 512 threads, or of one of 1024, hold their codes without a spill.
pub const fn ahead(format: &LinearFormat) -> (u32, u32) {
    use PackedFormat as F;
    match format.packed {
        F::Nvfp4 | F::Mxfp4 => (2, 2),
        F::Int4G32 | F::Int4G32Zero => (2, 1),
        F::Int4G64Zero | F::Int4G128Zero => (1, 2),
        F::Int4G64 | F::Int4G128 | F::Iq4Nl | F::Iq4Xs => (1, 1),
        F::F16 | F::Fp8 | F::Fp8Block | F::Q2K | F::Q3K | F::Q4K | F::Q5K | F::Q6K => (1, 1),
        F::Int8G32 | F::Int8G64 | F::Int8G128 | F::Int8G32Zero | F::Int8G64Zero | F::Int8G128Zero => (1, 1),
    }
}

/// Whether the kernels load what finishes a sum before the product: where no row of the format spills by it.
pub const fn early(format: &LinearFormat) -> bool {
    matches!(
        format.packed,
        PackedFormat::Nvfp4 | PackedFormat::Mxfp4 | PackedFormat::Int4G32
    )
}

/// Threads of the direct down kernel's largest block: as many as a multiprocessor holds, where the registers allow it.
pub const fn direct_threads(format: &LinearFormat) -> u32 {
    if format.packed.row().planes[0] <= 4 && !matches!(format.packed, PackedFormat::Q5K | PackedFormat::Q6K) {
        1024
    } else {
        512
    }
}

/// Symbol of the direct gated kernel; formats that have nothing ahead take the grouped one's.
pub fn gated_direct(format: &LinearFormat) -> String {
    if ahead(format).0 == 1 {
        return gated(format, 1);
    }
    format!("experts_gated_{}_direct", format.name)
}

/// Symbol of the gated kernel for 64 slots of an expert.
pub fn gated_tiled(format: &LinearFormat) -> String {
    format!("experts_gated_{}_tiled", format.name)
}

/// Symbol of the down kernel for 64 slots of an expert.
pub fn down_tiled(format: &LinearFormat) -> String {
    format!("experts_down_{}_tiled", format.name)
}

/// Dynamic shared memory of the gated kernel.
pub const GATED_SHARED: u32 = 2 * GATED_PARTS * 1024;
/// The same of the grouped down kernel.
pub const DOWN_SHARED: u32 = DOWN_PARTS * 1024;

/// The same of the direct down kernel: each part's 32 sums, then each slot's.
pub const fn direct_shared(top_k: u32) -> u32 {
    top_k * (DOWN_PARTS + 1) * 128
}

/// The table.
pub fn rows() -> Vec<KernelRow> {
    let mut rows = vec![KernelRow::plain(
        COMBINE.to_owned(),
        "experts_combine.cu",
        Vec::new(),
        COMBINE_THREADS,
        8,
    )];
    for shape in ROUTE_SHAPES {
        let matrix = if shape.f32_matrix { "float" } else { "__half" };
        let defines = vec![
            ("ROUTER", matrix.to_owned()),
            ("TOKENS", shape.tokens.to_string()),
            ("EXPERTS", shape.experts.to_string()),
            ("SPLIT", ROUTE_SPLIT.to_string()),
        ];
        rows.push(KernelRow {
            shared_bytes: SHARED_MAX,
            registers_max: 128,
            // The slow path of a division is a call.
            requires: &[],
            ..KernelRow::plain(shape.symbol(), "route.cu", defines, ROUTE_THREADS, 1)
        });
    }
    FORMATS.iter().for_each(|format| format_rows(format, &mut rows));
    rows
}

fn format_rows(format: &LinearFormat, rows: &mut Vec<KernelRow>) {
    let defines = |parts: u32, row_tiles: Option<u32>, ahead: Option<u32>| {
        let mut all = format_defines(format);
        all.push(("PARTS", parts.to_string()));
        all.push(("EARLY", u32::from(early(format)).to_string()));
        all.extend(row_tiles.map(|tiles| ("ROW_TILES", tiles.to_string())));
        all.extend(ahead.map(|pieces| ("AHEAD", pieces.to_string())));
        all
    };
    let requires = &[Fact::Hmma884, Fact::Ldg128, Fact::NoCall];
    // The slow path of the sigmoid's division is a call.
    let requires_gated = &[Fact::Hmma884, Fact::Ldg128];
    let code_bits = format.packed.row().planes[0];
    for tiles in ROW_TILES {
        // What the registers of sums and codes leave room for.
        let (gated_blocks, down_blocks) = match (tiles, code_bits) {
            (1, 16) => (1, 6),
            (1, 8) => (2, 6),
            (1, _) => (2, 8),
            _ => (1, 4),
        };
        let mut symbols = vec![(gated(format, tiles), 1)];
        if tiles == 1 && ahead(format).0 > 1 {
            symbols.push((gated_direct(format), ahead(format).0));
        }
        rows.extend(symbols.into_iter().map(|(symbol, ahead)| KernelRow {
            shared_bytes: GATED_SHARED,
            requires: requires_gated,
            ..KernelRow::plain(
                symbol,
                "experts_gated.cu",
                defines(GATED_PARTS, Some(tiles), Some(ahead)),
                GATED_THREADS,
                gated_blocks,
            )
        }));
        rows.push(KernelRow {
            shared_bytes: DOWN_SHARED,
            requires,
            ..KernelRow::plain(
                down(format, tiles),
                "experts_down.cu",
                defines(DOWN_PARTS, Some(tiles), None),
                DOWN_THREADS,
                down_blocks,
            )
        });
    }
    for (symbol, gated) in [(gated_tiled(format), 1), (down_tiled(format), 0)] {
        let mut all = format_defines(format);
        all.push(("GATED", gated.to_string()));
        rows.push(KernelRow {
            requires: requires_gated,
            ..KernelRow::plain(symbol, "experts_tiled.cu", all, TILED_THREADS, 2)
        });
    }
    rows.push(KernelRow {
        shared_bytes: direct_shared(TOP_K_MAX),
        requires,
        ..KernelRow::plain(
            down_direct(format),
            "experts_down_direct.cu",
            defines(DOWN_PARTS, None, Some(ahead(format).1)),
            direct_threads(format),
            1,
        )
    });
}
