//! The paged key/value pool of one attention layer.
//!
//! A page holds, for each head, its keys then its values. Keys lie in groups of 16 positions, `[group][key_dim][16]`, so
//! that 16 scores are one vector and the query's numbers are broadcast; values lie `[position][value_dim]`. Numbers are
//! half floats, or f32 for exact math.

use galvani_graph::{BackendError, CacheSpec, LimitsSpec};

use crate::lanes::{LANES, Lanes};
use crate::pack::AlignedBytes;

/// Bytes past the end, so that a vector load of a row's last numbers stays inside.
const SLACK_BYTES: usize = 64;

/// Type of the stored numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheType {
    F32,
    F16,
}

/// Numbers in the pool, to be widened when read.
#[derive(Clone, Copy)]
pub(crate) struct Stored {
    start: *const u8,
    kind: CacheType,
}

/// All pages of one layer.
pub(crate) struct KvPool {
    bytes: AlignedBytes,
    pub kind: CacheType,
    pub page_tokens: usize,
    pub kv_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

impl KvPool {
    pub(crate) fn new(spec: &CacheSpec, limits: &LimitsSpec, kind: CacheType) -> Result<Self, BackendError> {
        let per_token = spec.kv_heads * (spec.key_dim + spec.value_dim) * kind.bytes();
        let bytes = per_token
            .checked_mul(limits.page_tokens)
            .and_then(|bytes| bytes.checked_mul(limits.page_count))
            .ok_or(BackendError::Memory {
                what: "key/value pool",
                bytes: usize::MAX,
            })?;
        Ok(KvPool {
            bytes: AlignedBytes::zeroed(bytes + SLACK_BYTES, "key/value pool")?,
            kind,
            page_tokens: limits.page_tokens,
            kv_heads: spec.kv_heads,
            key_dim: spec.key_dim,
            value_dim: spec.value_dim,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Number index of the 16-position key group that holds `offset` of `page`.
    fn key_at(&self, page: usize, head: usize, offset: usize) -> usize {
        self.head_at(page, head) + offset / LANES * LANES * self.key_dim
    }

    /// Number index of the value row at `offset` of `page`.
    fn value_at(&self, page: usize, head: usize, offset: usize) -> usize {
        self.head_at(page, head) + self.page_tokens * self.key_dim + offset * self.value_dim
    }

    fn head_at(&self, page: usize, head: usize) -> usize {
        (page * self.kv_heads + head) * self.page_tokens * (self.key_dim + self.value_dim)
    }

    /// Stores one token's key `[key_dim]` and value `[value_dim]` of `head`.
    ///
    /// # Safety
    /// `page` and `offset` are inside the pool, the rows are readable, nobody else touches this token's place, and the set
    /// of `S` is available.
    #[inline(always)]
    pub(crate) unsafe fn store<S: Lanes>(
        &self,
        page: usize,
        offset: usize,
        head: usize,
        key: *const f32,
        value: *const f32,
    ) {
        let (key_at, value_at) = (
            self.key_at(page, head, offset) + offset % LANES,
            self.value_at(page, head, offset),
        );
        // SAFETY: the places are inside the pool (see `key_at`, `value_at`); rows as the caller says.
        unsafe {
            match self.kind {
                CacheType::F32 => {
                    let base = self.bytes.as_mut_ptr().cast::<f32>();
                    for i in 0..self.key_dim {
                        *base.add(key_at + i * LANES) = *key.add(i);
                    }
                    std::ptr::copy_nonoverlapping(value, base.add(value_at), self.value_dim);
                }
                CacheType::F16 => {
                    let base = self.bytes.as_mut_ptr().cast::<u16>();
                    each_half::<S>(key, self.key_dim, |i, bits| *base.add(key_at + i * LANES) = bits);
                    each_half::<S>(value, self.value_dim, |i, bits| *base.add(value_at + i) = bits);
                }
            }
        }
    }

    /// The 16-position key group at `offset` (a multiple of 16) of `page`: `[key_dim][16]`.
    pub(crate) fn keys(&self, page: usize, head: usize, offset: usize) -> Stored {
        self.stored(self.key_at(page, head, offset))
    }

    /// The value row at `offset` of `page`; the next position's follows.
    pub(crate) fn values(&self, page: usize, head: usize, offset: usize) -> Stored {
        self.stored(self.value_at(page, head, offset))
    }

    fn stored(&self, index: usize) -> Stored {
        assert!(
            (index + 1) * self.kind.bytes() <= self.bytes.len(),
            "inside the pool"
        );
        Stored {
            start: self.bytes.as_ptr().wrapping_add(index * self.kind.bytes()),
            kind: self.kind,
        }
    }

    /// Widens the keys of 16 positions from `offset` of `page` into columns `0 .. 16` of `to`, `[key_dim]` rows of
    /// `stride` numbers.
    ///
    /// # Safety
    /// `offset` is a multiple of 16 inside the page, `to` has room, the set of `S` is available.
    #[inline(always)]
    pub(crate) unsafe fn load_keys<S: Lanes>(
        &self,
        page: usize,
        offset: usize,
        head: usize,
        to: *mut f32,
        stride: usize,
    ) {
        let keys = self.keys(page, head, offset);
        for i in 0..self.key_dim {
            // SAFETY: a whole group lies inside the pool.
            unsafe { S::store(to.add(i * stride), keys.load::<S>(i * LANES)) };
        }
    }

    /// Widens `count` value rows from `offset` of `page` into `to`, rows of `stride` numbers (a multiple of 16, at least
    /// `value_dim`); numbers past `value_dim` are arbitrary.
    ///
    /// # Safety
    /// The rows are inside the page, `to` has room, the set of `S` is available.
    #[inline(always)]
    pub(crate) unsafe fn load_values<S: Lanes>(
        &self,
        page: usize,
        offset: usize,
        count: usize,
        head: usize,
        to: *mut f32,
        stride: usize,
    ) {
        let values = self.values(page, head, offset);
        for row in 0..count {
            for i in (0..self.value_dim).step_by(LANES) {
                // SAFETY: the rows lie inside the pool; the last vector of the last row may reach into the slack.
                unsafe {
                    S::store(
                        to.add(row * stride + i),
                        values.load::<S>(row * self.value_dim + i),
                    )
                };
            }
        }
    }
}

impl Stored {
    /// Sixteen numbers from `index` on.
    ///
    /// # Safety
    /// They lie inside the pool (or its slack); the set of `S` is available.
    #[inline(always)]
    pub(crate) unsafe fn load<S: Lanes>(self, index: usize) -> S::V {
        // SAFETY: passed on from the caller.
        unsafe {
            match self.kind {
                CacheType::F32 => S::load(self.start.cast::<f32>().add(index)),
                CacheType::F16 => S::load_half(self.start.cast::<u16>().add(index)),
            }
        }
    }
}

/// Rounds `len` numbers to half floats and hands each to `put`.
#[inline(always)]
unsafe fn each_half<S: Lanes>(from: *const f32, len: usize, put: impl Fn(usize, u16)) {
    let mut padded = [0.0_f32; LANES];
    let mut bits = [0_u16; LANES];
    let mut i = 0;
    while i < len {
        let count = LANES.min(len - i);
        // SAFETY: whole vectors are read from the row, its tail through `padded`.
        unsafe {
            let v = if count == LANES {
                S::load(from.add(i))
            } else {
                std::ptr::copy_nonoverlapping(from.add(i), padded.as_mut_ptr(), count);
                S::load(padded.as_ptr())
            };
            S::store_half(bits.as_mut_ptr(), v);
        }
        bits[..count]
            .iter()
            .enumerate()
            .for_each(|(j, &bits)| put(i + j, bits));
        i += LANES;
    }
}

impl CacheType {
    pub(crate) fn bytes(self) -> usize {
        match self {
            CacheType::F32 => 4,
            CacheType::F16 => 2,
        }
    }
}
