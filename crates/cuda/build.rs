//! Embeds every file of `device/`: a new kernel needs no line anywhere but in its table of rows.

use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let folder = root.join("device");
    let mut names = Vec::new();
    list(&folder, "", &mut names);
    names.sort();
    let mut text = String::from("&[\n");
    for name in names {
        let path = folder.join(&name);
        writeln!(
            text,
            "({name:?}, include_str!({:?})),",
            path.display().to_string()
        )
        .expect("to memory");
    }
    text.push_str("]\n");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("sources.rs");
    std::fs::write(out, text).expect("the output folder can be written");
}

fn list(folder: &Path, prefix: &str, names: &mut Vec<String>) {
    println!("cargo:rerun-if-changed={}", folder.display());
    for item in std::fs::read_dir(folder).expect("device/ is part of the package") {
        let item = item.expect("device/ can be listed");
        let name = item.file_name().into_string().expect("names are UTF-8");
        if item.path().is_dir() {
            list(&item.path(), &format!("{prefix}{name}/"), names);
        } else if name.ends_with(".cu") || name.ends_with(".cuh") {
            names.push(format!("{prefix}{name}"));
        }
    }
}
