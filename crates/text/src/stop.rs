//! Stop strings in a stream of text.

/// What came of a piece of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopStep {
    /// Text that is certainly not part of a stop string.
    pub emit: String,
    /// Which stop string was found, by its place in the list. Nothing comes after it.
    pub hit: Option<usize>,
}

/// Finds the first stop string, holding back only text that may still become one.
///
/// The result does not depend on how the text is cut. Where several stop strings match, the one that *ends* first wins, and
/// of those the longest (it starts first).
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// For each stop string its failure table (Knuth, Morris, Pratt, 1977).
    tables: Vec<Vec<usize>>,
    /// For each stop string the bytes matched so far.
    matched: Vec<usize>,
    held: String,
    hit: Option<usize>,
}

impl StopMatcher {
    /// A matcher for these strings; empty ones never match.
    pub fn new(stops: Vec<String>) -> Self {
        let tables = stops.iter().map(|s| failure_table(s.as_bytes())).collect();
        let matched = vec![0; stops.len()];
        Self {
            stops,
            tables,
            matched,
            held: String::new(),
            hit: None,
        }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.hit.is_some() {
            return StopStep {
                emit: String::new(),
                hit: self.hit,
            };
        }
        if self.stops.is_empty() {
            return StopStep {
                emit: text.to_owned(),
                hit: None,
            };
        }
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            if let Some(hit) = self.advance(byte) {
                self.hit = Some(hit);
                self.held.push_str(&text[..=at]);
                self.held.truncate(self.held.len() - self.stops[hit].len());
                return StopStep {
                    emit: std::mem::take(&mut self.held),
                    hit: self.hit,
                };
            }
        }
        self.held.push_str(text);
        let keep = self.matched.iter().copied().max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        StopStep {
            emit: std::mem::replace(&mut self.held, rest),
            hit: None,
        }
    }

    /// The end of the text: what was held back, as no stop string came of it.
    pub fn finish(&mut self) -> String {
        self.matched.fill(0);
        std::mem::take(&mut self.held)
    }

    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut hit: Option<usize> = None;
        for (i, stop) in self.stops.iter().enumerate() {
            let stop = stop.as_bytes();
            if stop.is_empty() {
                continue;
            }
            let mut k = self.matched[i];
            while k > 0 && stop[k] != byte {
                k = self.tables[i][k - 1];
            }
            if stop[k] == byte {
                k += 1;
            }
            self.matched[i] = k;
            if k == stop.len() && hit.is_none_or(|h| self.stops[h].len() < stop.len()) {
                hit = Some(i);
            }
        }
        hit
    }
}

/// `table[i]`: length of the longest proper prefix of `s[..=i]` that is also its suffix.
fn failure_table(s: &[u8]) -> Vec<usize> {
    let mut table = vec![0; s.len()];
    let mut k = 0;
    for i in 1..s.len() {
        while k > 0 && s[i] != s[k] {
            k = table[k - 1];
        }
        if s[i] == s[k] {
            k += 1;
        }
        table[i] = k;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| s.to_string()).collect());
        let mut out = String::new();
        for piece in pieces {
            let step = matcher.push(piece);
            out.push_str(&step.emit);
            for stop in stops.iter().filter(|s| !s.is_empty()) {
                assert!(!out.contains(stop), "{out:?} shows {stop:?}");
            }
            if step.hit.is_some() {
                return (out, step.hit);
            }
        }
        out.push_str(&matcher.finish());
        (out, None)
    }

    #[test]
    fn table() {
        let cases: [(&[&str], &str, &str, Option<usize>); 9] = [
            (&["een bl"], "red green blue pink", "red gr", Some(0)),
            (&[], "abc", "abc", None),
            (&[""], "abc", "abc", None),
            (&["x", "c"], "abc", "ab", Some(1)),
            (&["bc", "abcd", "abc"], "xabcd", "x", Some(2)),
            (&["aab"], "aaab", "a", Some(0)),
            (&["\u{1f638}!"], "ok \u{1f638}?", "ok \u{1f638}?", None),
            (&["\u{1f638}!"], "ok \u{1f638}!", "ok ", Some(0)),
            (&["abc"], "ab", "ab", None),
        ];
        for (stops, text, want, hit) in cases {
            assert_eq!(run(stops, [text]), (want.to_owned(), hit), "{stops:?} {text:?}");
            let chars: Vec<String> = text.chars().map(String::from).collect();
            assert_eq!(
                run(stops, chars.iter().map(String::as_str)),
                (want.to_owned(), hit),
                "{stops:?} {text:?} by character"
            );
        }
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(text in "[ab\u{e9}]{0,24}", stops in proptest::collection::vec("[ab\u{e9}]{0,4}", 0..4), cut in 0usize..25) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let cut = text.char_indices().map(|c| c.0).chain([text.len()]).nth(cut.min(text.chars().count())).expect("a border");
            let whole = run(&stops, [text.as_str()]);
            prop_assert_eq!(&run(&stops, [&text[..cut], &text[cut..]]), &whole);
            // Against the plain definition: the stop that ends first, and of those the longest.
            let first = stops.iter().enumerate().filter(|s| !s.1.is_empty())
                .filter_map(|(i, s)| text.find(s).map(|at| (at + s.len(), at, i))).min();
            let want = first.map_or((text.clone(), None), |(_, at, i)| (text[..at].to_owned(), Some(i)));
            prop_assert_eq!(whole.0, want.0);
            prop_assert_eq!(whole.1.map(|h| stops[h]), want.1.map(|h| stops[h]));
        }
    }
}
