//! Memory: one planted fault of each kind, each found, and the harmless kernel beside it not accused.

mod common;

use common::{Bench, clean, fault, handwritten, try_body};
use galvani_ptx::{Arg, Fault, FaultKind, RaceAccess, Space};

#[test]
fn outside_an_allocation() {
    // The 65th word, by the first thread that reads it.
    let found = fault("ld.global.u32 %r5, [%d4];", 96);
    let FaultKind::OutOfBounds {
        space: Space::Global,
        bytes: 4,
        near: Some(near),
        ..
    } = &found.kind
    else {
        panic!("{found}");
    };
    assert_eq!((near.name.as_str(), near.offset, near.bytes), ("a", 256, 256));
    assert_eq!((found.thread, found.block), ([64, 0, 0], [0, 0, 0]));
    assert_eq!(found.text, "ld.global.u32 %r5, [%d4];");
    assert!(
        found.to_string().contains("`a` (256 bytes) at offset 256"),
        "{found}"
    );

    let before = fault("ld.global.u32 %r5, [%d5+-4];", 1);
    let FaultKind::OutOfBounds { near: Some(near), .. } = &before.kind else {
        panic!("{before}")
    };
    assert_eq!((near.name.as_str(), near.offset), ("b", -4));
    // The last 8 of 16 bytes stick out.
    for body in [
        "ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d1+248];",
        "st.global.v2.u64 [%d1+248], {%d1, %d2};",
    ] {
        assert!(matches!(
            fault(&body.replace("248", "256"), 1).kind,
            FaultKind::OutOfBounds { bytes: 16, .. }
        ));
        assert!(matches!(
            fault(body, 1).kind,
            FaultKind::Misaligned { bytes: 16, .. }
        ));
    }
    assert!(matches!(
        fault("atom.global.add.u32 %r5, [%d1+256], 1;", 1).kind,
        FaultKind::OutOfBounds { .. }
    ));
    assert!(matches!(
        fault("ld.u32 %r5, [%d1+256];", 1).kind,
        FaultKind::OutOfBounds {
            space: Space::Global,
            ..
        }
    ));
    assert!(matches!(
        fault("ld.global.u32 %r5, [0];", 1).kind,
        FaultKind::OutOfBounds { .. }
    ));
    clean("ld.global.u32 %r5, [%d4]; st.global.u32 [%d5], %r5;", 64);
}

#[test]
fn outside_the_other_spaces() {
    let shared = fault("st.shared.u32 [%d6+1024], %r1;", 1);
    assert!(
        matches!(
            shared.kind,
            FaultKind::OutOfBounds {
                space: Space::Shared,
                address: 1024,
                ..
            }
        ),
        "{shared}"
    );
    let stack = "\n.local .align 4 .b8 stack[16]; mov.u64 %d8, stack; st.local.u32 [%d8+16], %r1;";
    assert!(matches!(
        fault(stack, 1).kind,
        FaultKind::OutOfBounds {
            space: Space::Local,
            ..
        }
    ));
    let table = try_body(
        ".const .align 4 .u32 t[2] = {1, 2};",
        "mov.u64 %d8, t; ld.const.u32 %r5, [%d8+8];",
        1,
    );
    assert!(matches!(
        table.expect_err("past it").kind,
        FaultKind::OutOfBounds {
            space: Space::Const,
            ..
        }
    ));
    let param = "mov.b64 %d8, pa; ld.param.u32 %r5, [%d8+20];";
    assert!(matches!(
        fault(param, 1).kind,
        FaultKind::OutOfBounds {
            space: Space::Param,
            ..
        }
    ));
    clean(
        "mov.b64 %d8, pa; ld.param.u32 %r5, [%d8+16]; st.global.u32 [%d5], %r5;",
        1,
    );
    let global =
        try_body(".global .align 4 .u32 g[2];", "ld.global.u32 %r5, [g+8];", 1).expect_err("past it");
    assert!(
        matches!(&global.kind, FaultKind::OutOfBounds { near: Some(near), .. } if near.name == "g"),
        "{global}"
    );
}

