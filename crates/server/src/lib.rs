//! Galvani server.
