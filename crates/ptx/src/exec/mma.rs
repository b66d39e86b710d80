//! `mma.sync.m8n8k4`: four products of 8 x 4 and 4 x 8 a warp, one a quad pair.
//!
//! Quad pair q is lanes 4q..4q+4 and 16+4q..16+4q+4. Of A by rows (B by columns) a lane holds one row (column) with its
//! four k; of A by columns (B by rows) one k with four rows (columns). An f16 accumulator lies by rows, an f32 one in
//! two by two patches. Checked on hardware.

use super::MmaOrder;
use super::warp::Registers;
use crate::fault::{FaultKind, Outcome, Stop};
use crate::half;
use crate::ir::{Mma, R};
use crate::rounding::{self, F32, Round, canonical32};

/// Fraction bits that the model of Volta keeps below the largest term.
const VOLTA_BITS: i32 = 24;

/// Lanes of a quad pair in the order of the rows that they hold.
fn lane_of(pair: usize, row: usize) -> usize {
    4 * pair + row % 4 + row / 4 * 16
}

impl Registers {
    pub(super) fn mma(&mut self, order: MmaOrder, mma: &Mma, mask: u32, live: u32) -> Outcome {
        if mask != u32::MAX {
            return Err(Stop::new(
                FaultKind::WarpMask {
                    mask: u32::MAX,
                    active: mask,
                    live,
                },
                mask.trailing_zeros(),
            ));
        }
        let load = |slots: &[R]| slots.iter().map(|slot| self.w(*slot)).collect::<Vec<_>>();
        let (a, b, c) = (load(&mma.a), load(&mma.b), load(&mma.c));
        let mut out = vec![[0_u32; 32]; mma.d.len()];
        for pair in 0..4 {
            let a = operand(&a, pair, mma.a_columns);
            // B by columns is laid out as A by rows.
            let b = operand(&b, pair, !mma.b_columns);
            for row in 0..8 {
                for column in 0..8 {
                    let c = f32::from_bits(get(&c, pair, row, column, mma.wide_c));
                    let value = match order {
                        MmaOrder::EmulatedF32 => emulated(&a[row], &b[column], c),
                        MmaOrder::Volta => volta(&a[row], &b[column], c),
                    };
                    put(&mut out, (pair, row, column), mma.wide_d, value);
                }
            }
        }
        for (slot, value) in mma.d.iter().zip(out) {
            self.words[slot.0 as usize].0 = value;
        }
        Ok(())
    }
}

/// [8 rows][4 k] of one quad pair.
fn operand(words: &[[u32; 32]], pair: usize, by_k: bool) -> [[f32; 4]; 8] {
    let element = |lane: usize, index: usize| {
        let bits = words[index / 2][lane] >> (index % 2 * 16) & 0xffff;
        f32::from_bits(half::to_f32(bits))
    };
    std::array::from_fn(|row| {
        std::array::from_fn(|k| {
            if by_k {
                element(lane_of(pair, k + row / 4 * 4), row % 4)
            } else {
                element(lane_of(pair, row), k)
            }
        })
    })
}

/// Lane and register of an f32 accumulator.
fn patch(pair: usize, row: usize, column: usize) -> (usize, usize) {
    let lane = 4 * pair + (row & 1) + (column & 2) + row / 4 * 16;
    (lane, (column & 1) + (row & 2) + (column & 4))
}

fn get(words: &[[u32; 32]], pair: usize, row: usize, column: usize, wide: bool) -> u32 {
    if wide {
        let (lane, index) = patch(pair, row, column);
        return words[index][lane];
    }
    half::to_f32(words[column / 2][lane_of(pair, row)] >> (column % 2 * 16) & 0xffff)
}

fn put(words: &mut [[u32; 32]], (pair, row, column): (usize, usize, usize), wide: bool, value: u32) {
    if wide {
        let (lane, index) = patch(pair, row, column);
        words[index][lane] = value;
        return;
    }
    words[column / 2][lane_of(pair, row)] |= half::from_f32(value) << (column % 2 * 16);
}

fn emulated(a: &[f32; 4], b: &[f32; 4], c: f32) -> u32 {
    let mut sum = 0.0_f32;
    for (a, b) in a.iter().zip(b) {
        sum = a.mul_add(*b, sum);
    }
    canonical32(sum + c)
}

/// Exact products and c, each cut off [`VOLTA_BITS`] below the largest, summed exactly, cut to f32.
fn volta(a: &[f32; 4], b: &[f32; 4], c: f32) -> u32 {
    let mut terms = [f64::from(c); 5];
    for (term, (a, b)) in terms.iter_mut().zip(a.iter().zip(b)) {
        *term = f64::from(*a) * f64::from(*b);
    }
    if terms.iter().any(|term| !term.is_finite()) {
        return canonical32(terms.iter().sum::<f64>() as f32);
    }
    let top = |(_, mantissa, exponent): (bool, u64, i32)| 64 - mantissa.leading_zeros() as i32 + exponent;
    let parts = terms.map(rounding::parts);
    let Some(largest) = parts
        .iter()
        .filter(|part| part.1 != 0)
        .map(|part| top(*part))
        .max()
    else {
        return canonical32(terms.iter().sum::<f64>() as f32);
    };
    let unit = largest - VOLTA_BITS;
    let sum: i64 = parts
        .iter()
        .map(|(negative, mantissa, exponent)| {
            let shift = unit - exponent;
            // Terms have 53 bits and `unit` is at most 24 below the largest one's top.
            let size = if shift >= 0 {
                mantissa >> shift.min(63)
            } else {
                mantissa << (-shift).min(63)
            };
            if *negative { -(size as i64) } else { size as i64 }
        })
        .sum();
    rounding::assemble(sum < 0, sum.unsigned_abs(), unit, false, F32, Round::Zero) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_differ_where_they_should() {
        // 1 + 2^-24 + 2^-24 + ..: rounding each step loses what one wide sum keeps.
        let tiny = 2_f32.powi(-12);
        let a = [1.0, tiny, tiny, 0.0];
        let b = [1.0, tiny, tiny, 0.0];
        assert_eq!(f32::from_bits(emulated(&a, &b, 0.0)), 1.0);
        assert_eq!(f32::from_bits(volta(&a, &b, 0.0)), 1.0);
        let half = 2_f32.powi(-11);
        assert_eq!(
            f32::from_bits(volta(&[1.0, half, half, 0.0], &[1.0, half, half, 0.0], 0.0)),
            1.0 + 2_f32.powi(-21)
        );
        // Truncation, not rounding: 3/4 of the last bit is cut.
        let cut = [2_f32.powi(-13), 2_f32.powi(-13), 2_f32.powi(-13), 0.0];
        assert_eq!(f32::from_bits(volta(&cut, &[2_f32.powi(-12); 4], 1.0)), 1.0);
        assert_eq!(f32::from_bits(volta(&[-1.0; 4], &[1.0; 4], 4.0)), 0.0);
        assert!(
            f32::from_bits(volta(
                &[f32::INFINITY, 1.0, 1.0, 1.0],
                &[1.0; 4],
                f32::NEG_INFINITY
            ))
            .is_nan()
        );
        assert_eq!(f32::from_bits(volta(&[2.0; 4], &[0.5; 4], -1.5)), 2.5);
    }
}
