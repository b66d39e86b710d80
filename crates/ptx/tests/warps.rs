//! Warps and memory: shuffles, votes, barriers with reductions, spaces, widths, branch tables, modes.

mod common;

use common::{Bench, Random, handwritten, nearest_half};
use galvani_ptx::{Arg, Counters, Pipe};

/// Runs one block over `a`; each thread gives one word in %r0.
fn words(declarations: &str, body: &str, threads: u32, a: &[u32]) -> (Vec<u32>, Counters) {
    let mut bench = Bench::new(&handwritten(
        declarations,
        &format!(".reg .b32 %r0; {body} st.global.u32 [%d5], %r0;"),
    ));
    bench.shared_bytes = 4096;
    let (da, db) = (bench.words("a", a), bench.empty("b", threads as usize * 4));
    let counters = bench.run("k", 1, threads, &[Arg::Ptr(da), Arg::Ptr(db), Arg::U32(5)]);
    (bench.read_words(db, threads as usize), counters)
}

#[test]
fn shuffles_of_every_mode_and_segment() {
    for width in [32_usize, 16, 8, 4] {
        let segment = (32 - width) << 8;
        for by in 0..width + 2 {
            for (mode, clamp) in [("up", 0), ("down", 31), ("bfly", 31), ("idx", 31)] {
                let c = segment | clamp;
                let body = format!(
                    "add.u32 %r6, %r2, 100; shfl.sync.{mode}.b32 %r0|%p1, %r6, {by}, {c}, 0xffffffff; @!%p1 add.u32 %r0, %r0, 1000;"
                );
                let (got, _) = words("", &body, 32, &[0]);
                let want: Vec<u32> = (0..32)
                    .map(|lane: usize| {
                        let start = lane / width * width;
                        let by = by % 32;
                        let source = match mode {
                            "up" => lane.checked_sub(by).filter(|source| *source >= start),
                            "down" => Some(lane + by).filter(|source| *source < start + width),
                            "bfly" => Some(lane ^ by).filter(|source| *source < start + width),
                            _ => Some(start + by % width),
                        };
                        source.map_or(1100 + lane as u32, |source| 100 + source as u32)
                    })
                    .collect();
                assert_eq!(got, want, "{mode} by {by}, width {width}");
            }
        }
    }
}

