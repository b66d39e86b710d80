//! NVRTC itself, where it is there: what comes out, and what is refused.

use galvani_cuda::pack::build;
use galvani_cuda::pack::file::Pack;
use galvani_cuda::pack::nvrtc::Compiler;
use galvani_cuda::{Arch, selftest};

fn compiler(test: &str) -> Option<Compiler> {
    match Compiler::find() {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            println!("skipped: {test}: {error}");
            None
        }
    }
}

#[test]
fn volta_code_comes_with_the_ptx_of_its_level() {
    let Some(compiler) = compiler("compiling") else {
        return;
    };
    assert!(compiler.version.starts_with("V12."), "{}", compiler.version);
    let row = selftest::rows().remove(0);
    let code = compiler.compile(&row, Arch::Sm70).unwrap();
    let text = compiler.compile(&row, Arch::Compute70).unwrap();
    assert!(code.cubin.unwrap().starts_with(b"\x7fELF") && text.cubin.is_none());
    assert_eq!(code.ptx, text.ptx);
    assert!(
        String::from_utf8(text.ptx)
            .unwrap()
            .contains("mma.sync.aligned.m8n8k4")
    );
}

#[test]
fn faults_and_warnings_are_errors() {
    let Some(compiler) = compiler("faults") else {
        return;
    };
    let row = selftest::rows().remove(0);
    let head = "extern \"C\" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) SYMBOL(int *a)";
    for (body, want) in [
        ("{ a[0] = THREADS; }", None),
        ("{\n a[0] = missing; }", Some("selftest.cu(2)")),
        ("{ int unused; a[0] = 1; }", Some("warnings are errors")),
        ("{ asm volatile(\"nonsense;\"); }", Some("ptxas")),
    ] {
        let result = compiler.compile_text(&row, &format!("{head} {body}"), Arch::Sm70);
        let log = result.err().map(|error| error.to_string());
        match (&log, want) {
            (None, None) => {}
            (Some(log), Some(want)) => assert!(log.contains(want), "{log}"),
            _ => panic!("{body}: {log:?}, wanted {want:?}"),
        }
    }
}

#[test]
fn an_unchanged_row_is_not_compiled_again() {
    let Some(compiler) = compiler("reuse") else { return };
    let mut rows = selftest::rows();
    let archs = [Arch::Sm70, Arch::Sm75, Arch::Compute70];
    let build = |rows: &[galvani_cuda::KernelRow], old: Option<&Pack>| {
        let known = |symbol: &str, arch: Arch, made_from: &str| {
            let (entry, code) = old?.find(symbol, arch)?;
            (entry.made_from == made_from).then(|| code.to_vec())
        };
        let jobs = build::wanted(rows, &archs, "");
        let built = build::build(&compiler, &jobs, &known);
        assert!(built.faults.is_empty());
        (
            Pack::new(&compiler.version, rows, &built.blobs).unwrap(),
            built.compiled,
        )
    };
    let (first, compiled) = build(&rows, None);
    assert_eq!(compiled, 3);
    let (second, compiled) = build(&rows, Some(&first));
    assert_eq!((compiled, second.bytes() == first.bytes()), (0, true));
    // The compiler gives the same bytes for the same text.
    assert_eq!(build(&rows, None).0.bytes(), first.bytes());
    rows[0].min_blocks = 2;
    assert_eq!(build(&rows, Some(&first)).1, 3);
}

#[test]
fn a_faulty_row_leaves_the_others_their_code() {
    let Some(compiler) = compiler("faulty rows") else {
        return;
    };
    let mut rows = selftest::rows();
    rows.push(rows[0].clone());
    rows[1].symbol = "faulty row".to_owned();
    let archs = [Arch::Sm70, Arch::Compute70];
    let jobs = build::wanted(&rows, &archs, "");
    let built = build::build(&compiler, &jobs, &|_, _, _| None);
    assert_eq!((built.blobs.len(), built.compiled, built.faults.len()), (2, 2, 1));
    assert!(built.faults[0].to_string().contains("faulty row for sm_70"));
}