#[test]
fn use_after_free() {
    let mut bench = Bench::new(&handwritten(
        "",
        "ld.global.u32 %r5, [%d4]; st.global.u32 [%d5], %r5;",
    ));
    let (a, b) = (bench.words("old", &[1, 2]), bench.empty("b", 8));
    let args = [Arg::Ptr(a), Arg::Ptr(b), Arg::U32(0)];
    bench.run("k", 1, 2, &args);
    bench.memory.free(a).expect("it lives");
    let found = bench.fault("k", 1, 2, &args);
    assert!(
        matches!(&found.kind, FaultKind::UseAfterFree { place, .. } if place.name == "old"),
        "{found}"
    );
    assert!(bench.memory.free(a).is_err() && bench.memory.free(b + 4).is_err());
    assert!(bench.memory.write(a, &[0]).is_err() && bench.memory.read(a, &mut [0]).is_err());
}

#[test]
fn never_written() {
    let global = fault("ld.global.u32 %r5, [%d5];", 1);
    let FaultKind::Uninitialised {
        space: Space::Global,
        place: Some(place),
        ..
    } = &global.kind
    else {
        panic!("{global}")
    };
    assert_eq!((place.name.as_str(), place.offset), ("b", 0));
    // Three of four bytes are written.
    let part = "mov.u16 %h1, 1; st.global.u16 [%d2], %h1; st.global.u8 [%d2+2], %h1;";
    assert!(matches!(
        fault(&format!("{part} ld.global.u32 %r5, [%d2];"), 1).kind,
        FaultKind::Uninitialised { .. }
    ));
    clean(
        &format!("{part} st.global.u8 [%d2+3], %h1; ld.global.u32 %r5, [%d2];"),
        1,
    );
    assert!(matches!(
        fault("atom.global.add.u32 %r5, [%d2], 1;", 1).kind,
        FaultKind::Uninitialised { .. }
    ));
    clean("red.global.add.u32 [%d1], 1;", 32);

    let shared = fault("ld.shared.u32 %r5, [%d7];", 1);
    assert!(
        matches!(
            shared.kind,
            FaultKind::Uninitialised {
                space: Space::Shared,
                ..
            }
        ),
        "{shared}"
    );
    let stack = ".local .align 8 .b8 stack[16]; mov.u64 %d8, stack; st.local.u32 [%d8], %r1;";
    let local = fault(&format!("{stack} ld.local.u64 %d9, [%d8];"), 1);
    assert!(
        matches!(
            local.kind,
            FaultKind::Uninitialised {
                space: Space::Local,
                ..
            }
        ),
        "{local}"
    );
    clean(
        &format!("{stack} st.local.u32 [%d8+4], %r1; ld.local.u64 %d9, [%d8];"),
        1,
    );

    let mut bench = Bench::new(&handwritten("", "st.global.u32 [%d5], %r1;"));
    let (a, b) = (bench.empty("a", 8), bench.empty("b", 8));
    bench.run("k", 1, 1, &[Arg::Ptr(a), Arg::Ptr(b), Arg::U32(9)]);
    let error = bench
        .memory
        .read(b, &mut [0; 8])
        .expect_err("half of it is written")
        .to_string();
    assert!(error.contains("`b` (8 bytes) at offset 4"), "{error}");
    bench.memory.mark_initialised(b, 8).expect("inside");
    bench.memory.read(b, &mut [0; 8]).expect("declared written");
    bench.memory.poison(b, 1).expect("inside");
    assert!(bench.memory.read(b, &mut [0; 8]).is_err());
}

