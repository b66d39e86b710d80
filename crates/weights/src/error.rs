//! What can be wrong with a checkpoint.

use galvani_graph::Format;

/// Why a checkpoint does not load. Each message names the file, the thing in it, its value and what would be allowed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The operating system refused.
    #[error("{file}: cannot {action}: {source}")]
    Io {
        /// Path as given.
        file: String,
        /// What was tried.
        action: &'static str,
        /// The system's words.
        source: std::io::Error,
    },
    /// The bytes are not what the container demands.
    #[error("{file}: {reason}")]
    Malformed {
        /// Path as given.
        file: String,
        /// What was found where, and what is allowed there.
        reason: String,
    },
    /// One tensor's entry is wrong.
    #[error("{file}: tensor `{name}`: {reason}")]
    Tensor {
        /// Path as given.
        file: String,
        /// The tensor, as the file calls it.
        name: String,
        /// What was found and what is allowed.
        reason: String,
    },
    /// A key is missing, of another type, or out of range.
    #[error("{origin}: key `{key}` {reason}")]
    Key {
        /// Where the key was looked for.
        origin: String,
        /// Its path, such as `rope_scaling.factor`.
        key: String,
        /// What is wrong, as a verb phrase.
        reason: String,
    },
    /// A key has a value that nothing here supports.
    #[error("{origin}: key `{key}` is {found}; supported: {allowed}")]
    Value {
        /// Where the key stands.
        origin: String,
        /// Its path.
        key: String,
        /// The value found.
        found: String,
        /// What would be accepted.
        allowed: String,
    },
    /// Keys that no reader asked for: they may change the meaning of the model.
    #[error("{origin}: keys that are not understood: {}", keys.join(", "))]
    UnreadKeys {
        /// Where they stand.
        origin: String,
        /// Each as `path = value`, the value cut short.
        keys: Vec<String>,
    },
    /// Bytes and numbers do not belong together.
    #[error("{format}: {byte_count} bytes for {number_count} numbers; {reason}")]
    Blocks {
        /// The format.
        format: Format,
        /// Bytes given.
        byte_count: usize,
        /// Numbers given.
        number_count: usize,
        /// What the format demands.
        reason: String,
    },
}

impl LoadError {
    /// A container fault.
    pub(crate) fn malformed(file: &str, reason: impl Into<String>) -> Self {
        LoadError::Malformed {
            file: file.to_owned(),
            reason: reason.into(),
        }
    }

    /// A fault of one tensor.
    pub(crate) fn tensor(file: &str, name: &str, reason: impl Into<String>) -> Self {
        LoadError::Tensor {
            file: file.to_owned(),
            name: shown(name),
            reason: reason.into(),
        }
    }

    /// A fault of one key.
    pub(crate) fn key(origin: &str, key: &str, reason: impl Into<String>) -> Self {
        LoadError::Key {
            origin: origin.to_owned(),
            key: shown(key),
            reason: reason.into(),
        }
    }
}

/// Most characters of a file's own text in a message.
const SHOWN_CHARS_MAX: usize = 80;

/// Text from a file as it may stand in a message: control characters escaped, cut to a line.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::new();
    for (index, character) in text.chars().enumerate() {
        if index == SHOWN_CHARS_MAX {
            out.push('…');
            break;
        }
        if character.is_control() {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    out
}
