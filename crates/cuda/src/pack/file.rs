//! The pack file: one manifest, then every row's code.
//!
//! ```text
//! "GALVPACK"  version u32  zero u32  manifest bytes u64  SHA-256 of all that follows [32]
//! manifest    JSON, see `Manifest`
//! code        one after the other, each at a multiple of 16 from the end of the manifest
//! ```
//! All numbers are little endian. A reader believes nothing: sizes are checked against the file before anything is
//! taken from it, blobs must lie inside and apart, and both the whole and each blob must have their hash.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::arch::Arch;
use crate::error::CudaError;
use crate::kernels::KernelRow;
use crate::pack::build::Blob;
use crate::pack::cubin;
use crate::pack::hash;
use crate::pack::ptx;

/// The file's name.
pub const NAME: &str = "galvani.pack";

const MAGIC: &[u8; 8] = b"GALVPACK";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 56;
const ALIGNMENT: usize = 16;
/// Far above any pack; a file beyond it is not one.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// The pack to use: the one that the user names, or else the one beside the running program, or else the one in the data
/// folder.
///
/// # Errors
/// None is there; a named one is taken as it is, so that reading it says what is wrong.
pub fn locate(named: Option<&Path>, data: Option<&Path>) -> Result<PathBuf, CudaError> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    let program = std::env::current_exe().ok();
    let places = [program.as_deref().and_then(Path::parent), data];
    let tried: Vec<PathBuf> = places
        .into_iter()
        .flatten()
        .map(|folder| folder.join(NAME))
        .collect();
    let found = tried.iter().find(|path| path.is_file());
    found.cloned().ok_or_else(|| {
        let tried: Vec<String> = tried.iter().map(|path| path.display().to_string()).collect();
        invalid(format!(
            "none at {}; `cargo xtask kernels` makes one",
            tried.join(" or ")
        ))
    })
}

/// What the file says about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The compiler: `V12.9.86`.
    pub compiler: String,
    /// Every blob, in the order of the file.
    pub blobs: Vec<Entry>,
}

/// Machine code or PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// ELF for one architecture.
    Cubin,
    /// Text that the driver compiles.
    Ptx,
}

/// One blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The row.
    pub symbol: String,
    /// What it is for.
    pub arch: Arch,
    /// What the bytes are.
    pub kind: Kind,
    /// From the end of the manifest.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// SHA-256 of the bytes.
    pub sha256: String,
    /// Hash of what it was compiled from: the same means that it need not be compiled again.
    pub made_from: String,
    /// Threads a block at most.
    pub threads: u32,
    /// Blocks a multiprocessor must hold.
    pub min_blocks: u32,
    /// Dynamic shared memory a launch may ask for.
    pub shared_dynamic: u32,
    /// Static shared memory; 0 for PTX.
    pub shared_static: u32,
    /// Registers a thread; 0 for PTX.
    pub registers: u32,
    /// Stack and local bytes a thread; 0 for PTX.
    pub spilled: u32,
    /// Bytes of each parameter.
    pub parameters: Vec<u32>,
    /// The row's own macros.
    pub defines: BTreeMap<String, String>,
}

/// A pack in memory.
#[derive(Debug)]
pub struct Pack {
    /// Its description.
    pub manifest: Manifest,
    bytes: Vec<u8>,
    /// Where the code begins.
    start: usize,
}