#[test]
fn registers_never_written() {
    let found = fault("add.s32 %r5, %r6, 1;", 32);
    assert!(
        matches!(&found.kind, FaultKind::UnwrittenRegister { register } if register == "%r6"),
        "{found}"
    );
    // Written by some lanes only.
    let some = fault(
        "setp.lt.u32 %p1, %r2, 3; @%p1 mov.u32 %r6, 1; add.s32 %r5, %r6, 1;",
        32,
    );
    assert_eq!(some.thread, [3, 0, 0]);
    // On one of two paths.
    let path = "setp.lt.u32 %p1, %r2, 3; @%p1 bra L1; mov.u32 %r6, 1; L1: add.s32 %r5, %r6, 1;";
    assert!(matches!(
        fault(path, 32).kind,
        FaultKind::UnwrittenRegister { .. }
    ));
    clean(
        "setp.lt.u32 %p1, %r2, 3; @%p1 bra L1; mov.u32 %r6, 1; bra L2; L1: mov.u32 %r6, 2; L2: add.s32 %r5, %r6, 1;",
        32,
    );
    // A copy passes the state on; whoever computes with it is at fault.
    clean("mov.u32 %r7, %r6;", 32);
    assert!(matches!(&fault("mov.u32 %r7, %r6; add.s32 %r5, %r7, 1;", 1).kind,
        FaultKind::UnwrittenRegister { register } if register == "%r7"));
    assert!(
        matches!(&fault("@%p3 mov.u32 %r7, 1;", 1).kind, FaultKind::UnwrittenRegister { register } if register == "%p3")
    );
    clean(
        "setp.lt.u32 %p1, %r2, 3; @%p1 mov.u32 %r6, 1; @%p1 add.s32 %r5, %r6, 1;",
        32,
    );
}

#[test]
fn misaligned() {
    let word = fault("ld.global.u32 %r5, [%d1+2];", 1);
    assert!(
        matches!(&word.kind, FaultKind::Misaligned { bytes: 4, place: Some(place), .. } if place.offset == 2),
        "{word}"
    );
    let vector = fault("ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d1+8];", 1);
    assert!(
        matches!(vector.kind, FaultKind::Misaligned { bytes: 16, .. }),
        "{vector}"
    );
    assert!(matches!(
        fault("st.shared.u64 [%d7], %d1;", 2).kind,
        FaultKind::Misaligned {
            space: Space::Shared,
            ..
        }
    ));
    assert!(matches!(
        fault("atom.global.add.u64 %d9, [%d1+4], %d1;", 1).kind,
        FaultKind::Misaligned { bytes: 8, .. }
    ));
    clean("ld.global.v2.u32 {%r5, %r6}, [%d1+8];", 1);
}

