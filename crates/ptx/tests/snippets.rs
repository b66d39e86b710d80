//! Each instruction alone, against Rust: a table of bodies and closures over inputs that straddle edges.

mod common;

use common::{Bench, Random, half_value, nearest_half};
use galvani_ptx::{Approximate, Arg};

/// A body reads %d1 %d2 %d3 (and their low parts %r1.., %h1..) and writes %d0, %r0, %h0 or %p0.
fn kernel(body: &str) -> String {
    let out = match body {
        _ if body.contains("%d0") => "",
        _ if body.contains("%r0") => "cvt.u64.u32 %d0, %r0;",
        _ if body.contains("%h0") => "cvt.u64.u16 %d0, %h0;",
        _ => "selp.b64 %d0, 1, 0, %p0;",
    };
    format!(
        ".version 8.8\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 pa, .param .u64 po)\n{{\n\
         .reg .pred %p<4>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .b64 %d<16>;\n\
         ld.param.u64 %d10, [pa]; ld.param.u64 %d11, [po];\n\
         mov.u32 %r10, %tid.x; mov.u32 %r11, %ctaid.x; mov.u32 %r12, %ntid.x; mad.lo.s32 %r10, %r11, %r12, %r10;\n\
         mad.wide.u32 %d10, %r10, 24, %d10; mad.wide.u32 %d11, %r10, 8, %d11;\n\
         ld.global.u64 %d1, [%d10]; ld.global.u64 %d2, [%d10+8]; ld.global.u64 %d3, [%d10+16];\n\
         cvt.u32.u64 %r1, %d1; cvt.u32.u64 %r2, %d2; cvt.u32.u64 %r3, %d3;\n\
         cvt.u16.u64 %h1, %d1; cvt.u16.u64 %h2, %d2; cvt.u16.u64 %h3, %d3;\n\
         {body}\n{out}\nst.global.u64 [%d11], %d0;\nret;\n}}\n"
    )
}

fn outputs(body: &str, inputs: &[[u64; 3]]) -> Vec<u64> {
    let mut bench = Bench::new(&kernel(body));
    bench.options.approximate = Approximate::Round;
    let mut rows = inputs.to_vec();
    rows.resize(inputs.len().next_multiple_of(64), [1, 1, 1]);
    let bytes: Vec<u8> = rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    let input = bench.bytes("in", &bytes);
    let out = bench.empty("out", rows.len() * 8);
    bench.run("k", rows.len() as u32 / 64, 64, &[Arg::Ptr(input), Arg::Ptr(out)]);
    bench.read_wides(out, inputs.len())
}

