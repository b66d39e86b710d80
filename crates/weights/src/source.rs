//! One file, read by position.

use std::fs::File;
use std::path::Path;

use crate::LoadError;

/// A file (or bytes in memory, for tests and fuzzing) of known length.
#[derive(Debug)]
pub(crate) struct Source {
    name: String,
    backing: Backing,
    len: u64,
}

#[derive(Debug)]
enum Backing {
    File(File),
    Memory(Vec<u8>),
}

impl Source {
    /// Opens a regular file. Anything else is refused before it is opened: opening a pipe would wait for its writer.
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let name = path.display().to_string();
        let io = |action| {
            let file = name.clone();
            move |source| LoadError::Io { file, action, source }
        };
        let metadata = std::fs::metadata(path).map_err(io("open"))?;
        if !metadata.is_file() {
            return Err(LoadError::malformed(&name, "is not a regular file"));
        }
        let file = File::open(path).map_err(io("open"))?;
        let len = file.metadata().map_err(io("read the length"))?.len();
        Ok(Self {
            name,
            backing: Backing::File(file),
            len,
        })
    }

    pub(crate) fn from_bytes(name: &str, bytes: Vec<u8>) -> Self {
        Self {
            name: name.to_owned(),
            len: bytes.len() as u64,
            backing: Backing::Memory(bytes),
        }
    }

    /// For messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes in the file when it was opened.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `out` with the bytes from `offset` on.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), LoadError> {
        let end = offset
            .checked_add(out.len() as u64)
            .filter(|&end| end <= self.len);
        let Some(end) = end else {
            return Err(LoadError::malformed(
                &self.name,
                format!(
                    "{} bytes at {offset} reach past the end, {} bytes",
                    out.len(),
                    self.len
                ),
            ));
        };
        match &self.backing {
            Backing::File(file) => read_exact_at(file, offset, out).map_err(|source| LoadError::Io {
                file: self.name.clone(),
                action: "read",
                source,
            }),
            Backing::Memory(bytes) => {
                out.copy_from_slice(&bytes[offset as usize..end as usize]);
                Ok(())
            }
        }
    }

    /// What the file really is, where its first bytes give away a common mix-up.
    pub(crate) fn mix_up(&self) -> Option<&'static str> {
        let mut start = [0u8; 48];
        let count = (self.len as usize).min(start.len());
        self.read_at(0, &mut start[..count]).ok()?;
        let start = &start[..count];
        let starts_with = |text: &str| {
            start
                .get(..text.len())
                .is_some_and(|s| s.eq_ignore_ascii_case(text.as_bytes()))
        };
        if starts_with("version https://git-lfs.github.com/spec/") {
            Some("looks like a Git LFS pointer: download the real file (git lfs pull)")
        } else if starts_with("<!doctype html") || starts_with("<html") {
            Some("is a web page, not a model: the download went wrong")
        } else if starts_with("GGUF") {
            Some("is a GGUF file, but its name or place says otherwise")
        } else if starts_with("PK\x03\x04") {
            Some("is a ZIP archive (PyTorch's old format?); supported: safetensors, GGUF")
        } else {
            None
        }
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> std::io::Result<()> {
    while !out.is_empty() {
        let count = std::os::windows::fs::FileExt::seek_read(file, out, offset)?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        out = &mut out[count..];
        offset += count as u64;
    }
    Ok(())
}
