//! Float instructions alone, against Rust: f32 in every rounding, f64, halves.

mod common;

use common::snippet::{Case, check, f, floats, flush, outputs, r, u, w};
use common::{Random, half_value, nearest_half};

#[test]
fn f32_instructions() {
    let cases: [Case; 31] = [
        ("add.f32 %r0, %r1, %r2;", |a, b, _| r(f(a) + f(b))),
        ("sub.rn.f32 %r0, %r1, %r2;", |a, b, _| r(f(a) - f(b))),
        ("mul.f32 %r0, %r1, %r2;", |a, b, _| r(f(a) * f(b))),
        ("fma.rn.f32 %r0, %r1, %r2, %r3;", |a, b, c| {
            r(f(a).mul_add(f(b), f(c)))
        }),
        ("mad.rn.f32 %r0, %r1, %r2, %r3;", |a, b, c| {
            r(f(a).mul_add(f(b), f(c)))
        }),
        ("div.rn.f32 %r0, %r1, %r2;", |a, b, _| r(f(a) / f(b))),
        ("rcp.rn.f32 %r0, %r1;", |a, _, _| r(1.0 / f(a))),
        ("sqrt.rn.f32 %r0, %r1;", |a, _, _| r(f(a).sqrt())),
        ("neg.f32 %r0, %r1;", |a, _, _| a ^ 0x8000_0000),
        ("abs.f32 %r0, %r1;", |a, _, _| a & 0x7fff_ffff),
        ("copysign.f32 %r0, %r1, %r2;", |a, b, _| {
            b & 0x7fff_ffff | a & 0x8000_0000
        }),
        ("add.ftz.f32 %r0, %r1, %r2;", |a, b, _| {
            r(flush(flush(f(a)) + flush(f(b))))
        }),
        ("mul.ftz.f32 %r0, %r1, %r2;", |a, b, _| {
            r(flush(flush(f(a)) * flush(f(b))))
        }),
        ("add.sat.f32 %r0, %r1, %r2;", |a, b, _| {
            let sum = f(a) + f(b);
            r(if sum > 0.0 { sum.min(1.0) } else { 0.0 })
        }),
        ("fma.rn.sat.f32 %r0, %r1, %r2, %r3;", |a, b, c| {
            let sum = f(a).mul_add(f(b), f(c));
            r(if sum > 0.0 { sum.min(1.0) } else { 0.0 })
        }),
        ("setp.lt.f32 %p0, %r1, %r2;", |a, b, _| (f(a) < f(b)).into()),
        ("setp.ne.f32 %p0, %r1, %r2;", |a, b, _| {
            (f(a) < f(b) || f(a) > f(b)).into()
        }),
        ("setp.equ.f32 %p0, %r1, %r2;", |a, b, _| {
            (f(a) == f(b) || f(a).is_nan() || f(b).is_nan()).into()
        }),
        ("setp.neu.f32 %p0, %r1, %r2;", |a, b, _| (f(a) != f(b)).into()),
        ("setp.gtu.f32 %p0, %r1, %r2;", |a, b, _| {
            (f(a) > f(b) || f(a).is_nan() || f(b).is_nan()).into()
        }),
        ("setp.leu.f32 %p0, %r1, %r2;", |a, b, _| {
            (f(a) <= f(b) || f(a).is_nan() || f(b).is_nan()).into()
        }),
        ("setp.num.f32 %p0, %r1, %r2;", |a, b, _| {
            (!f(a).is_nan() && !f(b).is_nan()).into()
        }),
        ("setp.nan.f32 %p0, %r1, %r2;", |a, b, _| {
            (f(a).is_nan() || f(b).is_nan()).into()
        }),
        ("setp.eq.ftz.f32 %p0, %r1, %r2;", |a, b, _| {
            (flush(f(a)) == flush(f(b))).into()
        }),
        ("testp.finite.f32 %p0, %r1;", |a, _, _| f(a).is_finite().into()),
        ("testp.subnormal.f32 %p0, %r1;", |a, _, _| {
            f(a).is_subnormal().into()
        }),
        ("testp.notanumber.f32 %p0, %r1;", |a, _, _| f(a).is_nan().into()),
        ("rcp.approx.f32 %r0, %r1;", |a, _, _| {
            r((1.0 / f64::from(f(a))) as f32)
        }),
        ("rsqrt.approx.f32 %r0, %r1;", |a, _, _| {
            r((1.0 / f64::from(f(a)).sqrt()) as f32)
        }),
        ("div.full.f32 %r0, %r1, %r2;", |a, b, _| {
            r((f64::from(f(a)) / f64::from(f(b))) as f32)
        }),
        ("min.NaN.f32 %r0, %r1, %r2;", |a, b, _| {
            if f(a).is_nan() || f(b).is_nan() {
                return 0x7fff_ffff;
            }
            if f(a) == f(b) {
                a | b & 0x8000_0000
            } else {
                r(f(a).min(f(b)))
            }
        }),
    ];
    check(
        &cases,
        &floats()
            .into_iter()
            .map(|row| row.map(|value| value & 0xffff_ffff))
            .collect::<Vec<_>>(),
    );
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
        "rz" => {
            if exact > 0.0 {
                down
            } else {
                up
            }
        }
        _ => near,
    })
}

