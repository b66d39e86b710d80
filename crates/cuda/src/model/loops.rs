//! The main loops of the skinny kernels as a table, so that plans can use the model without a pack at hand.
//!
//! `galvani-cuda model --loops PACK` writes `loops.tsv` from the machine code; `galvani-cuda model --check PACK`, which the tests
//! run, holds the one against the other.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::LazyLock;

use super::table::{self, Row};
use super::{Pass, main_loop};
use crate::arch::Arch;
use crate::ops::linear::formats;
use crate::ops::linear::rows::{self, SHAPES, SkinnyShape};
use crate::pack::cubin;
use crate::pack::file::Pack;

/// A skinny kernel's main loop and what limits its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopRow {
    /// One piece of weights.
    pub pass: Pass,
    /// Registers a thread.
    pub registers: u32,
    /// Static shared memory, in bytes.
    pub shared_static: u32,
}

/// Architectures that the table has: Volta's tensor instruction, and the one since Turing.
const ARCHS: [Arch; 2] = [Arch::Sm70, Arch::Sm90];

const HEADER: &str = "# main loops of linear_skinny, one pass: written by `galvani-cuda model --loops PACK`\n\
                      # arch format columns token_tiles issued int fma half volta_steps tensor quarter_rate memory registers shared_static\n";

type Key<'a> = (Arch, &'a str, SkinnyShape);
type Table = HashMap<Key<'static>, LoopRow>;

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    table::rows(include_str!("loops.tsv"))
        .map(|row| entry(&row))
        .collect()
});

fn entry(row: &Row) -> (Key<'static>, LoopRow) {
    let loop_row = LoopRow {
        pass: Pass::of_numbers(row.numbers(4)),
        registers: row.get(12),
        shared_static: row.get(13),
    };
    let shape = SkinnyShape {
        columns: row.get(2),
        token_tiles: row.get(3),
    };
    ((row.get(0), row.text(1), shape), loop_row)
}

/// The loop of a format's skinny kernel; a test holds that all are there.
pub fn skinny_loop(volta: bool, format: &str, shape: SkinnyShape) -> LoopRow {
    let arch = ARCHS[usize::from(!volta)];
    let known = kept(arch, format, shape);
    known.expect("loops.tsv has every format and shape")
}

fn kept(arch: Arch, format: &str, shape: SkinnyShape) -> Option<LoopRow> {
    let table: &HashMap<Key<'_>, LoopRow> = &TABLE;
    table.get(&(arch, format, shape)).copied()
}

/// The same, read from a pack.
///
/// # Errors
/// The pack lacks the row, or its code has no loop with tensor instructions.
pub(super) fn read(pack: &Pack, arch: Arch, symbol: &str) -> Result<LoopRow, String> {
    let (entry, bytes) = pack.find(symbol, arch).ok_or_else(|| {
        format!("{symbol}: the pack has no machine code for {arch} (build it with --arch {arch})")
    })?;
    let code = cubin::read(bytes, symbol, arch)?.code;
    let pass = main_loop(code, arch).ok_or_else(|| format!("{symbol}: no loop with tensor instructions"))?;
    Ok(LoopRow {
        pass,
        registers: entry.registers,
        shared_static: entry.shared_static,
    })
}

/// `loops.tsv` of those architectures that the pack has; lines of the others are kept as they are.
///
/// # Errors
/// As for a row that is missing.
pub(super) fn of_pack(pack: &Pack) -> Result<String, String> {
    let mut text = HEADER.to_owned();
    for arch in ARCHS {
        let packed = pack.manifest.blobs.iter().any(|entry| entry.arch == arch);
        for format in formats() {
            for shape in SHAPES {
                let row = if packed {
                    read(pack, arch, &rows::skinny(&format, shape))?
                } else if let Some(kept) = kept(arch, format.name, shape) {
                    kept
                } else {
                    continue;
                };
                let pass = row.pass.numbers().map(|number| number.to_string()).join("\t");
                writeln!(
                    text,
                    "{arch}\t{}\t{}\t{}\t{pass}\t{}\t{}",
                    format.name, shape.columns, shape.token_tiles, row.registers, row.shared_static
                )
                .expect("to memory");
            }
        }
    }
    Ok(text)
}

/// Whether the table is what the pack's machine code holds.
///
/// # Errors
/// The first line that differs.
pub(super) fn check(pack: &Pack) -> Result<(), String> {
    let now = of_pack(pack)?;
    let kept = include_str!("loops.tsv");
    match now.lines().zip(kept.lines()).find(|(now, kept)| now != kept) {
        None if now.lines().count() == kept.lines().count() => Ok(()),
        None => Err(
            "crates/cuda/src/model/loops.tsv has other lines than `galvani-cuda model --loops`".to_owned(),
        ),
        Some((now, kept)) => Err(format!(
            "crates/cuda/src/model/loops.tsv says `{kept}`, the pack's machine code `{now}`: write it anew with `galvani-cuda model --loops`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_its_line() {
        for format in formats() {
            for volta in [true, false] {
                for shape in SHAPES {
                    let pass = skinny_loop(volta, format.name, shape).pass;
                    let there = [pass.volta_steps > 0, pass.tensor > 0];
                    assert_eq!(there, [volta, !volta], "{} {shape:?}", format.name);
                }
            }
        }
        assert_eq!(TABLE.len(), 2 * SHAPES.len() * formats().len());
    }
}
