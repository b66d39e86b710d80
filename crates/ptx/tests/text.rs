//! PTX text that is wrong: errors that name thing and line, and no text that makes the parser or a launch panic.

mod common;

use common::{Random, fixture, handwritten};
use galvani_ptx::{Approximate, Launch, Memory, MmaOrder, Module, Options, PtxError, run};

const FIXTURES: [&str; 8] = [
    "vector_add",
    "reduce",
    "transpose",
    "mma",
    "gemv",
    "histogram",
    "control",
    "shared",
];

#[test]
fn kernels_are_described() {
    let module = Module::parse(&fixture("gemv")).expect("NVRTC made it");
    assert_eq!(module.kernels().collect::<Vec<_>>(), ["gemv", "halves"]);
    let kernel = module.kernel("gemv").expect("it is listed");
    assert_eq!(
        (kernel.maxntid, kernel.shared_bytes, kernel.uses_dynamic_shared),
        (Some([128, 1, 1]), 0, false)
    );
    let layout: Vec<_> = kernel
        .params
        .iter()
        .map(|param| (param.offset, param.bytes, param.align))
        .collect();
    assert_eq!(layout, [(0, 8, 8), (8, 8, 8), (16, 8, 8), (24, 4, 4), (28, 4, 4)]);
    assert!(kernel.registers > 100);
    let module = Module::parse(&fixture("transpose")).expect("NVRTC made it");
    assert_eq!(
        module
            .kernel("transpose_conflicts")
            .map(|kernel| kernel.shared_bytes),
        Some(4096)
    );
    assert_eq!(
        module
            .kernel("transpose_padded")
            .map(|kernel| kernel.shared_bytes),
        Some(4224)
    );
    assert!(module.kernel("transpose").is_none());
}

#[test]
fn errors_name_what_and_where() {
    let cases: [(&str, &str); 33] = [
        ("frobnicate.b32 %r5, %r6;", "unknown instruction `frobnicate.b32`"),
        (
            "add.s32.wobble %r5, %r1, %r1;",
            "unknown modifier `.wobble` of `add.s32.wobble`",
        ),
        ("add.q32 %r5, %r1, %r1;", "`add.q32` has no type"),
        ("add.s32 %r5, %r1;", "2 operands, allowed: 3"),
        ("add.s32 %r5, %r1, %d1;", "64 bits, the instruction takes 32"),
        ("add.s32 %r5, %r1, %q1;", "`%q1` is not declared"),
        ("add.s32 %r99, %r1, %r1;", "`%r99` is not declared"),
        ("add.s32 %r5, %r1, 5000000000;", "5000000000 does not fit 32 bits"),
        ("add.f32 %f1, %f1, 0f3F80;", "`0f3F80` is not a number"),
        ("mov.u32 %r5, %clock;", "`%clock` is not declared"),
        ("mov.u32 %r5, pool+;", "`;` stands where an operand is expected"),
        ("bra nowhere;", "`nowhere` is not declared"),
        ("L1: L1: bra L1;", "label `L1` stands twice"),
        ("call nothing;", "`nothing` is not declared"),
        (
            "ld.const.u32 %r5, [pool];",
            "`pool` lies in shared, the instruction's space is const",
        ),
        ("ld.global.u32 %r5, %r6;", "stands where an address is expected"),
        (
            "ld.global.v4.u64 {%d5, %d6, %d7, %d8}, [%d1];",
            "does not work on",
        ),
        (
            "ld.global.v2.u32 {%r5, %r6, %r7}, [%d1];",
            "3 registers for 2 elements",
        ),
        ("ld.global.u64 %r5, [%d1];", "has 32 bits, elements have 64"),
        ("st.param.u32 [pa], %r1;", "only read"),
        (
            "ld.global.L2::cache_hint.u32 %r5, [%d1];",
            "unknown modifier `.L2::cache_hint`",
        ),
        ("cvt.f16.f32 %h1, %f1;", "wrong rounding"),
        ("cvt.rn.s32.f32 %r5, %f1;", "wrong rounding"),
        ("setp.lt.f16x2 %p1, %r1, %r2;", "cannot write"),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r5}, {%r5}, {%r5}, {%r5};",
            "unknown instruction `mma",
        ),
        (
            "shfl.up.b32 %r5, %r1, %r1, %r1;",
            "unknown instruction `shfl.up.b32`",
        ),
        ("atom.global.add.s64 %d5, [%d1], %d2;", "does not work on"),
        ("add.rz.f64 %d5, %d1, %d2;", "that this type does not take"),
        (".reg .b8 %x;", "registers of 8 bits"),
        (
            ".shared .align 4 .b8 big[99999999999];",
            "the size of shared variables is",
        ),
        (
            ".local .align 3 .b8 odd[4];",
            "alignment 3 of odd, allowed: powers of two",
        ),
        (
            "cp.async.ca.shared.global [%d6], [%d1], 16;",
            "unknown instruction `cp.async",
        ),
        ("mov.b64 {%r5, %r6, %r7}, %d1;", "registers"),
    ];
    for (body, part) in cases {
        match Module::parse(&handwritten("", body)) {
            // The body stands on line 12.
            Err(error) if error.to_string().contains("line 12") => {
                assert!(
                    error.to_string().contains(part) || part == "registers",
                    "{body}: {error}"
                );
            }
            other => panic!("{body}: {other:?}"),
        }
    }
    let modules = [
        ("", "no .version"),
        (".version 8.8\n.address_size 32", "allowed: 64"),
        (".version 8.8\n.visible .entry k() { ret; ", "the text ends"),
        (
            ".version 8.8\n.visible .entry k() { ret; }\n.visible .entry k() { ret; }",
            "defined twice",
        ),
        (
            ".version 8.8\n.func f;\n.visible .entry k() { ret; }",
            "`f` is not declared",
        ),
        (
            ".version 8.8\n.visible .entry k(.param .b8 p[5000]) { ret; }",
            "is 5000, allowed: at most 4352",
        ),
        (".version 8.8\n.const .b8 c[70000];", "allowed: at most 65536"),
        (
            ".version 8.8\n.const .b8 c[2] = {1, 2, 3};",
            "holds 2 values, but 3 are given",
        ),
        (".version 8.8\n/* ", "a comment has no end"),
        (".version 8.8\n\u{7}", "byte 0x07 is not PTX"),
        (
            ".version 8.8\n.visible .entry k() .maxwombats 3 { ret; }",
            "unknown performance directive",
        ),
    ];
    for (text, part) in modules {
        let error: PtxError = Module::parse(text).expect_err(part);
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
}

