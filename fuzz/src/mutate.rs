//! Making new inputs out of old ones.

/// A small seeded generator (splitmix64): the same seed gives the same inputs everywhere.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end`, which is at least 1.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Longest input made.
const INPUT_BYTES_MAX: usize = 1 << 16;

/// Numbers at which readers go wrong.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    7,
    31,
    32,
    33,
    255,
    256,
    65_535,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// A mutation of one of `corpus`, by one to eight small steps.
pub fn mutate(corpus: &[Vec<u8>], dictionary: &[&[u8]], rng: &mut Rng) -> Vec<u8> {
    let mut input = corpus[rng.below(corpus.len())].clone();
    for _ in 0..=rng.below(8) {
        step(&mut input, corpus, dictionary, rng);
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

fn step(input: &mut Vec<u8>, corpus: &[Vec<u8>], dictionary: &[&[u8]], rng: &mut Rng) {
    if input.is_empty() {
        input.push(rng.next() as u8);
        return;
    }
    let at = rng.below(input.len());
    match rng.below(12) {
        0 | 1 => input[at] ^= 1 << rng.below(8),
        2 => input[at] = rng.next() as u8,
        3 => input[at] = input[at].wrapping_add(rng.below(9) as u8).wrapping_sub(4),
        4 => {
            let edge = EDGES[rng.below(EDGES.len())]
                .wrapping_add(rng.below(3) as u64)
                .wrapping_sub(1);
            let width = 1 << rng.below(4);
            let end = (at + width).min(input.len());
            input[at..end].copy_from_slice(&edge.to_le_bytes()[..end - at]);
        }
        5 => input.truncate(at),
        6 => {
            let end = at + rng.below((input.len() - at).min(64)) + 1;
            input.drain(at..end.min(input.len()));
        }
        7 => {
            let end = at + rng.below((input.len() - at).min(256)) + 1;
            let piece = input[at..end.min(input.len())].to_vec();
            let to = rng.below(input.len() + 1);
            input.splice(to..to, piece);
        }
        8 => {
            let other = &corpus[rng.below(corpus.len())];
            let start = rng.below(other.len() + 1);
            let piece = other[start..].iter().take(rng.below(512)).copied();
            let piece: Vec<u8> = piece.collect();
            let end = at + rng.below(input.len() - at + 1);
            input.splice(at..end, piece);
        }
        9 => {
            let text = EDGES[rng.below(EDGES.len())].to_string();
            input.splice(at..at, text.into_bytes());
        }
        _ if dictionary.is_empty() => input[at] = !input[at],
        _ => {
            let word = dictionary[rng.below(dictionary.len())];
            let end = if rng.below(2) == 0 {
                at
            } else {
                (at + word.len()).min(input.len())
            };
            input.splice(at..end, word.iter().copied());
        }
    }
}
