//! Float arithmetic and comparisons. What is not a number comes out as the hardware's canonical NaN.

use super::loops::{bits, d1, d2, set_d, set_w, w1, w2, w3};
use super::warp::Registers;
use super::{Approximate, Core, Machine};
use crate::fault::{FaultKind, Outcome, Stop};
use crate::half;
use crate::ir::{Approx, Cmp, Compare, CompareOut, FBin, FUn, Finish, Opcode, P, R, SetAs, Slot, Test};
use crate::rounding::{self, NAN32, canonical32, canonical64, flush32, saturate32};
use crate::types::Ty;

/// One f32 operation with everything that its modifiers ask for.
fn f32_one(op: FBin, finish: Finish, a: u32, b: u32) -> u32 {
    let (a, b) = if finish.flush {
        (flush32(a), flush32(b))
    } else {
        (a, b)
    };
    let (x, y) = (f32::from_bits(a), f32::from_bits(b));
    let value = match op {
        FBin::Add => rounding::add32(x, y, finish.round),
        FBin::Sub => rounding::add32(x, -y, finish.round),
        FBin::Mul => rounding::mul32(x, y, finish.round),
        FBin::Div => canonical32(x / y),
        FBin::Min { strict } => extreme32(a, b, false, strict),
        FBin::Max { strict } => extreme32(a, b, true, strict),
        FBin::Copysign => a & 0x7fff_ffff | b & 0x8000_0000,
    };
    end32(value, finish)
}

fn end32(value: u32, finish: Finish) -> u32 {
    let value = if finish.flush { flush32(value) } else { value };
    if finish.saturate { saturate32(value) } else { value }
}

/// The smaller or larger; -0 is below +0, a number wins over NaN unless `strict`.
#[inline(always)]
fn extreme32(a: u32, b: u32, larger: bool, strict: bool) -> u32 {
    let (a_nan, b_nan) = (a & 0x7fff_ffff > 0x7f80_0000, b & 0x7fff_ffff > 0x7f80_0000);
    // Two's complement order of sign and magnitude.
    let order = |bits: u32| (bits ^ ((bits as i32 >> 31) as u32 >> 1)) as i32;
    let take_a = b_nan | (!a_nan & ((order(a) > order(b)) == larger));
    let value = if take_a { a } else { b };
    let nan = (a_nan & b_nan) | (strict & (a_nan | b_nan));
    if nan { NAN32 } else { value }
}

impl Registers {
    #[inline(always)]
    pub(super) fn f32_bin(&mut self, op: FBin, finish: Finish, d: R, a: R, b: R, mask: u32) {
        if finish != Finish::PLAIN {
            return w2!(self, d, a, b, mask, |a, b| f32_one(op, finish, a, b));
        }
        match op {
            FBin::Add => w2!(self, d, a, b, mask, |a, b| {
                canonical32(f32::from_bits(a) + f32::from_bits(b))
            }),
            FBin::Sub => w2!(self, d, a, b, mask, |a, b| {
                canonical32(f32::from_bits(a) - f32::from_bits(b))
            }),
            FBin::Mul => w2!(self, d, a, b, mask, |a, b| {
                canonical32(f32::from_bits(a) * f32::from_bits(b))
            }),
            FBin::Div => w2!(self, d, a, b, mask, |a, b| canonical32(
                f32::from_bits(a) / f32::from_bits(b)
            )),
            FBin::Min { strict } => w2!(self, d, a, b, mask, |a, b| extreme32(a, b, false, strict)),
            FBin::Max { strict } => w2!(self, d, a, b, mask, |a, b| extreme32(a, b, true, strict)),
            FBin::Copysign => w2!(self, d, a, b, mask, |a, b| a & 0x7fff_ffff | b & 0x8000_0000),
        }
    }

