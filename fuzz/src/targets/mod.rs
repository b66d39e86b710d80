//! What is fuzzed. A new target is a file here and a row in [`TARGETS`].

mod config;
mod gguf;
mod quant;
mod safetensors;

use std::path::Path;

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

pub const TARGETS: &[Target] = &[config::TARGET, gguf::TARGET, quant::TARGET, safetensors::TARGET];

/// The files of a folder under `goldens/` with this ending, small ones only, in the order of their names.
fn fixtures(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let folder = root().join("goldens").join(folder);
    let mut paths = Vec::new();
    collect(&folder, ending, &mut paths);
    paths.sort_unstable();
    let files = paths.iter().filter_map(|path| std::fs::read(path).ok());
    files.filter(|file| file.len() <= 1 << 15).collect()
}

fn collect(folder: &Path, ending: &str, paths: &mut Vec<std::path::PathBuf>) {
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