type Case = (&'static str, fn(u64, u64, u64) -> u64);

/// Runs every case over the inputs and lists all that differ.
fn check(cases: &[Case], inputs: &[[u64; 3]]) {
    let mut wrong = Vec::new();
    for (body, f) in cases {
        for (got, [a, b, c]) in outputs(body, inputs).into_iter().zip(inputs) {
            let want = f(*a, *b, *c);
            if got != want {
                wrong.push(format!("{body} of {a:#x} {b:#x} {c:#x}: {got:#x}, not {want:#x}"));
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn integers() -> Vec<[u64; 3]> {
    let edges = [
        0,
        1,
        2,
        0x7f,
        0x80,
        0x7fff,
        0x8000,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        1 << 32,
        u64::MAX >> 1,
        1 << 63,
        u64::MAX,
    ];
    let mut random = Random(9);
    let mut rows: Vec<[u64; 3]> = Vec::new();
    for a in edges {
        for b in edges {
            rows.push([a, b, u64::from(random.next() % 70)]);
        }
    }
    for shift in 0..400_u32 {
        let mut wide = || (u64::from(random.next()) << 32 | u64::from(random.next())) >> (shift % 60);
        rows.push([wide(), wide(), wide()]);
    }
    rows
}

fn w(value: u64) -> u32 {
    value as u32
}
fn s(value: u64) -> i32 {
    value as i32
}
fn h(value: u64) -> u16 {
    value as u16
}
fn i(value: u64) -> i16 {
    value as i16
}
fn u(value: u32) -> u64 {
    u64::from(value)
}

#[test]
fn integer_arithmetic() {
    let cases: [Case; 47] = [
        ("add.s32 %r0, %r1, %r2;", |a, b, _| u(w(a).wrapping_add(w(b)))),
        ("sub.u32 %r0, %r1, %r2;", |a, b, _| u(w(a).wrapping_sub(w(b)))),
        ("add.sat.s32 %r0, %r1, %r2;", |a, b, _| u(s(a).saturating_add(s(b)) as u32)),
        ("sub.sat.s32 %r0, %r1, %r2;", |a, b, _| u(s(a).saturating_sub(s(b)) as u32)),
        ("add.u64 %d0, %d1, %d2;", |a, b, _| a.wrapping_add(b)),
        ("sub.s64 %d0, %d1, %d2;", |a, b, _| a.wrapping_sub(b)),
        ("add.s16 %h0, %h1, %h2;", |a, b, _| h(a).wrapping_add(h(b)).into()),
        ("sub.u16 %h0, %h1, %h2;", |a, b, _| h(a).wrapping_sub(h(b)).into()),
        ("mul.lo.u32 %r0, %r1, %r2;", |a, b, _| u(w(a).wrapping_mul(w(b)))),
        ("mul.hi.u32 %r0, %r1, %r2;", |a, b, _| u(w(a)) * u(w(b)) >> 32),
        ("mul.hi.s32 %r0, %r1, %r2;", |a, b, _| u((i64::from(s(a)) * i64::from(s(b)) >> 32) as u32)),
        ("mul.lo.s64 %d0, %d1, %d2;", |a, b, _| a.wrapping_mul(b)),
        ("mul.hi.u64 %d0, %d1, %d2;", |a, b, _| (u128::from(a) * u128::from(b) >> 64) as u64),
        ("mul.hi.s64 %d0, %d1, %d2;", |a, b, _| (i128::from(a as i64) * i128::from(b as i64) >> 64) as u64),
        ("mul.lo.s16 %h0, %h1, %h2;", |a, b, _| h(a).wrapping_mul(h(b)).into()),
        ("mul.hi.u16 %h0, %h1, %h2;", |a, b, _| u(u32::from(h(a)) * u32::from(h(b)) >> 16)),
        ("mul.hi.s16 %h0, %h1, %h2;", |a, b, _| u64::from((i32::from(i(a)) * i32::from(i(b)) >> 16) as u16)),
        ("mul.wide.u32 %d0, %r1, %r2;", |a, b, _| u(w(a)) * u(w(b))),
        ("mul.wide.s32 %d0, %r1, %r2;", |a, b, _| (i64::from(s(a)) * i64::from(s(b))) as u64),
        ("mul.wide.u16 %r0, %h1, %h2;", |a, b, _| u(u32::from(h(a)) * u32::from(h(b)))),
        ("mul.wide.s16 %r0, %h1, %h2;", |a, b, _| u((i32::from(i(a)) * i32::from(i(b))) as u32)),
        ("mad.lo.s32 %r0, %r1, %r2, %r3;", |a, b, c| u(w(a).wrapping_mul(w(b)).wrapping_add(w(c)))),
        ("mad.hi.u32 %r0, %r1, %r2, %r3;", |a, b, c| u(((u(w(a)) * u(w(b)) >> 32) as u32).wrapping_add(w(c)))),
        ("mad.lo.u16 %h0, %h1, %h2, %h3;", |a, b, c| h(a).wrapping_mul(h(b)).wrapping_add(h(c)).into()),
        ("mad.lo.s64 %d0, %d1, %d2, %d3;", |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        ("mad.wide.s32 %d0, %r1, %r2, %d3;", |a, b, c| (i64::from(s(a)) * i64::from(s(b))).wrapping_add(c as i64) as u64),
        ("mad.wide.u16 %r0, %h1, %h2, %r3;", |a, b, c| u((u32::from(h(a)) * u32::from(h(b))).wrapping_add(w(c)))),
        ("min.s32 %r0, %r1, %r2;", |a, b, _| u(s(a).min(s(b)) as u32)),
        ("min.u32 %r0, %r1, %r2;", |a, b, _| u(w(a).min(w(b)))),
        ("max.s64 %d0, %d1, %d2;", |a, b, _| (a as i64).max(b as i64) as u64),
        ("max.u16 %h0, %h1, %h2;", |a, b, _| h(a).max(h(b)).into()),
        ("min.s16 %h0, %h1, %h2;", |a, b, _| (i(a).min(i(b)) as u16).into()),
        ("neg.s32 %r0, %r1;", |a, _, _| u(s(a).wrapping_neg() as u32)),
        ("neg.s16 %h0, %h1;", |a, _, _| (i(a).wrapping_neg() as u16).into()),
        ("abs.s64 %d0, %d1;", |a, _, _| (a as i64).wrapping_abs() as u64),
        ("abs.s32 %r0, %r1;", |a, _, _| u(s(a).wrapping_abs() as u32)),
        ("setp.eq.s32 %p1, %r2, 0; @%p1 mov.u32 %r2, 7; div.u32 %r0, %r1, %r2;", |a, b, _| {
            u(w(a) / if w(b) == 0 { 7 } else { w(b) })
        }),
        ("setp.eq.s32 %p1, %r2, 0; selp.b32 %r2, 3, %r2, %p1; div.s32 %r0, %r1, %r2;", |a, b, _| {
            u(s(a).wrapping_div(if s(b) == 0 { 3 } else { s(b) }) as u32)
        }),
        ("or.b64 %d2, %d2, 1; rem.s64 %d0, %d1, %d2;", |a, b, _| (a as i64).wrapping_rem((b | 1) as i64) as u64),
        ("or.b16 %h2, %h2, 1; div.s16 %h0, %h1, %h2;", |a, b, _| (i(a).wrapping_div(i(b | 1)) as u16).into()),
        ("or.b64 %d2, %d2, 1; div.u64 %d0, %d1, %d2;", |a, b, _| a / (b | 1)),
        ("add.cc.u32 %r0, %r1, %r2; addc.u32 %r0, %r3, 0;", |a, b, c| {
            u(w(c).wrapping_add(u32::from(w(a).overflowing_add(w(b)).1)))
        }),
        ("sub.cc.u32 %r0, %r1, %r2; subc.u32 %r0, %r3, 0;", |a, b, c| u(w(c).wrapping_sub(u32::from(w(a) < w(b))))),
        ("add.cc.u64 %d0, %d1, %d2; addc.cc.u64 %d0, %d3, %d2; addc.u64 %d0, 0, 0;", |a, b, c| {
            ((u128::from(c) + u128::from(b) + u128::from(a.overflowing_add(b).1)) >> 64) as u64
        }),
        ("mad.lo.cc.u32 %r4, %r1, %r2, %r3; madc.hi.u32 %r0, %r1, %r2, 0;", |a, b, c| {
            (u(w(a)) * u(w(b)) + u(w(c))) >> 32
        }),
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
    u(places.into_iter().rev().fold(0, |word, place| word << 8 | byte_of(a, b, place)))
}

/// PTX's own definition of bfe, bit by bit.
fn extract(a: u64, at: u64, count: u64, signed: bool, bits: u64) -> u64 {
    let bit = |place: u64| a >> place & 1;
    let sign = if !signed || count == 0 { 0 } else { bit((at + count - 1).min(bits - 1)) };
    (0..bits).fold(0, |value, place| {
        let from = at + place;
        let taken = if place < count && from < bits { bit(from) } else { sign };
        value | taken << place
    })
}

fn insert(a: u64, b: u64, at: u64, count: u64, bits: u64) -> u64 {
    (0..count).filter(|place| at + place < bits).fold(b, |value, place| {
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
        ("shl.b32 %r0, %r1, %r3;", |a, _, c| u(w(a).checked_shl(w(c)).unwrap_or(0))),
        ("shr.u32 %r0, %r1, %r3;", |a, _, c| u(w(a).checked_shr(w(c)).unwrap_or(0))),
        ("shr.s32 %r0, %r1, %r3;", |a, _, c| u((s(a) >> w(c).min(31)) as u32)),
        ("shl.b64 %d0, %d1, %r3;", |a, _, c| a.checked_shl(w(c)).unwrap_or(0)),
        ("shr.u64 %d0, %d1, %r3;", |a, _, c| a.checked_shr(w(c)).unwrap_or(0)),
        ("shr.s64 %d0, %d1, %r3;", |a, _, c| (a as i64 >> w(c).min(63)) as u64),
        ("shl.b16 %h0, %h1, %r3;", |a, _, c| h(a).checked_shl(w(c)).unwrap_or(0).into()),
        ("shr.s16 %h0, %h1, %r3;", |a, _, c| ((i(a) >> w(c).min(15)) as u16).into()),
        ("shf.l.wrap.b32 %r0, %r1, %r2, %r3;", |a, b, c| u(((u(w(b)) << 32 | u(w(a))) << (c & 31) >> 32) as u32)),
        ("shf.r.wrap.b32 %r0, %r1, %r2, %r3;", |a, b, c| u(((u(w(b)) << 32 | u(w(a))) >> (c & 31)) as u32)),
        ("shf.r.clamp.b32 %r0, %r1, %r2, %r3;", |a, b, c| u(((u(w(b)) << 32 | u(w(a))) >> u(w(c)).min(32)) as u32)),
        ("shf.l.clamp.b32 %r0, %r1, %r2, %r3;", |a, b, c| {
            u((u128::from(u(w(b)) << 32 | u(w(a))) << u(w(c)).min(32) >> 32) as u32)
        }),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0x96;", |a, b, c| u(w(a ^ b ^ c))),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0xe8;", |a, b, c| u(w(a & b | a & c | b & c))),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0xca;", |a, b, c| u(w(a & b | !a & c))),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0x12;", |a, b, c| u(w(!a & !b & c | a & !b & !c))),
        ("popc.b32 %r0, %r1;", |a, _, _| w(a).count_ones().into()),
        ("popc.b64 %r0, %d1;", |a, _, _| a.count_ones().into()),
        ("clz.b32 %r0, %r1;", |a, _, _| w(a).leading_zeros().into()),
        ("clz.b64 %r0, %d1;", |a, _, _| a.leading_zeros().into()),
        ("brev.b32 %r0, %r1;", |a, _, _| w(a).reverse_bits().into()),
        ("brev.b64 %d0, %d1;", |a, _, _| a.reverse_bits()),
        ("bfind.u32 %r0, %r1;", |a, _, _| u(31_u32.wrapping_sub(w(a).leading_zeros()))),
        ("bfind.s32 %r0, %r1;", |a, _, _| {
            let size = if s(a) < 0 { !w(a) } else { w(a) };
            u(31_u32.wrapping_sub(size.leading_zeros()))
        }),
        ("bfind.shiftamt.u64 %r0, %d1;", |a, _, _| if a == 0 { u(u32::MAX) } else { a.leading_zeros().into() }),
        ("bfe.u32 %r0, %r1, %r2, %r3;", |a, b, c| extract(u(w(a)), b & 0xff, c & 0xff, false, 32)),
        ("bfe.s32 %r0, %r1, %r2, %r3;", |a, b, c| extract(u(w(a)), b & 0xff, c & 0xff, true, 32)),
        ("bfe.u64 %d0, %d1, %r2, %r3;", |a, b, c| extract(a, b & 0xff, c & 0xff, false, 64)),
        ("bfe.s64 %d0, %d1, %r2, %r3;", |a, b, c| extract(a, b & 0xff, c & 0xff, true, 64)),
        ("and.b32 %r4, %r2, 31; bfi.b32 %r0, %r1, %r2, %r4, %r3;", |a, b, c| {
            insert(u(w(a)), u(w(b)), b & 31, c & 0xff, 32)
        }),
        ("bfi.b64 %d0, %d1, %d2, %r2, %r3;", |a, b, c| insert(a, b, b & 0xff, c & 0xff, 64)),
        ("prmt.b32 %r0, %r1, %r2, 0x7351;", |a, b, _| bytes([1, 5, 3, 7], a, b)),
        ("prmt.b32 %r0, %r1, %r2, %r3;", |a, b, c| {
            u((0..4).fold(0, |word, place| {
                let select = w(c) >> (place * 4);
                let byte = byte_of(a, b, select & 7);
                let byte = if select & 8 == 0 { byte } else if byte & 0x80 != 0 { 0xff } else { 0 };
                word | byte << (place * 8)
            }))
        }),
        ("prmt.b32.f4e %r0, %r1, %r2, %r3;", |a, b, c| bytes([0, 1, 2, 3].map(|k| k + (w(c) & 3)), a, b)),
        ("prmt.b32.b4e %r0, %r1, %r2, %r3;", |a, b, c| bytes([8, 7, 6, 5].map(|k| k + (w(c) & 3)), a, b)),
        ("prmt.b32.rc8 %r0, %r1, %r2, %r3;", |a, b, c| bytes([w(c) & 3; 4], a, b)),
        ("prmt.b32.ecl %r0, %r1, %r2, %r3;", |a, b, c| bytes([0, 1, 2, 3].map(|k| k.max(w(c) & 3)), a, b)),
        ("prmt.b32.ecr %r0, %r1, %r2, %r3;", |a, b, c| bytes([0, 1, 2, 3].map(|k| k.min(w(c) & 3)), a, b)),
        ("prmt.b32.rc16 %r0, %r1, %r2, %r3;", |a, b, c| bytes([0, 1, 0, 1].map(|k| k + (w(c) & 1) * 2), a, b)),
        ("mov.b32 %r0, {%h1, %h2};", |a, b, _| u(u32::from(h(a)) | u32::from(h(b)) << 16)),
        ("mov.b64 {%r4, %r5}, %d1; mov.b64 %d0, {%r5, %r4};", |a, _, _| a.rotate_left(32)),
        ("mov.b64 {%h4, %h5, _, %h6}, %d1; mov.b64 %d0, {%h6, %h5, %h4, %h4};", |a, _, _| {
            a >> 48 | a >> 16 << 48 >> 32 | (a & 0xffff) * 0x0001_0001_0000_0000
        }),
    ];
    let mut rows = integers();
    rows.extend((0..70).flat_map(|at| (0..70).step_by(3).map(move |count| [0x8123_4567_89ab_cdef, at, count])));
    check(&cases[..46], &rows);
    check(&cases[46..47], &rows);
    let [first, ..] = integers()[20];
    let parts = |a: u64| [0, 16, 32, 48].map(|shift| a >> shift & 0xffff);
    for a in [first, 0x0123_4567_89ab_cdef] {
        let [p0, p1, _, p3] = parts(a);
        assert_eq!(outputs(cases[47].0, &[[a, 0, 0]]), [p3 | p1 << 16 | p0 << 32 | p0 << 48]);
    }
}

#[test]
fn comparisons_and_selections() {
    let cases: [Case; 20] = [
        ("setp.lt.s32 %p0, %r1, %r2;", |a, b, _| (s(a) < s(b)).into()),
        ("setp.lt.u32 %p0, %r1, %r2;", |a, b, _| (w(a) < w(b)).into()),
        ("setp.lo.u32 %p0, %r1, %r2;", |a, b, _| (w(a) < w(b)).into()),
        ("setp.hs.u64 %p0, %d1, %d2;", |a, b, _| (a >= b).into()),
        ("setp.ge.s64 %p0, %d1, %d2;", |a, b, _| (a as i64 >= b as i64).into()),
        ("setp.gt.s16 %p0, %h1, %h2;", |a, b, _| (i(a) > i(b)).into()),
        ("setp.le.u16 %p0, %h1, %h2;", |a, b, _| (h(a) <= h(b)).into()),
        ("setp.eq.b64 %p0, %d1, %d2;", |a, b, _| (a == b).into()),
        ("setp.ne.b32 %p1|%p0, %r1, %r2;", |a, b, _| (w(a) == w(b)).into()),
        ("setp.lt.s32 %p1, %r1, %r3; setp.gt.and.u32 %p0, %r1, %r2, !%p1;", |a, b, c| (w(a) > w(b) && s(a) >= s(c)).into()),
        ("setp.lt.s32 %p1, %r1, %r3; setp.eq.or.u32 %p0, %r1, %r2, %p1;", |a, b, c| (w(a) == w(b) || s(a) < s(c)).into()),
        ("setp.lt.s32 %p1, %r1, %r3; setp.eq.xor.u32 %p2|%p0, %r1, %r2, %p1;", |a, b, c| {
            ((w(a) != w(b)) ^ (s(a) < s(c))).into()
        }),
        ("setp.lt.s32 %p1, %r1, %r2; setp.lt.s32 %p2, %r2, %r3; and.pred %p0, %p1, %p2;", |a, b, c| {
            (s(a) < s(b) && s(b) < s(c)).into()
        }),
        ("setp.lt.s32 %p1, %r1, %r2; not.pred %p0, %p1;", |a, b, _| (s(a) >= s(b)).into()),
        ("setp.lt.s32 %p1, %r1, %r2; mov.pred %p2, %p1; xor.pred %p0, %p2, %p1;", |_, _, _| 0),
        ("set.lt.u32.s32 %r0, %r1, %r2;", |a, b, _| if s(a) < s(b) { u(u32::MAX) } else { 0 }),
        ("set.ge.f32.u32 %r0, %r1, %r2;", |a, b, _| if w(a) >= w(b) { 0x3f80_0000 } else { 0 }),
        ("setp.lt.s32 %p1, %r1, %r2; selp.b32 %r0, %r1, %r2, %p1;", |a, b, _| u(s(a).min(s(b)) as u32)),
        ("setp.lt.u64 %p1, %d1, %d2; selp.b64 %d0, %d1, %d2, %p1;", |a, b, _| a.min(b)),
        ("setp.lt.u16 %p1, %h1, %h2; selp.b16 %h0, %h1, 9, !%p1;", |a, b, _| if h(a) < h(b) { 9 } else { h(a).into() }),
    ];
    check(&cases, &integers());
}

fn floats() -> Vec<[u64; 3]> {
    let special = [
        0x0000_0000,
        0x8000_0000,
        0x3f80_0000,
        0xbf80_0000,
        0x3f00_0000,
        0x4020_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x7f7f_ffff,
        0x0080_0000,
        0x0000_0001,
        0x807f_ffff,
        0x4f00_0000,
        0xcf00_0001,
    ];
    let mut random = Random(10);
    let mut rows: Vec<[u64; 3]> = Vec::new();
    for a in special {
        for b in special {
            rows.push([a, b, u(random.unit().to_bits())]);
        }
    }
    for _ in 0..500 {
        rows.push([u(random.unit().to_bits()), u(random.unit().to_bits()), u(random.unit().to_bits())]);
        rows.push([u(random.next()), u(random.next()), u(random.next())]);
    }
    rows
}

fn f(value: u64) -> f32 {
    f32::from_bits(value as u32)
}
fn r(value: f32) -> u64 {
    u(if value.is_nan() { 0x7fff_ffff } else { value.to_bits() })
}
fn flush(value: f32) -> f32 {
    if value.is_subnormal() { 0.0_f32.copysign(value) } else { value }
}

#[test]
fn f32_instructions() {
    let cases: [Case; 31] = [
        ("add.f32 %r0, %r1, %r2;", |a, b, _| r(f(a) + f(b))),
        ("sub.rn.f32 %r0, %r1, %r2;", |a, b, _| r(f(a) - f(b))),
        ("mul.f32 %r0, %r1, %r2;", |a, b, _| r(f(a) * f(b))),
        ("fma.rn.f32 %r0, %r1, %r2, %r3;", |a, b, c| r(f(a).mul_add(f(b), f(c)))),
        ("mad.rn.f32 %r0, %r1, %r2, %r3;", |a, b, c| r(f(a).mul_add(f(b), f(c)))),
        ("div.rn.f32 %r0, %r1, %r2;", |a, b, _| r(f(a) / f(b))),
        ("rcp.rn.f32 %r0, %r1;", |a, _, _| r(1.0 / f(a))),
        ("sqrt.rn.f32 %r0, %r1;", |a, _, _| r(f(a).sqrt())),
        ("neg.f32 %r0, %r1;", |a, _, _| a ^ 0x8000_0000),
        ("abs.f32 %r0, %r1;", |a, _, _| a & 0x7fff_ffff),
        ("copysign.f32 %r0, %r1, %r2;", |a, b, _| b & 0x7fff_ffff | a & 0x8000_0000),
        ("add.ftz.f32 %r0, %r1, %r2;", |a, b, _| r(flush(flush(f(a)) + flush(f(b))))),
        ("mul.ftz.f32 %r0, %r1, %r2;", |a, b, _| r(flush(flush(f(a)) * flush(f(b))))),
        ("add.sat.f32 %r0, %r1, %r2;", |a, b, _| {
            let sum = f(a) + f(b);
            r(if sum > 0.0 { sum.min(1.0) } else { 0.0 })
        }),
        ("fma.rn.sat.f32 %r0, %r1, %r2, %r3;", |a, b, c| {
            let sum = f(a).mul_add(f(b), f(c));
            r(if sum > 0.0 { sum.min(1.0) } else { 0.0 })
        }),
        ("setp.lt.f32 %p0, %r1, %r2;", |a, b, _| (f(a) < f(b)).into()),
        ("setp.ne.f32 %p0, %r1, %r2;", |a, b, _| (f(a) < f(b) || f(a) > f(b)).into()),
        ("setp.equ.f32 %p0, %r1, %r2;", |a, b, _| (f(a) == f(b) || f(a).is_nan() || f(b).is_nan()).into()),
        ("setp.neu.f32 %p0, %r1, %r2;", |a, b, _| (f(a) != f(b)).into()),
        ("setp.gtu.f32 %p0, %r1, %r2;", |a, b, _| u64::from(!(f(a) <= f(b)))),
        ("setp.leu.f32 %p0, %r1, %r2;", |a, b, _| u64::from(!(f(a) > f(b)))),
        ("setp.num.f32 %p0, %r1, %r2;", |a, b, _| (!f(a).is_nan() && !f(b).is_nan()).into()),
        ("setp.nan.f32 %p0, %r1, %r2;", |a, b, _| (f(a).is_nan() || f(b).is_nan()).into()),
        ("setp.eq.ftz.f32 %p0, %r1, %r2;", |a, b, _| (flush(f(a)) == flush(f(b))).into()),
        ("testp.finite.f32 %p0, %r1;", |a, _, _| f(a).is_finite().into()),
        ("testp.subnormal.f32 %p0, %r1;", |a, _, _| f(a).is_subnormal().into()),
        ("testp.notanumber.f32 %p0, %r1;", |a, _, _| f(a).is_nan().into()),
        ("rcp.approx.f32 %r0, %r1;", |a, _, _| r((1.0 / f64::from(f(a))) as f32)),
        ("rsqrt.approx.f32 %r0, %r1;", |a, _, _| r((1.0 / f64::from(f(a)).sqrt()) as f32)),
        ("div.full.f32 %r0, %r1, %r2;", |a, b, _| r((f64::from(f(a)) / f64::from(f(b))) as f32)),
        ("min.NaN.f32 %r0, %r1, %r2;", |a, b, _| {
            if f(a).is_nan() || f(b).is_nan() {
                return 0x7fff_ffff;
            }
            if f(a) == f(b) { a | b & 0x8000_0000 } else { r(f(a).min(f(b))) }
        }),
    ];
    check(&cases, &floats().into_iter().map(|row| row.map(|value| value & 0xffff_ffff)).collect::<Vec<_>>());
}

/// `exact` rounded in a direction, by stepping from the nearest.
fn directed(exact: f64, direction: &str) -> u64 {
    let near = exact as f32;
    let (below, above) = (f64::from(near) < exact, f64::from(near) > exact);
    let down = if above { near.next_down() } else { near };
    let up = if below { near.next_up() } else { near };
    r(match direction {
        "rm" => down,
        "rp" => up,
        "rz" => if exact > 0.0 { down } else { up },
        _ => near,
    })
}

#[test]
fn f32_with_directed_rounding() {
    // Values whose sums and products f64 holds exactly.
    let mut random = Random(11);
    let mut value = || f32::from_bits(random.next() & 0x8000_ffff | 0x3f80_0000 + (random.next() % 16 << 23));
    let rows: Vec<[u64; 3]> = (0..2000).map(|_| [r(value()), r(value()), r(value())]).collect();
    for direction in ["rn", "rz", "rm", "rp"] {
        let run = |text: &str| outputs(&text.replace("RND", direction), &rows);
        let (add, sub) = (run("add.RND.f32 %r0, %r1, %r2;"), run("sub.RND.f32 %r0, %r1, %r2;"));
        let (mul, fma) = (run("mul.RND.f32 %r0, %r1, %r2;"), run("fma.RND.f32 %r0, %r1, %r2, %r3;"));
        for (at, row) in rows.iter().enumerate() {
            let [a, b, c] = row.map(|bits| f64::from(f(bits)));
            if a != b && a != -b {
                assert_eq!((add[at], sub[at]), (directed(a + b, direction), directed(a - b, direction)), "{a} {b}");
            }
            assert_eq!((mul[at], fma[at]), (directed(a * b, direction), directed(a * b + c, direction)), "{a} {b} {c}");
        }
        // The last bits of an f64 and of an integer.
        let narrow = run("and.b64 %d2, %d1, 0x800fffffffffffff; or.b64 %d2, %d2, 0x4000000000000000; cvt.RND.f32.f64 %r0, %d2;");
        let whole = run("mul.lo.u64 %d2, %d1, 1234567890123; cvt.RND.f32.u64 %r0, %d2;");
        for (at, row) in rows.iter().enumerate() {
            let exact = f64::from_bits(row[0] & 0x800f_ffff_ffff_ffff | 0x4000_0000_0000_0000);
            assert_eq!(narrow[at], directed(exact, direction));
            let exact = row[0].wrapping_mul(1_234_567_890_123);
            let near = exact as f32;
            let (wide, near_wide) = (i128::from(exact), near as i128);
            let want = match direction {
                "rm" | "rz" if near_wide > wide => near.next_down(),
                "rp" if near_wide < wide => near.next_up(),
                _ => near,
            };
            assert_eq!(whole[at], r(want), "{exact}");
        }
    }
}

#[test]
fn f64_instructions() {
    let g = |bits: u64| f64::from_bits(bits);
    let mut random = Random(12);
    let mut rows: Vec<[u64; 3]> = Vec::new();
    let special = [0.0, -0.0, 1.0, -2.5, f64::INFINITY, f64::MAX, f64::MIN_POSITIVE, 5e-324, 1e300];
    for a in special {
        for b in special {
            rows.push([a.to_bits(), b.to_bits(), 3.0_f64.to_bits()]);
        }
    }
    for _ in 0..500 {
        let mut value = || (f64::from(random.next()) * 1.7 - 3e9) * 2_f64.powi((random.next() % 40) as i32);
        rows.push([value().to_bits(), value().to_bits(), value().to_bits()]);
    }
    let nan = |value: f64| if value.is_nan() { 0xfff8_0000_0000_0000 } else { value.to_bits() };
    let run = |body: &str| outputs(body, &rows);
    let (add, mul, fma) = (run("add.f64 %d0, %d1, %d2;"), run("mul.rn.f64 %d0, %d1, %d2;"), run("fma.rn.f64 %d0, %d1, %d2, %d3;"));
    let (div, sqrt) = (run("div.rn.f64 %d0, %d1, %d2;"), run("sqrt.rn.f64 %d0, %d1;"));
    let (min, less) = (run("min.f64 %d0, %d1, %d2;"), run("setp.lt.f64 %p0, %d1, %d2;"));
    let (to_int, from_int) = (run("cvt.rzi.s32.f64 %r0, %d1;"), run("cvt.rn.f64.s64 %d0, %d1;"));
    for (at, [a, b, c]) in rows.iter().enumerate() {
        let (x, y, z) = (g(*a), g(*b), g(*c));
        assert_eq!((add[at], mul[at], fma[at]), (nan(x + y), nan(x * y), nan(x.mul_add(y, z))));
        assert_eq!((div[at], sqrt[at]), (nan(x / y), nan(x.sqrt())));
        assert_eq!(less[at], u64::from(x < y));
        assert!(g(min[at]) == x.min(y));
        assert_eq!((to_int[at], from_int[at]), (u(x as i32 as u32), (*a as i64 as f64).to_bits()));
    }
}

#[test]
fn conversions_among_integers() {
    let bits = [8_u32, 16, 32, 64];
    let register = |bits: u32, at: u32| match bits {
        8 | 16 => format!("%h{at}"),
        32 => format!("%r{at}"),
        _ => format!("%d{at}"),
    };
    let rows = integers();
    for (to, from) in bits.into_iter().flat_map(|to| bits.map(|from| (to, from))) {
        for (to_sign, from_sign) in [("u", "u"), ("s", "u"), ("u", "s"), ("s", "s")] {
            for saturate in [false, true] {
                let sat = if saturate { ".sat" } else { "" };
                let body = format!("cvt{sat}.{to_sign}{to}.{from_sign}{from} {}, {};", register(to, 0), register(from, 1));
                let register_bits = to.max(16);
                for (got, [a, ..]) in outputs(&body, &rows).into_iter().zip(&rows) {
                    let extend = |value: u64, bits: u32, signed: bool| {
                        let value = i128::from(value) & ((1_i128 << bits) - 1);
                        if signed && value >> (bits - 1) & 1 != 0 { value - (1 << bits) } else { value }
                    };
                    let value = extend(*a, from, from_sign == "s");
                    let signed = to_sign == "s";
                    let (least, most) =
                        if signed { (-(1_i128 << (to - 1)), (1_i128 << (to - 1)) - 1) } else { (0, (1_i128 << to) - 1) };
                    let value = if saturate { value.clamp(least, most) } else { extend(value as u64, to, signed) };
                    let want = (value & ((1_i128 << register_bits) - 1)) as u64;
                    assert_eq!(got, want, "{body} of {a:#x}");
                }
            }
        }
    }
}

#[test]
fn conversions_between_floats_and_integers() {
    let integral = |value: f64, mode: &str| match mode {
        "rni" => value.round_ties_even(),
        "rzi" => value.trunc(),
        "rmi" => value.floor(),
        _ => value.ceil(),
    };
    let rows = floats();
    for mode in ["rni", "rzi", "rmi", "rpi"] {
        let run = |body: &str| outputs(&body.replace("MODE", mode), &rows);
        let (s32, u32s) = (run("cvt.MODE.s32.f32 %r0, %r1;"), run("cvt.MODE.u32.f32 %r0, %r1;"));
        let (s16, u8s) = (run("cvt.MODE.s16.f32 %h0, %r1;"), run("cvt.MODE.u8.f32 %h0, %r1;"));
        let (s64, f32s) = (run("cvt.MODE.s64.f32 %d0, %r1;"), run("cvt.MODE.f32.f32 %r0, %r1;"));
        let (h32, h16) = (run("cvt.MODE.s32.f16 %r0, %h1;"), run("cvt.MODE.f16.f16 %h0, %h1;"));
        for (at, [a, ..]) in rows.iter().enumerate() {
            let x = f64::from(f(*a));
            let whole = integral(x, mode);
            assert_eq!((s32[at], u32s[at]), (u(whole as i32 as u32), u(whole as u32)), "{mode} {x}");
            assert_eq!((s16[at], u8s[at]), (u64::from(whole as i16 as u16), u64::from(whole as u8)), "{mode} {x}");
            assert_eq!(s64[at], if x.is_nan() { 1 << 63 } else { whole as i64 as u64 });
            assert_eq!(f32s[at], r(whole as f32));
            let half = half_value((a & 0xffff) as u32);
            let whole = integral(half, mode);
            assert_eq!((h32[at], h16[at]), (u(whole as i32 as u32), u64::from(nearest_half(whole))), "{mode} {half}");
        }
    }
    let rows = integers();
    let run = |body: &str| outputs(body, &rows);
    let (fs, fu) = (run("cvt.rn.f32.s32 %r0, %r1;"), run("cvt.rn.f32.u32 %r0, %r1;"));
    let (f8, fd) = (run("cvt.rn.f32.u8 %r0, %h1;"), run("cvt.rn.f32.s64 %r0, %d1;"));
    let (hs, hu) = (run("cvt.rn.f16.s32 %h0, %r1;"), run("cvt.rn.f16.u16 %h0, %h1;"));
    for (at, [a, ..]) in rows.iter().enumerate() {
        assert_eq!((fs[at], fu[at]), (r(s(*a) as f32), r(w(*a) as f32)));
        assert_eq!((f8[at], fd[at]), (r(f32::from(*a as u8)), r(*a as i64 as f32)));
        let want = (u64::from(nearest_half(f64::from(s(*a)))), u64::from(nearest_half(f64::from(h(*a)))));
        assert_eq!((hs[at], hu[at]), want);
    }
}

/// All 65536 halves through every instruction on one.
#[test]
fn every_half() {
    let rows: Vec<[u64; 3]> = (0..=0xffff).map(|half| [half, 0x3c00, 0]).collect();
    let cases: [Case; 7] = [
        ("cvt.f32.f16 %r0, %h1;", |a, _, _| r(half_value(w(a)) as f32)),
        ("cvt.f32.f16 %r4, %h1; cvt.rn.f16.f32 %h0, %r4;", |a, _, _| nearest_half(half_value(w(a))).into()),
        ("cvt.f64.f16 %d4, %h1; cvt.rz.f16.f64 %h0, %d4;", |a, _, _| nearest_half(half_value(w(a))).into()),
        ("neg.f16 %h0, %h1;", |a, _, _| a ^ 0x8000),
        ("add.f16 %h0, %h1, %h2;", |a, _, _| nearest_half(half_value(w(a)) + 1.0).into()),
        ("fma.rn.f16 %h0, %h1, %h1, %h1;", |a, _, _| {
            let x = half_value(w(a));
            nearest_half(x.mul_add(x, x)).into()
        }),
        ("setp.geu.f16 %p0, %h1, %h2;", |a, _, _| u64::from(!(half_value(w(a)) < 1.0))),
    ];
    check(&cases, &rows);
}

#[test]
fn halves_in_directions_and_pairs() {
    let mut random = Random(13);
    let rows: Vec<[u64; 3]> = (0..3000)
        .map(|_| [u((random.unit() * 70000.0 / (1 << (random.next() % 30)) as f32).to_bits()), u(random.next()), u(random.next())])
        .collect();
    for (mode, body) in [
        ("rz", "cvt.rz.f16.f32 %h0, %r1;"),
        ("rm", "cvt.rm.f16.f32 %h0, %r1;"),
        ("rp", "cvt.rp.f16.f32 %h0, %r1;"),
        ("rn", "cvt.rn.f16.f32 %h0, %r1;"),
    ] {
        for (got, [a, ..]) in outputs(body, &rows).into_iter().zip(&rows) {
            let x = f64::from(f(*a));
            let near = nearest_half(x);
            let step = |half: u32, up: bool| match (half, up == (half & 0x8000 == 0)) {
                (0x0000, false) => 0x8001,
                (0x8000, false) => 0x0001,
                (half, true) => half + 1,
                (half, false) => half - 1,
            };
            let value = half_value(near);
            let want = match mode {
                "rn" => near,
                "rz" if value.abs() > x.abs() => near - 1,
                "rm" if value > x => step(near, false),
                "rp" if value < x => step(near, true),
                _ => near,
            };
            assert_eq!(got as u32, want, "{mode} {x:e}");
        }
    }
    let number = |half: u32| half & 0x7fff <= 0x7c00;
    let both = |word: u64| [w(word) & 0xffff, w(word) >> 16];
    let (min, max) = (outputs("min.f16x2 %r0, %r2, %r3;", &rows), outputs("max.f16x2 %r0, %r2, %r3;", &rows));
    let set = outputs("set.ltu.f16x2.f16x2 %r0, %r2, %r3;", &rows);
    let preds = outputs("setp.lt.f16x2 %p1|%p2, %r2, %r3; selp.b32 %r4, 1, 0, %p1; selp.b32 %r5, 2, 0, %p2; add.u32 %r0, %r4, %r5;", &rows);
    let relu = outputs("fma.rn.relu.f16x2 %r0, %r2, 0x3c003c00, 0x80008000;", &rows);
    for (at, [_, b, c]) in rows.iter().enumerate() {
        let mut less = 0;
        for side in 0..2 {
            let (x, y) = (both(*b)[side], both(*c)[side]);
            let (u, v) = (half_value(x), half_value(y));
            let context = format!("{x:04x} {y:04x}");
            match (number(x), number(y)) {
                (true, true) if u != v => {
                    assert_eq!((both(min[at])[side], both(max[at])[side]), if u < v { (x, y) } else { (y, x) }, "{context}");
                }
                (true, false) => assert_eq!((both(min[at])[side], both(max[at])[side]), (x, x)),
                (false, true) => assert_eq!((both(min[at])[side], both(max[at])[side]), (y, y)),
                (false, false) => assert_eq!((both(min[at])[side], both(max[at])[side]), (0x7fff, 0x7fff)),
                (true, true) => {}
            }
            assert_eq!(both(set[at])[side], if u >= v { 0 } else { 0x3c00 }, "{context}");
            less |= u64::from(u < v) << side;
            let want = if u.is_nan() { 0x7fff } else { nearest_half(u.max(0.0) + 0.0) };
            assert_eq!(both(relu[at])[side], want, "{context}");
        }
        assert_eq!(preds[at], less);
    }
}