/// A body, and what thread t must give.
type Case = (&'static str, fn(u32) -> u32);

#[test]
fn votes_masks_and_special_registers() {
    let cases: [Case; 11] = [
        (
            "setp.gt.u32 %p1, %r2, 20; vote.sync.uni.pred %p2, %p1, 0xffffffff; selp.b32 %r0, 1, 0, %p2;",
            |_| 0,
        ),
        (
            "setp.gt.u32 %p1, %r2, 20; vote.sync.any.pred %p2, !%p1, 0xffffffff; selp.b32 %r0, 1, 0, %p2;",
            |_| 1,
        ),
        (
            "setp.gt.u32 %p1, %r2, 90; vote.sync.uni.pred %p2, %p1, 0xffffffff; selp.b32 %r0, 1, 0, %p2;",
            |_| 1,
        ),
        (
            "and.b32 %r5, %r2, 1; setp.eq.u32 %p1, %r5, 0; @%p1 bra L1; activemask.b32 %r0; bra L2; L1: activemask.b32 %r0; L2:",
            |t| {
                if t & 1 == 0 { 0x5555_5555 } else { 0xaaaa_aaaa }
            },
        ),
        (
            "shr.u32 %r5, %r2, 3; match.any.sync.b32 %r0, %r5, 0xffffffff;",
            |t| 0xff << (t / 8 * 8),
        ),
        (
            "match.all.sync.b32 %r0|%p1, %r1, 0xffffffff; @!%p1 mov.u32 %r0, 3;",
            |_| u32::MAX,
        ),
        (
            "match.all.sync.b64 %r0|%p1, %d3, 0xffffffff; @!%p1 add.u32 %r0, %r0, 3;",
            |_| 3,
        ),
        ("mov.u32 %r0, %lanemask_lt;", |t| (1 << t) - 1),
        (
            "mov.u32 %r5, %lanemask_ge; mov.u32 %r6, %lanemask_gt; sub.u32 %r0, %r5, %r6;",
            |t| 1 << t,
        ),
        (
            "mov.u32 %r5, %lanemask_le; mov.u32 %r6, %lanemask_eq; sub.u32 %r0, %r5, %r6;",
            |t| (1 << t) - 1,
        ),
        (
            "mov.u32 %r5, %nwarpid; mov.u32 %r6, %laneid; mad.lo.u32 %r0, %r6, 10, %r5;",
            |t| t * 10 + 1,
        ),
    ];
    for (body, want) in cases {
        let (got, _) = words("", body, 32, &[0]);
        assert_eq!(got, (0..32).map(want).collect::<Vec<_>>(), "{body}");
    }
}

#[test]
fn three_dimensions() {
    let mut bench = Bench::new(&handwritten(
        "",
        "mov.u32 %r5, %ctaid.z; mov.u32 %r6, %nctaid.y; mov.u32 %r7, %ctaid.y; mad.lo.u32 %r5, %r5, %r6, %r7;\
         mov.u32 %r6, %nctaid.x; mov.u32 %r7, %ctaid.x; mad.lo.u32 %r5, %r5, %r6, %r7;\
         mov.u32 %r6, %ntid.z; mov.u32 %r7, %tid.z; mad.lo.u32 %r5, %r5, %r6, %r7;\
         mov.u32 %r6, %ntid.y; mov.u32 %r7, %tid.y; mad.lo.u32 %r5, %r5, %r6, %r7;\
         mov.u32 %r6, %ntid.x; mov.u32 %r7, %tid.x; mad.lo.u32 %r5, %r5, %r6, %r7;\
         mad.wide.u32 %d8, %r5, 4, %d2; st.global.u32 [%d8], %r5;",
    ));
    bench.options.threads = 2;
    let out = bench.empty("out", 4 * 2 * 3 * 4 * 5 * 6 * 7);
    let args = [Arg::Ptr(out), Arg::Ptr(out), Arg::U32(0)];
    let counters = bench
        .launch("k", [2, 3, 4], [5, 6, 7], &args)
        .unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(bench.read_words(out, 5040), (0..5040).collect::<Vec<_>>());
    assert_eq!(
        (counters.blocks, counters.warps, counters.block_warps_max),
        (24, 168, 7)
    );
}

#[test]
fn widths_of_loads_and_stores() {
    let mut random = Random(1);
    let a = random.words(64);
    let bytes: Vec<u8> = a.iter().flat_map(|word| word.to_le_bytes()).collect();
    let at = |t: u32, width: usize| -> u64 {
        let mut value = [0; 8];
        value[..width].copy_from_slice(&bytes[t as usize * width..][..width]);
        u64::from_le_bytes(value)
    };
    let address = |width: u32| format!("mad.wide.u32 %d8, %r2, {width}, %d1;");
    let sum = "cvt.u32.u64 %r5, %d9; shr.u64 %d9, %d9, 32; cvt.u32.u64 %r6, %d9; xor.b32 %r0, %r5, %r6;";
    let fold = |value: u64| value as u32 ^ (value >> 32) as u32;
    let types = [
        ("u8", 1, false),
        ("s8", 1, true),
        ("u16", 2, false),
        ("s16", 2, true),
        ("u32", 4, false),
        ("s32", 4, true),
        ("b64", 8, false),
    ];
    for (ty, width, signed) in types {
        let (got, _) = words(
            "",
            &format!("{} ld.global.{ty} %d9, [%d8]; {sum}", address(width as u32)),
            16,
            &a,
        );
        let want: Vec<u32> = (0..16)
            .map(|t| {
                let (value, shift) = (at(t, width), 64 - 8 * width as u32);
                fold(if signed {
                    ((value << shift) as i64 >> shift) as u64
                } else {
                    value
                })
            })
            .collect();
        assert_eq!(got, want, "{ty}");
    }
    // Vectors of every element, stored back through shared memory by other widths.
    let vectors = [
        (
            "ld.global.v4.u8 {%h1, %h2, %h3, %h4}, [%d8]; mov.b32 %r5, {%h1, %h2}; mov.b32 %r6, {%h3, %h4}; xor.b32 %r0, %r5, %r6;",
            4,
        ),
        ("ld.global.v2.u16 {%h1, %h2}, [%d8]; mov.b32 %r0, {%h2, %h1};", 4),
        (
            "ld.global.v2.u32 {%r5, %r6}, [%d8]; st.shared.v4.u16 [%d6], {%h0, %h0, %h0, %h0}; xor.b32 %r0, %r5, %r6;",
            8,
        ),
        (
            "ld.global.v2.b64 {%d9, %d10}, [%d8]; xor.b64 %d9, %d9, %d10; cvt.u32.u64 %r0, %d9;",
            16,
        ),
    ];
    for (index, (body, width)) in vectors.into_iter().enumerate() {
        let body = format!(".reg .b16 %h0; mov.u16 %h0, 0; {} {body}", address(width));
        let (got, _) = words("", &body, 16, &a);
        let want: Vec<u32> = (0..16)
            .map(|t: usize| {
                let part = &bytes[t * width as usize..][..width as usize];
                let word = |at: usize| u32::from_le_bytes(part[at..at + 4].try_into().expect("four"));
                match index {
                    0 => {
                        (u32::from(part[0]) | u32::from(part[1]) << 16)
                            ^ (u32::from(part[2]) | u32::from(part[3]) << 16)
                    }
                    1 => word(0).rotate_left(16),
                    2 => word(0) ^ word(4),
                    _ => word(0) ^ word(8),
                }
            })
            .collect();
        assert_eq!(got, want, "{body}");
    }
    let stores = "ld.global.u32 %r5, [%d4]; cvt.u16.u32 %h1, %r5; shr.u32 %r6, %r5, 16; cvt.u16.u32 %h2, %r6; shr.u32 %r7, %r5, 24;\
                  st.shared.v2.u16 [%d7], {%h1, %h2}; st.shared.u8 [%d7+3], %r7; shl.b32 %r7, %r7, 8; st.shared.u8 [%d7+2], %r7; ld.shared.u32 %r0, [%d7];";
    let (got, _) = words("", stores, 32, &a);
    assert_eq!(
        got,
        a[..32].iter().map(|word| word & 0xff00_ffff).collect::<Vec<_>>()
    );
}

#[test]
fn generic_addresses_reach_every_space() {
    let declarations = ".const .align 4 .b32 table[4] = {10, 20, 30, 40};\n.global .align 4 .b32 cell[2] = {7, 8};\n\
                        .global .align 8 .u64 pointer = generic(cell)+4;";
    let body = "\n.local .align 4 .b8 stack[4]; st.shared.u32 [%d7], %r2; mov.u64 %d8, stack; mov.u32 %r5, 500; st.local.u32 [%d8], %r5;\
                cvta.shared.u64 %d9, %d7; cvta.local.u64 %d10, %d8; mov.u64 %d11, table; cvta.const.u64 %d11, %d11;\
                ld.global.u64 %d12, [pointer];\
                and.b32 %r5, %r2, 3; setp.eq.u32 %p1, %r5, 0; setp.eq.u32 %p2, %r5, 1; setp.eq.u32 %p3, %r5, 2;\
                selp.b64 %d13, %d10, %d11, %p2; selp.b64 %d13, %d12, %d13, %p3; selp.b64 %d13, %d9, %d13, %p1;\
                isspacep.shared %p4, %d13; isspacep.local %p5, %d13; isspacep.global %p6, %d13;\
                ld.u32 %r0, [%d13]; @%p4 add.u32 %r0, %r0, 1000; @%p5 add.u32 %r0, %r0, 2000; @%p6 add.u32 %r0, %r0, 4000;\
                @%p5 st.u32 [%d13], %r0; @%p4 st.u32 [%d13], %r0; cvta.to.shared.u64 %d14, %d9; ld.shared.u32 %r6, [%d14];\
                @%p4 add.u32 %r0, %r0, %r6;";
    let (got, _) = words(declarations, body, 32, &[0]);
    let want = |t: u32| match t & 3 {
        0 => 2 * (t + 1000),
        1 => 2500,
        2 => 4008,
        _ => 10,
    };
    assert_eq!(got, (0..32).map(want).collect::<Vec<_>>());
}

#[test]
fn globals_keep_their_values_between_launches() {
    let text = handwritten(
        ".global .align 4 .b32 count;",
        "red.global.add.u32 [count], 1; ld.global.u32 %r5, [count]; st.global.u32 [%d2], %r5;",
    );
    let mut bench = Bench::new(&text);
    let out = bench.empty("out", 4);
    let args = [Arg::Ptr(out), Arg::Ptr(out), Arg::U32(0)];
    for round in 1..4 {
        bench.run("k", 1, 32, &args);
        assert_eq!(bench.read_words(out, 1), [round * 32]);
    }
}

#[test]
fn branch_tables_and_predicated_exits() {
    let table = "T: .branchtargets L0, L1, L2, L1; and.b32 %r5, %r2, 3; brx.idx %r5, T;\
                 L0: mov.u32 %r0, 10; bra.uni L3; L1: mov.u32 %r0, 11; bra.uni L3; L2: mov.u32 %r0, 12; L3: add.u32 %r0, %r0, 100;";
    let (got, counters) = words("", table, 64, &[0]);
    assert_eq!(
        got,
        (0..64).map(|t| [110, 111, 112, 111][t % 4]).collect::<Vec<_>>()
    );
    assert_eq!(counters.branches_divergent, 2);
    // Lanes that leave early leave the others' loop alone.
    let body = "mov.u32 %r0, 0; L1: st.global.u32 [%d5], %r0; setp.eq.u32 %p1, %r0, %r2; @%p1 exit; add.u32 %r0, %r0, 1;\
                setp.lt.u32 %p2, %r0, 20; @%p2 bra L1;";
    let (got, _) = words("", body, 32, &[0]);
    assert_eq!(got, (0..32).map(|t| t.min(20)).collect::<Vec<_>>());
}

#[test]
fn atomics_on_narrow_and_float_types() {
    let mut bench = Bench::new(&handwritten(
        "",
        "atom.global.add.noftz.f16x2 %r5, [%d1], 0x3c004000; atom.global.add.noftz.f16 %h1, [%d1+4], 0x3c00;\
         atom.global.add.f64 %d8, [%d1+8], 0d3FF0000000000000; atom.global.cas.b64 %d9, [%d1+16], 0, %d1;\
         atom.global.max.s64 %d9, [%d1+24], -5; atom.global.exch.b64 %d9, [%d1+32], 77; atom.global.cas.b16 %h2, [%d1+6], 9, 10;",
    ));
    let mut words = vec![0_u32; 10];
    (words[1], words[6], words[7]) = (9 << 16, -9_i32 as u32, u32::MAX);
    let a = bench.words("a", &words);
    let counters = bench.run("k", 2, 48, &[Arg::Ptr(a), Arg::Ptr(a), Arg::U32(0)]);
    let got = bench.read_words(a, 10);
    assert_eq!(got[0], nearest_half(192.0) | nearest_half(96.0) << 16);
    assert_eq!(got[1], nearest_half(96.0) | 10 << 16);
    let wides = bench.read_wides(a, 5);
    assert_eq!(wides[1..], [96.0_f64.to_bits(), a, -5_i64 as u64, 77]);
    assert_eq!(counters.global_atomics.requests, 7 * 4);
}

#[test]
fn warps_that_wait_for_each_other_in_a_loop() {
    // Warp 1 spins on a shared word that warp 0 sets later; warp 0 waits until warp 1 has begun.
    let body = "mov.u32 %r5, 0; setp.eq.u32 %p1, %r2, 0; @%p1 st.shared.v2.u32 [%d6], {%r5, %r5}; bar.sync 0;\
                setp.ge.u32 %p1, %r2, 32; @%p1 bra L2;\
                L1: atom.shared.add.u32 %r6, [%d6], 0; setp.eq.u32 %p2, %r6, 0; @%p2 bra L1; atom.shared.exch.b32 %r0, [%d6+4], 1; bra L4;\
                L2: atom.shared.exch.b32 %r6, [%d6], 1; L3: atom.shared.add.u32 %r0, [%d6+4], 0; setp.eq.u32 %p2, %r0, 0; @%p2 bra L3; L4: mov.u32 %r0, 4;";
    let (got, _) = words("", body, 64, &[0]);
    assert_eq!(got, [4; 64]);
}

#[test]
fn counters_by_hand() {
    // Four warps; a loop of three rounds whose second branch splits each warp once.
    let body = "mov.u32 %r0, 0; st.shared.u32 [%d7], %r2; bar.sync 0; L1: mul.lo.u32 %r5, %r0, 3; setp.lt.u32 %p1, %r3, 9; @%p1 bra L2;\
                add.u32 %r0, %r0, 1; bra L3; L2: add.u32 %r0, %r0, 1; L3: setp.lt.u32 %p2, %r0, 3; @%p2 bra L1; ld.shared.u32 %r6, [%d7]; fma.rn.f32 %f1, %r6, %r6, %r6;";
    let (got, counters) = words("", body, 128, &[0]);
    assert_eq!(got, [3; 128]);
    let warps = 4;
    // A round: both branches of L1 once, the jump over L2 by the other lanes, the back branch.
    assert_eq!(counters.branches, warps * 3 * 3);
    assert_eq!(counters.branches_divergent, warps * 3);
    assert_eq!(counters.barrier_waits, warps);
    assert_eq!(counters.pipe(Pipe::IntMultiply), warps * (1 + 3));
    assert_eq!(counters.pipe(Pipe::Fp32), warps);
    assert_eq!(counters.pipe(Pipe::Memory), warps * 3);
    // Before: and, shr. A round: two comparisons and an addition on each side.
    assert_eq!(counters.pipe(Pipe::Int), warps * (2 + 3 * 4));
    let shared = counters.shared_stores;
    assert_eq!(
        (shared.requests, shared.wavefronts, shared.bytes),
        (warps, warps, 512)
    );
    let mut twice = counters.clone();
    twice += &counters;
    twice += counters.clone();
    assert_eq!(
        (twice.instructions(), twice.block_warps_max),
        (3 * counters.instructions(), 4)
    );
    assert_eq!(twice.thread_instructions, 3 * counters.thread_instructions);
}

#[test]
fn first_touches_of_sectors() {
    // The same 128 bytes read twice, then written twice; then a neighbour read for the first time.
    let body = "ld.global.u32 %r5, [%d4]; ld.global.u32 %r5, [%d4]; st.global.u32 [%d4], %r5; st.global.u32 [%d4], %r5; ld.global.u32 %r0, [%d4+128];";
    let (_, counters) = words("", body, 32, &[1; 64]);
    let loads = counters.global_loads;
    assert_eq!(
        (loads.requests, loads.sectors, loads.sectors_first, loads.bytes),
        (3, 12, 8, 384)
    );
    // %d5, the result, is written too.
    let stores = counters.global_stores;
    assert_eq!(
        (stores.requests, stores.sectors, stores.sectors_first),
        (3, 12, 8)
    );
}

/// A block is the same however many host threads run the grid.
#[test]
fn host_threads_do_not_change_the_result() {
    let mut random = Random(5);
    let x = random.units(100_000);
    let mut results = Vec::new();
    for threads in [1, 2, 5] {
        let mut bench = Bench::fixture("vector_add");
        bench.options.threads = threads;
        let (a, b, c) = (
            bench.floats("a", &x),
            bench.floats("b", &x),
            bench.empty("c", 400_000),
        );
        let counters = bench.run(
            "vector_add",
            400,
            256,
            &[Arg::Ptr(a), Arg::Ptr(b), Arg::Ptr(c), Arg::I32(100_000)],
        );
        results.push((bench.read_words(c, 100_000), counters));
    }
    assert!(results[0] == results[1] && results[0] == results[2]);
}
