//! One instruction alone: a kernel around a body, its inputs, its check against a closure.

use super::{Bench, Random};
use galvani_ptx::{Approximate, Arg};

/// A body reads %d1 %d2 %d3 (and their low parts %r1.., %h1..) and writes %d0, %r0, %h0 or %p0.
pub fn kernel(body: &str) -> String {
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

pub fn outputs(body: &str, inputs: &[[u64; 3]]) -> Vec<u64> {
    let mut bench = Bench::new(&kernel(body));
    bench.options.approximate = Approximate::Round;
    let mut rows = inputs.to_vec();
    rows.resize(inputs.len().next_multiple_of(64), [1, 1, 1]);
    let bytes: Vec<u8> = rows
        .iter()
        .flatten()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let input = bench.bytes("in", &bytes);
    let out = bench.empty("out", rows.len() * 8);
    bench.run("k", rows.len() as u32 / 64, 64, &[Arg::Ptr(input), Arg::Ptr(out)]);
    bench.read_wides(out, inputs.len())
}

pub type Case = (&'static str, fn(u64, u64, u64) -> u64);

/// Runs every case over the inputs and lists all that differ.
pub fn check(cases: &[Case], inputs: &[[u64; 3]]) {
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

pub fn integers() -> Vec<[u64; 3]> {
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

pub fn floats() -> Vec<[u64; 3]> {
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
        rows.push([
            u(random.unit().to_bits()),
            u(random.unit().to_bits()),
            u(random.unit().to_bits()),
        ]);
        rows.push([u(random.next()), u(random.next()), u(random.next())]);
    }
    rows
}

pub fn w(value: u64) -> u32 {
    value as u32
}
pub fn s(value: u64) -> i32 {
    value as i32
}
pub fn h(value: u64) -> u16 {
    value as u16
}
pub fn i(value: u64) -> i16 {
    value as i16
}
pub fn u(value: u32) -> u64 {
    u64::from(value)
}

pub fn f(value: u64) -> f32 {
    f32::from_bits(value as u32)
}
pub fn r(value: f32) -> u64 {
    u(if value.is_nan() {
        0x7fff_ffff
    } else {
        value.to_bits()
    })
}
pub fn flush(value: f32) -> f32 {
    if value.is_subnormal() {
        0.0_f32.copysign(value)
    } else {
        value
    }
}
