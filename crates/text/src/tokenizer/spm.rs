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
///
/// Places are 32-bit: a text of several MB has a symbol for each character, and a candidate for most.
struct Symbol {
    start: u32,
    end: u32,
    /// [`NONE`] at the beginning.
    prev: u32,
    /// [`NONE`] at the end.
    next: u32,
}

const NONE: u32 = u32::MAX;

impl Symbol {
    fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Two neighbours that would make a token.
#[derive(PartialEq)]
struct Candidate {
    score: f32,
    left: u32,
    right: u32,
    /// Bytes of the union: a candidate whose parts have changed since has another.
    len: u32,
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
        for left in 1..symbols.len() as u32 {
            self.propose(&text, &symbols, left - 1, left, &mut queue);
        }
        while let Some(best) = queue.pop() {
            let (left, right) = (best.left as usize, best.right as usize);
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
            if next != NONE {
                symbols[next as usize].prev = best.left;
                self.propose(&text, &symbols, best.left, next, &mut queue);
            }
            let prev = symbols[left].prev;
            if prev != NONE {
                self.propose(&text, &symbols, prev, best.left, &mut queue);
            }
        }
        let mut at = 0;
        while at != NONE {
            let symbol = &symbols[at as usize];
            self.emit(&text[symbol.range()], ids);
            at = symbol.next;
        }
    }

    fn propose(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: u32,
        right: u32,
        queue: &mut BinaryHeap<Candidate>,
    ) {
        let (start, end) = (symbols[left as usize].start, symbols[right as usize].end);
        if let Some(&(_, score)) = self.tokens.get(&text[start as usize..end as usize]) {
            queue.push(Candidate {
                score,
                left,
                right,
                len: end - start,
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

/// One symbol a character, linked in order. Texts are of less than 4 GiB, which no request and no template comes near.
fn symbols(text: &str) -> Vec<Symbol> {
    let count = text.chars().count();
    let place = |at: usize| u32::try_from(at).expect("a text of less than 4 GiB");
    text.char_indices()
        .enumerate()
        .map(|(i, (start, c))| Symbol {
            start: place(start),
            end: place(start + c.len_utf8()),
            prev: i.checked_sub(1).map_or(NONE, place),
            next: Some(i + 1).filter(|next| *next < count).map_or(NONE, place),
        })
        .collect()
}