    #[inline(always)]
    pub(super) fn f32_fma(&mut self, finish: Finish, d: R, abc: [R; 3], mask: u32) {
        if finish == Finish::PLAIN {
            return w3!(self, d, abc, mask, |a, b, c| {
                canonical32(f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c)))
            });
        }
        w3!(self, d, abc, mask, |a, b, c| {
            let [a, b, c] =
                [a, b, c].map(|bits| f32::from_bits(if finish.flush { flush32(bits) } else { bits }));
            end32(rounding::fma32(a, b, c, finish.round), finish)
        });
    }

    pub(super) fn f32_un(&mut self, op: FUn, finish: Finish, d: R, a: R, mask: u32) {
        w1!(self, d, a, mask, |a| {
            let a = if finish.flush { flush32(a) } else { a };
            let x = f32::from_bits(a);
            let value = match op {
                // On NaN too the sign is all that changes.
                FUn::Neg => a ^ 0x8000_0000,
                FUn::Abs => a & 0x7fff_ffff,
                FUn::Sqrt => canonical32(x.sqrt()),
                FUn::Reciprocal => canonical32(1.0 / x),
            };
            end32(value, finish)
        });
    }

    pub(super) fn f64_op(&mut self, op: &Opcode, mask: u32) {
        match *op {
            Opcode::F64Bin(op, d, a, b) => d2!(self, d, a, b, mask, |a, b| {
                let (x, y) = (f64::from_bits(a), f64::from_bits(b));
                match op {
                    FBin::Add => canonical64(x + y),
                    FBin::Sub => canonical64(x - y),
                    FBin::Mul => canonical64(x * y),
                    FBin::Div => canonical64(x / y),
                    FBin::Min { .. } | FBin::Max { .. } => extreme64(x, y, matches!(op, FBin::Max { .. })),
                    FBin::Copysign => a & !(1 << 63) | b & 1 << 63,
                }
            }),
            Opcode::F64Fma(d, a, b, c) => {
                let [a, b, c] = [a, b, c].map(|slot| self.d(slot).map(f64::from_bits));
                set_d!(self, d, mask, |lane| canonical64(
                    a[lane].mul_add(b[lane], c[lane])
                ));
            }
            Opcode::F64Un(op, d, a) => d1!(self, d, a, mask, |a| match op {
                FUn::Neg => a ^ 1 << 63,
                FUn::Abs => a & !(1 << 63),
                FUn::Sqrt => canonical64(f64::from_bits(a).sqrt()),
                FUn::Reciprocal => canonical64(1.0 / f64::from_bits(a)),
            }),
            _ => unreachable!("`step` sends f64 operations alone"),
        }
    }

    #[inline(always)]
    pub(super) fn half_op(&mut self, op: &Opcode, mask: u32) {
        match *op {
            Opcode::HalfFma {
                pairs: true,
                flush: false,
                saturate: false,
                relu: false,
                d,
                a,
                b,
                c,
            } => {
                w3!(self, d, [a, b, c], mask, |a, b, c| {
                    half::fma(a & 0xffff, b & 0xffff, c & 0xffff) | half::fma(a >> 16, b >> 16, c >> 16) << 16
                });
            }
            Opcode::HalfBin {
                op: FBin::Mul,
                pairs: true,
                flush: false,
                saturate: false,
                d,
                a,
                b,
            } => {
                w2!(self, d, a, b, mask, |a, b| {
                    let mul = |a, b| half::through(a, b, |a, b| a * b);
                    mul(a & 0xffff, b & 0xffff) | mul(a >> 16, b >> 16) << 16
                });
            }
            Opcode::HalfBin {
                op: FBin::Add,
                pairs: true,
                flush: false,
                saturate: false,
                d,
                a,
                b,
            } => {
                w2!(self, d, a, b, mask, |a, b| {
                    let add = |a, b| half::through(a, b, |a, b| a + b);
                    add(a & 0xffff, b & 0xffff) | add(a >> 16, b >> 16) << 16
                });
            }
            _ => self.half_any(op, mask),
        }
    }

    /// With every modifier, and single halves.
    fn half_any(&mut self, op: &Opcode, mask: u32) {
        /// Both halves of a word, or the low one alone.
        #[inline(always)]
        fn each(pairs: bool, low: u32, high: impl FnOnce() -> u32) -> u32 {
            if pairs {
                low & 0xffff | high() << 16
            } else {
                low & 0xffff
            }
        }
        match *op {
            Opcode::HalfFma {
                pairs,
                flush,
                saturate,
                relu,
                d,
                a,
                b,
                c,
            } => {
                let one = |a: u32, b: u32, c: u32| {
                    let value = half_end(
                        half::fma(half_in(a, flush), half_in(b, flush), half_in(c, flush)),
                        flush,
                        saturate,
                    );
                    if relu && value & 0x8000 != 0 { 0 } else { value }
                };
                w3!(self, d, [a, b, c], mask, |a, b, c| {
                    each(pairs, one(a & 0xffff, b & 0xffff, c & 0xffff), || {
                        one(a >> 16, b >> 16, c >> 16)
                    })
                });
            }
            Opcode::HalfBin {
                op,
                pairs,
                flush,
                saturate,
                d,
                a,
                b,
            } => {
                let one = |a: u32, b: u32| half_one(op, flush, saturate, a, b);
                w2!(self, d, a, b, mask, |a, b| {
                    each(pairs, one(a & 0xffff, b & 0xffff), || one(a >> 16, b >> 16))
                });
            }
            Opcode::HalfUn { op, pairs, d, a } => {
                let sign = if pairs { 0x8000_8000 } else { 0x8000 };
                w1!(self, d, a, mask, |a| if op == FUn::Neg {
                    a ^ sign
                } else {
                    a & !sign
                });
            }
            _ => unreachable!("`step` sends operations on halves alone"),
        }
    }

    pub(super) fn approximate(
        &mut self,
        machine: &Machine<'_>,
        core: &mut Core,
        op: &Opcode,
        mask: u32,
    ) -> Outcome {
        let Opcode::Approximate { fun, flush, d, a, b } = *op else {
            return Ok(());
        };
        if machine.options.approximate == Approximate::Refuse {
            return Err(Stop::new(FaultKind::NotReproducible, mask.trailing_zeros()));
        }
        core.counters.approximations += 1;
        let (a, b) = (self.w(a), b.map_or([0; 32], |b| self.w(b)));
        set_w!(self, d, mask, |lane| {
            let [x, y] = [a[lane], b[lane]]
                .map(|bits| f64::from(f32::from_bits(if flush { flush32(bits) } else { bits })));
            let value = match fun {
                Approx::Exp2 => x.exp2(),
                Approx::Log2 => x.log2(),
                Approx::Sin => x.sin(),
                Approx::Cos => x.cos(),
                Approx::Tanh => x.tanh(),
                Approx::Reciprocal => 1.0 / x,
                Approx::Sqrt => x.sqrt(),
                Approx::ReciprocalSqrt => 1.0 / x.sqrt(),
                Approx::Divide => x / y,
            };
            let value = canonical32(value as f32);
            if flush { flush32(value) } else { value }
        });
        Ok(())
    }

    pub(super) fn test_float(&mut self, ty: Ty, test: Test, d: P, a: Slot, mask: u32) {
        let classes: [std::num::FpCategory; 32] = match (ty, a) {
            (Ty::F32, Slot::Word(a)) => self.w(a).map(|bits| f32::from_bits(bits).classify()),
            (_, Slot::Wide(a)) => self.d(a).map(|bits| f64::from_bits(bits).classify()),
            (_, Slot::Word(_) | Slot::Pred(_)) => return,
        };
        use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal};
        self.test(d, mask, |lane| match test {
            Test::Finite => !matches!(classes[lane], Nan | Infinite),
            Test::Infinite => classes[lane] == Infinite,
            Test::Number => classes[lane] != Nan,
            Test::NotANumber => classes[lane] == Nan,
            Test::Normal => classes[lane] == Normal,
            Test::Subnormal => classes[lane] == Subnormal,
        });
    }

    #[inline(always)]
    pub(super) fn compare(&mut self, compare: &Compare, mask: u32) {
        let (low, high) = self.relation(compare);
        let combine = |bits: u32| match compare.combine {
            Some((logic, p, negated)) => super::alu::logic(logic, bits, self.pred(p, negated)),
            None => bits,
        };
        let pairs = compare.ty == Ty::F16x2;
        let first = combine(low);
        // The second result is the complement, combined with the same predicate; of a pair, the high half's.
        let second = combine(if pairs { high } else { !low });
        match compare.out {
            CompareOut::Preds(p, q) => {
                if let Some(p) = p {
                    self.set_pred(p, mask, first);
                }
                if let Some(q) = q {
                    self.set_pred(q, mask, second);
                }
            }
            CompareOut::Word(d, SetAs::F16x2) => set_w!(self, d, mask, |lane| {
                let one = |bits: u32| if bits >> lane & 1 != 0 { 0x3c00 } else { 0 };
                one(first) | one(second) << 16
            }),
            CompareOut::Word(d, form) => {
                let (low, high) = match form {
                    SetAs::Ones(bits) => (u32::MAX >> (32 - bits), 0),
                    SetAs::F32 => (0x3f80_0000, 0),
                    SetAs::F16 | SetAs::F16x2 => (0x3c00, 0),
                };
                // Integers compared in pairs fill the half that is true.
                let (low, high) = if pairs {
                    (low & 0xffff, low >> 16 << 16)
                } else {
                    (low, high)
                };
                set_w!(self, d, mask, |lane| {
                    let one = |bits: u32, value: u32| if bits >> lane & 1 != 0 { value } else { 0 };
                    one(first, low) | if pairs { one(second, high) } else { 0 }
                });
            }
        }
    }

    /// The plain comparison as a bit a lane; for pairs also that of the high halves.
    #[inline(always)]
    fn relation(&self, compare: &Compare) -> (u32, u32) {
        let cmp = compare.cmp;
        match (compare.ty, compare.a, compare.b) {
            (Ty::F32, Slot::Word(a), Slot::Word(b)) => {
                let (mut a, mut b) = (self.w(a), self.w(b));
                if compare.flush {
                    (a, b) = (a.map(flush32), b.map(flush32));
                }
                (
                    floats(
                        cmp,
                        |lane| f32::from_bits(a[lane]),
                        |lane| f32::from_bits(b[lane]),
                    ),
                    0,
                )
            }
            (Ty::F64, Slot::Wide(a), Slot::Wide(b)) => {
                let (a, b) = (self.d(a), self.d(b));
                (
                    floats(
                        cmp,
                        |lane| f64::from_bits(a[lane]),
                        |lane| f64::from_bits(b[lane]),
                    ),
                    0,
                )
            }
            (Ty::F16 | Ty::F16x2, Slot::Word(a), Slot::Word(b)) => {
                let (a, b) = (self.w(a), self.w(b));
                let side = |shift: u32| {
                    let value = |bits: u32| {
                        let half = bits >> shift & 0xffff;
                        f32::from_bits(half::to_f32(if compare.flush { half::flush(half) } else { half }))
                    };
                    floats(cmp, |lane| value(a[lane]), |lane| value(b[lane]))
                };
                (side(0), if compare.ty == Ty::F16x2 { side(16) } else { 0 })
            }
            (Ty::Signed(16), Slot::Word(a), Slot::Word(b)) => {
                let (a, b) = (self.w(a).map(|a| a as i16), self.w(b).map(|b| b as i16));
                (ordered(cmp, |lane| a[lane], |lane| b[lane]), 0)
            }
            (Ty::Signed(_), Slot::Word(a), Slot::Word(b)) => {
                let (a, b) = (self.w(a), self.w(b));
                (ordered(cmp, |lane| a[lane] as i32, |lane| b[lane] as i32), 0)
            }
            (_, Slot::Word(a), Slot::Word(b)) => {
                let (a, b) = (self.w(a), self.w(b));
                (ordered(cmp, |lane| a[lane], |lane| b[lane]), 0)
            }
            (Ty::Signed(_), Slot::Wide(a), Slot::Wide(b)) => {
                let (a, b) = (self.d(a), self.d(b));
                (ordered(cmp, |lane| a[lane] as i64, |lane| b[lane] as i64), 0)
            }
            (_, Slot::Wide(a), Slot::Wide(b)) => {
                let (a, b) = (self.d(a), self.d(b));
                (ordered(cmp, |lane| a[lane], |lane| b[lane]), 0)
            }
            // The decoder gives both sides the type's width.
            (_, Slot::Pred(_) | Slot::Word(_) | Slot::Wide(_), _) => (0, 0),
        }
    }
}

