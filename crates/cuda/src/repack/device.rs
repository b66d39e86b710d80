//! Packing on the device: the file's bytes go through one bounded scratch, some tiles a launch.

use galvani_graph::Format;

use super::{Census, bad, repack_tiles};
use crate::arch::Arch;
use crate::error::CudaError;
use crate::kernels::KernelRow;
use crate::launch::{Arg, DeviceBuffer, Launcher};
use crate::layout::{Layout, TILE};
use crate::source::{Codes, Fp8Scale, IntBits, Source, Weight};

const THREADS: u32 = 256;
/// Parts of the scratch begin at multiples of this.
const ALIGNMENT: usize = 256;
/// The report at the scratch's begin: places of the first fault and the first loss, counts of losses below the normal halves
/// and to zero.
const REPORT: usize = 4;

/// (name in symbols, device type, header below `device/`)
const SOURCES: [(&str, &str, &str); 21] = [
    ("f16", "FromF16", PLAIN),
    ("bf16", "FromBf16", PLAIN),
    ("f32", "FromF32", PLAIN),
    ("fp8", "FromFp8", PLAIN),
    ("fp8_block", "FromFp8Block", PLAIN),
    ("int4_bytes", "FromInt4Bytes", PLAIN),
    ("int4_nibbles", "FromInt4Nibbles", PLAIN),
    ("int8", "FromInt8", PLAIN),
    ("q8_0", "FromQ8_0", PLAIN),
    ("q4_0", "FromQ4_0", PLAIN),
    ("iq4_nl", "FromIq4Nl", PLAIN),
    ("nvfp4", "FromNvfp4", FP4),
    ("nvfp4_blocks", "FromNvfp4Blocks", FP4),
    ("mxfp4", "FromMxfp4", FP4),
    ("mxfp4_blocks", "FromMxfp4Blocks", FP4),
    ("q2_k", "FromQ2K", K_QUANTS),
    ("q3_k", "FromQ3K", K_QUANTS),
    ("q4_k", "FromQ4K", K_QUANTS),
    ("q5_k", "FromQ5K", K_QUANTS),
    ("q6_k", "FromQ6K", K_QUANTS),
    ("iq4_xs", "FromIq4Xs", K_QUANTS),
];
const PLAIN: &str = "repack/plain.cuh";
const FP4: &str = "repack/fp4.cuh";
const K_QUANTS: &str = "repack/k_quants.cuh";

/// The kernels that pack, one a source.
pub fn rows() -> Vec<KernelRow> {
    let row = |&(name, device_type, header): &(&str, &str, &str)| KernelRow {
        symbol: format!("repack_{name}"),
        source: "repack.cu",
        defines: vec![
            ("SOURCE", device_type.to_owned()),
            ("SOURCE_HEADER", format!("\"{header}\"")),
        ],
        threads: THREADS,
        min_blocks: 4,
        shared_bytes: 0,
        registers_max: 64,
        archs: &Arch::ALL,
        requires: &[],
    };
    SOURCES.iter().map(row).collect()
}

