//! Our decoder against nvdisasm and cuobjdump's reading of the same cubins, where both tools are there:
//! `GALVANI_NVDISASM=PATH` names nvdisasm (NVIDIA ships it in the PyPI package triton, among others).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use galvani_cuda::pack::cubin;
use galvani_cuda::pack::file::{Kind, Pack};
use galvani_cuda::pack::nvrtc::Compiler;
use galvani_cuda::pack::sass::{self, Class, Width};
use galvani_cuda::{Arch, KernelRow};

fn nvdisasm(test: &str) -> Option<PathBuf> {
    let tool = std::env::var_os("GALVANI_NVDISASM");
    if tool.is_none() {
        println!("skipped: {test}: GALVANI_NVDISASM names no nvdisasm");
    }
    tool.map(PathBuf::from)
}

/// nvdisasm's name of an instruction, as our class.
fn named(text: &str) -> Class {
    let mut words = text
        .split_whitespace()
        .filter(|word| !word.starts_with('@') && *word != "{");
    let mnemonic = words.next().unwrap_or_default();
    let parts: Vec<&str> = mnemonic.trim_end_matches(';').split('.').collect();
    let has = |part: &str| parts.contains(&part);
    let width = match () {
        () if has("128") => Width::B128,
        () if has("64") => Width::B64,
        () if has("U8") || has("S8") => Width::B8,
        () if has("U16") || has("S16") => Width::B16,
        () => Width::B32,
    };
    match parts[0] {
        "HMMA" if has("884") => Class::Hmma884,
        "HMMA" if has("1688") => Class::Hmma1688,
        "HMMA" if has("16816") => Class::Hmma16816,
        "LDG" => Class::Ldg(width),
        "STG" => Class::Stg(width),
        "LDS" => Class::Lds(width),
        "STS" => Class::Sts(width),
        "LDL" => Class::Ldl,
        "STL" => Class::Stl,
        "LD" | "ST" => Class::Generic,
        "BAR" => Class::Bar,
        "SHFL" => Class::Shfl,
        "FFMA" => Class::Ffma,
        "HFMA2" => Class::Hfma2,
        "IMAD" => Class::Imad,
        "LOP3" => Class::Lop3,
        "PRMT" => Class::Prmt,
        "MUFU" => Class::Mufu,
        "ATOM" | "ATOMG" | "ATOMS" => Class::Atom,
        "RED" | "REDG" => Class::Red,
        "BRA" => Class::Bra,
        "CALL" => Class::Call,
        _ => Class::Other,
    }
}

/// The classes of a kernel's instructions by nvdisasm, in order, and the lengths of its backward branches.
fn disassembled(tool: &PathBuf, bytes: &[u8]) -> (Vec<Class>, Vec<usize>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("k.cubin");
    std::fs::write(&path, bytes).unwrap();
    let output = Command::new(tool).arg("-c").arg(&path).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let mut labels = BTreeMap::new();
    let mut code = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if let Some(label) = line.strip_suffix(':') {
            labels.insert(label.to_owned(), code.len());
        }
        let instruction = line.strip_prefix("/*").and_then(|rest| rest.split_once("*/"));
        let instruction = instruction.filter(|(address, _)| u64::from_str_radix(address, 16).is_ok());
        code.extend(instruction.map(|(_, text)| text.trim().to_owned()));
    }
    let mut backward = Vec::new();
    for (index, text) in code
        .iter()
        .enumerate()
        .filter(|(_, text)| named(text) == Class::Bra)
    {
        let label = text
            .split_once("`(")
            .and_then(|(_, rest)| rest.split_once(')'))
            .map(|(name, _)| name);
        let target = label.and_then(|label| labels.get(label)).copied();
        backward.extend(
            target
                .filter(|target| *target < index)
                .map(|target| index - target + 1),
        );
    }
    (code.iter().map(|text| named(text)).collect(), backward)
}

