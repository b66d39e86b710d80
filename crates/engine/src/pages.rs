//! The pool of key/value pages and the prefix cache over it.
//!
//! A page is in exactly one of three places: referenced by page tables, kept as a reusable prefix (least recently used
//! first in line to go), or free. Only full pages whose positions are all computed are offered for reuse.
//!
//! Reusable pages form chains. The key of a page is a hash, under a key drawn for this process, of its parent's key and
//! its tokens; the first page's parent is the tenant's salt. A hash only finds a candidate: a hit also needs equal tokens
//! and the very parent that was just matched (each registration has its own serial number), so a collision costs a
//! miss and never a wrong answer.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use galvani_graph::PageId;

/// Where a chain of pages stands: the root of a tenant, or a registered page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    key: u64,
    serial: u64,
}

impl Chain {
    /// The empty prefix of the tenant with this salt.
    pub fn root(salt: u64) -> Self {
        Self { key: salt, serial: 0 }
    }
}

/// What the index knows of a registered page.
#[derive(Debug, Clone, Copy)]
struct Entry {
    chain: Chain,
    parent: Chain,
}

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Page {
    references: u32,
    entry: Option<Entry>,
    // Links of the reuse list; meaningful while the page has an entry and no references.
    previous: u32,
    next: u32,
}

/// Pages of one pool.
pub struct PagePool {
    page_tokens: usize,
    pages: Vec<Page>,
    // Tokens of registered pages: `page_tokens` a page.
    tokens: Vec<u32>,
    free: Vec<PageId>,
    index: HashMap<u64, PageId>,
    hasher: RandomState,
    reusable_first: u32,
    reusable_last: u32,
    reusable_count: usize,
    serial_next: u64,
    cache: bool,
}

impl PagePool {
    /// A pool of free pages. `cache` says whether full pages are kept for reuse.
    pub fn new(page_count: usize, page_tokens: usize, cache: bool) -> Self {
        let page = Page {
            references: 0,
            entry: None,
            previous: NONE,
            next: NONE,
        };
        Self {
            page_tokens,
            pages: vec![page; page_count],
            tokens: vec![0; if cache { page_count * page_tokens } else { 0 }],
            free: (0..page_count as u32).rev().map(PageId).collect(),
            index: HashMap::with_capacity(if cache { page_count } else { 0 }),
            hasher: RandomState::new(),
            reusable_first: NONE,
            reusable_last: NONE,
            reusable_count: 0,
            serial_next: 1,
            cache,
        }
    }

    /// Whether full pages are kept for reuse.
    pub fn caches(&self) -> bool {
        self.cache
    }

    /// Pages in the pool.
    pub fn total(&self) -> usize {
        self.pages.len()
    }

    /// Pages that no table references but that hold a prefix.
    pub fn reusable(&self) -> usize {
        self.reusable_count
    }

    /// Pages that can be had right now.
    pub fn available(&self) -> usize {
        self.free.len() + self.reusable_count
    }

    /// Pages referenced by tables.
    pub fn used(&self) -> usize {
        self.total() - self.available()
    }

    /// A page for writing: a free one, else the reusable prefix that was used longest ago.
    pub fn take(&mut self) -> Option<PageId> {
        let page = match self.free.pop() {
            Some(page) => page,
            None => {
                if self.reusable_first == NONE {
                    return None;
                }
                let page = PageId(self.reusable_first);
                self.unlink(page);
                self.unregister(page);
                page
            }
        };
        let slot = &mut self.pages[page.0 as usize];
        assert!(
            slot.references == 0 && slot.entry.is_none(),
            "a page given out is in use"
        );
        slot.references = 1;
        Some(page)
    }

    /// The longest registered chain of whole pages over `tokens`, at most `pages_max` of them. Takes a reference to
    /// each and appends it to `table`; the new chain end is returned.
    pub fn lookup(&mut self, salt: u64, tokens: &[u32], pages_max: usize, table: &mut Vec<PageId>) -> Chain {
        let mut chain = Chain::root(salt);
        if !self.cache {
            return chain;
        }
        for block in tokens.chunks_exact(self.page_tokens).take(pages_max) {
            let key = self.key(chain, block);
            let Some((page, entry)) = self.find(key, chain, block) else {
                break;
            };
            self.retain(page);
            table.push(page);
            chain = entry.chain;
        }
        chain
    }

    /// How many pages [`PagePool::lookup`] would find, and how many of them nobody references (these leave
    /// [`PagePool::available`] when taken).
    pub fn peek(&self, salt: u64, tokens: &[u32], pages_max: usize) -> (usize, usize) {
        let (mut chain, mut found, mut idle) = (Chain::root(salt), 0, 0);
        if !self.cache {
            return (0, 0);
        }
        for block in tokens.chunks_exact(self.page_tokens).take(pages_max) {
            let Some((page, entry)) = self.find(self.key(chain, block), chain, block) else {
                break;
            };
            found += 1;
            idle += usize::from(self.pages[page.0 as usize].references == 0);
            chain = entry.chain;
        }
        (found, idle)
    }