impl Pack {
    /// Makes a pack of blobs and the rows they come from.
    ///
    /// # Errors
    /// Machine code that cannot be read.
    pub fn new(compiler: &str, rows: &[KernelRow], blobs: &[Blob]) -> Result<Self, CudaError> {
        let mut entries = Vec::with_capacity(blobs.len());
        let mut code: Vec<u8> = Vec::new();
        for blob in blobs {
            let row = rows.iter().find(|row| row.symbol == blob.symbol);
            let row = row.ok_or_else(|| invalid(format!("no row {}", blob.symbol)))?;
            code.resize(code.len().next_multiple_of(ALIGNMENT), 0);
            let resources = if blob.arch.is_ptx() {
                ptx::parameters(&blob.bytes, &blob.symbol).map(|parameters| cubin::Resources {
                    parameters,
                    ..cubin::Resources::default()
                })
            } else {
                cubin::read(&blob.bytes, &blob.symbol, blob.arch).map(|read| read.resources)
            };
            let resources =
                resources.map_err(|reason| invalid(format!("{} {}: {reason}", blob.symbol, blob.arch)))?;
            let defines = row.defines.iter();
            entries.push(Entry {
                symbol: blob.symbol.clone(),
                arch: blob.arch,
                kind: if blob.arch.is_ptx() {
                    Kind::Ptx
                } else {
                    Kind::Cubin
                },
                offset: code.len() as u64,
                length: blob.bytes.len() as u64,
                sha256: hash::hex(&blob.bytes),
                made_from: blob.made_from.clone(),
                threads: row.threads,
                min_blocks: row.min_blocks,
                shared_dynamic: row.shared_bytes,
                shared_static: resources.shared_static,
                registers: resources.registers,
                spilled: resources.spilled(),
                parameters: resources.parameters,
                defines: defines
                    .map(|(name, value)| ((*name).to_owned(), value.clone()))
                    .collect(),
            });
            code.extend_from_slice(&blob.bytes);
        }
        let manifest = Manifest {
            compiler: compiler.to_owned(),
            blobs: entries,
        };
        let text = serde_json::to_vec(&manifest).map_err(|error| invalid(error.to_string()))?;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + text.len() + code.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&0u32.to_le_bytes());
        bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&hash::digest(&[&text, &code]));
        bytes.extend_from_slice(&text);
        bytes.extend_from_slice(&code);
        Self::parse(bytes)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is not a whole pack.
    pub fn read(path: &Path) -> Result<Self, CudaError> {
        let file = |source| CudaError::File {
            path: path.to_owned(),
            source,
        };
        let length = std::fs::metadata(path).map_err(file)?.len();
        if length > FILE_BYTES_MAX {
            return Err(invalid(format!(
                "{}: {length} bytes, allowed: {FILE_BYTES_MAX}",
                path.display()
            )));
        }
        Self::parse(std::fs::read(path).map_err(file)?).map_err(|error| match error {
            CudaError::Pack { reason } => invalid(format!("{}: {reason}", path.display())),
            other => other,
        })
    }

    /// Checks the bytes of a file.
    ///
    /// # Errors
    /// Whatever is wrong first.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, CudaError> {
        let header = bytes
            .get(..HEADER_BYTES)
            .ok_or_else(|| invalid("the header is cut off"))?;
        if !header.starts_with(MAGIC) {
            return Err(invalid("not a kernel pack"));
        }
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if (word(8), word(12)) != (VERSION, 0) {
            return Err(invalid(format!("version {}, allowed: {VERSION}", word(8))));
        }
        let rest = &bytes[HEADER_BYTES..];
        let length = u64::from(word(16)) | u64::from(word(20)) << 32;
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= rest.len());
        let length = length.ok_or_else(|| invalid("the manifest is cut off"))?;
        if hash::digest(&[rest]) != header[24..] {
            return Err(invalid("the content does not have its hash"));
        }
        let manifest: Manifest =
            serde_json::from_slice(&rest[..length]).map_err(|error| invalid(format!("manifest: {error}")))?;
        let start = HEADER_BYTES + length;
        check(&manifest, &bytes[start..])?;
        Ok(Self {
            manifest,
            bytes,
            start,
        })
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&self, path: &Path) -> Result<(), CudaError> {
        let file = |source| CudaError::File {
            path: path.to_owned(),
            source,
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(file)?;
        }
        let half = path.with_extension(format!("{}.part", std::process::id()));
        std::fs::write(&half, &self.bytes).map_err(file)?;
        std::fs::rename(&half, path).map_err(|source| {
            // The half-made file is of no use; that it cannot be renamed is what matters.
            let _ = std::fs::remove_file(&half);
            file(source)
        })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the pack has of a row for an architecture.
    pub fn find(&self, symbol: &str, arch: Arch) -> Option<(&Entry, &[u8])> {
        let entry = self
            .manifest
            .blobs
            .iter()
            .find(|entry| entry.symbol == symbol && entry.arch == arch)?;
        Some((entry, self.code(entry)))
    }

    /// The bytes of an entry of this pack.
    pub fn code(&self, entry: &Entry) -> &[u8] {
        // `check` has seen that both fit.
        let start = self.start + entry.offset as usize;
        &self.bytes[start..start + entry.length as usize]
    }
}

fn check(manifest: &Manifest, code: &[u8]) -> Result<(), CudaError> {
    let mut seen = std::collections::BTreeSet::new();
    let mut end = 0u64;
    for entry in &manifest.blobs {
        let wrong = |reason: &str| invalid(format!("{:?} {}: {reason}", entry.symbol, entry.arch));
        let name = !entry.symbol.is_empty() && entry.symbol.len() <= 255;
        if !name
            || !entry
                .symbol
                .bytes()
                .all(|c| c.is_ascii_alphanumeric() || c == b'_')
        {
            return Err(wrong("not a C name"));
        }
        if !seen.insert((entry.symbol.as_str(), entry.arch)) {
            return Err(wrong("twice"));
        }
        if (entry.kind == Kind::Ptx) != entry.arch.is_ptx() {
            return Err(wrong("the kind is not the architecture's"));
        }
        // Blobs are in the order of the file, so that this one check keeps them apart.
        if entry.offset < end || !entry.offset.is_multiple_of(ALIGNMENT as u64) {
            return Err(wrong("overlaps the blob before it, or is not aligned"));
        }
        let last = entry.offset.checked_add(entry.length);
        let last = last.filter(|last| *last <= code.len() as u64 && entry.length > 0);
        end = last.ok_or_else(|| wrong("leaves the file, or is empty"))?;
        let bytes = &code[entry.offset as usize..end as usize];
        if hash::hex(bytes) != entry.sha256 {
            return Err(wrong("does not have its hash"));
        }
    }
    Ok(())
}

