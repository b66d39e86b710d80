//! The device's code against this module, bit for bit, in the interpreter.

use std::collections::BTreeSet;

use super::interpreter::Interpreter;
use super::samples::{Sample, samples};
use super::*;
use crate::layout::{FORMATS, FormatRow};
use crate::repack::device::{repack_on_device, rows, scratch_bytes};
use crate::{Arch, Arg, CudaError, KernelRow, Launcher};

const THREADS: u32 = 256;

/// The kernels that write weights as rows of halves.
fn expanders() -> Vec<KernelRow> {
    let row = |format: &FormatRow| KernelRow {
        symbol: format!("expand_{}", format.name),
        source: "linear_dequant.cu",
        defines: vec![
            ("FORMAT", format.type_name.to_owned()),
            ("FORMAT_HEADER", format!("\"{}\"", format.header)),
        ],
        threads: THREADS,
        min_blocks: 2,
        shared_bytes: 0,
        registers_max: 128,
        archs: &[Arch::Sm70, Arch::Compute70],
        requires: &[],
    };
    FORMATS.iter().map(row).collect()
}

/// The halves that the device makes of packed weights are those of `expand`, with Volta's cells and with the later ones.
#[test]
fn the_device_expands_alike() {
    for arch in [Arch::Compute70, Arch::Sm80] {
        let Some(mut interpreter) = Interpreter::new(expanders(), arch) else {
            return;
        };
        let mut seen = BTreeSet::new();
        for sample in samples(37, 3) {
            let packed = repack(&sample.weight()).expect("samples are good");
            // One weight a form is enough, but for the rows of blocks: their scales differ.
            if seen.insert(packed.layout.format()) || sample.name.starts_with('Q') {
                expands_alike(&mut interpreter, &sample, &packed);
            }
        }
        assert_eq!(seen.len(), FORMATS.len(), "every form is held against the device");
    }
}

fn expands_alike(interpreter: &mut Interpreter, sample: &Sample, packed: &Packed) {
    let (layout, format) = (&packed.layout, packed.layout.format().row());
    let stride = layout.stripes() * format.stripe;
    let weights = interpreter.buffer(&packed.bytes);
    let out = interpreter
        .alloc(layout.column_scales() * stride * 2)
        .expect("small");
    let pieces = stride / format.piece;
    let args = [
        weights.arg(),
        Arg::U32(layout.tile_bytes() as u32),
        Arg::U32(pieces as u32),
        Arg::U32(stride as u32),
        out.arg(),
    ];
    let grid = [
        pieces.div_ceil(THREADS as usize / 32) as u32,
        layout.tiles() as u32,
        1,
    ];
    let symbol = format!("expand_{}", format.name);
    interpreter
        .launch(&symbol, grid, [THREADS, 1, 1], 0, &args)
        .unwrap_or_else(|error| panic!("{}: {error}", sample.name));
    let got = interpreter.bytes(&out);
    for slot in 0..TILE {
        for tile in 0..layout.tiles() {
            let row = tile * TILE + column_of_slot(slot);
            for octet in 0..stride / 8 {
                let (stripe, cell) = (octet / (format.stripe / 8), octet % (format.stripe / 8));
                let at = tile * layout.tile_bytes() + stripe * format.stripe_bytes();
                let bytes = &packed.bytes[at..at + format.stripe_bytes()];
                let wanted = expand(layout.format(), &Slot::new(format, bytes, stripe, slot), cell);
                for (i, wanted) in wanted.into_iter().enumerate() {
                    let at = 2 * (row * stride + 8 * octet + i);
                    let got = half::value(u16::from_le_bytes([got[at], got[at + 1]]));
                    assert!(
                        got == wanted,
                        "{}: row {row} position {}: {got}, wanted {wanted}",
                        sample.name,
                        8 * octet + i
                    );
                }
            }
        }
    }
}

/// The device packs to the same bytes and scales, whole and in parts, and counts the same losses.
#[test]
fn the_device_packs_alike() {
    let Some(mut interpreter) = Interpreter::new(rows(), Arch::Compute70) else {
        return;
    };
    let mut seen = BTreeSet::new();
    for (n, stripes, tiles) in [(70, 2, 3), (33, 1, 1)] {
        for sample in samples(n, stripes) {
            packs_alike(&mut interpreter, &sample, tiles);
            seen.insert(sample.weight().layout().expect("good").format());
        }
    }
    assert_eq!(seen.len(), FORMATS.len(), "every form is packed");
}