    /// Offers `page`, whose positions are all computed, as the continuation of `chain` by `block`. Returns the page to use
    /// from now on, which is the one already registered where there is one (the reference moves to it), and its chain.
    pub fn register(&mut self, page: PageId, chain: Chain, block: &[u32]) -> (PageId, Chain) {
        assert_eq!(block.len(), self.page_tokens, "only whole pages are registered");
        assert!(
            self.pages[page.0 as usize].references > 0,
            "only pages in use are registered"
        );
        if !self.cache {
            return (page, chain);
        }
        let key = self.key(chain, block);
        if let Some((known, entry)) = self.find(key, chain, block) {
            if known != page {
                self.retain(known);
                self.release(page);
            }
            return (known, entry.chain);
        }
        // What holds this key now is another text (a collision) or hangs on a parent that is gone: it makes way.
        if let Some(stale) = self.index.get(&key).copied() {
            self.forget(stale);
        }
        self.unregister(page);
        let own = Chain {
            key,
            serial: self.serial_next,
        };
        self.serial_next += 1;
        let start = page.0 as usize * self.page_tokens;
        self.tokens[start..start + self.page_tokens].copy_from_slice(block);
        self.pages[page.0 as usize].entry = Some(Entry {
            chain: own,
            parent: chain,
        });
        self.index.insert(key, page);
        (page, own)
    }

    /// Gives back one reference. A registered page stays as a reusable prefix.
    pub fn release(&mut self, page: PageId) {
        let slot = &mut self.pages[page.0 as usize];
        assert!(
            slot.references > 0,
            "page {} is released more often than taken",
            page.0
        );
        slot.references -= 1;
        if slot.references > 0 {
            return;
        }
        if slot.entry.is_some() {
            self.link_last(page);
        } else {
            self.free.push(page);
        }
    }

    /// Stops offering `page` for reuse (its contents are doubted, or it makes way).
    pub fn forget(&mut self, page: PageId) {
        let slot = &self.pages[page.0 as usize];
        if slot.entry.is_some() && slot.references == 0 {
            self.unlink(page);
            self.free.push(page);
        }
        self.unregister(page);
    }

    fn key(&self, chain: Chain, block: &[u32]) -> u64 {
        self.hasher.hash_one((chain.key, chain.serial == 0, block))
    }

    fn find(&self, key: u64, parent: Chain, block: &[u32]) -> Option<(PageId, Entry)> {
        let page = *self.index.get(&key)?;
        let entry = self.pages[page.0 as usize].entry?;
        let start = page.0 as usize * self.page_tokens;
        let equal = entry.parent == parent && &self.tokens[start..start + self.page_tokens] == block;
        equal.then_some((page, entry))
    }

    fn retain(&mut self, page: PageId) {
        if self.pages[page.0 as usize].references == 0 {
            self.unlink(page);
        }
        self.pages[page.0 as usize].references += 1;
    }

    fn unregister(&mut self, page: PageId) {
        if let Some(entry) = self.pages[page.0 as usize].entry.take() {
            self.index.remove(&entry.chain.key);
        }
    }

    fn link_last(&mut self, page: PageId) {
        let last = self.reusable_last;
        let slot = &mut self.pages[page.0 as usize];
        slot.previous = last;
        slot.next = NONE;
        match last {
            NONE => self.reusable_first = page.0,
            last => self.pages[last as usize].next = page.0,
        }
        self.reusable_last = page.0;
        self.reusable_count += 1;
    }

    fn unlink(&mut self, page: PageId) {
        let Page { previous, next, .. } = self.pages[page.0 as usize];
        match previous {
            NONE => self.reusable_first = next,
            previous => self.pages[previous as usize].next = next,
        }
        match next {
            NONE => self.reusable_last = previous,
            next => self.pages[next as usize].previous = previous,
        }
        self.reusable_count -= 1;
    }

    /// Checks that every page is in exactly one place and that reference counts equal the tables' references.
    ///
    /// # Errors
    /// Says what does not fit. For tests and the simulator: the cost is that of the whole pool.
    pub fn check_integrity<'a>(&self, tables: impl Iterator<Item = &'a [PageId]>) -> Result<(), String> {
        let mut references = vec![0u32; self.pages.len()];
        for page in tables.flatten() {
            references[page.0 as usize] += 1;
        }
        let mut places = vec![0u32; self.pages.len()];
        for page in &self.free {
            places[page.0 as usize] += 1;
            if self.pages[page.0 as usize].entry.is_some() {
                return Err(format!("free page {} is registered", page.0));
            }
        }
        let (mut at, mut before, mut listed) = (self.reusable_first, NONE, 0);
        while at != NONE {
            let page = &self.pages[at as usize];
            if page.previous != before || page.entry.is_none() || listed > self.pages.len() {
                return Err(format!("the reuse list is broken at page {at}"));
            }
            places[at as usize] += 1;
            (before, at, listed) = (at, page.next, listed + 1);
        }
        if listed != self.reusable_count || before != self.reusable_last {
            return Err(format!(
                "the reuse list holds {listed} pages, {} counted",
                self.reusable_count
            ));
        }
        let mut registered = 0;
        for (number, page) in self.pages.iter().enumerate() {
            if page.references != references[number] {
                let (counted, found) = (page.references, references[number]);
                return Err(format!(
                    "page {number}: {counted} references counted, {found} found"
                ));
            }
            let place_count = places[number] + u32::from(page.references > 0);
            if place_count != 1 {
                return Err(format!("page {number} is in {place_count} places"));
            }
            if let Some(entry) = page.entry {
                registered += 1;
                if self.index.get(&entry.chain.key) != Some(&PageId(number as u32)) {
                    return Err(format!("page {number} is registered but not found by its key"));
                }
            }
        }
        if registered != self.index.len() {
            return Err(format!(
                "{} keys for {registered} registered pages",
                self.index.len()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