#[inline(always)]
fn ordered<T: PartialOrd>(cmp: Cmp, a: impl Fn(usize) -> T, b: impl Fn(usize) -> T) -> u32 {
    match cmp {
        Cmp::Eq | Cmp::Equ => bits(|lane| a(lane) == b(lane)),
        Cmp::Ne | Cmp::Neu => bits(|lane| a(lane) != b(lane)),
        Cmp::Lt | Cmp::Ltu => bits(|lane| a(lane) < b(lane)),
        Cmp::Le | Cmp::Leu => bits(|lane| a(lane) <= b(lane)),
        Cmp::Gt | Cmp::Gtu => bits(|lane| a(lane) > b(lane)),
        Cmp::Ge | Cmp::Geu => bits(|lane| a(lane) >= b(lane)),
        Cmp::Num => u32::MAX,
        Cmp::Nan => 0,
    }
}

/// The ordered comparisons are false if a side is NaN, the unordered ones true.
#[inline(always)]
fn floats<T: PartialOrd + Copy>(cmp: Cmp, a: impl Fn(usize) -> T, b: impl Fn(usize) -> T) -> u32 {
    let nan = || bits(|lane| a(lane).partial_cmp(&b(lane)).is_none());
    match cmp {
        Cmp::Eq | Cmp::Lt | Cmp::Le | Cmp::Gt | Cmp::Ge => ordered(cmp, a, b),
        Cmp::Ne => bits(|lane| a(lane) < b(lane) || a(lane) > b(lane)),
        Cmp::Equ | Cmp::Neu | Cmp::Ltu | Cmp::Leu | Cmp::Gtu | Cmp::Geu => nan() | ordered(cmp, &a, &b),
        Cmp::Num => !nan(),
        Cmp::Nan => nan(),
    }
}

