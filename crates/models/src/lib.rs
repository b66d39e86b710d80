//! Galvani models.
