//! Loops over 32 lanes. Each computes all lanes and keeps the masked ones.
//!
//! They are macros, not functions of closures: a closure that is called from two places is not inlined, and then neither
//! vectors nor the fused multiply-add of `turn_fast` reach its body.

use super::warp::Registers;
use crate::ir::{D, P, R};

/// Sets a word register from an expression of the lane.
macro_rules! set_w {
    ($regs:expr, $d:expr, $mask:expr, |$lane:pat_param| $value:expr $(,)?) => {{
        let mut new = [0_u32; 32];
        for (lane, new) in new.iter_mut().enumerate() {
            let $lane: usize = lane;
            *new = $value;
        }
        $regs.keep_w($d, $mask, &new);
    }};
}

/// Sets a wide register from an expression of the lane.
macro_rules! set_d {
    ($regs:expr, $d:expr, $mask:expr, |$lane:pat_param| $value:expr $(,)?) => {{
        let mut new = [0_u64; 32];
        for (lane, new) in new.iter_mut().enumerate() {
            let $lane: usize = lane;
            *new = $value;
        }
        $regs.keep_d($d, $mask, &new);
    }};
}

macro_rules! w1 {
    ($regs:expr, $d:expr, $a:expr, $mask:expr, |$x:ident| $value:expr $(,)?) => {{
        let a = $regs.w($a);
        set_w!($regs, $d, $mask, |lane| {
            let $x = a[lane];
            $value
        });
    }};
}

macro_rules! w2 {
    ($regs:expr, $d:expr, $a:expr, $b:expr, $mask:expr, |$x:ident, $y:ident| $value:expr $(,)?) => {{
        let (a, b) = ($regs.w($a), $regs.w($b));
        set_w!($regs, $d, $mask, |lane| {
            let ($x, $y) = (a[lane], b[lane]);
            $value
        });
    }};
}

macro_rules! w3 {
    ($regs:expr, $d:expr, $abc:expr, $mask:expr, |$x:ident, $y:ident, $z:ident| $value:expr $(,)?) => {{
        let [a, b, c] = $abc;
        let (a, b, c) = ($regs.w(a), $regs.w(b), $regs.w(c));
        set_w!($regs, $d, $mask, |lane| {
            let ($x, $y, $z) = (a[lane], b[lane], c[lane]);
            $value
        });
    }};
}

macro_rules! d1 {
    ($regs:expr, $d:expr, $a:expr, $mask:expr, |$x:ident| $value:expr $(,)?) => {{
        let a = $regs.d($a);
        set_d!($regs, $d, $mask, |lane| {
            let $x = a[lane];
            $value
        });
    }};
}

macro_rules! d2 {
    ($regs:expr, $d:expr, $a:expr, $b:expr, $mask:expr, |$x:ident, $y:ident| $value:expr $(,)?) => {{
        let (a, b) = ($regs.d($a), $regs.d($b));
        set_d!($regs, $d, $mask, |lane| {
            let ($x, $y) = (a[lane], b[lane]);
            $value
        });
    }};
}

pub(super) use {d1, d2, set_d, set_w, w1, w2, w3};

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
    pub(super) fn keep_w(&mut self, d: R, mask: u32, new: &[u32; 32]) {
        let old = &mut self.words[d.0 as usize].0;
        if mask == u32::MAX {
            *old = *new;
            return;
        }
        for lane in 0..32 {
            old[lane] = if mask >> lane & 1 != 0 {
                new[lane]
            } else {
                old[lane]
            };
        }
    }

    #[inline(always)]
    pub(super) fn keep_d(&mut self, d: D, mask: u32, new: &[u64; 32]) {
        let old = &mut self.wides[d.0 as usize].0;
        if mask == u32::MAX {
            *old = *new;
            return;
        }
        for lane in 0..32 {
            old[lane] = if mask >> lane & 1 != 0 {
                new[lane]
            } else {
                old[lane]
            };
        }
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
