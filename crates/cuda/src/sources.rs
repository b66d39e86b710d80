//! The device sources, embedded: all of `device/`, as build.rs lists them.

/// Name below `device/`, text.
pub const SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sources.rs"));

/// The text of a file.
pub fn find(name: &str) -> Option<&'static str> {
    SOURCES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, text)| *text)
}

/// The headers and their texts as the compiler gets them.
pub fn headers() -> impl Iterator<Item = (&'static str, String)> {
    SOURCES
        .iter()
        .filter(|(name, _)| name.ends_with(".cuh"))
        .map(|(name, text)| (*name, resolved(name, text)))
}

/// A text whose includes of our files are by the one name that each has from `device/`. The compiler keeps headers by
/// name, so that two names of one file would be two files.
pub fn resolved(name: &str, text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        match include(line).and_then(|found| Some((found, resolve(name, found)?))) {
            Some((found, full)) => out.push_str(&line.replacen(found, &full, 1)),
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

/// Our file that `include` means in the file `from`: beside it first, then from `device/`.
pub fn resolve(from: &str, include: &str) -> Option<String> {
    let folder: Vec<&str> = from.split('/').collect();
    let folder = &folder[..folder.len() - 1];
    let beside = join(folder, include);
    beside
        .filter(|name| find(name).is_some())
        .or_else(|| find(include).map(|_| include.to_owned()))
}

fn join(folder: &[&str], name: &str) -> Option<String> {
    let mut parts = folder.to_vec();
    for part in name.split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The names that a text includes: `"x.cuh"` and `<x.h>` alike.
pub fn includes(text: &str) -> Vec<&str> {
    text.lines().filter_map(include).collect()
}

fn include(line: &str) -> Option<&str> {
    let rest = line
        .trim_start()
        .strip_prefix('#')?
        .trim_start()
        .strip_prefix("include")?
        .trim_start();
    let end = match rest.chars().next()? {
        '"' => '"',
        '<' => '>',
        _ => return None,
    };
    rest[1..].split(end).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_includes_are_embedded() {
        assert!(find("selftest.cu").is_some());
        assert!(SOURCES.is_sorted_by_key(|(name, _)| *name));
        for (name, text) in SOURCES {
            for include in includes(text)
                .into_iter()
                .filter(|include| include.ends_with(".cuh"))
            {
                assert!(resolve(name, include).is_some(), "{name} includes {include}");
            }
        }
    }

    #[test]
    fn includes_of_a_text() {
        let text = "#include \"a.cuh\"\n  # include <b.h> // why\nint x; // #include \"c\"\n#include MACRO\n#define X";
        assert_eq!(includes(text), ["a.cuh", "b.h"]);
    }

    #[test]
    fn paths_are_joined() {
        for (folder, name, want) in [
            (&["quant"][..], "../a.cuh", Some("a.cuh")),
            (&["quant"], "./b.cuh", Some("quant/b.cuh")),
            (&[], "quant/c.cuh", Some("quant/c.cuh")),
            (&[], "../d.cuh", None),
        ] {
            assert_eq!(join(folder, name).as_deref(), want, "{name}");
        }
        assert_eq!(
            resolve("quant/x.cuh", "../selftest.cu").as_deref(),
            Some("selftest.cu")
        );
        assert_eq!(
            resolve("quant/x.cuh", "selftest.cu").as_deref(),
            Some("selftest.cu")
        );
        assert_eq!(resolve("quant/x.cuh", "cuda_fp16.h"), None);
        let text = "#include \"../selftest.cu\" // why\nint a;\n";
        assert_eq!(
            resolved("quant/x.cuh", text),
            "#include \"selftest.cu\" // why\nint a;\n"
        );
    }
}
