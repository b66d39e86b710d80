//! A weight source that shows how far the backend has read.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use galvani_graph::{BackendError, Weight, WeightSource};

use crate::progress::{Progress, bytes};

/// Counts the bytes that pass.
pub struct Counted<'a> {
    inner: &'a dyn WeightSource,
    total: u64,
    done: AtomicU64,
    bar: Mutex<Progress>,
    told: &'a (dyn Fn(&str) + Sync),
}

impl<'a> Counted<'a> {
    /// Watches `inner`, of which `total` bytes will be read; `told` hears of each tenth.
    pub fn new(
        inner: &'a dyn WeightSource,
        total: u64,
        quiet: bool,
        told: &'a (dyn Fn(&str) + Sync),
    ) -> Self {
        let bar = Mutex::new(Progress::new("loading", total, 0, quiet));
        Self {
            inner,
            total,
            done: AtomicU64::new(0),
            bar,
            told,
        }
    }
}

impl WeightSource for Counted<'_> {
    fn rows(&self, weight: &Weight, rows: Range<usize>) -> Result<Cow<'_, [u8]>, BackendError> {
        let data = self.inner.rows(weight, rows)?;
        let count = data.len() as u64;
        let before = self.done.fetch_add(count, Ordering::Relaxed);
        let done = before + count;
        // Whoever finds the bar taken leaves it to the one who draws.
        if let Ok(mut bar) = self.bar.try_lock() {
            bar.set(done.min(self.total));
        }
        let tenth = |at: u64| at.saturating_mul(10).checked_div(self.total).unwrap_or(0);
        if tenth(before) != tenth(done) {
            (self.told)(&format!(
                "loading: {} of {}",
                bytes(done.min(self.total)),
                bytes(self.total)
            ));
        }
        Ok(data)
    }
}
