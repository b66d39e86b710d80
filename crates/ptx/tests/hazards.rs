//! Control, warps and launches: one planted fault of each kind, each found, and the harmless kernel beside it not accused.

mod common;

use common::{Bench, clean, fault, handwritten, try_body};
use galvani_ptx::{Arg, Fault, FaultKind, Launch, run};

#[test]
fn barriers_that_not_all_come_to() {
    let divergent = |found: Fault, part: &str| match &found.kind {
        FaultKind::DivergentBarrier { what } => assert!(what.contains(part), "{what}"),
        _ => panic!("{found}"),
    };
    divergent(
        fault("setp.lt.u32 %p1, %r3, 7; @%p1 bra L1; bar.sync 0; L1:", 32),
        "on another path",
    );
    divergent(
        fault("setp.lt.u32 %p1, %r3, 7; @%p1 exit; bar.sync 0;", 32),
        "0x0000007f have left",
    );
    divergent(
        fault("setp.lt.u32 %p1, %r2, 32; @%p1 exit; bar.sync 0;", 64),
        "1 have left the kernel",
    );
    divergent(
        fault("setp.lt.u32 %p1, %r3, 7; @%p1 bar.sync 0;", 32),
        "another path",
    );
    divergent(fault("bar.sync 16;", 32), "allowed: 0 to 15");
    divergent(fault("bar.sync 0, 48;", 64), "multiples of 32");
    // Two warps at different barriers wait for ever.
    divergent(
        fault("add.u32 %r5, %r4, 1; bar.sync %r5, 64;", 64),
        "wait at this or other",
    );
    clean(
        "bar.sync 0; setp.lt.u32 %p1, %r2, 32; @%p1 bra L1; bar.sync 1, 32; L1: bar.sync 0;",
        50,
    );
}

#[test]
fn masks_that_are_not_the_active_lanes() {
    let half = |text: &str| format!("setp.lt.u32 %p1, %r3, 16; @%p1 bra L1; {text} L1:");
    for text in [
        "shfl.sync.bfly.b32 %r5, %r2, 1, 31, 0xffffffff;",
        "vote.sync.ballot.b32 %r5, %p1, 0xffffffff;",
        "match.any.sync.b32 %r5, %r2, 0xffffffff;",
        "bar.warp.sync 0xffffffff;",
    ] {
        let found = fault(&half(text), 32);
        assert!(
            matches!(
                found.kind,
                FaultKind::WarpMask {
                    mask: u32::MAX,
                    active: 0xffff_0000,
                    live: u32::MAX
                }
            ),
            "{text}: {found}"
        );
        clean(&half(&text.replace("0xffffffff", "0xffff0000")), 32);
        // Lanes that have left count as present.
        clean(&format!("setp.lt.u32 %p1, %r3, 16; @%p1 exit; {text}"), 32);
    }
    let without_self = fault("shfl.sync.idx.b32 %r5, %r2, 0, 31, 0xfffffffe;", 32);
    assert!(
        matches!(without_self.kind, FaultKind::WarpMask { .. }),
        "{without_self}"
    );
    // Each quad with a mask of its own.
    let quads = "and.b32 %r5, %r3, 28; mov.u32 %r6, 15; shl.b32 %r6, %r6, %r5; shfl.sync.bfly.b32 %r7, %r2, WHO, 31, %r6;";
    clean(&quads.replace("WHO", "3"), 32);
    let other = fault(&quads.replace("WHO", "4"), 32);
    assert!(
        matches!(other.kind, FaultKind::ShuffleSource { source: 4, .. }),
        "{other}"
    );
    // Lane 23 is the last of 24.
    let past = fault("shfl.sync.down.b32 %r5, %r2, 1, 31, 0xffffff;", 24);
    assert!(
        matches!(past.kind, FaultKind::ShuffleSource { source: 24, .. }),
        "{past}"
    );
    assert_eq!(past.thread, [23, 0, 0]);
}

