//! What a function's control flow says: where diverged lanes meet again, and which reads may come before writes.

use std::collections::HashMap;

use crate::ir::{Function, Opcode, Slot};

/// Bits of all blocks' register sets together; a larger function has every register watched instead.
const SET_WORDS_MAX: usize = 1 << 22;
const NONE: usize = usize::MAX;

struct Blocks {
    /// First instruction of each block, and the end of the last.
    starts: Vec<usize>,
    /// The block of each instruction.
    of: Vec<usize>,
    /// `starts.len() - 1` stands for the way out.
    next: Vec<Vec<usize>>,
}

/// Fills in the branches' rejoin points and the watched registers.
pub(crate) fn complete(
    function: &mut Function,
    uses: &[(Vec<Slot>, Vec<Slot>)],
    names: &HashMap<Slot, String>,
) {
    let blocks = blocks(function);
    let rejoin = post_dominators(&blocks);
    for (at, instr) in function.code.iter_mut().enumerate() {
        if let Opcode::Branch { rejoin: to, .. } | Opcode::Table { rejoin: to, .. } = &mut instr.op {
            let block = rejoin[blocks.of[at]];
            *to = if block + 1 < blocks.starts.len() {
                blocks.starts[block] as u32
            } else {
                u32::MAX
            };
        }
    }
    watch(function, uses, names, &blocks);
}

fn ends_block(op: &Opcode) -> bool {
    matches!(
        op,
        Opcode::Branch { .. } | Opcode::Table { .. } | Opcode::Return | Opcode::Exit | Opcode::Trap
    )
}

fn targets(op: &Opcode) -> &[u32] {
    match op {
        Opcode::Branch { target, .. } => std::slice::from_ref(target),
        Opcode::Table { targets, .. } => targets,
        _ => &[],
    }
}

fn blocks(function: &Function) -> Blocks {
    let count = function.code.len();
    let mut leader = vec![false; count + 1];
    leader[0] = true;
    for (at, instr) in function.code.iter().enumerate() {
        if ends_block(&instr.op) {
            leader[at + 1] = true;
        }
        for target in targets(&instr.op) {
            leader[*target as usize] = true;
        }
    }
    leader[count] = true;
    let mut of = Vec::with_capacity(count);
    let mut starts = Vec::new();
    for (at, leads) in leader.iter().enumerate() {
        if *leads {
            starts.push(at);
        }
        of.push(starts.len() - 1);
    }
    let out = starts.len() - 1;
    let next = (0..out)
        .map(|block| {
            let last = &function.code[starts[block + 1] - 1];
            let mut next: Vec<usize> = targets(&last.op)
                .iter()
                .map(|target| of[*target as usize])
                .collect();
            if matches!(last.op, Opcode::Return | Opcode::Exit | Opcode::Trap) {
                next.push(out);
            }
            // A table's index may lie outside it; a fault ends that, so no edge stands for it.
            if last.guard.is_some() || !ends_block(&last.op) {
                next.push(block + 1);
            }
            next.sort_unstable();
            next.dedup();
            next
        })
        .collect();
    Blocks { starts, of, next }
}

/// The immediate post-dominator of each block (the way out is one past the last), NONE where the way out is not reached.
/// The usual iteration over dominators (Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm", 2001) on reversed edges.
fn post_dominators(blocks: &Blocks) -> Vec<usize> {
    let out = blocks.next.len();
    let mut before = vec![Vec::new(); out + 1];
    for (block, next) in blocks.next.iter().enumerate() {
        for after in next {
            before[*after].push(block);
        }
    }
    // Post-order of the reversed graph, without recursion.
    let mut number = vec![NONE; out + 1];
    let mut order = Vec::new();
    let mut seen = vec![false; out + 1];
    let mut stack = vec![(out, 0)];
    seen[out] = true;
    while let Some((block, edge)) = stack.pop() {
        if let Some(next) = before[block].get(edge) {
            stack.push((block, edge + 1));
            if !seen[*next] {
                seen[*next] = true;
                stack.push((*next, 0));
            }
        } else {
            number[block] = order.len();
            order.push(block);
        }
    }
    let mut dominator = vec![NONE; out + 1];
    dominator[out] = out;
    loop {
        let mut changed = false;
        for block in order.iter().rev().copied().filter(|block| *block != out) {
            let mut meet = NONE;
            for after in blocks.next[block]
                .iter()
                .copied()
                .filter(|after| dominator[*after] != NONE)
            {
                meet = if meet == NONE {
                    after
                } else {
                    intersect(meet, after, &dominator, &number)
                };
            }
            if meet != dominator[block] {
                dominator[block] = meet;
                changed = true;
            }
        }
        if !changed {
            return dominator
                .into_iter()
                .map(|block| if block == NONE { out } else { block })
                .collect();
        }
    }
}

