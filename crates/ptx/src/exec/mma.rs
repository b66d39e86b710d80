//! `mma.sync.m8n8k4`: four products of 8 x 4 and 4 x 8 a warp, one a quad pair.
//!
//! Quad pair q is lanes 4q..4q+4 and 16+4q..16+4q+4. Of A by rows (B by columns) a lane holds one row (column) with its
//! four k; of A by columns (B by rows) one k with four rows (columns). An f16 accumulator lies by rows, an f32 one in
//! two by two patches. Checked on hardware.

use std::sync::LazyLock;

use super::MmaOrder;
use super::warp::Registers;
use crate::half;
use crate::ir::{Mma, R};
use crate::rounding::{self, F32, Round, canonical32};

/// Fraction bits that the model of Volta keeps below the largest term.
const VOLTA_BITS: i32 = 24;

/// Lanes of a quad pair in the order of the rows that they hold.
fn lane_of(pair: usize, row: usize) -> usize {
    4 * pair + row % 4 + row / 4 * 16
}

/// For each register i and lane l of an f32 accumulator, where its operands lie among the 128 elements of a fragment
/// (4 elements a lane, element first): A's row depends on bit 1 of i, B's column on bits 0 and 2.
struct Places {
    /// [by k][variant][k][lane]
    a: [[[[u8; 32]; 4]; 2]; 2],
    b: [[[[u8; 32]; 4]; 4]; 2],
}

static PLACES: LazyLock<Places> = LazyLock::new(|| {
    let mut places = Places {
        a: [[[[0; 32]; 4]; 2]; 2],
        b: [[[[0; 32]; 4]; 4]; 2],
    };
    for (by_k, k, lane) in (0..2).flat_map(|by_k| (0..128).map(move |at| (by_k, at / 32, at % 32))) {
        let (pair, high) = (lane / 4 % 4, lane / 16 * 4);
        let place = |row: usize| {
            let (lane, element) = if by_k == 1 {
                (lane_of(pair, k + row / 4 * 4), row % 4)
            } else {
                (lane_of(pair, row), k)
            };
            (element * 32 + lane) as u8
        };
        for variant in 0..2 {
            places.a[by_k][variant][k][lane] = place((lane & 1) + variant * 2 + high);
        }
        for variant in 0..4 {
            places.b[by_k][variant][k][lane] = place((lane & 2) + (variant & 1) + (variant & 2) * 2);
        }
    }
    places
});

/// The 128 elements of a fragment as f32, element first.
#[inline(always)]
fn elements(words: [[u32; 32]; 2]) -> [f32; 128] {
    let mut out = [0.0; 128];
    for (index, word) in words.iter().enumerate() {
        for lane in 0..32 {
            out[index * 64 + lane] = f32::from_bits(half::to_f32(word[lane] & 0xffff));
            out[index * 64 + 32 + lane] = f32::from_bits(half::to_f32(word[lane] >> 16));
        }
    }
    out
}

#[inline(always)]
fn spread(from: &[f32; 128], places: &[[u8; 32]; 4]) -> [[f32; 32]; 4] {
    let mut out = [[0.0; 32]; 4];
    for (out, places) in out.iter_mut().zip(places) {
        for (out, place) in out.iter_mut().zip(places) {
            *out = from[usize::from(*place & 127)];
        }
    }
    out
}

impl Registers {
    /// f32 accumulators in the emulated order, 32 lanes side by side.
    #[inline(always)]
    pub(super) fn mma_wide(&mut self, mma: &Mma) {
        let places = &*PLACES;
        let (a, b) = (
            elements(mma.a.map(|a| self.w(a))),
            elements(mma.b.map(|b| self.w(b))),
        );
        let (by_k_a, by_k_b) = (usize::from(mma.a_columns), usize::from(!mma.b_columns));
        let a = [0, 1].map(|variant| spread(&a, &places.a[by_k_a][variant]));
        let b = [0, 1, 2, 3].map(|variant| spread(&b, &places.b[by_k_b][variant]));
        let mut out = [[0_u32; 32]; 8];
        for (i, out) in out.iter_mut().enumerate() {
            let (a, b) = (&a[i >> 1 & 1], &b[i & 1 | i >> 1 & 2]);
            let c = self.w(mma.c[i]);
            for lane in 0..32 {
                let mut sum = 0.0_f32;
                for k in 0..4 {
                    sum = a[k][lane].mul_add(b[k][lane], sum);
                }
                out[lane] = canonical32(sum + f32::from_bits(c[lane]));
            }
        }
        for (slot, value) in mma.d.iter().zip(&out) {
            self.words[slot.0 as usize].0 = *value;
        }
    }

    /// In any order and with any accumulator, element by element.
    pub(super) fn mma(&mut self, order: MmaOrder, mma: &Mma) {
        let load = |slots: &[R]| slots.iter().map(|slot| self.w(*slot)).collect::<Vec<_>>();
        let (a, b, c) = (load(&mma.a), load(&mma.b), load(&mma.c));
        let mut out = vec![[0_u32; 32]; mma.d.len()];
        for pair in 0..4 {
            let a = operand(&a, pair, mma.a_columns);
            // B by columns is laid out as A by rows.
            let b = operand(&b, pair, !mma.b_columns);
            for (row, a) in a.iter().enumerate() {
                for (column, b) in b.iter().enumerate() {
                    let c = f32::from_bits(get(&c, pair, row, column, mma.wide_c));
                    let value = match order {
                        MmaOrder::EmulatedF32 if mma.wide_c || mma.wide_d => emulated(a, b, c),
                        MmaOrder::EmulatedF32 => emulated_half(a, b, c),
                        MmaOrder::Volta => volta(a, b, c),
                    };
                    put(&mut out, (pair, row, column), mma.wide_d, value);
                }
            }
        }
        for (slot, value) in mma.d.iter().zip(out) {
            self.words[slot.0 as usize].0 = value;
        }
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

/// With f16 accumulators the same GPUs add the products in pairs: (c + p01) + p23.
fn emulated_half(a: &[f32; 4], b: &[f32; 4], c: f32) -> u32 {
    let low = a[1].mul_add(b[1], a[0] * b[0]);
    let high = a[3].mul_add(b[3], a[2] * b[2]);
    canonical32((c + low) + high)
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