fn packs_alike(interpreter: &mut Interpreter, sample: &Sample, tiles_at_once: usize) {
    let weight = sample.weight();
    let host = repack(&weight).expect("samples are good");
    interpreter.reset().expect("memory");
    // Whatever stood there before.
    let tiles = interpreter.buffer(&vec![0xA5; host.bytes.len()]);
    let scales = interpreter.buffer(&vec![0xA5; 4 * host.column_scales.len()]);
    let scratch = interpreter
        .alloc(scratch_bytes(&weight, tiles_at_once))
        .expect("small");
    let census = repack_on_device(interpreter, &weight, &scratch, &tiles, &scales)
        .unwrap_or_else(|error| panic!("{}: {error}", sample.name));
    let bytes = interpreter.bytes(&tiles);
    if let Some(at) = (0..bytes.len()).find(|&at| bytes[at] != host.bytes[at]) {
        let format = host.layout.format().row();
        panic!(
            "{}: tile {}, stripe {}, byte {} of {} (planes end at {}): {:#04x}, wanted {:#04x}",
            sample.name,
            at / host.layout.tile_bytes(),
            at % host.layout.tile_bytes() / format.stripe_bytes(),
            at % host.layout.tile_bytes() % format.stripe_bytes(),
            format.stripe_bytes(),
            format.plane_offset(format.planes.len()),
            bytes[at],
            host.bytes[at]
        );
    }
    let wanted: Vec<u8> = host
        .column_scales
        .iter()
        .flat_map(|scale| scale.to_le_bytes())
        .collect();
    assert_eq!(
        interpreter.bytes(&scales),
        wanted,
        "{}: column scales",
        sample.name
    );
    assert_eq!(census, host.census, "{}", sample.name);
}

/// What the host refuses, the device refuses with the same words; so it does a scratch that holds no tile.
#[test]
fn the_device_refuses_alike() {
    let Some(mut interpreter) = Interpreter::new(rows(), Arch::Compute70) else {
        return;
    };
    let (n, k) = (40, 128);
    let mut codes = vec![0u8; n * k];
    codes[35 * k + 70] = 0xFF;
    codes[38 * k] = 0x7F;
    let mut scales = vec![1.0f32; n];
    fn fp8<'a>(codes: &'a [u8], scales: &'a [f32]) -> Source<'a> {
        let scale = Fp8Scale::Channel(scales);
        Source::Fp8 { codes, scale }
    }
    let mut halves = vec![0u8; n * 34];
    halves[33 * 34 + 1] = 0x7C;
    let q8 = Source::Rows {
        format: Format::Q8_0,
        bytes: &halves,
    };
    refuses_alike(
        &mut interpreter,
        Weight::new(n, k, fp8(&codes, &scales)),
        "row 35, position 70: code 0xff",
    );
    refuses_alike(
        &mut interpreter,
        Weight::new(n, 32, q8),
        "row 33, position 0: scale inf",
    );
    codes.fill(0);
    scales[39] = f32::NAN;
    refuses_alike(
        &mut interpreter,
        Weight::new(n, k, fp8(&codes, &scales)),
        "row 39, position 0: scale NaN",
    );
    scales[39] = 3.0e38;
    refuses_alike(
        &mut interpreter,
        Weight::new(n, k, fp8(&codes, &scales)),
        "row 39, position 0: its scale inf",
    );
}

fn refuses_alike(interpreter: &mut Interpreter, weight: Result<Weight<'_>, CudaError>, words: &str) {
    let weight = weight.expect("the shape is good");
    let layout = weight.layout().expect("the shape is good");
    let host = repack(&weight).expect_err("refused").to_string();
    assert!(host.contains(words), "{host}");
    let tiles = interpreter.alloc(layout.bytes()).expect("small");
    let scales = interpreter.alloc(4 * layout.column_scales()).expect("small");
    let bytes = scratch_bytes(&weight, 1);
    let mut device = |bytes: usize| {
        let scratch = interpreter.alloc(bytes).expect("small");
        let result = repack_on_device(interpreter, &weight, &scratch, &tiles, &scales);
        result.expect_err("refused").to_string()
    };
    assert_eq!(device(bytes), host);
    assert!(device(bytes - 1).contains("scratch"));
}
