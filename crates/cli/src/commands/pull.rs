//! `galvani pull`

use crate::commands::chosen;
use crate::error::CliError;
use crate::flags::PullArgs;
use crate::hub::{ModelName, Store, default_model};

/// Fetches a model and prints where it lies.
pub fn pull(arguments: &PullArgs) -> Result<(), CliError> {
    let store = Store::new(&arguments.model.store)?;
    let path = match chosen(arguments.positional.as_ref(), arguments.model.model.as_ref()) {
        None => default_model::obtain(&store.cache, &store.hub, store.offline, store.quiet)?,
        Some(text) => match ModelName::parse(text)? {
            ModelName::Path(path) => path,
            ModelName::Url(url) => store.pull_url(&url, arguments.sha256.as_deref())?,
            ModelName::Repo(repo) if store.offline => store.cached(&repo).ok_or_else(|| CliError::Model {
                name: text.to_owned(),
                reason: "not in the cache, and --offline is set".into(),
            })?,
            ModelName::Repo(repo) => store.pull(&repo)?,
        },
    };
    println!("{}", path.display());
    Ok(())
}
