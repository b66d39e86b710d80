//! Weights in the one layout that serves every kernel.
//!
//! Sixteen output rows are interleaved into a *tile*. Along the row, numbers come in groups of four: group g of the 16
//! rows is `[16 rows][4 bytes]`, 64 bytes. That is at once the operand of a VNNI instruction and a row of an AMX tile.
//! Scales lie beside the codes they belong to, so that a kernel reads one stream from front to back. A format's *unit*
//! (64 or 256 numbers of 16 rows) is laid out by its file in [`crate::dot`]; bytes a weight are those of the GGUF block
//! (at most 3.7 % more where packed sub-scales are widened to whole bytes).
//!
//! Float weights are tiles of `[k][16 rows]`. Formats with no packed form keep their raw rows.

mod bytes;
mod encode;
mod matrix;

pub use bytes::AlignedBytes;
pub use encode::{UnitRows, bytes, halves, words};
pub(crate) use matrix::TileLayout;
pub use matrix::{CpuMath, PackSpec, PackedMatrix};

/// Output rows in a tile.
pub const TILE_ROWS: usize = 16;
/// Numbers that share one activation scale.
pub const BLOCK: usize = 32;
/// Bytes of one group: 16 rows of four codes.
pub const GROUP_BYTES: usize = 64;
