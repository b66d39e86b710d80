//! Integer and bit instructions alone, against Rust: a table of bodies and closures over inputs that straddle edges.

mod common;

use common::snippet::{Case, check, h, i, integers, outputs, s, u, w};

#[test]
fn integer_arithmetic() {
    let cases: [Case; 47] = [
        ("add.s32 %r0, %r1, %r2;", |a, b, _| u(w(a).wrapping_add(w(b)))),
        ("sub.u32 %r0, %r1, %r2;", |a, b, _| u(w(a).wrapping_sub(w(b)))),
        ("add.sat.s32 %r0, %r1, %r2;", |a, b, _| {
            u(s(a).saturating_add(s(b)) as u32)
        }),
        ("sub.sat.s32 %r0, %r1, %r2;", |a, b, _| {
            u(s(a).saturating_sub(s(b)) as u32)
        }),
        ("add.u64 %d0, %d1, %d2;", |a, b, _| a.wrapping_add(b)),
        ("sub.s64 %d0, %d1, %d2;", |a, b, _| a.wrapping_sub(b)),
        ("add.s16 %h0, %h1, %h2;", |a, b, _| h(a).wrapping_add(h(b)).into()),
        ("sub.u16 %h0, %h1, %h2;", |a, b, _| h(a).wrapping_sub(h(b)).into()),
        ("mul.lo.u32 %r0, %r1, %r2;", |a, b, _| u(w(a).wrapping_mul(w(b)))),
        ("mul.hi.u32 %r0, %r1, %r2;", |a, b, _| (u(w(a)) * u(w(b))) >> 32),
        ("mul.hi.s32 %r0, %r1, %r2;", |a, b, _| {
            u(((i64::from(s(a)) * i64::from(s(b))) >> 32) as u32)
        }),
        ("mul.lo.s64 %d0, %d1, %d2;", |a, b, _| a.wrapping_mul(b)),
        ("mul.hi.u64 %d0, %d1, %d2;", |a, b, _| {
            ((u128::from(a) * u128::from(b)) >> 64) as u64
        }),
        ("mul.hi.s64 %d0, %d1, %d2;", |a, b, _| {
            ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
        }),
        ("mul.lo.s16 %h0, %h1, %h2;", |a, b, _| {
            h(a).wrapping_mul(h(b)).into()
        }),
        ("mul.hi.u16 %h0, %h1, %h2;", |a, b, _| {
            u((u32::from(h(a)) * u32::from(h(b))) >> 16)
        }),
        ("mul.hi.s16 %h0, %h1, %h2;", |a, b, _| {
            u64::from(((i32::from(i(a)) * i32::from(i(b))) >> 16) as u16)
        }),
        ("mul.wide.u32 %d0, %r1, %r2;", |a, b, _| u(w(a)) * u(w(b))),
        ("mul.wide.s32 %d0, %r1, %r2;", |a, b, _| {
            (i64::from(s(a)) * i64::from(s(b))) as u64
        }),
        ("mul.wide.u16 %r0, %h1, %h2;", |a, b, _| {
            u(u32::from(h(a)) * u32::from(h(b)))
        }),
        ("mul.wide.s16 %r0, %h1, %h2;", |a, b, _| {
            u((i32::from(i(a)) * i32::from(i(b))) as u32)
        }),
        ("mad.lo.s32 %r0, %r1, %r2, %r3;", |a, b, c| {
            u(w(a).wrapping_mul(w(b)).wrapping_add(w(c)))
        }),
        ("mad.hi.u32 %r0, %r1, %r2, %r3;", |a, b, c| {
            u((((u(w(a)) * u(w(b))) >> 32) as u32).wrapping_add(w(c)))
        }),
        ("mad.lo.u16 %h0, %h1, %h2, %h3;", |a, b, c| {
            h(a).wrapping_mul(h(b)).wrapping_add(h(c)).into()
        }),
        ("mad.lo.s64 %d0, %d1, %d2, %d3;", |a, b, c| {
            a.wrapping_mul(b).wrapping_add(c)
        }),
        ("mad.wide.s32 %d0, %r1, %r2, %d3;", |a, b, c| {
            (i64::from(s(a)) * i64::from(s(b))).wrapping_add(c as i64) as u64
        }),
        ("mad.wide.u16 %r0, %h1, %h2, %r3;", |a, b, c| {
            u((u32::from(h(a)) * u32::from(h(b))).wrapping_add(w(c)))
        }),
        ("min.s32 %r0, %r1, %r2;", |a, b, _| u(s(a).min(s(b)) as u32)),
        ("min.u32 %r0, %r1, %r2;", |a, b, _| u(w(a).min(w(b)))),
        ("max.s64 %d0, %d1, %d2;", |a, b, _| {
            (a as i64).max(b as i64) as u64
        }),
        ("max.u16 %h0, %h1, %h2;", |a, b, _| h(a).max(h(b)).into()),
        ("min.s16 %h0, %h1, %h2;", |a, b, _| (i(a).min(i(b)) as u16).into()),
        ("neg.s32 %r0, %r1;", |a, _, _| u(s(a).wrapping_neg() as u32)),
        ("neg.s16 %h0, %h1;", |a, _, _| (i(a).wrapping_neg() as u16).into()),
        ("abs.s64 %d0, %d1;", |a, _, _| (a as i64).wrapping_abs() as u64),
        ("abs.s32 %r0, %r1;", |a, _, _| u(s(a).wrapping_abs() as u32)),
        (
            "setp.eq.s32 %p1, %r2, 0; @%p1 mov.u32 %r2, 7; div.u32 %r0, %r1, %r2;",
            |a, b, _| u(w(a) / if w(b) == 0 { 7 } else { w(b) }),
        ),
        (
            "setp.eq.s32 %p1, %r2, 0; selp.b32 %r2, 3, %r2, %p1; div.s32 %r0, %r1, %r2;",
            |a, b, _| u(s(a).wrapping_div(if s(b) == 0 { 3 } else { s(b) }) as u32),
        ),
        ("or.b64 %d2, %d2, 1; rem.s64 %d0, %d1, %d2;", |a, b, _| {
            (a as i64).wrapping_rem((b | 1) as i64) as u64
        }),
        ("or.b16 %h2, %h2, 1; div.s16 %h0, %h1, %h2;", |a, b, _| {
            (i(a).wrapping_div(i(b | 1)) as u16).into()
        }),
        ("or.b64 %d2, %d2, 1; div.u64 %d0, %d1, %d2;", |a, b, _| {
            a / (b | 1)
        }),
        ("add.cc.u32 %r0, %r1, %r2; addc.u32 %r0, %r3, 0;", |a, b, c| {
            u(w(c).wrapping_add(u32::from(w(a).overflowing_add(w(b)).1)))
        }),
        ("sub.cc.u32 %r0, %r1, %r2; subc.u32 %r0, %r3, 0;", |a, b, c| {
            u(w(c).wrapping_sub(u32::from(w(a) < w(b))))
        }),
        (
            "add.cc.u64 %d0, %d1, %d2; addc.cc.u64 %d0, %d3, %d2; addc.u64 %d0, 0, 0;",
            |a, b, c| ((u128::from(c) + u128::from(b) + u128::from(a.overflowing_add(b).1)) >> 64) as u64,
        ),
        (
            "mad.lo.cc.u32 %r4, %r1, %r2, %r3; madc.hi.u32 %r0, %r1, %r2, 0;",
            |a, b, c| (u(w(a)) * u(w(b)) + u(w(c))) >> 32,
        ),
        ("dp4a.u32.s32 %r0, %r1, %r2, %r3;", |a, b, c| {
            let at = |k: usize| i32::from(w(a).to_le_bytes()[k]) * i32::from(w(b).to_le_bytes()[k] as i8);
            u((0..4).fold(s(c), |sum, k| sum.wrapping_add(at(k))) as u32)
        }),
        ("dp2a.hi.s32.u32 %r0, %r1, %r2, %r3;", |a, b, c| {
            let at = |k: usize| i32::from((s(a) >> (16 * k)) as i16) * i32::from(w(b).to_le_bytes()[2 + k]);
            u(s(c).wrapping_add(at(0)).wrapping_add(at(1)) as u32)
        }),
    ];
    check(&cases, &integers());
}

