//! Galvani text.