fn intersect(mut a: usize, mut b: usize, dominator: &[usize], number: &[usize]) -> usize {
    while a != b {
        while number[a] < number[b] {
            a = dominator[a];
        }
        while number[b] < number[a] {
            b = dominator[b];
        }
    }
    a
}

/// Finds the registers that some path reads before it writes them, and marks who reads and who writes them.
fn watch(
    function: &mut Function,
    uses: &[(Vec<Slot>, Vec<Slot>)],
    names: &HashMap<Slot, String>,
    blocks: &Blocks,
) {
    let mut index: HashMap<Slot, usize> = HashMap::new();
    for slot in uses.iter().flat_map(|(reads, writes)| reads.iter().chain(writes)) {
        let next = index.len();
        index.entry(*slot).or_insert(next);
    }
    let words = index.len().div_ceil(64);
    let count = blocks.next.len();
    let small = words.saturating_mul(count) <= SET_WORDS_MAX;
    let entries = if small {
        defined_at_entry(function, uses, &index, blocks, words)
    } else {
        Vec::new()
    };
    let mut watched: HashMap<Slot, u32> = HashMap::new();
    let mut checks: Vec<Vec<Slot>> = vec![Vec::new(); function.code.len()];
    let mut defined = vec![0_u64; words];
    for block in 0..count {
        if let Some(entry) = entries.get(block) {
            defined.copy_from_slice(entry);
        }
        for at in blocks.starts[block]..blocks.starts[block + 1] {
            for slot in &uses[at].0 {
                let bit = index[slot];
                if !small || defined[bit / 64] >> (bit % 64) & 1 == 0 {
                    let next = watched.len() as u32;
                    watched.entry(*slot).or_insert(next);
                    checks[at].push(*slot);
                }
            }
            if small {
                define(function, uses, &index, at, &mut defined);
            }
        }
    }
    let mut list: Vec<(u32, Slot)> = watched.iter().map(|(slot, index)| (*index, *slot)).collect();
    list.sort_unstable_by_key(|(index, _)| *index);
    function.watched = list
        .into_iter()
        .map(|(_, slot)| (slot, names.get(&slot).cloned().unwrap_or_default()))
        .collect();
    for (at, instr) in function.code.iter_mut().enumerate() {
        instr.checks = checks[at].iter().map(|slot| watched[slot]).collect();
        instr.marks = uses[at]
            .1
            .iter()
            .filter_map(|slot| watched.get(slot).copied())
            .collect();
    }
}

/// Adds what the instruction surely writes. A copy of an undefined register stays undefined.
fn define(
    function: &Function,
    uses: &[(Vec<Slot>, Vec<Slot>)],
    index: &HashMap<Slot, usize>,
    at: usize,
    defined: &mut [u64],
) {
    let instr = &function.code[at];
    let (reads, writes) = &uses[at];
    let has = |defined: &[u64], slot: &Slot| defined[index[slot] / 64] >> (index[slot] % 64) & 1 != 0;
    let copy = matches!(instr.op, Opcode::Mov32(..) | Opcode::Mov64(..));
    if instr.guard.is_some() || copy && reads.iter().any(|slot| !has(defined, slot)) {
        return;
    }
    for slot in writes {
        defined[index[slot] / 64] |= 1 << (index[slot] % 64);
    }
}

fn defined_at_entry(
    function: &Function,
    uses: &[(Vec<Slot>, Vec<Slot>)],
    index: &HashMap<Slot, usize>,
    blocks: &Blocks,
    words: usize,
) -> Vec<Vec<u64>> {
    let count = blocks.next.len();
    let mut entry = vec![vec![u64::MAX; words]; count];
    entry[0].fill(0);
    let mut waiting = vec![true; count];
    let mut queue: std::collections::VecDeque<usize> = (0..count).collect();
    while let Some(block) = queue.pop_front() {
        waiting[block] = false;
        let mut defined = entry[block].clone();
        for at in blocks.starts[block]..blocks.starts[block + 1] {
            define(function, uses, index, at, &mut defined);
        }
        for next in blocks.next[block].iter().copied().filter(|next| *next < count) {
            let mut changed = false;
            for (have, more) in entry[next].iter_mut().zip(&defined) {
                changed |= *have & !more != 0;
                *have &= more;
            }
            if changed && !waiting[next] {
                waiting[next] = true;
                queue.push_back(next);
            }
        }
    }
    entry
}
