//! Conversions among all widths of integers and floats, against Rust.

mod common;

use common::snippet::{f, floats, h, integers, outputs, r, s, u, w};
use common::{half_value, nearest_half};

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
                let body = format!(
                    "cvt{sat}.{to_sign}{to}.{from_sign}{from} {}, {};",
                    register(to, 0),
                    register(from, 1)
                );
                let register_bits = to.max(16);
                for (got, [a, ..]) in outputs(&body, &rows).into_iter().zip(&rows) {
                    let extend = |value: u64, bits: u32, signed: bool| {
                        let value = i128::from(value) & ((1_i128 << bits) - 1);
                        if signed && value >> (bits - 1) & 1 != 0 {
                            value - (1 << bits)
                        } else {
                            value
                        }
                    };
                    let value = extend(*a, from, from_sign == "s");
                    let signed = to_sign == "s";
                    let (least, most) = if signed {
                        (-(1_i128 << (to - 1)), (1_i128 << (to - 1)) - 1)
                    } else {
                        (0, (1_i128 << to) - 1)
                    };
                    let value = if saturate {
                        value.clamp(least, most)
                    } else {
                        extend(value as u64, to, signed)
                    };
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
        let (s32, u32s) = (
            run("cvt.MODE.s32.f32 %r0, %r1;"),
            run("cvt.MODE.u32.f32 %r0, %r1;"),
        );
        let (s16, u8s) = (
            run("cvt.MODE.s16.f32 %h0, %r1;"),
            run("cvt.MODE.u8.f32 %h0, %r1;"),
        );
        let (s64, f32s) = (
            run("cvt.MODE.s64.f32 %d0, %r1;"),
            run("cvt.MODE.f32.f32 %r0, %r1;"),
        );
        let (h32, h16) = (
            run("cvt.MODE.s32.f16 %r0, %h1;"),
            run("cvt.MODE.f16.f16 %h0, %h1;"),
        );
        for (at, [a, ..]) in rows.iter().enumerate() {
            let x = f64::from(f(*a));
            let whole = integral(x, mode);
            assert_eq!(
                (s32[at], u32s[at]),
                (u(whole as i32 as u32), u(whole as u32)),
                "{mode} {x}"
            );
            assert_eq!(
                (s16[at], u8s[at]),
                (u64::from(whole as i16 as u16), u64::from(whole as u8)),
                "{mode} {x}"
            );
            assert_eq!(s64[at], if x.is_nan() { 1 << 63 } else { whole as i64 as u64 });
            assert_eq!(f32s[at], r(whole as f32));
            let half = half_value((a & 0xffff) as u32);
            let whole = integral(half, mode);
            assert_eq!(
                (h32[at], h16[at]),
                (u(whole as i32 as u32), u64::from(nearest_half(whole))),
                "{mode} {half}"
            );
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
        let want = (
            u64::from(nearest_half(f64::from(s(*a)))),
            u64::from(nearest_half(f64::from(h(*a)))),
        );
        assert_eq!((hs[at], hu[at]), want);
    }
}
