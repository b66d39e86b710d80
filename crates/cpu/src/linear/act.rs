//! The rows a product computes, in chunks of up to 16.

use super::tile::Scratch;
use super::{Activations, InView, RowSelect};
use crate::pack::BLOCK;
use crate::quantise::{ActTile, act_bytes, height};

/// Rows in a chunk.
pub(super) const CHUNK: usize = 16;

/// The selected rows of an input.
pub(super) struct Rows<'a> {
    select: RowSelect<'a>,
    count: usize,
    source: Source,
}

enum Source {
    Float(InView),
    /// Rows numbered as in the selection.
    Int8 {
        first: ActTile,
        blocks: usize,
    },
}

/// Up to 16 rows.
pub(super) struct Chunk<'a> {
    /// How many.
    pub count: usize,
    /// Where they are.
    pub input: ChunkInput,
    /// First of them in the selection.
    first: usize,
    select: RowSelect<'a>,
}

/// Where a chunk's rows are.
pub(super) enum ChunkInput {
    /// f32 rows; only the first `count` are valid.
    Float([*const f32; CHUNK]),
    /// int8 rows; memory holds as many as the interleave's height, whatever is in them.
    Int8(ActTile),
}

/// Scratch for gathered int8 rows.
pub(super) fn gather_bytes(rows: usize, k: usize) -> usize {
    act_bytes(rows, k.div_ceil(2 * BLOCK) * 2)
}

impl<'a> Rows<'a> {
    /// Rows in f32.
    pub fn float(input: &Activations<'_>, select: RowSelect<'a>) -> Self {
        Rows {
            select,
            count: select.count(input),
            source: Source::Float(input.float),
        }
    }

    /// Rows in int8. A list of more than one is gathered, so that kernels see neighbours.
    ///
    /// # Safety
    /// As [`super::linear_part`].
    pub unsafe fn int8(input: &Activations<'_>, select: RowSelect<'a>, scratch: &mut Scratch<'_>) -> Self {
        let acts = input.int8.expect("a matrix that wants int8 rows is given them");
        let (count, blocks) = (select.count(input), acts.blocks());
        let first = match select {
            RowSelect::All => acts.tile(0, input.rows.max(1)),
            RowSelect::List { input: list, .. } if list.len() == 1 => acts.tile(list[0] as usize, input.rows),
            RowSelect::List { input: list, .. } => {
                let elements = count.next_multiple_of(16) * blocks;
                let memory = scratch.take(act_bytes(count, blocks));
                // SAFETY: the memory has just been taken in this size; rows are the caller's.
                unsafe {
                    let gathered = ActTile::at(memory, elements, height(count));
                    for (row, &source) in list.iter().enumerate() {
                        let from = acts.tile(source as usize, input.rows);
                        gathered.row(row, blocks).copy_row(&from, blocks);
                    }
                    gathered
                }
            }
        };
        Rows {
            select,
            count,
            source: Source::Int8 { first, blocks },
        }
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The chunks, in order.
    ///
    /// # Safety
    /// The input is still there.
    pub unsafe fn chunks(&self) -> impl Iterator<Item = Chunk<'a>> + '_ {
        (0..self.count).step_by(CHUNK).map(|first| {
            let count = (self.count - first).min(CHUNK);
            let input = match &self.source {
                // SAFETY: selected rows exist.
                Source::Float(view) => ChunkInput::Float(std::array::from_fn(|i| unsafe {
                    view.row(self.select.input(first + i.min(count - 1)))
                })),
                // SAFETY: selected rows exist.
                Source::Int8 { first: tile, blocks } => ChunkInput::Int8(unsafe { tile.row(first, *blocks) }),
            };
            Chunk {
                count,
                input,
                first,
                select: self.select,
            }
        })
    }
}

impl Chunk<'_> {
    /// Output row of row `i` of the chunk.
    #[inline]
    pub fn output(&self, i: usize) -> usize {
        match self.select {
            RowSelect::All => self.first + i,
            RowSelect::List { output, .. } => output[self.first + i] as usize,
        }
    }
}

impl RowSelect<'_> {
    fn count(&self, input: &Activations<'_>) -> usize {
        match self {
            RowSelect::All => input.rows,
            RowSelect::List { input, output } => {
                assert_eq!(input.len(), output.len(), "one output row for each input row");
                input.len()
            }
        }
    }

    fn input(&self, i: usize) -> usize {
        match self {
            RowSelect::All => i,
            RowSelect::List { input, .. } => input[i] as usize,
        }
    }
}
