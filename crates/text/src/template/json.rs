//! Python's `json.dumps`, which templates know as `tojson`.

use serde_json::Value;

use super::prompt::MARKS_FROM;

/// Options of `json.dumps`, with the defaults that the hub's `tojson` has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DumpOptions {
    pub ensure_ascii: bool,
    /// What is repeated at each level; `None` is one line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

impl Default for DumpOptions {
    fn default() -> Self {
        Self {
            ensure_ascii: false,
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            sort_keys: false,
        }
    }
}

/// The text that Python would print.
pub(super) fn dumps(value: &Value, options: &DumpOptions) -> String {
    let mut out = String::new();
    dump(value, options, 0, usize::MAX, &mut out);
    out
}

/// As [`dumps`], or nothing where the text is longer than `most` bytes.
pub(super) fn dumps_up_to(value: &Value, options: &DumpOptions, most: usize) -> Option<String> {
    let mut out = String::new();
    dump(value, options, 0, most, &mut out);
    (out.len() <= most).then_some(out)
}

/// Writes a value; nothing where `out` has more than `most` bytes already.
fn dump(value: &Value, options: &DumpOptions, depth: usize, most: usize, out: &mut String) {
    if out.len() > most {
        return;
    }
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => match n.as_f64().filter(|_| n.is_f64()) {
            Some(x) => out.push_str(&float(x)),
            None => out.push_str(&n.to_string()),
        },
        Value::String(text) => string(text, options.ensure_ascii, out),
        Value::Array(list) => {
            let items = list
                .iter()
                .map(|v| move |out: &mut String| dump(v, options, depth + 1, most, out));
            block(('[', ']'), items, options, (depth, most), out);
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            if options.sort_keys {
                entries.sort_by_key(|e| e.0);
            }
            let items = entries.into_iter().map(|(key, v)| {
                move |out: &mut String| {
                    string(key, options.ensure_ascii, out);
                    out.push_str(&options.key_separator);
                    dump(v, options, depth + 1, most, out);
                }
            });
            block(('{', '}'), items, options, (depth, most), out);
        }
    }
}

fn block<F: FnOnce(&mut String)>(
    (open, close): (char, char),
    items: impl Iterator<Item = F>,
    options: &DumpOptions,
    (depth, most): (usize, usize),
    out: &mut String,
) {
    let line = |depth: usize, out: &mut String| {
        if let Some(indent) = &options.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(open);
    let mut any = false;
    for item in items {
        if out.len() > most {
            return;
        }
        if any {
            out.push_str(&options.item_separator);
        }
        any = true;
        line(depth + 1, out);
        item(out);
    }
    if any {
        line(depth, out);
    }
    out.push(close);
}

fn string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            // Python escapes DEL only where it escapes everything that is not ASCII, and DEL is ASCII: it stays.
            c if ensure_ascii && !c.is_ascii() && c < MARKS_FROM => {
                let mut units = [0; 2];
                c.encode_utf16(&mut units)
                    .iter()
                    .for_each(|u| out.push_str(&format!("\\u{u:04x}")));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Python's `repr` of a float: shortest digits; an exponent from 1e16 up and below 1e-4.
fn float(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() {
            "NaN"
        } else if x > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .into();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn as_python_prints() {
        let value = json!({"b": [1, 2.0, -0.5, 1e16, 1e-5, 123456789.125, null, true], "a": "<'\"\u{e9}\u{1f638}\n\u{1}\u{7f}", "e": {}, "l": []});
        let pretty = DumpOptions {
            indent: Some("  ".into()),
            item_separator: ",".into(),
            sort_keys: true,
            ..DumpOptions::default()
        };
        let ascii = DumpOptions {
            ensure_ascii: true,
            ..DumpOptions::default()
        };
        let tight = DumpOptions {
            item_separator: ",".into(),
            key_separator: ":".into(),
            ..DumpOptions::default()
        };
        let cases = [
            (DumpOptions::default(), r#"{"b": [1, 2.0, -0.5, 1e+16, 1e-05, 123456789.125, null, true], "a": "<'\""#.to_owned() + "\u{e9}\u{1f638}" + r#"\n\u0001"# + "\u{7f}\", \"e\": {}, \"l\": []}"),
            (ascii, r#"{"b": [1, 2.0, -0.5, 1e+16, 1e-05, 123456789.125, null, true], "a": "<'\"\u00e9\ud83d\ude38\n\u0001"#.to_owned() + "\u{7f}\", \"e\": {}, \"l\": []}"),
            (tight, r#"{"b":[1,2.0,-0.5,1e+16,1e-05,123456789.125,null,true],"a":"<'\""#.to_owned() + "\u{e9}\u{1f638}" + r#"\n\u0001"# + "\u{7f}\",\"e\":{},\"l\":[]}"),
            (pretty, "{\n  \"a\": \"<'\\\"\u{e9}\u{1f638}\\n\\u0001\u{7f}\",\n  \"b\": [\n    1,\n    2.0,\n    -0.5,\n    1e+16,\n    1e-05,\n    123456789.125,\n    null,\n    true\n  ],\n  \"e\": {},\n  \"l\": []\n}".to_owned()),
        ];
        for (options, want) in cases {
            assert_eq!(dumps(&value, &options), want, "{options:?}");
        }
        for (x, want) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1e22, "1e+22"),
            (1.5e300, "1.5e+300"),
            (1e15, "1000000000000000.0"),
            (0.0001, "0.0001"),
            (0.00001234, "1.234e-05"),
        ] {
            assert_eq!(float(x), want);
        }
    }
}
