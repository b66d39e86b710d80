//! Tokens that are matched as text before any pre-tokenising: control tokens such as `<|im_end|>` and tokens that the
//! vocabulary's maker added, such as `<tool_call>` or runs of blanks. A byte trie finds the leftmost longest match.

use std::ops::Range;

/// One token that is matched as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marker {
    pub text: String,
    pub id: u32,
    /// Swallows blanks to its left or right (a flag of tokenizer.json).
    pub strip_left: bool,
    pub strip_right: bool,
    /// Matches only where no letter, digit or `_` touches it.
    pub single_word: bool,
}

impl Marker {
    /// Made of blanks only: it cannot act as markup, so it is matched in plain text as well. Vocabularies such as Gemma's
    /// rely on it for line breaks and indentation.
    pub fn is_blank(&self) -> bool {
        self.text.chars().all(|c| c.is_whitespace() || c == '\u{2581}')
    }
}

/// Where a marker was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub range: Range<usize>,
    pub id: u32,
}

#[derive(Debug, Clone, Default)]
struct Node {
    /// Sorted by byte.
    next: Vec<(u8, u32)>,
    /// Index of the marker that ends here.
    marker: Option<u32>,
}

/// A set of markers.
#[derive(Debug, Clone)]
pub(crate) struct Markers {
    list: Vec<Marker>,
    nodes: Vec<Node>,
}

impl Markers {
    pub fn new(list: impl IntoIterator<Item = Marker>) -> Self {
        let mut set = Self {
            list: Vec::new(),
            nodes: vec![Node::default()],
        };
        for marker in list {
            if !marker.text.is_empty() {
                set.insert(marker);
            }
        }
        set
    }

    pub fn list(&self) -> &[Marker] {
        &self.list
    }

    fn insert(&mut self, marker: Marker) {
        let mut node = 0;
        for &byte in marker.text.as_bytes() {
            node = match self.nodes[node].next.binary_search_by_key(&byte, |e| e.0) {
                Ok(at) => self.nodes[node].next[at].1 as usize,
                Err(at) => {
                    let new = self.nodes.len();
                    self.nodes.push(Node::default());
                    self.nodes[node].next.insert(at, (byte, new as u32));
                    new
                }
            };
        }
        // The first of equal texts wins, as it has the lower id.
        if self.nodes[node].marker.is_none() {
            self.nodes[node].marker = Some(self.list.len() as u32);
            self.list.push(marker);
        }
    }

    fn step(&self, node: usize, byte: u8) -> Option<usize> {
        let next = &self.nodes[node].next;
        next.binary_search_by_key(&byte, |e| e.0)
            .ok()
            .map(|at| next[at].1 as usize)
    }

    /// The markers that start at `at`, shortest first.
    fn starting_at<'a>(&'a self, text: &'a str, at: usize) -> impl Iterator<Item = &'a Marker> {
        let mut node = Some(0);
        text.as_bytes()[at..]
            .iter()
            .map_while(move |&byte| {
                node = self.step(node?, byte);
                node.map(|n| self.nodes[n].marker)
            })
            .flatten()
            .map(|m| &self.list[m as usize])
    }

    /// Whether a marker starts at `at`, or `text[at..]` is the beginning of one.
    pub fn starts_or_may_start(&self, text: &str, at: usize) -> bool {
        let mut node = 0;
        for &byte in &text.as_bytes()[at..] {
            match self.step(node, byte) {
                None => return false,
                Some(n) if self.nodes[n].marker.is_some() => return true,
                Some(n) => node = n,
            }
        }
        node != 0
    }

    /// Finds matches from left to right, longest first, that do not overlap and for which `accept` holds.
    pub fn find(&self, text: &str, accept: impl Fn(&Marker, &Range<usize>) -> bool) -> Vec<Found> {
        let mut found: Vec<Found> = Vec::new();
        let mut free = 0; // end of the last match
        let mut at = 0;
        while at < text.len() {
            let best = self
                .starting_at(text, at)
                .filter(|m| {
                    let range = at..at + m.text.len();
                    (!m.single_word || stands_alone(text, &range)) && accept(m, &range)
                })
                .last();
            let Some(marker) = best else {
                at += 1;
                continue;
            };
            let mut range = at..at + marker.text.len();
            if marker.strip_left {
                range.start = free + text[free..range.start].trim_end().len();
            }
            if marker.strip_right {
                range.end = text.len() - text[range.end..].trim_start().len();
            }
            (free, at) = (range.end, range.end);
            found.push(Found { range, id: marker.id });
        }
        found
    }
}

fn stands_alone(text: &str, range: &Range<usize>) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..range.start].chars().next_back().is_some_and(word)
        && !text[range.end..].chars().next().is_some_and(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text, and start, end and id of what is found in it.
    type Case = (&'static str, &'static [(usize, usize, u32)]);

    fn marker(text: &str, id: u32) -> Marker {
        Marker {
            text: text.into(),
            id,
            strip_left: false,
            strip_right: false,
            single_word: false,
        }
    }

    #[test]
    fn leftmost_longest() {
        let set = Markers::new([
            marker("<a>", 1),
            marker("<a>b", 2),
            marker("a", 3),
            marker("<a>", 9),
        ]);
        let cases: [Case; 5] = [
            ("", &[]),
            ("<a>", &[(0, 3, 1)]),
            ("<a>b<a>", &[(0, 4, 2), (4, 7, 1)]),
            ("<<a", &[(2, 3, 3)]),
            ("\u{e9}<a>\u{e9}", &[(2, 5, 1)]),
        ];
        for (text, want) in cases {
            let got: Vec<_> = set
                .find(text, |_, _| true)
                .iter()
                .map(|f| (f.range.start, f.range.end, f.id))
                .collect();
            assert_eq!(got, want, "{text:?}");
        }
    }

    #[test]
    fn flags() {
        let set = Markers::new([
            Marker {
                strip_left: true,
                ..marker("<l>", 1)
            },
            Marker {
                strip_right: true,
                ..marker("<r>", 2)
            },
            Marker {
                single_word: true,
                ..marker("w", 3)
            },
        ]);
        let cases: [Case; 4] = [
            ("a  <l> b", &[(1, 6, 1)]),
            ("a <r>  b", &[(2, 7, 2)]),
            ("w aw w_ w", &[(0, 1, 3), (8, 9, 3)]),
            ("<r>  <l>", &[(0, 5, 2), (5, 8, 1)]),
        ];
        for (text, want) in cases {
            let got: Vec<_> = set
                .find(text, |_, _| true)
                .iter()
                .map(|f| (f.range.start, f.range.end, f.id))
                .collect();
            assert_eq!(got, want, "{text:?}");
        }
    }

    #[test]
    fn beginnings() {
        let set = Markers::new([marker("<ab>", 1)]);
        for (text, at, want) in [
            ("x<ab>y", 1, true),
            ("x<a", 1, true),
            ("x<ac", 1, false),
            ("x<", 1, true),
            ("xy", 1, false),
        ] {
            assert_eq!(set.starts_or_may_start(text, at), want, "{text:?}");
        }
    }
}
