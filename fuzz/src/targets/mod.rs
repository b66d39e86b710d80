//! What is fuzzed. A new target is a file here and a row in [`TARGETS`].

mod config;
mod gguf;
mod grammar;
mod model;
mod parsers;
mod quant;
mod safetensors;
mod stop;
mod template;
mod tokenizer;

use std::path::{Path, PathBuf};

use crate::driver::root;

/// One reader of foreign bytes.
pub struct Target {
    pub name: &'static str,
    pub about: &'static str,
    /// Runs an input, asserts what must hold, and says what came of it in a line.
    pub run: fn(&[u8]) -> String,
    /// Inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words that mutations put in.
    pub dictionary: &'static [&'static [u8]],
}

pub const TARGETS: &[Target] = &[
    config::TARGET,
    gguf::TARGET,
    grammar::TARGET,
    model::FROM_CONFIG,
    model::FROM_GGUF,
    parsers::TARGET,
    quant::TARGET,
    safetensors::TARGET,
    stop::TARGET,
    template::TARGET,
    tokenizer::TARGET,
];

/// Longest fixture taken as a start.
const SEED_BYTES_MAX: usize = 1 << 15;

/// The files of a folder under `goldens/` with this ending, small ones only, in the order of their names.
fn fixtures(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let files = fixture_paths(folder, ending)
        .into_iter()
        .filter_map(|path| std::fs::read(path).ok());
    files.filter(|file| file.len() <= SEED_BYTES_MAX).collect()
}

fn fixture_paths(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    collect(&root().join("goldens").join(folder), ending, &mut paths);
    paths.sort_unstable();
    paths
}

fn collect(folder: &Path, ending: &str, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, ending, paths);
        } else if path.to_string_lossy().ends_with(ending) {
            paths.push(path);
        }
    }
}

/// One fixture that must be there.
fn fixture(path: &str) -> Vec<u8> {
    let path = root().join("goldens").join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The tokenizer of the small fixtures: 512 tokens of byte-level BPE.
fn tiny_tokenizer() -> &'static galvani_text::Tokenizer {
    static TOKENIZER: std::sync::OnceLock<galvani_text::Tokenizer> = std::sync::OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let [json, config] =
            ["tokenizer.json", "tokenizer_config.json"].map(|name| fixture(&format!("tiny/llama/{name}")));
        galvani_text::Tokenizer::from_hub(galvani_text::HubFiles {
            tokenizer_json: &json,
            tokenizer_config: Some(&config),
            generation_config: None,
        })
        .expect("the fixture is sound")
    })
}
