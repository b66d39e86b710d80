use super::*;
use proptest::prelude::*;

const PAGE: usize = 4;

fn block(first: u32) -> Vec<u32> {
    (first..first + PAGE as u32).collect()
}

/// Registers `tokens` (whole pages) and releases them again.
fn remember(pool: &mut PagePool, salt: u64, tokens: &[u32]) -> Vec<PageId> {
    let mut table = Vec::new();
    let mut chain = Chain::root(salt);
    for block in tokens.chunks_exact(PAGE) {
        let page = pool.take().unwrap();
        let (page, next) = pool.register(page, chain, block);
        table.push(page);
        chain = next;
    }
    for page in table.iter().rev() {
        pool.release(*page);
    }
    table
}

fn found(pool: &PagePool, salt: u64, tokens: &[u32]) -> usize {
    pool.peek(salt, tokens, usize::MAX).0
}

#[test]
fn a_prefix_is_found_by_whole_pages_and_salt() {
    let mut pool = PagePool::new(8, PAGE, true);
    let text: Vec<u32> = (0..12).collect();
    let pages = remember(&mut pool, 1, &text);
    for (tokens, salt, wanted) in [
        (&text[..], 1, 3),
        (&text[..11], 1, 2),
        (&text[..4], 1, 1),
        (&text[..3], 1, 0),
        (&text[4..], 1, 0),
        (&text[..], 2, 0),
    ] {
        assert_eq!(found(&pool, salt, tokens), wanted, "{tokens:?} salt {salt}");
    }
    let mut table = Vec::new();
    pool.lookup(1, &text, 2, &mut table);
    assert_eq!(table, pages[..2]);
    assert_eq!((pool.used(), pool.reusable(), pool.available()), (2, 1, 6));
    pool.check_integrity([&table[..]].into_iter()).unwrap();
}

#[test]
fn without_a_cache_nothing_is_kept() {
    let mut pool = PagePool::new(4, PAGE, false);
    remember(&mut pool, 0, &block(0));
    assert_eq!((found(&pool, 0, &block(0)), pool.reusable()), (0, 0));
    pool.check_integrity(std::iter::empty()).unwrap();
}

#[test]
fn the_longest_unused_prefix_goes_first_and_children_before_parents() {
    let mut pool = PagePool::new(4, PAGE, true);
    let old: Vec<u32> = (0..8).collect();
    remember(&mut pool, 0, &old);
    remember(&mut pool, 0, &block(100));
    assert_eq!(pool.free.len(), 1);
    let first = pool.take().unwrap();
    let second = pool.take().unwrap();
    // The old text's second page went; its first and the newer one are still there.
    assert_eq!((found(&pool, 0, &old), found(&pool, 0, &block(100))), (1, 1));
    let third = pool.take().unwrap();
    assert_eq!((found(&pool, 0, &old), found(&pool, 0, &block(100))), (0, 1));
    let fourth = pool.take().unwrap();
    assert_eq!(pool.take(), None);
    let table = [first, second, third, fourth];
    pool.check_integrity([&table[..]].into_iter()).unwrap();
}

#[test]
fn equal_pages_are_merged() {
    let mut pool = PagePool::new(4, PAGE, true);
    let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
    let (kept, chain) = pool.register(a, Chain::root(0), &block(0));
    let (merged, same) = pool.register(b, Chain::root(0), &block(0));
    assert_eq!((kept, merged, chain == same), (a, a, true));
    let table = [a, a];
    assert_eq!(pool.used(), 1);
    pool.check_integrity([&table[..]].into_iter()).unwrap();
}

#[test]
fn a_child_of_a_lost_parent_is_never_found() {
    let mut pool = PagePool::new(8, PAGE, true);
    let text: Vec<u32> = (0..8).collect();
    let pages = remember(&mut pool, 0, &text);
    pool.forget(pages[0]);
    assert_eq!(found(&pool, 0, &text), 0);
    // The parent comes back under a new serial number: the old child does not fit it, and makes way for a new one.
    remember(&mut pool, 0, &text[..4]);
    assert_eq!(found(&pool, 0, &text), 1);
    remember(&mut pool, 0, &text);
    assert_eq!(found(&pool, 0, &text), 2);
    pool.check_integrity(std::iter::empty()).unwrap();
}

#[test]
fn a_hash_collision_is_a_miss() {
    let mut pool = PagePool::new(4, PAGE, true);
    let page = remember(&mut pool, 0, &block(0))[0];
    // Force the other text's key onto this page.
    let other = pool.key(Chain::root(0), &block(50));
    let mut entry = pool.pages[page.0 as usize].entry.unwrap();
    pool.index.clear();
    entry.chain.key = other;
    pool.pages[page.0 as usize].entry = Some(entry);
    pool.index.insert(other, page);
    assert_eq!(found(&pool, 0, &block(50)), 0);
    let taken = remember(&mut pool, 0, &block(50));
    assert_eq!(taken.len(), 1);
    assert_eq!(found(&pool, 0, &block(50)), 1);
    pool.check_integrity(std::iter::empty()).unwrap();
}

#[test]
fn faults_are_seen() {
    let mut pool = PagePool::new(4, PAGE, true);
    let page = pool.take().unwrap();
    assert!(
        pool.check_integrity(std::iter::empty())
            .unwrap_err()
            .contains("references")
    );
    pool.free.push(page);
    let table = [page];
    assert!(
        pool.check_integrity([&table[..]].into_iter())
            .unwrap_err()
            .contains("places")
    );
}

proptest! {
    /// Random takes, registrations, releases and lookups keep every page in one place, and hits tell the truth.
    #[test]
    fn pages_stay_in_one_place(actions in proptest::collection::vec((0u8..4, 0u32..6), 1..120)) {
        let mut pool = PagePool::new(6, PAGE, true);
        let mut tables: Vec<Vec<PageId>> = Vec::new();
        let mut contents: HashMap<PageId, Vec<u32>> = HashMap::new();
        for (action, number) in actions {
            match action {
                0 | 1 => {
                    let tokens: Vec<u32> = (0..12).map(|i| number * u32::from(i >= 4) + i).collect();
                    let mut table = Vec::new();
                    let mut chain = pool.lookup(0, &tokens, 2, &mut table);
                    for (at, page) in table.iter().enumerate() {
                        prop_assert_eq!(&contents[page][..], &tokens[at * PAGE..(at + 1) * PAGE]);
                    }
                    while table.len() < 3 {
                        let Some(page) = pool.take() else { break };
                        let block = &tokens[table.len() * PAGE..][..PAGE];
                        contents.insert(page, block.to_vec());
                        let (page, next) = pool.register(page, chain, block);
                        chain = next;
                        table.push(page);
                    }
                    tables.push(table);
                }
                2 if !tables.is_empty() => {
                    for page in tables.swap_remove(number as usize % tables.len()).iter().rev() {
                        pool.release(*page);
                    }
                }
                _ => pool.forget(PageId(number)),
            }
            prop_assert_eq!(pool.check_integrity(tables.iter().map(|t| &t[..])), Ok(()));
        }
        for table in tables.drain(..) {
            table.into_iter().for_each(|page| pool.release(page));
        }
        prop_assert_eq!(pool.used(), 0);
    }
}