fn invalid(reason: impl Into<String>) -> CudaError {
    CudaError::Pack {
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest;

    const TEXT: &[u8] =
        b".version 8.8\n.visible .entry selftest_u32_m8n8k4(\n.param .u64 a,\n.param .u32 b\n)";

    fn sample() -> Pack {
        let rows = selftest::rows();
        let blob = |arch: Arch, bytes: Vec<u8>| Blob {
            symbol: selftest::SYMBOL.to_owned(),
            arch,
            made_from: "00".to_owned(),
            bytes,
        };
        let cubin = cubin::tests::sample(selftest::SYMBOL, 24, 0, 512, &[0; 32]);
        let blobs = [blob(Arch::Sm70, cubin), blob(Arch::Compute70, TEXT.to_vec())];
        Pack::new("V12.9.86", &rows, &blobs).unwrap()
    }

    /// The file with a changed manifest and the hash that belongs to it.
    fn forged(change: impl Fn(&mut serde_json::Value)) -> Vec<u8> {
        let pack = sample();
        let mut manifest = serde_json::to_value(&pack.manifest).unwrap();
        change(&mut manifest);
        let text = serde_json::to_vec(&manifest).unwrap();
        let code = &pack.bytes[pack.start..];
        let mut bytes = pack.bytes[..HEADER_BYTES].to_vec();
        bytes[16..24].copy_from_slice(&(text.len() as u64).to_le_bytes());
        bytes[24..].copy_from_slice(&hash::digest(&[&text, code]));
        [bytes, text, code.to_vec()].concat()
    }

    #[test]
    fn what_is_written_is_read() {
        let pack = sample();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er").join(NAME);
        pack.write(&path).unwrap();
        pack.write(&path).unwrap();
        let again = Pack::read(&path).unwrap();
        assert_eq!(again.bytes(), pack.bytes());
        let (entry, code) = again.find(selftest::SYMBOL, Arch::Sm70).unwrap();
        assert_eq!(
            (entry.registers, entry.shared_static, entry.kind),
            (24, 512, Kind::Cubin)
        );
        assert!(code.starts_with(b"\x7fELF"));
        let (entry, code) = again.find(selftest::SYMBOL, Arch::Compute70).unwrap();
        assert_eq!((entry.kind, code), (Kind::Ptx, TEXT));
        assert!(again.find(selftest::SYMBOL, Arch::Sm90).is_none());
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert!(matches!(
            Pack::read(folder.path().join("no").as_path()),
            Err(CudaError::File { .. })
        ));
    }

    #[test]
    fn the_named_pack_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let message = locate(None, Some(folder.path())).unwrap_err().to_string();
        assert_eq!(message.matches(NAME).count(), 2, "{message}");
        let path = folder.path().join(NAME);
        sample().write(&path).unwrap();
        assert_eq!(locate(None, Some(folder.path())).unwrap(), path);
        let named = Path::new("/nowhere/x.pack");
        assert_eq!(locate(Some(named), Some(folder.path())).unwrap(), named);
    }

    #[test]
    fn every_turned_or_missing_byte_is_seen() {
        let good = sample().bytes;
        for at in 0..good.len() {
            let mut turned = good.clone();
            turned[at] ^= 1;
            assert!(Pack::parse(turned).is_err(), "byte {at}");
            assert!(Pack::parse(good[..at].to_vec()).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn forged_manifests_are_refused() {
        assert!(
            Pack::parse(forged(|_| ())).is_ok(),
            "the forgery itself is well made"
        );
        type Change = fn(&mut serde_json::Value);
        let cases: [(&str, Change); 11] = [
            ("leaves the file", |m| m["blobs"][1]["length"] = 1_000_000.into()),
            ("leaves the file", |m| m["blobs"][1]["length"] = u64::MAX.into()),
            ("leaves the file", |m| m["blobs"][1]["length"] = 0.into()),
            ("leaves the file", |m| {
                m["blobs"][1]["offset"] = (u64::MAX - 15).into()
            }),
            ("overlaps", |m| m["blobs"][1]["offset"] = 0.into()),
            ("not aligned", |m| m["blobs"][0]["offset"] = 1.into()),
            ("its hash", |m| m["blobs"][0]["sha256"] = "00".into()),
            ("kind", |m| m["blobs"][0]["kind"] = "ptx".into()),
            ("C name", |m| m["blobs"][0]["symbol"] = "../x".into()),
            ("twice", |m| {
                m["blobs"][1]["arch"] = "sm_70".into();
                m["blobs"][1]["kind"] = "cubin".into();
            }),
            ("unknown field", |m| m["blobs"][0]["more"] = 1.into()),
        ];
        for (want, change) in cases {
            let error = Pack::parse(forged(change)).unwrap_err().to_string();
            assert!(error.contains(want), "wanted {want}: {error}");
        }
    }
}