/// The name of the source in symbols.
fn name(weight: &Weight<'_>) -> Result<&'static str, CudaError> {
    Ok(match weight.source() {
        Source::Rows { format, .. } => match format {
            Format::F32 => "f32",
            Format::F16 => "f16",
            Format::BF16 => "bf16",
            Format::Q4_0 => "q4_0",
            Format::Q8_0 => "q8_0",
            Format::Q2K => "q2_k",
            Format::Q3K => "q3_k",
            Format::Q4K => "q4_k",
            Format::Q5K => "q5_k",
            Format::Q6K => "q6_k",
            Format::Iq4Nl => "iq4_nl",
            Format::Iq4Xs => "iq4_xs",
            Format::Mxfp4 => "mxfp4_blocks",
            Format::Nvfp4 => "nvfp4_blocks",
            Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::Iq1S | Format::Iq1M | Format::Iq2Xxs => {
                return Err(CudaError::NoPackedForm { format: *format });
            }
            Format::Iq2Xs | Format::Iq2S | Format::Iq3Xxs | Format::Iq3S | Format::Tq1_0 | Format::Tq2_0 => {
                return Err(CudaError::NoPackedForm { format: *format });
            }
        },
        Source::GroupInt { bits, codes, .. } => match (bits, codes) {
            (IntBits::Four, Codes::Bytes(_)) => "int4_bytes",
            (IntBits::Four, Codes::Nibbles(_)) => "int4_nibbles",
            (IntBits::Eight, Codes::Bytes(_) | Codes::Nibbles(_)) => "int8",
        },
        Source::Fp8 { scale, .. } => match scale {
            Fp8Scale::Tensor(_) | Fp8Scale::Channel(_) => "fp8",
            Fp8Scale::Block128(_) => "fp8_block",
        },
        Source::Nvfp4 { .. } => "nvfp4",
        Source::Mxfp4 { .. } => "mxfp4",
    })
}

/// One of the kernel's inputs.
enum Part<'a> {
    /// None.
    Absent,
    /// Bytes, so many a row.
    Rows(&'a [u8], usize),
    /// Floats, so many a row.
    Floats(&'a [f32], usize),
    /// A float a row.
    Each(Vec<f32>),
    /// Floats that rows share.
    Shared(&'a [f32]),
}

impl Part<'_> {
    /// Bytes that `rows` rows take.
    fn bytes(&self, rows: usize) -> usize {
        match self {
            Part::Absent => 0,
            Part::Rows(_, width) => rows * width,
            Part::Floats(_, width) => rows * width * 4,
            Part::Each(_) => rows * 4,
            Part::Shared(floats) => floats.len() * 4,
        }
    }

    /// What the rows `first..first + rows` have.
    fn upload(
        &self,
        launcher: &mut dyn Launcher,
        at: (&DeviceBuffer, usize),
        first: usize,
        rows: usize,
    ) -> Result<(), CudaError> {
        let floats = |floats: &[f32]| {
            floats
                .iter()
                .flat_map(|float| float.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        match self {
            Part::Absent => Ok(()),
            Part::Rows(bytes, width) => launcher.upload(at.0, at.1, &bytes[first * width..][..rows * width]),
            Part::Floats(all, width) => {
                launcher.upload(at.0, at.1, &floats(&all[first * width..][..rows * width]))
            }
            Part::Each(all) => launcher.upload(at.0, at.1, &floats(&all[first..][..rows])),
            Part::Shared(all) => match first {
                0 => launcher.upload(at.0, at.1, &floats(all)),
                _ => Ok(()),
            },
        }
    }
}

/// Codes, scales, and what else the source has, and the numbers in a group where that is free.
fn parts<'a>(weight: &Weight<'a>) -> ([Part<'a>; 3], u32) {
    let k = weight.k();
    match *weight.source() {
        Source::Rows { format, bytes } => {
            let width = weight.row_bytes(format, 0).len();
            ([Part::Rows(bytes, width), Part::Absent, Part::Absent], 0)
        }
        Source::GroupInt {
            group,
            codes,
            scales,
            zeros,
            ..
        } => {
            let codes = match codes {
                Codes::Bytes(codes) => Part::Rows(codes, k),
                Codes::Nibbles(codes) => Part::Rows(codes, k / 2),
            };
            let groups = k / group.len();
            let zeros = zeros.map_or(Part::Absent, |zeros| Part::Rows(zeros, groups));
            ([codes, Part::Floats(scales, groups), zeros], group.len() as u32)
        }
        Source::Fp8 { codes, scale } => {
            let scale = match scale {
                Fp8Scale::Tensor(scale) => Part::Each(vec![scale; weight.n()]),
                Fp8Scale::Channel(scales) => Part::Floats(scales, 1),
                Fp8Scale::Block128(scales) => Part::Shared(scales),
            };
            ([Part::Rows(codes, k), scale, Part::Absent], 0)
        }
        Source::Nvfp4 {
            codes,
            scales,
            globals,
        } => {
            let factors = globals
                .iter()
                .flat_map(|&(rows, factor)| std::iter::repeat_n(factor, rows));
            let globals = Part::Each(factors.collect());
            ([Part::Rows(codes, k / 2), Part::Rows(scales, k / 16), globals], 0)
        }
        Source::Mxfp4 { codes, scales } => (
            [Part::Rows(codes, k / 2), Part::Rows(scales, k / 32), Part::Absent],
            0,
        ),
    }
}

/// The kernel that packs `weight`.
///
/// # Errors
/// A source that no kernel packs.
pub fn symbol(weight: &Weight<'_>) -> Result<String, CudaError> {
    Ok(format!("repack_{}", name(weight)?))
}

/// Where the parts of `tiles` tiles lie in the scratch, and its end.
fn places(parts: &[Part<'_>; 3], tiles: usize) -> ([usize; 3], usize) {
    let mut end = ALIGNMENT;
    let at = std::array::from_fn(|part| {
        let at = end;
        end += parts[part].bytes(tiles * TILE).next_multiple_of(ALIGNMENT);
        at
    });
    (at, end)
}

/// Bytes of a scratch that holds what `tiles` tiles are made of.
pub fn scratch_bytes(weight: &Weight<'_>, tiles: usize) -> usize {
    places(&parts(weight).0, tiles).1
}

/// Packs `weight` on the device: its file's bytes go through `scratch` (at least [`scratch_bytes`] of one tile), the packed
/// ones to `tiles`, and 32 floats a tile to `column_scales`. The bytes are those of [`super::repack`].
///
/// # Errors
/// As [`super::repack_tiles`], buffers that are too small, and what the launcher reports.
pub fn repack_on_device(
    launcher: &mut dyn Launcher,
    weight: &Weight<'_>,
    scratch: &DeviceBuffer,
    tiles: &DeviceBuffer,
    column_scales: &DeviceBuffer,
) -> Result<Census, CudaError> {
    let layout = weight.layout()?;
    let (parts, group) = parts(weight);
    let need = places(&parts, 1).1;
    if scratch.bytes() < need {
        return Err(CudaError::Shape {
            what: "bytes of the scratch",
            value: scratch.bytes(),
            allowed: format!("{need} and more"),
        });
    }
    let fits = |tiles: &usize| places(&parts, *tiles).1 <= scratch.bytes();
    let tiles_at_once = (1..=layout.tiles()).take_while(fits).last().unwrap_or(1);
    let (at, _) = places(&parts, tiles_at_once);
    let symbol = symbol(weight)?;
    let report = [u64::MAX, u64::MAX, 0, 0].map(u64::to_le_bytes).concat();
    launcher.upload(scratch, 0, &report)?;
    for first in (0..layout.tiles()).step_by(tiles_at_once) {
        let count = tiles_at_once.min(layout.tiles() - first);
        let row = first * TILE;
        let rows = (count * TILE).min(weight.n() - row);
        let mut args = Vec::new();
        for (part, &at) in parts.iter().zip(&at) {
            part.upload(launcher, (scratch, at), row, rows)?;
            args.push(match part {
                Part::Absent => Arg::Ptr(0),
                _ => Arg::Ptr(scratch.range(at, part.bytes(rows))?),
            });
        }
        let bytes = count * layout.tile_bytes();
        args.push(Arg::Ptr(tiles.range(first * layout.tile_bytes(), bytes)?));
        args.push(Arg::Ptr(column_scales.range(row * 4, count * TILE * 4)?));
        args.push(scratch.arg());
        for number in [row, weight.n(), weight.k(), group as usize, layout.tile_bytes()] {
            args.push(Arg::U32(number as u32));
        }
        launcher.launch(&symbol, [count as u32, 1, 1], [THREADS, 1, 1], 0, &args)?;
    }
    census(launcher, weight, &layout, scratch)
}

/// What the kernels reported.
fn census(
    launcher: &mut dyn Launcher,
    weight: &Weight<'_>,
    layout: &Layout,
    scratch: &DeviceBuffer,
) -> Result<Census, CudaError> {
    let mut report = [0; 8 * REPORT];
    launcher.download(scratch, 0, &mut report)?;
    let word = |index: usize| u64::from_le_bytes(std::array::from_fn(|byte| report[8 * index + byte]));
    let place = |word: u64| ((word >> 32) as usize, (word & 0xFFFF_FFFF) as usize);
    if word(0) != u64::MAX {
        // What stands there is the host's to say.
        let (row, position) = place(word(0));
        let tile = (row / TILE).min(layout.tiles() - 1);
        let (mut bytes, mut scales) = (vec![0; layout.tile_bytes()], [0.0; TILE]);
        repack_tiles(weight, tile..tile + 1, &mut bytes, &mut scales)?;
        return Err(bad(
            row,
            position,
            "something that only the device refuses".to_owned(),
        ));
    }
    Ok(Census {
        subnormal: word(2),
        flushed: word(3),
        first: (word(1) != u64::MAX).then(|| place(word(1))),
    })
}
