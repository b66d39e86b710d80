//! A bounded, buffered reader over a header.

use crate::LoadError;
use crate::error::shown;
use crate::source::Source;

/// Bytes fetched at a time. Headers are megabytes of short strings.
const CHUNK_BYTES: usize = 1 << 16;

/// Reads forward through a file. Every length is held against the bytes that are left before anything is allocated.
pub(super) struct HeaderReader<'a> {
    source: &'a Source,
    /// File position of the next byte to hand out.
    position: u64,
    chunk: Vec<u8>,
    /// File position of `chunk[0]`.
    chunk_start: u64,
}

impl<'a> HeaderReader<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        Self {
            source,
            position: 0,
            chunk: Vec::new(),
            chunk_start: 0,
        }
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn remaining(&self) -> u64 {
        self.source.len() - self.position
    }

    pub(super) fn fault(&self, reason: impl Into<String>) -> LoadError {
        LoadError::malformed(self.source.name(), reason)
    }

    /// Checks that `count` things of at least `bytes_each` bytes can still follow.
    pub(super) fn expect_room(&self, what: &str, count: u64, bytes_each: u64) -> Result<usize, LoadError> {
        if count > self.remaining() / bytes_each {
            return Err(self.fault(format!(
                "{what} says {count} (at least {bytes_each} bytes each), but only {} bytes follow",
                self.remaining()
            )));
        }
        usize::try_from(count)
            .map_err(|_| self.fault(format!("{what} says {count}, more than this machine can address")))
    }

    pub(super) fn fill(&mut self, what: &str, mut out: &mut [u8]) -> Result<(), LoadError> {
        if out.len() as u64 > self.remaining() {
            return Err(self.fault(format!(
                "ends inside {what} at byte {}: {} bytes needed, {} present",
                self.position,
                out.len(),
                self.remaining()
            )));
        }
        while !out.is_empty() {
            let start = (self.position - self.chunk_start) as usize;
            if start >= self.chunk.len() {
                self.refill()?;
                continue;
            }
            let count = out.len().min(self.chunk.len() - start);
            out[..count].copy_from_slice(&self.chunk[start..start + count]);
            out = &mut out[count..];
            self.position += count as u64;
        }
        Ok(())
    }

    fn refill(&mut self) -> Result<(), LoadError> {
        let count = (self.remaining() as usize).min(CHUNK_BYTES);
        self.chunk.resize(count, 0);
        self.chunk_start = self.position;
        self.source.read_at(self.position, &mut self.chunk)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], LoadError> {
        let mut out = [0; N];
        self.fill(what, &mut out)?;
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, LoadError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, LoadError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Appends the bytes of a string to `out`, checked to be UTF-8.
    pub(super) fn string_onto(
        &mut self,
        what: &str,
        len_max: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), LoadError> {
        let len = self.u64(what)?;
        if len > len_max {
            return Err(self.fault(format!(
                "{what} is {len} bytes long; at most {len_max} are allowed"
            )));
        }
        let len = self.expect_room(what, len, 1)?;
        let start = out.len();
        out.resize(start + len, 0);
        self.fill(what, &mut out[start..])?;
        if let Err(error) = std::str::from_utf8(&out[start..]) {
            let text = String::from_utf8_lossy(&out[start..]);
            return Err(self.fault(format!(
                "{what} is not UTF-8 at its byte {}: `{}`",
                error.valid_up_to(),
                shown(&text)
            )));
        }
        Ok(())
    }

    pub(super) fn string(&mut self, what: &str, len_max: u64) -> Result<String, LoadError> {
        let mut out = Vec::new();
        self.string_onto(what, len_max, &mut out)?;
        Ok(String::from_utf8(out).expect("checked to be UTF-8 just now"))
    }
}
