//! Where experts lie in memory.

use crate::error::CudaError;
use crate::ops::experts::plan::fault;

/// The sizes of experts of one matrix, or of two whose tiles alternate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertBytes {
    /// Experts.
    pub experts: usize,
    /// Matrices whose tiles alternate: 1 (down) or 2 (gate, up).
    pub matrices: usize,
    /// Tiles of 32 columns of one matrix of one expert.
    pub tiles: usize,
    /// Bytes of a tile.
    pub tile_bytes: usize,
}

impl ExpertBytes {
    /// Bytes of all experts.
    pub const fn bytes(&self) -> usize {
        self.experts * self.expert_bytes()
    }

    /// Bytes of one expert.
    pub const fn expert_bytes(&self) -> usize {
        self.matrices * self.tiles * self.tile_bytes
    }

    /// Column factors (f32) of all experts.
    pub const fn column_scales(&self) -> usize {
        self.experts * self.matrices * self.tiles * 32
    }

    /// First byte of a tile of one matrix of one expert.
    pub const fn tile_offset(&self, expert: usize, matrix: usize, tile: usize) -> usize {
        ((expert * self.tiles + tile) * self.matrices + matrix) * self.tile_bytes
    }

    /// First column factor of a tile of one matrix of one expert.
    pub const fn scale_offset(&self, expert: usize, matrix: usize, tile: usize) -> usize {
        ((expert * self.tiles + tile) * self.matrices + matrix) * 32
    }

    /// Puts one packed matrix of one expert in its place: `tiles` bytes and `scales` factors as a linear's repack made
    /// them, into `bytes` and `factors` of all experts.
    ///
    /// # Errors
    /// A length that is not the one above.
    pub fn place(
        &self,
        expert: usize,
        matrix: usize,
        (tiles, scales): (&[u8], &[f32]),
        (bytes, factors): (&mut [u8], &mut [f32]),
    ) -> Result<(), CudaError> {
        for (what, value, wanted) in [
            (
                "packed bytes of an expert",
                tiles.len(),
                self.tiles * self.tile_bytes,
            ),
            ("column factors of an expert", scales.len(), self.tiles * 32),
            ("bytes of all experts", bytes.len(), self.bytes()),
            (
                "column factors of all experts",
                factors.len(),
                self.column_scales(),
            ),
        ] {
            if value != wanted {
                return Err(fault(what, value as u64, wanted.to_string()));
            }
        }
        for (what, value, end) in [
            ("expert", expert, self.experts),
            ("matrix", matrix, self.matrices),
        ] {
            if value >= end {
                return Err(fault(what, value as u64, format!("below {end}")));
            }
        }
        for (tile, run) in tiles.chunks_exact(self.tile_bytes).enumerate() {
            bytes[self.tile_offset(expert, matrix, tile)..][..self.tile_bytes].copy_from_slice(run);
        }
        for (tile, run) in scales.chunks_exact(32).enumerate() {
            factors[self.scale_offset(expert, matrix, tile)..][..32].copy_from_slice(run);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_owner() {
        let sizes = ExpertBytes {
            experts: 3,
            matrices: 2,
            tiles: 2,
            tile_bytes: 4,
        };
        let (mut bytes, mut factors) = (vec![0; sizes.bytes()], vec![0.0; sizes.column_scales()]);
        for expert in 0..3 {
            for matrix in 0..2 {
                let name = (10 * (expert + 1) + matrix) as u8;
                let (tiles, scales) = (vec![name; 8], vec![f32::from(name); 64]);
                let to = (bytes.as_mut_slice(), factors.as_mut_slice());
                sizes.place(expert, matrix, (&tiles, &scales), to).expect("fits");
            }
        }
        let tiles: Vec<u8> = bytes.iter().step_by(4).copied().collect();
        assert_eq!(tiles, [10, 11, 10, 11, 20, 21, 20, 21, 30, 31, 30, 31]);
        assert!(
            bytes
                .chunks(4)
                .all(|tile| tile.iter().all(|byte| *byte == tile[0]))
        );
        let owners: Vec<f32> = bytes.iter().step_by(4).map(|byte| f32::from(*byte)).collect();
        assert!(
            factors
                .chunks(32)
                .zip(owners)
                .all(|(run, owner)| run.iter().all(|factor| *factor == owner))
        );
        for (expert, matrix, tiles) in [(3, 0, 8), (0, 2, 8), (0, 0, 7)] {
            let to = (bytes.as_mut_slice(), factors.as_mut_slice());
            assert!(
                sizes
                    .place(expert, matrix, (&vec![0; tiles], &[0.0; 64]), to)
                    .is_err()
            );
        }
    }
}
