//! Finding tags in a stream.

/// What a search found.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum Scan {
    /// A tag, and which.
    Found { at: usize, tag: usize },
    /// No tag. The text before `safe` cannot be part of one; what follows may still become one.
    Clear { safe: usize },
}

/// Looks for the first of several tags.
pub(super) fn scan(text: &str, tags: &[&str]) -> Scan {
    // Every tag starts with the same character: jump from one to the next.
    let first = tags.first().and_then(|t| t.chars().next()).unwrap_or('<');
    for (at, _) in text.match_indices(first) {
        let rest = &text[at..];
        if let Some(tag) = tags.iter().position(|t| rest.starts_with(t)) {
            return Scan::Found { at, tag };
        }
        if tags.iter().any(|t| t.starts_with(rest)) {
            return Scan::Clear { safe: at };
        }
    }
    Scan::Clear { safe: text.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let cases = [
            ("abc", Scan::Clear { safe: 3 }),
            ("ab<", Scan::Clear { safe: 2 }),
            ("ab<</a", Scan::Clear { safe: 3 }),
            ("ab<x</a>", Scan::Found { at: 4, tag: 0 }),
            ("<b><", Scan::Found { at: 0, tag: 1 }),
            ("", Scan::Clear { safe: 0 }),
        ];
        for (text, want) in cases {
            assert_eq!(scan(text, &["</a>", "<b>"]), want, "{text}");
        }
    }
}
