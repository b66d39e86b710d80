//! Galvani weights.