#[test]
fn arithmetic_control_and_limits() {
    for body in [
        "div.u32 %r5, %r1, %r2;",
        "rem.s64 %d8, %d1, %d3;",
        "rem.u16 %h1, 3, 0;",
    ] {
        let found = fault(body, 32);
        assert_eq!(
            (found.kind, found.thread),
            (FaultKind::DivisionByZero, [0, 0, 0]),
            "{body}"
        );
    }
    clean("setp.ne.u32 %p1, %r2, 0; @%p1 div.u32 %r5, %r1, %r2;", 32);
    assert_eq!(
        fault("L1: bra L1;", 32).kind,
        FaultKind::StepsExceeded { most: 20_000 }
    );
    // One lane waits for what another will do only later: no progress.
    let spin = "setp.ne.u32 %p1, %r3, 0; @%p1 bra L2; L1: ld.volatile.global.u32 %r5, [%d1]; setp.eq.u32 %p2, %r5, 0; @%p2 bra L1; L2:";
    assert!(matches!(fault(spin, 32).kind, FaultKind::StepsExceeded { .. }));
    assert_eq!(fault("trap;", 1).kind, FaultKind::Trap);
    assert_eq!(
        fault("ex2.approx.ftz.f32 %f1, 0f3F800000;", 1).kind,
        FaultKind::NotReproducible
    );
    let table = "T: .branchtargets L1, L2; brx.idx %r2, T; L1: L2:";
    clean(table, 2);
    let index = fault(table, 3);
    assert_eq!(
        (index.kind, index.thread),
        (FaultKind::TableIndex { index: 2, targets: 2 }, [2, 0, 0])
    );

    let deep = ".func f(.param .u32 x) { .reg .u32 %a; ld.param.u32 %a, [x]; { .param .u32 y; st.param.u32 [y], %a; call f, (y); } ret; }";
    let call = "{ .param .u32 z; st.param.u32 [z], %r1; call f, (z); }";
    assert!(matches!(
        try_body(deep, call, 1).expect_err("no end").kind,
        FaultKind::StackOverflow { .. }
    ));
    let large = ".func f(.param .u32 x) { .local .b8 s[8192]; { .param .u32 y; call f, (y); } ret; }";
    let found = try_body(large, call, 1).expect_err("no room");
    assert!(
        matches!(&found.kind, FaultKind::StackOverflow { what } if what.contains("65536")),
        "{found}"
    );
    let atomic = fault(
        ".local .align 4 .b8 s[4]; mov.u64 %d8, s; cvta.local.u64 %d8, %d8; st.u32 [%d8], %r1; atom.add.u32 %r5, [%d8], 1;",
        1,
    );
    assert!(matches!(atomic.kind, FaultKind::Unsupported(_)), "{atomic}");
}

#[test]
fn launches_that_cannot_be() {
    let mut bench = Bench::new(&handwritten(
        ".visible .entry small() .maxntid 32, 1, 1 { ret; }",
        "",
    ));
    let good = Launch {
        grid: [1; 3],
        block: [32, 1, 1],
        shared_bytes: 0,
        params: vec![0; 20],
    };
    let empty = Launch {
        params: vec![],
        ..good.clone()
    };
    let cases = [
        ("none", good.clone(), "no such kernel"),
        (
            "k",
            Launch {
                params: vec![0; 19],
                ..good.clone()
            },
            "19 bytes of parameters, the kernel takes 20",
        ),
        (
            "k",
            Launch {
                block: [33, 32, 1],
                ..good.clone()
            },
            "1 to 1024 threads",
        ),
        (
            "k",
            Launch {
                block: [0, 1, 1],
                ..good.clone()
            },
            "1 to 1024 threads",
        ),
        (
            "k",
            Launch {
                grid: [1, 65536, 1],
                ..good.clone()
            },
            "65535",
        ),
        (
            "k",
            Launch {
                shared_bytes: 98305,
                ..good.clone()
            },
            "allowed: 98304",
        ),
        (
            "small",
            Launch {
                block: [64, 1, 1],
                ..empty.clone()
            },
            "launch bounds",
        ),
    ];
    for (kernel, launch, part) in cases {
        let found = run(&bench.module, kernel, &launch, &mut bench.memory, &bench.options).expect_err(part);
        assert!(found.to_string().contains(part), "{found}");
    }
    run(&bench.module, "small", &empty, &mut bench.memory, &bench.options).expect("nothing is wrong");
    let kernel = bench.module.kernel("k").expect("it is there");
    for (args, part) in [
        (vec![Arg::Ptr(0)], "1 arguments, allowed: 3"),
        (
            vec![Arg::Ptr(0), Arg::U32(0), Arg::U32(0)],
            "argument 1 has 4 bytes, pb takes 8",
        ),
    ] {
        let error = kernel.params(&args).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(bench.memory.alloc("all", 1 << 29).is_err());
}

/// Of several faulting blocks the lowest is told, whichever host thread comes first.
#[test]
fn the_lowest_block_is_told() {
    for threads in [1, 2, 4] {
        let mut bench = Bench::new(&handwritten(
            "",
            "mov.u32 %r5, %ctaid.x; setp.lt.u32 %p1, %r5, 37; @%p1 bra L1; trap; L1:",
        ));
        bench.options.threads = threads;
        let a = bench.empty("a", 4);
        let found = bench.fault("k", 200, 32, &[Arg::Ptr(a), Arg::Ptr(a), Arg::U32(0)]);
        assert_eq!((found.kind, found.block), (FaultKind::Trap, [37, 0, 0]));
    }
}
