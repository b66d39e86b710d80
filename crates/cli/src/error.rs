//! The one error type of this crate.

use std::path::PathBuf;

/// What can go wrong in a command. Messages name the thing, its value, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The command line (or help, which clap also reports this way).
    #[error(transparent)]
    Clap(Box<clap::Error>),
    /// A flag of another program that has no counterpart, or a value that makes no sense together with another.
    #[error("{0}")]
    Usage(String),
    /// The configuration file.
    #[error("{}: {reason}", path.display())]
    Config {
        /// File.
        path: PathBuf,
        /// What is wrong in it.
        reason: String,
    },
    /// No model by this name.
    #[error("model `{name}`: {reason}")]
    Model {
        /// As it was given.
        name: String,
        /// What was tried and what would do.
        reason: String,
    },
    /// The hub or another server.
    #[error("{url}: {reason}")]
    Http {
        /// Address, without credentials.
        url: String,
        /// What happened.
        reason: String,
    },
    /// A download that is not what it should be.
    #[error(
        "{what}: SHA-256 is {got}, expected {expected}; the damaged file was removed, run the command again"
    )]
    Hash {
        /// File.
        what: String,
        /// Computed.
        got: String,
        /// Published.
        expected: String,
    },
    /// Not enough room.
    #[error("{}: {needed} bytes are needed, {free} are free ({} bytes short); make room or set --cache-dir", path.display(), needed - free)]
    Space {
        /// Folder.
        path: PathBuf,
        /// Bytes still to be written.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// A file operation.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Something that `--strict` refuses.
    #[error("--strict: {0}")]
    Strict(String),
    /// A checkpoint that cannot be read.
    #[error(transparent)]
    Load(#[from] galvani_weights::LoadError),
    /// Anything a lower crate reports, already worded.
    #[error("{0}")]
    Failed(String),
}

impl CliError {
    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Clap(_) | CliError::Usage(_) | CliError::Config { .. } => 2,
            CliError::Strict(_) => 3,
            CliError::Model { .. }
            | CliError::Http { .. }
            | CliError::Hash { .. }
            | CliError::Space { .. }
            | CliError::Io { .. }
            | CliError::Load(_)
            | CliError::Failed(_) => 1,
        }
    }

    /// Wraps an I/O error with the path it happened at.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> CliError {
        let path = path.into();
        move |source| CliError::Io { path, source }
    }
}

impl From<clap::Error> for CliError {
    fn from(error: clap::Error) -> Self {
        CliError::Clap(Box::new(error))
    }
}