/// What is skipped: comments, debug lines, sections, hints.
#[test]
fn harmless_text_is_taken() {
    let text = handwritten(
        ".file 1 \"k.cu\"\n.section .debug_abbrev { .b8 1 .b8 2 }\n/* a\ncomment */ .pragma \"nounroll\"",
        ".loc 1 3 4\n.pragma \"nounroll\"; { .reg .b32 %r<5>; mov.u32 %r4, 3; { mov.u32 %r4, 4; } }\n\
         ld.volatile.global.ca.L1::evict_last.L2::128B.u32 %r5, [%d1]; fence.acq_rel.gpu; membar.gl; prefetch.global.L2 [%d1];\n\
         nanosleep.u32 100; mov.f32 %f1, 0fBF800000; mov.u32 %r5, 0x1F; mov.u32 %r6, 017; mov.u32 %r7, 0b11; mov.u64 %d8, 7U;",
    );
    Module::parse(&text).unwrap_or_else(|error| panic!("{error}"));
}

/// Runs whatever still parses, so that the interpreter too meets what no compiler writes.
fn try_text(text: &str) -> bool {
    let Ok(module) = Module::parse(text) else {
        return false;
    };
    let options = Options {
        mma: MmaOrder::EmulatedF32,
        approximate: Approximate::Round,
        threads: 1,
        steps_max: 3000,
        races: true,
    };
    let mut memory = Memory::new(1 << 20);
    let address = memory.alloc("all", 1 << 14).expect("it fits");
    memory.write(address, &[1; 1 << 13]).expect("inside");
    for kernel in module.kernels().map(str::to_owned).collect::<Vec<_>>() {
        let size = module.kernel(&kernel).map_or(0, |kernel| {
            kernel.params.last().map_or(0, |last| last.offset + last.bytes)
        });
        let mut params: Vec<u8> = address
            .to_le_bytes()
            .iter()
            .copied()
            .cycle()
            .take(size as usize)
            .collect();
        if size % 8 == 4 {
            let at = size as usize - 4;
            params[at..].copy_from_slice(&40_u32.to_le_bytes());
        }
        let launch = Launch {
            grid: [2, 1, 1],
            block: [48, 1, 1],
            shared_bytes: 1024,
            params,
        };
        // A result or a fault; both are answers.
        let _ = run(&module, &kernel, &launch, &mut memory, &options);
    }
    true
}

#[test]
fn truncated_text_never_panics() {
    for name in FIXTURES {
        let text = fixture(name);
        assert!(try_text(&text), "{name}");
        for at in (0..text.len()).step_by(text.len() / 120) {
            let _ = Module::parse(&text[..at]);
        }
    }
}

#[test]
fn mutated_text_never_panics() {
    let mut random = Random(20);
    let mut parsed = 0;
    for name in FIXTURES {
        let text = fixture(name).into_bytes();
        let words: Vec<&[u8]> = text
            .split(u8::is_ascii_whitespace)
            .filter(|word| word.len() > 1)
            .collect();
        for round in 0..600 {
            let mut copy = text.clone();
            for _ in 0..1 + round % 4 / 3 {
                let at = random.next() as usize % copy.len();
                match random.next() % 8 {
                    0 => copy[at] ^= 1 << (random.next() % 8),
                    1 => copy[at] = b"0123456789;,.[]{}%@-"[random.next() as usize % 20],
                    2 => drop(copy.splice(at..at, *b"99999999999999999999")),
                    3 => drop(copy.drain(at..(at + 30).min(copy.len()))),
                    _ => {
                        // One word in another's place: texts that often still parse.
                        let word = words[random.next() as usize % words.len()];
                        let start = copy[..at]
                            .iter()
                            .rposition(u8::is_ascii_whitespace)
                            .map_or(0, |start| start + 1);
                        let end = copy[at..]
                            .iter()
                            .position(u8::is_ascii_whitespace)
                            .map_or(copy.len(), |end| at + end);
                        drop(copy.splice(start..end.max(start), word.iter().copied()));
                    }
                }
            }
            let Ok(copy) = String::from_utf8(copy) else {
                continue;
            };
            parsed += usize::from(try_text(&copy));
        }
    }
    // Otherwise the interpreter would not have been tried.
    assert!(parsed > 100, "{parsed}");
}
