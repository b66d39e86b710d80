//! Galvani cpu.
