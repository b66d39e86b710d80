//! Loops over 32 lanes. Each computes all lanes and keeps the masked ones, so that the compiler makes vectors of them.

use super::warp::Registers;
use crate::ir::{D, P, R};
use crate::lanes::Words;

#[inline(always)]
fn keep32(old: &mut [u32; 32], mask: u32, value: impl Fn(usize) -> u32) {
    if mask == u32::MAX {
        for (lane, old) in old.iter_mut().enumerate() {
            *old = value(lane);
        }
        return;
    }
    for (lane, old) in old.iter_mut().enumerate() {
        let new = value(lane);
        *old = if mask >> lane & 1 != 0 { new } else { *old };
    }
}

#[inline(always)]
fn keep64(old: &mut [u64; 32], mask: u32, value: impl Fn(usize) -> u64) {
    for (lane, old) in old.iter_mut().enumerate() {
        let new = value(lane);
        *old = if mask >> lane & 1 != 0 { new } else { *old };
    }
}

impl Registers {
    #[inline(always)]
    pub(super) fn w(&self, r: R) -> [u32; 32] {
        self.words[r.0 as usize].0
    }

    #[inline(always)]
    pub(super) fn d(&self, d: D) -> [u64; 32] {
        self.wides[d.0 as usize].0
    }

    #[inline(always)]
    pub(super) fn set_w(&mut self, d: R, mask: u32, value: impl Fn(usize) -> u32) {
        let Words(out) = &mut self.words[d.0 as usize];
        keep32(out, mask, value);
    }

    #[inline(always)]
    pub(super) fn set_d(&mut self, d: D, mask: u32, value: impl Fn(usize) -> u64) {
        keep64(&mut self.wides[d.0 as usize].0, mask, value);
    }

    #[inline(always)]
    pub(super) fn w1(&mut self, d: R, a: R, mask: u32, f: impl Fn(u32) -> u32) {
        let a = self.w(a);
        self.set_w(d, mask, |lane| f(a[lane]));
    }

    #[inline(always)]
    pub(super) fn w2(&mut self, d: R, a: R, b: R, mask: u32, f: impl Fn(u32, u32) -> u32) {
        let (a, b) = (self.w(a), self.w(b));
        self.set_w(d, mask, |lane| f(a[lane], b[lane]));
    }

    #[inline(always)]
    pub(super) fn w3(&mut self, d: R, [a, b, c]: [R; 3], mask: u32, f: impl Fn(u32, u32, u32) -> u32) {
        let (a, b, c) = (self.w(a), self.w(b), self.w(c));
        self.set_w(d, mask, |lane| f(a[lane], b[lane], c[lane]));
    }

    #[inline(always)]
    pub(super) fn d1(&mut self, d: D, a: D, mask: u32, f: impl Fn(u64) -> u64) {
        let a = self.d(a);
        self.set_d(d, mask, |lane| f(a[lane]));
    }

    #[inline(always)]
    pub(super) fn d2(&mut self, d: D, a: D, b: D, mask: u32, f: impl Fn(u64, u64) -> u64) {
        let (a, b) = (self.d(a), self.d(b));
        self.set_d(d, mask, |lane| f(a[lane], b[lane]));
    }

    /// A predicate from a test of each lane.
    #[inline(always)]
    pub(super) fn test(&mut self, d: P, mask: u32, f: impl Fn(usize) -> bool) {
        let bits = bits(f);
        self.set_pred(d, mask, bits);
    }
}

#[inline(always)]
pub(super) fn bits(f: impl Fn(usize) -> bool) -> u32 {
    let mut bits = 0;
    for lane in 0..32 {
        bits |= u32::from(f(lane)) << lane;
    }
    bits
}
