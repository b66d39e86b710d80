//! Compiled constraints, kept for the next request that has the same: clients send one schema many times.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use llguidance::Matcher as Inner;

use super::Constraint;

/// Constraints that are kept.
const ENTRIES_MAX: usize = 128;
/// Bytes that they may hold together.
const BYTES_MAX: usize = 64 << 20;
/// What a compiled constraint holds beside what follows its source, roughly.
const ENTRY_BYTES: usize = 64 << 10;
/// Bytes that a compiled constraint holds for each of its source, roughly.
const BYTES_PER_BYTE: usize = 100;

/// What a cache of constraints has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Constraints that were there.
    pub hits: u64,
    /// Constraints that had to be compiled.
    pub misses: u64,
    /// Constraints that are kept.
    pub entries: usize,
    /// Bytes that they hold, by estimate.
    pub bytes: usize,
}

struct Entry {
    /// Never stepped: each sequence gets a copy.
    compiled: Arc<Inner>,
    bytes: usize,
    /// Time of the last use, in uses.
    used: u64,
}

#[derive(Default)]
struct State {
    entries: HashMap<String, Entry>,
    stats: CacheStats,
    uses: u64,
}

/// Drops the least recently used.
#[derive(Default)]
pub(super) struct Cache(Mutex<State>);

impl Cache {
    /// The compiled constraint of a [`key`], if it is kept.
    pub fn get(&self, key: &str) -> Option<Arc<Inner>> {
        let mut state = self.lock();
        state.uses += 1;
        let uses = state.uses;
        let entry = state.entries.get_mut(key)?;
        entry.used = uses;
        let compiled = entry.compiled.clone();
        state.stats.hits += 1;
        Some(compiled)
    }

    /// Keeps a compiled constraint, unless it alone is too large.
    pub fn put(&self, key: String, compiled: Arc<Inner>) {
        let bytes = ENTRY_BYTES + key.len() * BYTES_PER_BYTE;
        let mut state = self.lock();
        state.stats.misses += 1;
        // Another request may have compiled the same meanwhile.
        if bytes > BYTES_MAX || state.entries.contains_key(&key) {
            return;
        }
        while state.entries.len() >= ENTRIES_MAX || state.stats.bytes + bytes > BYTES_MAX {
            let oldest = state.entries.iter().min_by_key(|(_, entry)| entry.used);
            let oldest = oldest.map(|(key, _)| key.clone());
            let gone = oldest.and_then(|key| state.entries.remove(&key));
            state.stats.bytes -= gone.map_or(0, |entry| entry.bytes);
        }
        state.uses += 1;
        let used = state.uses;
        state.entries.insert(
            key,
            Entry {
                compiled,
                bytes,
                used,
            },
        );
        state.stats.bytes += bytes;
    }

    pub fn stats(&self) -> CacheStats {
        let state = self.lock();
        CacheStats {
            entries: state.entries.len(),
            ..state.stats
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic under this lock")
    }
}

/// All that a constraint says.
pub(super) fn key(constraint: &Constraint) -> String {
    let content = match constraint {
        Constraint::JsonObject => String::new(),
        Constraint::JsonSchema(schema) => schema.to_string(),
        Constraint::Regex(source) | Constraint::Lark(source) => source.clone(),
        Constraint::Choice(list) => serde_json::Value::from(list.clone()).to_string(),
    };
    format!("{}:{content}", constraint.kind())
}
