//! SentencePiece's byte-pair model ("llama" in GGUF files): merge the neighbours whose union has the best score, until none
//! has one; what is left and is no token becomes bytes.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// Marks a blank inside the vocabulary.
const BLANK: &str = "\u{2581}";

/// The model.
pub(super) struct Spm {
    /// Id and score of each token that text may spell.
    pub tokens: HashMap<Box<str>, (u32, f32)>,
    /// Tokens of single bytes.
    pub bytes: Box<[Option<u32>; 256]>,
    pub unk: Option<u32>,
    /// Whether each text gets a blank before it.
    pub blank_first: bool,
}

/// A run of characters: a node in a list that shrinks as neighbours merge.
struct Symbol {
    start: usize,
    end: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that would make a token.
#[derive(PartialEq)]
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of the union: a candidate whose parts have changed since has another.
    len: usize,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    /// Best score first; of equal ones the leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score
            .total_cmp(&other.score)
            .then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Spm {
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let blank = if self.blank_first { BLANK } else { "" };
        let text = format!("{blank}{}", text.replace(' ', BLANK));
        let mut symbols = symbols(&text);
        let mut queue = BinaryHeap::new();
        for left in 1..symbols.len() {
            self.propose(&text, &symbols, left - 1, left, &mut queue);
        }
        while let Some(best) = queue.pop() {
            let (left, right) = (best.left, best.right);
            let gone = |s: &Symbol| s.start == s.end;
            if gone(&symbols[left])
                || gone(&symbols[right])
                || symbols[right].end - symbols[left].start != best.len
            {
                continue;
            }
            symbols[left].end = symbols[right].end;
            symbols[right].start = symbols[right].end;
            let next = symbols[right].next;
            symbols[left].next = next;
            if let Some(next) = next {
                symbols[next].prev = Some(left);
                self.propose(&text, &symbols, left, next, &mut queue);
            }
            if let Some(prev) = symbols[left].prev {
                self.propose(&text, &symbols, prev, left, &mut queue);
            }
        }
        let mut at = Some(0);
        while let Some(i) = at {
            self.emit(&text[symbols[i].start..symbols[i].end], ids);
            at = symbols[i].next;
        }
    }

    fn propose(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: usize,
        right: usize,
        queue: &mut BinaryHeap<Candidate>,
    ) {
        let union = &text[symbols[left].start..symbols[right].end];
        if let Some(&(_, score)) = self.tokens.get(union) {
            queue.push(Candidate {
                score,
                left,
                right,
                len: union.len(),
            });
        }
    }

    /// A run that no merge could grow: a token, or else its bytes. (Only single characters can fail to be tokens, since every
    /// merge makes one.)
    fn emit(&self, run: &str, ids: &mut Vec<u32>) {
        if let Some(&(id, _)) = self.tokens.get(run) {
            ids.push(id);
            return;
        }
        for byte in run.bytes() {
            ids.extend(self.bytes[byte as usize].or(self.unk));
        }
    }
}

/// One symbol a character, linked in order.
fn symbols(text: &str) -> Vec<Symbol> {
    let count = text.chars().count();
    text.char_indices()
        .enumerate()
        .map(|(i, (start, c))| Symbol {
            start,
            end: start + c.len_utf8(),
            prev: i.checked_sub(1),
            next: (i + 1 < count).then_some(i + 1),
        })
        .collect()
}