#[test]
fn f32_with_directed_rounding() {
    // Values whose sums and products f64 holds exactly.
    let mut random = Random(11);
    let mut value =
        || f32::from_bits(random.next() & 0x8000_ffff | (0x3f80_0000 + ((random.next() % 16) << 23)));
    let rows: Vec<[u64; 3]> = (0..2000).map(|_| [r(value()), r(value()), r(value())]).collect();
    for direction in ["rn", "rz", "rm", "rp"] {
        let run = |text: &str| outputs(&text.replace("RND", direction), &rows);
        let (add, sub) = (
            run("add.RND.f32 %r0, %r1, %r2;"),
            run("sub.RND.f32 %r0, %r1, %r2;"),
        );
        let (mul, fma) = (
            run("mul.RND.f32 %r0, %r1, %r2;"),
            run("fma.RND.f32 %r0, %r1, %r2, %r3;"),
        );
        for (at, row) in rows.iter().enumerate() {
            let [a, b, c] = row.map(|bits| f64::from(f(bits)));
            if a != b && a != -b {
                assert_eq!(
                    (add[at], sub[at]),
                    (directed(a + b, direction), directed(a - b, direction)),
                    "{a} {b}"
                );
            }
            assert_eq!(
                (mul[at], fma[at]),
                (directed(a * b, direction), directed(a * b + c, direction)),
                "{a} {b} {c}"
            );
        }
        // The last bits of an f64 and of an integer.
        let narrow = run(
            "and.b64 %d2, %d1, 0x800fffffffffffff; or.b64 %d2, %d2, 0x4000000000000000; cvt.RND.f32.f64 %r0, %d2;",
        );
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
    let special = [
        0.0,
        -0.0,
        1.0,
        -2.5,
        f64::INFINITY,
        f64::MAX,
        f64::MIN_POSITIVE,
        5e-324,
        1e300,
    ];
    for a in special {
        for b in special {
            rows.push([a.to_bits(), b.to_bits(), 3.0_f64.to_bits()]);
        }
    }
    for _ in 0..500 {
        let mut value = || (f64::from(random.next()) * 1.7 - 3e9) * 2_f64.powi((random.next() % 40) as i32);
        rows.push([value().to_bits(), value().to_bits(), value().to_bits()]);
    }
    let nan = |value: f64| {
        if value.is_nan() {
            0xfff8_0000_0000_0000
        } else {
            value.to_bits()
        }
    };
    let run = |body: &str| outputs(body, &rows);
    let (add, mul, fma) = (
        run("add.f64 %d0, %d1, %d2;"),
        run("mul.rn.f64 %d0, %d1, %d2;"),
        run("fma.rn.f64 %d0, %d1, %d2, %d3;"),
    );
    let (div, sqrt) = (run("div.rn.f64 %d0, %d1, %d2;"), run("sqrt.rn.f64 %d0, %d1;"));
    let (min, less) = (run("min.f64 %d0, %d1, %d2;"), run("setp.lt.f64 %p0, %d1, %d2;"));
    let (to_int, from_int) = (run("cvt.rzi.s32.f64 %r0, %d1;"), run("cvt.rn.f64.s64 %d0, %d1;"));
    for (at, [a, b, c]) in rows.iter().enumerate() {
        let (x, y, z) = (g(*a), g(*b), g(*c));
        assert_eq!(
            (add[at], mul[at], fma[at]),
            (nan(x + y), nan(x * y), nan(x.mul_add(y, z)))
        );
        assert_eq!((div[at], sqrt[at]), (nan(x / y), nan(x.sqrt())));
        assert_eq!(less[at], u64::from(x < y));
        assert!(g(min[at]) == x.min(y));
        assert_eq!(
            (to_int[at], from_int[at]),
            (u(x as i32 as u32), (*a as i64 as f64).to_bits())
        );
    }
}

/// All 65536 halves through every instruction on one.
#[test]
fn every_half() {
    let rows: Vec<[u64; 3]> = (0..=0xffff).map(|half| [half, 0x3c00, 0]).collect();
    let cases: [Case; 7] = [
        ("cvt.f32.f16 %r0, %h1;", |a, _, _| r(half_value(w(a)) as f32)),
        ("cvt.f32.f16 %r4, %h1; cvt.rn.f16.f32 %h0, %r4;", |a, _, _| {
            nearest_half(half_value(w(a))).into()
        }),
        ("cvt.f64.f16 %d4, %h1; cvt.rz.f16.f64 %h0, %d4;", |a, _, _| {
            nearest_half(half_value(w(a))).into()
        }),
        ("neg.f16 %h0, %h1;", |a, _, _| a ^ 0x8000),
        ("add.f16 %h0, %h1, %h2;", |a, _, _| {
            nearest_half(half_value(w(a)) + 1.0).into()
        }),
        ("fma.rn.f16 %h0, %h1, %h1, %h1;", |a, _, _| {
            let x = half_value(w(a));
            nearest_half(x.mul_add(x, x)).into()
        }),
        ("setp.geu.f16 %p0, %h1, %h2;", |a, _, _| {
            (half_value(w(a)) >= 1.0 || half_value(w(a)).is_nan()).into()
        }),
    ];
    check(&cases, &rows);
}

#[test]
fn halves_in_directions_and_pairs() {
    let mut random = Random(13);
    let rows: Vec<[u64; 3]> = (0..3000)
        .map(|_| {
            [
                u((random.unit() * 70000.0 / (1 << (random.next() % 30)) as f32).to_bits()),
                u(random.next()),
                u(random.next()),
            ]
        })
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
    let (min, max) = (
        outputs("min.f16x2 %r0, %r2, %r3;", &rows),
        outputs("max.f16x2 %r0, %r2, %r3;", &rows),
    );
    let set = outputs("set.ltu.f16x2.f16x2 %r0, %r2, %r3;", &rows);
    let preds = outputs(
        "setp.lt.f16x2 %p1|%p2, %r2, %r3; selp.b32 %r4, 1, 0, %p1; selp.b32 %r5, 2, 0, %p2; add.u32 %r0, %r4, %r5;",
        &rows,
    );
    let relu = outputs("fma.rn.relu.f16x2 %r0, %r2, 0x3c003c00, 0x80008000;", &rows);
    for (at, [_, b, c]) in rows.iter().enumerate() {
        let mut less = 0;
        for side in 0..2 {
            let (x, y) = (both(*b)[side], both(*c)[side]);
            let (u, v) = (half_value(x), half_value(y));
            let context = format!("{x:04x} {y:04x}");
            match (number(x), number(y)) {
                (true, true) if u != v => {
                    assert_eq!(
                        (both(min[at])[side], both(max[at])[side]),
                        if u < v { (x, y) } else { (y, x) },
                        "{context}"
                    );
                }
                (true, false) => assert_eq!((both(min[at])[side], both(max[at])[side]), (x, x)),
                (false, true) => assert_eq!((both(min[at])[side], both(max[at])[side]), (y, y)),
                (false, false) => assert_eq!((both(min[at])[side], both(max[at])[side]), (0x7fff, 0x7fff)),
                (true, true) => {}
            }
            assert_eq!(both(set[at])[side], if u >= v { 0 } else { 0x3c00 }, "{context}");
            less |= u64::from(u < v) << side;
            let want = if u.is_nan() {
                0x7fff
            } else {
                nearest_half(u.max(0.0) + 0.0)
            };
            assert_eq!(both(relu[at])[side], want, "{context}");
        }
        assert_eq!(preds[at], less);
    }
}
