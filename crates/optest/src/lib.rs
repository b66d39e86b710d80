//! Galvani optest.
