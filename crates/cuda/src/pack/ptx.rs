//! The little that the launch layer must know of a PTX text: a kernel's parameters.

/// Bytes of each parameter of an entry.
///
/// # Errors
/// The text has no such entry, or its parameters are not understood.
pub fn parameters(text: &[u8], symbol: &str) -> Result<Vec<u32>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "the PTX is not UTF-8")?;
    let entry = text.match_indices(".entry").find_map(|(at, word)| {
        let rest = text[at + word.len()..].trim_start().strip_prefix(symbol)?;
        rest.trim_start().strip_prefix('(')
    });
    let list = entry.ok_or("no entry of this name")?;
    let (list, _) = list.split_once(')').ok_or("the parameters have no end")?;
    let items = list.split(',').map(str::trim).filter(|item| !item.is_empty());
    items
        .map(|item| bytes(item).ok_or_else(|| format!("parameter `{item}`")))
        .collect()
}

/// `.param .u64 name`, `.param .align 8 .b8 name[16]`
fn bytes(item: &str) -> Option<u32> {
    let words: Vec<&str> = item.split_whitespace().collect();
    let (name, rest) = words.split_last()?;
    let kind = rest.last()?.strip_prefix('.')?;
    let bits: u32 = kind
        .trim_start_matches(|c: char| c.is_ascii_lowercase())
        .parse()
        .ok()?;
    let count: u32 = match name.split_once('[') {
        None => 1,
        Some((_, count)) => count.strip_suffix(']')?.parse().ok()?,
    };
    (bits / 8).checked_mul(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_texts() {
        let head = ".visible .entry kk()\n.visible .entry k";
        for (rest, want) in [
            (
                "(\n\t.param .u64 k_0,\n\t.param .u32 k_1,\n\t.param .f32 k_2\n)\n{",
                Some(vec![8, 4, 4]),
            ),
            (
                "(.param .align 8 .b8 k_0[24], .param .u16 k_1)",
                Some(vec![24, 2]),
            ),
            ("()", Some(vec![])),
            ("(.param .u64 k_0", None),
            ("(.param k_0)", None),
            ("(.param .b8 k_0[4294967295999])", None),
            ("(.param .b64 k_0[4294967295])", None),
            ("", None),
        ] {
            assert_eq!(
                parameters(format!("{head}{rest}").as_bytes(), "k").ok(),
                want,
                "{rest}"
            );
        }
        assert!(parameters(b"\xff", "k").is_err());
    }
}
