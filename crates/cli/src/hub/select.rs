//! Which files of a repository make up the model that was asked for.

use super::name::RepoName;
use crate::error::CliError;

/// GGUF quantisations tried in this order when none is named: small and good first.
const QUANT_ORDER: [&str; 12] = [
    "Q4_K_M", "Q4_0", "Q4_1", "Q4_K_S", "Q5_K_M", "Q8_0", "Q6_K", "Q5_0", "IQ4_XS", "Q3_K_M", "BF16", "F16",
];

/// Small files that go along with safetensors.
const SIDE_FILES: [&str; 10] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
    "tokenizer.model",
    "added_tokens.json",
];

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// What to open: a GGUF (its first shard), or `None` for the folder.
    pub entry: Option<String>,
    /// Everything needed.
    pub files: Vec<String>,
}

/// Chooses from the names of a repository's files.
///
/// # Errors
/// When nothing fits, naming what there is.
pub fn select(repo: &RepoName, names: &[String]) -> Result<Selection, CliError> {
    let ggufs: Vec<&String> = names
        .iter()
        .filter(|n| n.ends_with(".gguf") && !stem(n).starts_with("mmproj"))
        .collect();
    let tensors: Vec<&String> = names
        .iter()
        .filter(|n| n.ends_with(".safetensors") && !n.contains('/'))
        .collect();
    let wrong = |reason: String| CliError::Model {
        name: repo.to_string(),
        reason,
    };
    if let Some(quant) = &repo.quant {
        let found = ggufs.iter().find(|n| has_quant(n, quant)).ok_or_else(|| {
            let there: Vec<&str> = ggufs.iter().map(|n| n.as_str()).collect();
            wrong(format!(
                "no GGUF of quantisation {quant}; there are: {}",
                list(&there)
            ))
        })?;
        return Ok(gguf(found, names));
    }
    if !tensors.is_empty() && names.iter().any(|n| n == "config.json") {
        let side = names.iter().filter(|n| SIDE_FILES.contains(&n.as_str()));
        let files = tensors
            .into_iter()
            .filter(|n| !n.starts_with("consolidated"))
            .chain(side)
            .cloned()
            .collect();
        return Ok(Selection { entry: None, files });
    }
    let best = QUANT_ORDER
        .iter()
        .find_map(|quant| ggufs.iter().find(|n| has_quant(n, quant)))
        .or_else(|| ggufs.first());
    match best {
        Some(name) => Ok(gguf(name, names)),
        None => {
            let there: Vec<&str> = names.iter().map(String::as_str).collect();
            Err(wrong(format!(
                "neither safetensors with config.json nor GGUF; there are: {}",
                list(&there)
            )))
        }
    }
}

fn list(names: &[&str]) -> String {
    match names.len() {
        0 => "none".to_owned(),
        1..=12 => names.join(", "),
        more => format!("{} and {} more", names[..12].join(", "), more - 12),
    }
}

fn stem(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Whether the file's name carries the quantisation as a word of its own (`x-Q4_K_M.gguf`, `Q4_K_M/x-00001-of-00002.gguf`).
fn has_quant(name: &str, quant: &str) -> bool {
    name.strip_suffix(".gguf")
        .unwrap_or(name)
        .split(['-', '.', '/'])
        .any(|word| word.eq_ignore_ascii_case(quant))
}

fn gguf(name: &str, names: &[String]) -> Selection {
    let Some((base, count)) = split_name(name) else {
        return Selection {
            entry: Some(name.to_owned()),
            files: vec![name.to_owned()],
        };
    };
    let files: Vec<String> = names
        .iter()
        .filter(|other| split_name(other).is_some_and(|(b, c)| b == base && c == count))
        .cloned()
        .collect();
    let entry = files.iter().min().cloned();
    Selection { entry, files }
}

/// `x-00002-of-00005.gguf` is part of `x` in 5.
fn split_name(name: &str) -> Option<(&str, &str)> {
    let rest = name.strip_suffix(".gguf")?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (base, index) = rest.rsplit_once('-')?;
    let digits = |t: &str| t.len() == 5 && t.bytes().all(|b| b.is_ascii_digit());
    (digits(count) && digits(index)).then_some((base, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(model: &str, names: &[&str]) -> Result<(Option<String>, usize), String> {
        let repo = RepoName::parse(model).expect("test names are valid");
        let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
        select(&repo, &names)
            .map(|s| (s.entry, s.files.len()))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn files_of_repositories() {
        let some = |name: &str, count| Ok((Some(name.to_owned()), count));
        let quants = [
            "README.md",
            "m-Q8_0.gguf",
            "m.Q4_K_M.gguf",
            "m-q4_k_s.gguf",
            "mmproj-F16.gguf",
        ];
        assert_eq!(check("a/b", &quants), some("m.Q4_K_M.gguf", 1));
        assert_eq!(check("a/b:q8_0", &quants), some("m-Q8_0.gguf", 1));
        assert_eq!(check("a/b:Q4_K_S", &quants), some("m-q4_k_s.gguf", 1));
        let split = [
            "Q4_0/m-Q4_0-00002-of-00002.gguf",
            "Q4_0/m-Q4_0-00001-of-00002.gguf",
            "m-Q8_0.gguf",
        ];
        assert_eq!(check("a/b", &split), some("Q4_0/m-Q4_0-00001-of-00002.gguf", 2));
        let hub = [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "m-Q4_0.gguf",
            "LICENSE",
        ];
        assert_eq!(check("a/b", &hub), Ok((None, 3)));
        assert_eq!(check("a/b:Q4_0", &hub), some("m-Q4_0.gguf", 1));
        assert_eq!(check("a/b", &["odd.gguf"]), some("odd.gguf", 1));
        assert!(check("a/b:Q2_K", &quants).unwrap_err().contains("m-Q8_0.gguf"));
        assert!(
            check("a/b", &["pytorch_model.bin"])
                .unwrap_err()
                .contains("pytorch_model.bin")
        );
        assert!(check("a/b", &[]).unwrap_err().contains("none"));
    }
}