fn byte_of(a: u64, b: u64, index: u32) -> u32 {
    let both = u(w(b)) << 32 | u(w(a));
    (both >> (index % 8 * 8)) as u32 & 0xff
}

fn bytes(places: [u32; 4], a: u64, b: u64) -> u64 {
    u(places
        .into_iter()
        .rev()
        .fold(0, |word, place| word << 8 | byte_of(a, b, place)))
}

/// PTX's own definition of bfe, bit by bit.
fn extract(a: u64, at: u64, count: u64, signed: bool, bits: u64) -> u64 {
    let bit = |place: u64| a >> place & 1;
    let sign = if !signed || count == 0 {
        0
    } else {
        bit((at + count - 1).min(bits - 1))
    };
    (0..bits).fold(0, |value, place| {
        let from = at + place;
        let taken = if place < count && from < bits {
            bit(from)
        } else {
            sign
        };
        value | taken << place
    })
}

fn insert(a: u64, b: u64, at: u64, count: u64, bits: u64) -> u64 {
    (0..count)
        .filter(|place| at + place < bits)
        .fold(b, |value, place| {
            value & !(1 << (at + place)) | (a >> place & 1) << (at + place)
        })
}

#[test]
fn bits_and_bytes() {
    let cases: [Case; 48] = [
        ("and.b32 %r0, %r1, %r2;", |a, b, _| u(w(a & b))),
        ("or.b16 %h0, %h1, %h2;", |a, b, _| h(a | b).into()),
        ("xor.b64 %d0, %d1, %d2;", |a, b, _| a ^ b),
        ("not.b32 %r0, %r1;", |a, _, _| u(!w(a))),
        ("not.b16 %h0, %h1;", |a, _, _| (!h(a)).into()),
        ("cnot.b32 %r0, %r1;", |a, _, _| u64::from(w(a) == 0)),
        ("shl.b32 %r0, %r1, %r3;", |a, _, c| {
            u(w(a).checked_shl(w(c)).unwrap_or(0))
        }),
        ("shr.u32 %r0, %r1, %r3;", |a, _, c| {
            u(w(a).checked_shr(w(c)).unwrap_or(0))
        }),
        ("shr.s32 %r0, %r1, %r3;", |a, _, c| {
            u((s(a) >> w(c).min(31)) as u32)
        }),
        ("shl.b64 %d0, %d1, %r3;", |a, _, c| {
            a.checked_shl(w(c)).unwrap_or(0)
        }),
        ("shr.u64 %d0, %d1, %r3;", |a, _, c| {
            a.checked_shr(w(c)).unwrap_or(0)
        }),
        ("shr.s64 %d0, %d1, %r3;", |a, _, c| {
            (a as i64 >> w(c).min(63)) as u64
        }),
        ("shl.b16 %h0, %h1, %r3;", |a, _, c| {
            h(a).checked_shl(w(c)).unwrap_or(0).into()
        }),
        ("shr.s16 %h0, %h1, %r3;", |a, _, c| {
            ((i(a) >> w(c).min(15)) as u16).into()
        }),
        ("shf.l.wrap.b32 %r0, %r1, %r2, %r3;", |a, b, c| {
            u(((u(w(b)) << 32 | u(w(a))) << (c & 31) >> 32) as u32)
        }),
        ("shf.r.wrap.b32 %r0, %r1, %r2, %r3;", |a, b, c| {
            u(((u(w(b)) << 32 | u(w(a))) >> (c & 31)) as u32)
        }),
        ("shf.r.clamp.b32 %r0, %r1, %r2, %r3;", |a, b, c| {
            u(((u(w(b)) << 32 | u(w(a))) >> u(w(c)).min(32)) as u32)
        }),
        ("shf.l.clamp.b32 %r0, %r1, %r2, %r3;", |a, b, c| {
            u((u128::from(u(w(b)) << 32 | u(w(a))) << u(w(c)).min(32) >> 32) as u32)
        }),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0x96;", |a, b, c| u(w(a ^ b ^ c))),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0xe8;", |a, b, c| {
            u(w(a & b | a & c | b & c))
        }),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0xca;", |a, b, c| {
            u(w(a & b | !a & c))
        }),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0x12;", |a, b, c| {
            u(w(!a & !b & c | a & !b & !c))
        }),
        ("popc.b32 %r0, %r1;", |a, _, _| w(a).count_ones().into()),
        ("popc.b64 %r0, %d1;", |a, _, _| a.count_ones().into()),
        ("clz.b32 %r0, %r1;", |a, _, _| w(a).leading_zeros().into()),
        ("clz.b64 %r0, %d1;", |a, _, _| a.leading_zeros().into()),
        ("brev.b32 %r0, %r1;", |a, _, _| w(a).reverse_bits().into()),
        ("brev.b64 %d0, %d1;", |a, _, _| a.reverse_bits()),
        ("bfind.u32 %r0, %r1;", |a, _, _| {
            u(31_u32.wrapping_sub(w(a).leading_zeros()))
        }),
        ("bfind.s32 %r0, %r1;", |a, _, _| {
            let size = if s(a) < 0 { !w(a) } else { w(a) };
            u(31_u32.wrapping_sub(size.leading_zeros()))
        }),
        ("bfind.shiftamt.u64 %r0, %d1;", |a, _, _| {
            if a == 0 {
                u(u32::MAX)
            } else {
                a.leading_zeros().into()
            }
        }),
        ("bfe.u32 %r0, %r1, %r2, %r3;", |a, b, c| {
            extract(u(w(a)), b & 0xff, c & 0xff, false, 32)
        }),
        ("bfe.s32 %r0, %r1, %r2, %r3;", |a, b, c| {
            extract(u(w(a)), b & 0xff, c & 0xff, true, 32)
        }),
        ("bfe.u64 %d0, %d1, %r2, %r3;", |a, b, c| {
            extract(a, b & 0xff, c & 0xff, false, 64)
        }),
        ("bfe.s64 %d0, %d1, %r2, %r3;", |a, b, c| {
            extract(a, b & 0xff, c & 0xff, true, 64)
        }),
        (
            "and.b32 %r4, %r2, 31; bfi.b32 %r0, %r1, %r2, %r4, %r3;",
            |a, b, c| insert(u(w(a)), u(w(b)), b & 31, c & 0xff, 32),
        ),
        ("bfi.b64 %d0, %d1, %d2, %r2, %r3;", |a, b, c| {
            insert(a, b, b & 0xff, c & 0xff, 64)
        }),
        ("prmt.b32 %r0, %r1, %r2, 0x7351;", |a, b, _| {
            bytes([1, 5, 3, 7], a, b)
        }),
        ("prmt.b32 %r0, %r1, %r2, %r3;", |a, b, c| {
            u((0..4).fold(0, |word, place| {
                let select = w(c) >> (place * 4);
                let byte = byte_of(a, b, select & 7);
                let byte = if select & 8 == 0 {
                    byte
                } else if byte & 0x80 != 0 {
                    0xff
                } else {
                    0
                };
                word | byte << (place * 8)
            }))
        }),
        ("prmt.b32.f4e %r0, %r1, %r2, %r3;", |a, b, c| {
            bytes([0, 1, 2, 3].map(|k| k + (w(c) & 3)), a, b)
        }),
        ("prmt.b32.b4e %r0, %r1, %r2, %r3;", |a, b, c| {
            bytes([8, 7, 6, 5].map(|k| k + (w(c) & 3)), a, b)
        }),
        ("prmt.b32.rc8 %r0, %r1, %r2, %r3;", |a, b, c| {
            bytes([w(c) & 3; 4], a, b)
        }),
        ("prmt.b32.ecl %r0, %r1, %r2, %r3;", |a, b, c| {
            bytes([0, 1, 2, 3].map(|k| k.max(w(c) & 3)), a, b)
        }),
        ("prmt.b32.ecr %r0, %r1, %r2, %r3;", |a, b, c| {
            bytes([0, 1, 2, 3].map(|k| k.min(w(c) & 3)), a, b)
        }),
        ("prmt.b32.rc16 %r0, %r1, %r2, %r3;", |a, b, c| {
            bytes([0, 1, 0, 1].map(|k| k + (w(c) & 1) * 2), a, b)
        }),
        ("mov.b32 %r0, {%h1, %h2};", |a, b, _| {
            u(u32::from(h(a)) | u32::from(h(b)) << 16)
        }),
        ("mov.b64 {%r4, %r5}, %d1; mov.b64 %d0, {%r5, %r4};", |a, _, _| {
            a.rotate_left(32)
        }),
        (
            "mov.b64 {%h4, %h5, _, %h6}, %d1; mov.b64 %d0, {%h6, %h5, %h4, %h4};",
            |a, _, _| a >> 48 | a >> 16 << 48 >> 32 | ((a & 0xffff) * 0x0001_0001_0000_0000),
        ),
    ];
    let mut rows = integers();
    rows.extend((0..70).flat_map(|at| {
        (0..70)
            .step_by(3)
            .map(move |count| [0x8123_4567_89ab_cdef, at, count])
    }));
    check(&cases[..46], &rows);
    check(&cases[46..47], &rows);
    let [first, ..] = integers()[20];
    let parts = |a: u64| [0, 16, 32, 48].map(|shift| a >> shift & 0xffff);
    for a in [first, 0x0123_4567_89ab_cdef] {
        let [p0, p1, _, p3] = parts(a);
        assert_eq!(
            outputs(cases[47].0, &[[a, 0, 0]]),
            [p3 | p1 << 16 | p0 << 32 | p0 << 48]
        );
    }
}