fn check(tool: &PathBuf, symbol: &str, arch: Arch, bytes: &[u8], seen: &mut BTreeMap<Class, usize>) {
    let ours = cubin::read(bytes, symbol, arch).unwrap();
    let (theirs, backward) = disassembled(tool, bytes);
    let words = ours.code.as_chunks::<16>().0;
    assert_eq!(words.len(), theirs.len(), "{symbol} {arch}");
    for (index, (bytes, want)) in words.iter().zip(&theirs).enumerate() {
        let word = u128::from_le_bytes(*bytes);
        let got = sass::class([word as u64, (word >> 64) as u64]);
        assert_eq!(got, *want, "{symbol} {arch}: instruction {index}, {word:#034x}");
        *seen.entry(got).or_default() += 1;
    }
    let listing = sass::decode(ours.code, arch);
    for body in &listing.loops {
        assert!(
            backward.contains(&body.instructions()),
            "{symbol} {arch}: loop {body:?}"
        );
    }
    assert_eq!(listing.loops.is_empty(), backward.is_empty(), "{symbol} {arch}");
}

/// All of a pack: `GALVANI_PACK=PATH` names one, as `cargo xtask kernels` makes it.
#[test]
fn a_pack_as_nvdisasm_reads_it() {
    let name = "pack against nvdisasm";
    let (Some(path), Some(tool)) = (std::env::var_os("GALVANI_PACK"), nvdisasm(name)) else {
        println!("skipped: {name}: GALVANI_PACK names no pack, or there is no nvdisasm");
        return;
    };
    let pack = Pack::read(Path::new(&path)).unwrap();
    let mut seen = BTreeMap::new();
    let cubins: Vec<_> = pack
        .manifest
        .blobs
        .iter()
        .filter(|entry| entry.kind == Kind::Cubin)
        .collect();
    assert!(!cubins.is_empty());
    for entry in &cubins {
        check(&tool, &entry.symbol, entry.arch, pack.code(entry), &mut seen);
    }
    println!("{} cubins, {seen:?}", cubins.len());
}

/// A kernel that has one of everything, spills included.
fn everything() -> KernelRow {
    KernelRow {
        symbol: "opcodes".to_owned(),
        source: "opcodes.cu",
        defines: Vec::new(),
        threads: 128,
        min_blocks: 1,
        shared_bytes: 0,
        registers_max: 255,
        archs: &Arch::ALL,
        requires: &[],
    }
}

#[test]
fn every_class_as_nvdisasm_reads_it() {
    let Some(tool) = nvdisasm("classes against nvdisasm") else {
        return;
    };
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(error) => return println!("skipped: classes against nvdisasm: {error}"),
    };
    let mut seen = BTreeMap::new();
    for arch in Arch::ALL.into_iter().filter(|arch| !arch.is_ptx()) {
        let unit = compiler
            .compile_text(&everything(), include_str!("opcodes.cu"), arch)
            .unwrap();
        let bytes = unit.cubin.unwrap();
        check(&tool, "opcodes", arch, &bytes, &mut seen);
        // cuobjdump --dump-resource-usage says: STACK:256 SHARED:3712 (on sm_90 1024 more, the system's).
        let resources = cubin::read(&bytes, "opcodes", arch).unwrap().resources;
        assert_eq!(
            (resources.stack, resources.shared_static, resources.threads_max),
            (256, 3712, 128),
            "{arch}"
        );
        assert_eq!(resources.registers, 96, "{arch}");
    }
    let widths = Width::ALL
        .map(|width| [Class::Ldg(width), Class::Stg(width)])
        .concat();
    let rest = [
        Class::Hmma884,
        Class::Hmma1688,
        Class::Hmma16816,
        Class::Lds(Width::B128),
        Class::Lds(Width::B64),
        Class::Lds(Width::B32),
        Class::Lds(Width::B8),
        Class::Sts(Width::B128),
        Class::Sts(Width::B64),
        Class::Sts(Width::B32),
        Class::Sts(Width::B8),
        Class::Ldl,
        Class::Stl,
        Class::Generic,
        Class::Bar,
        Class::Shfl,
        Class::Ffma,
        Class::Hfma2,
        Class::Imad,
        Class::Lop3,
        Class::Prmt,
        Class::Mufu,
        Class::Atom,
        Class::Red,
        Class::Bra,
        Class::Call,
    ];
    for class in widths.iter().chain(&rest) {
        assert!(seen.contains_key(class), "{class} was not tried");
    }
}
