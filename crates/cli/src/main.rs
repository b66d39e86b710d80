//! Galvani.
fn main() {}
