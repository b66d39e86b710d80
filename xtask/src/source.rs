//! Rust source as tidy sees it: comments and literals blanked out, braces counted.

/// The source with the insides of comments, strings and character literals replaced by blanks. Lines and columns stay.
pub fn blank(source: &str) -> String {
    let bytes: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut i = 0;
    while i < bytes.len() {
        let end = literal_end(&bytes, i);
        if end > i {
            for &c in &bytes[i..end] {
                out.push(if c == '\n' { '\n' } else { ' ' });
            }
            i = end;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    out
}

/// End of the comment or literal that starts at `i`; `i` itself when none does.
fn literal_end(text: &[char], i: usize) -> usize {
    let at = |k: usize| text.get(i + k).copied().unwrap_or('\0');
    let word_before = i > 0 && (text[i - 1].is_alphanumeric() || text[i - 1] == '_');
    match at(0) {
        '/' if at(1) == '/' => find(text, i, |k| text[k] == '\n'),
        '/' if at(1) == '*' => block_comment_end(text, i),
        '"' => string_end(text, i + 1),
        'b' | 'c' if at(1) == '"' && !word_before => string_end(text, i + 2),
        'r' | 'b' if !word_before && is_raw(text, i) => raw_end(text, i),
        '\'' if at(1) == '\\' => find(text, i + 3, |k| text[k] == '\'') + 1,
        '\'' if at(2) == '\'' => i + 3,
        _ => i,
    }
}

fn find(text: &[char], from: usize, is: impl Fn(usize) -> bool) -> usize {
    (from..text.len()).find(|&k| is(k)).unwrap_or(text.len())
}

fn block_comment_end(text: &[char], i: usize) -> usize {
    let mut depth = 0;
    let mut k = i;
    while k < text.len() {
        match (text[k], text.get(k + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                k += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                k += 2;
                if depth == 0 {
                    return k;
                }
            }
            _ => k += 1,
        }
    }
    text.len()
}

fn string_end(text: &[char], mut k: usize) -> usize {
    while k < text.len() {
        match text[k] {
            '\\' => k += 2,
            '"' => return k + 1,
            _ => k += 1,
        }
    }
    text.len()
}

fn is_raw(text: &[char], i: usize) -> bool {
    let mut k = if text[i] == 'b' { i + 1 } else { i };
    if text.get(k) != Some(&'r') {
        return false;
    }
    k += 1;
    while text.get(k) == Some(&'#') {
        k += 1;
    }
    text.get(k) == Some(&'"')
}

fn raw_end(text: &[char], i: usize) -> usize {
    let quote = find(text, i, |k| text[k] == '"');
    let hashes = text[i..quote].iter().filter(|c| **c == '#').count();
    let closes = |k: usize| text[k] == '"' && (1..=hashes).all(|h| text.get(k + h) == Some(&'#'));
    (find(text, quote + 1, closes) + 1 + hashes).min(text.len())
}

/// The line of a byte offset, from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// Offset just behind the brace that closes the one at `open`.
pub fn closing(text: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (k, c) in text[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return open + k + 1;
                }
            }
            _ => {}
        }
    }
    text.len()
}

/// Offsets at which `word` stands as a word of its own.
pub fn words<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = usize> + 't {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        !part(text[..at].chars().next_back()) && !part(text[at + word.len()..].chars().next())
    })
}

/// Functions with bodies: name, line of `fn`, lines of the whole.
pub fn functions(blanked: &str) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for at in words(blanked, "fn") {
        let rest = &blanked[at + 2..];
        let name: String = rest
            .trim_start()
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        let Some(stop) = rest.find(['{', ';']) else {
            continue;
        };
        if name.is_empty() || rest[stop..].starts_with(';') {
            continue;
        }
        let open = at + 2 + stop;
        let (first, last) = (line_of(blanked, at), line_of(blanked, closing(blanked, open)));
        found.push((name, first, last - first + 1));
    }
    found
}

/// Matches: line, and the patterns of their arms.
pub fn matches(blanked: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    for at in words(blanked, "match") {
        let Some(open) = head_end(blanked, at) else {
            continue;
        };
        let body = &blanked[open + 1..closing(blanked, open).saturating_sub(1).max(open + 1)];
        found.push((line_of(blanked, at), arms(body)));
    }
    found
}

/// The brace that opens a match's body: the first outside parentheses and brackets.
fn head_end(text: &str, at: usize) -> Option<usize> {
    let mut depth = 0i32;
    for (k, c) in text[at..].char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(at + k),
            ';' if depth == 0 => return None,
            _ => {}
        }
        if depth < 0 {
            return None;
        }
    }
    None
}

/// The patterns of a match's body: text before each `=>` at depth 0.
fn arms(body: &str) -> Vec<String> {
    let mut patterns = Vec::new();
    let mut pattern = String::new();
    let mut in_pattern = true;
    let mut depth = 0i32;
    let chars: Vec<char> = body.chars().collect();
    let mut k = 0;
    while k < chars.len() {
        let c = chars[k];
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth -= 1;
                // An arm whose body is a block needs no comma.
                if depth == 0 && c == '}' && !in_pattern && !continues(&chars[k + 1..]) {
                    in_pattern = true;
                    pattern.clear();
                    k += 1;
                    continue;
                }
            }
            ',' if depth == 0 && !in_pattern => {
                in_pattern = true;
                pattern.clear();
                k += 1;
                continue;
            }
            '=' if depth == 0 && in_pattern && chars.get(k + 1) == Some(&'>') => {
                patterns.push(pattern.trim().trim_start_matches(',').trim().to_owned());
                in_pattern = false;
                k += 2;
                continue;
            }
            _ => {}
        }
        if in_pattern {
            pattern.push(c);
        }
        k += 1;
    }
    patterns
}

/// Whether an expression goes on behind a closing brace.
fn continues(rest: &[char]) -> bool {
    rest.iter()
        .find(|c| !c.is_whitespace())
        .is_some_and(|c| matches!(c, '.' | '?' | ')' | '+' | '*'))
        || rest.iter().collect::<String>().trim_start().starts_with("else")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_become_blanks() {
        let cases = [
            ("a // b\nc", "a     \nc"),
            ("x /* { /* } */ */ y", "x                 y"),
            (r#"f("{\"}", '{')"#, "f(      ,    )"),
            ("r#\"}\"# z", "         z".trim_start_matches(' ')),
            ("'a: loop", "'a: loop"),
        ];
        for (source, want) in cases {
            let got = blank(source);
            assert_eq!(got.trim(), want.trim(), "{source}");
            assert_eq!(got.chars().count(), source.chars().count(), "{source}");
        }
    }

    #[test]
    fn functions_and_their_lengths() {
        let text = "fn a() {\n}\ntrait T { fn b(); fn c(&self) -> u8 {\n\n1\n} }\n";
        let names = functions(&blank(text));
        assert_eq!(names, [("a".to_owned(), 1, 2), ("c".to_owned(), 3, 4)]);
    }

    #[test]
    fn arms_of_matches() {
        let text = "match f(x) { Op::A { b } if b > 1 => { g() } Op::B(..) | Op::C => h(|| 1), _ => (), }";
        let found = matches(&blank(text));
        assert_eq!(found[0].1, ["Op::A { b } if b > 1", "Op::B(..) | Op::C", "_"]);
        let nested = "match a { X => match b { Op::A => 1, Op::B => 2 }, _ => 3 }";
        let found = matches(&blank(nested));
        assert_eq!(found[0].1, ["X", "_"]);
        assert_eq!(found[1].1, ["Op::A", "Op::B"]);
    }
}
