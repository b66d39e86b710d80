//! The device's code against this module, bit for bit, in the interpreter.

use std::collections::BTreeSet;

use super::interpreter::Interpreter;
use super::samples::{Sample, samples};
use super::*;
use crate::layout::{FORMATS, FormatRow};
use crate::{Arch, Arg, KernelRow, Launcher};

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

/// The halves that the device makes of packed weights are those of `expand`.
#[test]
fn the_device_expands_alike() {
    let Some(mut interpreter) = Interpreter::new(expanders()) else {
        return;
    };
    let mut seen = BTreeSet::new();
    for sample in samples(37, 3) {
        let packed = repack(&sample.weight()).expect("samples are good");
        let format = packed.layout.format();
        // One weight a form is enough, but for the rows of blocks: their scales differ.
        if !seen.insert(format) && !sample.name.starts_with('Q') {
            continue;
        }
        expands_alike(&mut interpreter, &sample, &packed);
    }
    assert_eq!(seen.len(), FORMATS.len(), "every form is held against the device");
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
                let stripe = Slot::new(format, &packed.bytes[at..at + format.stripe_bytes()], slot);
                let wanted = expand(layout.format(), &stripe, cell);
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