#[test]
fn races_in_shared_memory() {
    // Thread t writes word t, then reads its neighbour's.
    let neighbour = "xor.b32 %r5, %r2, WHO; mul.wide.u32 %d8, %r5, 4; add.s64 %d8, %d6, %d8;";
    let exchange = |who: &str, sync: &str| {
        format!(
            "st.shared.u32 [%d7], %r1; bar.sync 0; st.shared.u32 [%d7], %r2; {sync} {} ld.shared.u32 %r6, [%d8];",
            neighbour.replace("WHO", who)
        )
    };
    let race = |found: &Fault| match found.kind {
        FaultKind::SharedRace {
            access,
            other_access,
            other,
            ..
        } => (access, other_access, other),
        _ => panic!("{found}"),
    };
    // Another warp's thread: only a block barrier helps. Warp 0 has read already when warp 1 writes.
    let across = fault(&exchange("32", ""), 64);
    assert_eq!(race(&across), (RaceAccess::Write, RaceAccess::Read, Some(0)));
    assert_eq!(across.thread, [32, 0, 0]);
    clean(&exchange("32", "bar.sync 0;"), 64);
    assert!(matches!(
        fault(&exchange("32", "bar.warp.sync 0xffffffff;"), 64).kind,
        FaultKind::SharedRace { .. }
    ));
    // The same warp's: a warp barrier is enough.
    assert_eq!(
        race(&fault(&exchange("1", ""), 32)),
        (RaceAccess::Read, RaceAccess::Write, Some(1))
    );
    clean(&exchange("1", "bar.warp.sync 0xffffffff;"), 32);
    clean(&exchange("0", ""), 64);
    // Read, then written by another: the anti-dependence.
    let anti = format!(
        "st.shared.u32 [%d7], %r2; bar.sync 0; setp.eq.u32 %p1, %r4, 0; {} @%p1 ld.shared.u32 %r6, [%d8]; SYNC @!%p1 st.shared.u32 [%d7], %r1;",
        neighbour.replace("WHO", "32")
    );
    assert_eq!(
        race(&fault(&anti.replace("SYNC", ""), 64)),
        (RaceAccess::Write, RaceAccess::Read, Some(0))
    );
    clean(&anti.replace("SYNC", "bar.sync 0;"), 64);
    // Threads of a warp in turns: each reads and overwrites what the one before it left.
    let turn = |thread: u32| {
        format!(
            "setp.eq.u32 %p1, %r2, {thread}; @%p1 ld.shared.u32 %r5, [%d6]; @%p1 st.shared.u32 [%d6], %r2;"
        )
    };
    let turns = |sync: &str| {
        format!(
            "st.shared.u32 [%d7], %r2; bar.sync 0; {} {sync} {}",
            turn(0),
            turn(1)
        )
    };
    clean(&turns("bar.warp.sync 0xffffffff;"), 32);
    assert!(matches!(fault(&turns(""), 32).kind, FaultKind::SharedRace { .. }));
    // All write one word: harmless if they write the same.
    let one = fault("st.shared.u32 [%d6], %r2;", 32);
    assert_eq!(race(&one), (RaceAccess::Write, RaceAccess::Write, Some(0)));
    clean("st.shared.u32 [%d6], %r1;", 64);
    // Neighbouring halves of one word are not one place.
    clean(
        "mul.wide.u32 %d8, %r2, 2; add.s64 %d8, %d6, %d8; cvt.u16.u32 %h1, %r2; st.shared.u16 [%d8], %h1;",
        64,
    );
    // Atomics do not race with each other, but with plain reads.
    let zero = "mov.u32 %r5, 0; setp.eq.u32 %p1, %r2, 0; @%p1 st.shared.u32 [%d6], %r5; bar.sync 0;";
    clean(
        &format!("{zero} red.shared.add.u32 [%d6], 1; bar.sync 0; ld.shared.u32 %r6, [%d6];"),
        64,
    );
    let mixed = fault(
        &format!("{zero} red.shared.add.u32 [%d6], 1; ld.shared.u32 %r6, [%d6];"),
        64,
    );
    assert_eq!(race(&mixed), (RaceAccess::Read, RaceAccess::Atomic, None));
}

#[test]
fn named_barriers_order_only_their_warps() {
    // Warps 0 and 1 exchange through barrier 1, warps 2 and 3 through barrier 2.
    let pair = "shr.u32 %r5, %r4, 1; add.u32 %r5, %r5, 1; st.shared.u32 [%d7], %r2; bar.sync %r5, 64; \
                xor.b32 %r6, %r2, WHO; mul.wide.u32 %d8, %r6, 4; add.s64 %d8, %d6, %d8; ld.shared.u32 %r7, [%d8];";
    clean(&pair.replace("WHO", "32"), 128);
    assert!(matches!(
        fault(&pair.replace("WHO", "64"), 128).kind,
        FaultKind::SharedRace { .. }
    ));
    // A producer comes by, a consumer waits: what was written before is ordered, what comes after is not.
    let produce = |more: &str| {
        format!(
            "setp.ne.u32 %p1, %r4, 0; @%p1 bra L1; st.shared.u32 [%d7], %r2; bar.arrive 3, 64; {more} bra L2;\
             L1: bar.sync 3, 64; ld.shared.u32 %r7, [%d7+-128]; L2:"
        )
    };
    clean(&produce(""), 64);
    assert!(matches!(
        fault(&produce("st.shared.u32 [%d7], %r1;"), 64).kind,
        FaultKind::SharedRace { .. }
    ));
}
