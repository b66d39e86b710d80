//! `galvani completions SHELL`

use crate::error::CliError;
use crate::flags::{CompletionsArgs, layers};

/// Prints a completion script.
pub fn completions(arguments: &CompletionsArgs) -> Result<(), CliError> {
    let mut command = layers::command();
    clap_complete::generate(arguments.shell, &mut command, "galvani", &mut std::io::stdout());
    Ok(())
}
