//! `galvani list`

use serde_json::json;

use crate::error::CliError;
use crate::flags::ListArgs;
use crate::hub::{Store, cache};
use crate::progress::bytes;

/// Prints the cached models that could be run: every GGUF (the first part of a split one), every folder of safetensors.
pub fn list(arguments: &ListArgs) -> Result<(), CliError> {
    let store = Store::new(&arguments.store)?;
    let mut rows = Vec::new();
    for entry in store.cache.entries() {
        let files = cache::files(&entry.folder);
        let tensors: u64 = files
            .iter()
            .filter(|(name, _)| name.ends_with(".safetensors"))
            .map(|(_, size)| size)
            .sum();
        if tensors > 0 && files.iter().any(|(name, _)| name == "config.json") {
            rows.push((
                entry.repo.to_string(),
                "safetensors",
                tensors,
                entry.folder.clone(),
            ));
        }
        for (name, size) in files.iter().filter(|(name, _)| name.ends_with(".gguf")) {
            rows.push((entry.repo.to_string(), "gguf", *size, entry.folder.join(name)));
        }
    }
    if arguments.json {
        let items: Vec<_> = rows
            .iter()
            .map(|(model, format, size, path)| json!({"model": model, "format": format, "bytes": size, "path": path}))
            .collect();
        println!("{}", serde_json::Value::Array(items));
        return Ok(());
    }
    if rows.is_empty() {
        println!(
            "no models in {}; `galvani pull` fetches the default one",
            store.cache.root().display()
        );
        return Ok(());
    }
    let width = rows.iter().map(|row| row.0.len()).max().unwrap_or(0);
    for (model, format, size, path) in rows {
        let file = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        println!("{model:width$}  {format:11}  {:>10}  {file}", bytes(size));
    }
    Ok(())
}
