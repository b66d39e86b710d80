//! SHA-256 in hexadecimal, and the hash that says whether a row must be compiled anew.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::arch::Arch;
use crate::kernels::KernelRow;
use crate::sources;

/// Of parts, one after the other.
pub fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part);
    }
    digest.finalize().into()
}

/// Of any bytes, in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    digest(&[bytes])
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A source of ours and all that it includes, ours and CUDA's.
pub fn source(name: &str, include: &Path) -> String {
    let mut fields = Fields::default();
    let mut waiting = vec![name.to_owned()];
    let mut seen = Vec::new();
    while let Some(name) = waiting.pop() {
        if seen.contains(&name) {
            continue;
        }
        let read = || std::fs::read_to_string(include.join(&name)).ok();
        // A name that neither has is the compiler's own, or in a branch that it never reads.
        let text = sources::find(&name).map(str::to_owned).or_else(read);
        fields.add(&name, text.as_deref().unwrap_or("absent"));
        let included = sources::includes(text.as_deref().unwrap_or_default()).into_iter();
        waiting
            .extend(included.map(|found| sources::resolve(&name, found).unwrap_or_else(|| found.to_owned())));
        seen.push(name);
    }
    fields.hex()
}

/// Everything that a row's code follows from: the compiler, its options, the macros, and `source`'s hash.
pub fn row(row: &KernelRow, arch: Arch, compiler: &str, options: &[String], source: &str) -> String {
    let mut fields = Fields::default();
    fields.add("compiler", compiler);
    fields.add("arch", arch.name());
    for option in options {
        fields.add("option", option);
    }
    for (name, value) in row.macros() {
        fields.add(name, &value);
    }
    fields.add(row.source, source);
    fields.hex()
}

#[derive(Default)]
struct Fields(Sha256);

impl Fields {
    /// Lengths keep one field's end from passing for the next one's start.
    fn add(&mut self, name: &str, text: &str) {
        for part in [name, text] {
            self.0.update((part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
    }

    fn hex(self) -> String {
        self.0
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest;

    #[test]
    fn a_row_hash_follows_everything() {
        let folder = tempfile::tempdir().unwrap();
        let include = folder.path();
        std::fs::write(include.join("cuda_fp16.h"), "#include \"cuda_fp16.hpp\"").unwrap();
        let base = selftest::rows().remove(0);
        let options = ["--std=c++17".to_owned()];
        let of =
            |of: &KernelRow, arch, compiler| row(of, arch, compiler, &options, &source(of.source, include));
        let first = of(&base, Arch::Sm70, "V12.9.86");
        assert_eq!(first, of(&base, Arch::Sm70, "V12.9.86"), "stable");
        let mut all = vec![
            first,
            of(&base, Arch::Sm75, "V12.9.86"),
            of(&base, Arch::Sm70, "V12.9.41"),
            row(&base, Arch::Sm70, "V12.9.86", &[], &source(base.source, include)),
        ];
        let mut changed = base.clone();
        changed.min_blocks += 1;
        all.push(of(&changed, Arch::Sm70, "V12.9.86"));
        changed.defines.push(("A", "1".to_owned()));
        all.push(of(&changed, Arch::Sm70, "V12.9.86"));
        changed.defines.push(("B", "2".to_owned()));
        all.push(of(&changed, Arch::Sm70, "V12.9.86"));
        std::fs::write(include.join("cuda_fp16.hpp"), "// two includes away").unwrap();
        all.push(of(&base, Arch::Sm70, "V12.9.86"));
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