#[test]
fn comparisons_and_selections() {
    let cases: [Case; 22] = [
        ("mov.pred %p0, -1;", |_, _, _| 1),
        (
            "mov.pred %p1, 0; setp.lt.or.s32 %p0, %r1, %r2, %p1;",
            |a, b, _| (s(a) < s(b)).into(),
        ),
        ("setp.lt.s32 %p0, %r1, %r2;", |a, b, _| (s(a) < s(b)).into()),
        ("setp.lt.u32 %p0, %r1, %r2;", |a, b, _| (w(a) < w(b)).into()),
        ("setp.lo.u32 %p0, %r1, %r2;", |a, b, _| (w(a) < w(b)).into()),
        ("setp.hs.u64 %p0, %d1, %d2;", |a, b, _| (a >= b).into()),
        ("setp.ge.s64 %p0, %d1, %d2;", |a, b, _| {
            (a as i64 >= b as i64).into()
        }),
        ("setp.gt.s16 %p0, %h1, %h2;", |a, b, _| (i(a) > i(b)).into()),
        ("setp.le.u16 %p0, %h1, %h2;", |a, b, _| (h(a) <= h(b)).into()),
        ("setp.eq.b64 %p0, %d1, %d2;", |a, b, _| (a == b).into()),
        ("setp.ne.b32 %p1|%p0, %r1, %r2;", |a, b, _| (w(a) == w(b)).into()),
        (
            "setp.lt.s32 %p1, %r1, %r3; setp.gt.and.u32 %p0, %r1, %r2, !%p1;",
            |a, b, c| (w(a) > w(b) && s(a) >= s(c)).into(),
        ),
        (
            "setp.lt.s32 %p1, %r1, %r3; setp.eq.or.u32 %p0, %r1, %r2, %p1;",
            |a, b, c| (w(a) == w(b) || s(a) < s(c)).into(),
        ),
        (
            "setp.lt.s32 %p1, %r1, %r3; setp.eq.xor.u32 %p2|%p0, %r1, %r2, %p1;",
            |a, b, c| ((w(a) != w(b)) ^ (s(a) < s(c))).into(),
        ),
        (
            "setp.lt.s32 %p1, %r1, %r2; setp.lt.s32 %p2, %r2, %r3; and.pred %p0, %p1, %p2;",
            |a, b, c| (s(a) < s(b) && s(b) < s(c)).into(),
        ),
        ("setp.lt.s32 %p1, %r1, %r2; not.pred %p0, %p1;", |a, b, _| {
            (s(a) >= s(b)).into()
        }),
        (
            "setp.lt.s32 %p1, %r1, %r2; mov.pred %p2, %p1; xor.pred %p0, %p2, %p1;",
            |_, _, _| 0,
        ),
        ("set.lt.u32.s32 %r0, %r1, %r2;", |a, b, _| {
            if s(a) < s(b) { u(u32::MAX) } else { 0 }
        }),
        ("set.ge.f32.u32 %r0, %r1, %r2;", |a, b, _| {
            if w(a) >= w(b) { 0x3f80_0000 } else { 0 }
        }),
        (
            "setp.lt.s32 %p1, %r1, %r2; selp.b32 %r0, %r1, %r2, %p1;",
            |a, b, _| u(s(a).min(s(b)) as u32),
        ),
        (
            "setp.lt.u64 %p1, %d1, %d2; selp.b64 %d0, %d1, %d2, %p1;",
            |a, b, _| a.min(b),
        ),
        (
            "setp.lt.u16 %p1, %h1, %h2; selp.b16 %h0, %h1, 9, !%p1;",
            |a, b, _| if h(a) < h(b) { 9 } else { h(a).into() },
        ),
    ];
    check(&cases, &integers());
}