fn extreme64(a: f64, b: f64, larger: bool) -> u64 {
    let order = |x: f64| {
        let bits = x.to_bits();
        (bits ^ ((bits as i64 >> 63) as u64 >> 1)) as i64
    };
    match (a.is_nan(), b.is_nan()) {
        (true, _) => canonical64(b),
        (_, true) => a.to_bits(),
        _ if (order(a) > order(b)) == larger => a.to_bits(),
        _ => b.to_bits(),
    }
}

fn half_in(half: u32, flush: bool) -> u32 {
    if flush { half::flush(half) } else { half }
}

fn half_end(half: u32, flush: bool, saturate: bool) -> u32 {
    let half = half_in(half, flush);
    if saturate { half::saturate(half) } else { half }
}

fn half_one(op: FBin, flush: bool, saturate: bool, a: u32, b: u32) -> u32 {
    let (a, b) = (half_in(a, flush), half_in(b, flush));
    let value = match op {
        FBin::Add => half::through(a, b, |a, b| a + b),
        FBin::Sub => half::through(a, b, |a, b| a - b),
        FBin::Mul => half::through(a, b, |a, b| a * b),
        FBin::Div => half::through(a, b, |a, b| a / b),
        FBin::Min { strict } => half::extreme(a, b, false, strict),
        FBin::Max { strict } => half::extreme(a, b, true, strict),
        FBin::Copysign => a & 0x7fff | b & 0x8000,
    };
    half_end(value, flush, saturate)
}
