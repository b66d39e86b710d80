//! From a model's name to a path on this machine.

use std::path::{Path, PathBuf};

use super::api::{Hub, Listing, RemoteFile};
use super::cache::{self, Cache};
use super::fetch::{self, Order, require_space};
use super::name::{ModelName, RepoName};
use super::{default_model, select};
use crate::error::CliError;
use crate::flags::StoreArgs;

const DEFAULT_HUB: &str = "https://huggingface.co";

/// Where models come from.
#[derive(Debug, Clone)]
pub struct Store {
    /// On disk.
    pub cache: Cache,
    /// Over the network.
    pub hub: Hub,
    /// Branch, tag or commit.
    pub revision: String,
    /// No network.
    pub offline: bool,
    /// No bars and notes.
    pub quiet: bool,
}

/// A model on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Local {
    /// What to open.
    pub path: PathBuf,
    /// What to call it.
    pub name: String,
}

impl Store {
    /// From the flags and the hub's own variables (`HF_ENDPOINT`, `HF_HOME`, `HF_HUB_OFFLINE`).
    ///
    /// # Errors
    /// When the cache's place is unknown or the hub's address is none.
    pub fn new(flags: &StoreArgs) -> Result<Self, CliError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let endpoint = flags
            .hub
            .clone()
            .or_else(|| variable("HF_ENDPOINT"))
            .unwrap_or_else(|| DEFAULT_HUB.into());
        let hub_offline = variable("HF_HUB_OFFLINE").is_some_and(|v| v != "0");
        Ok(Self {
            cache: Cache::locate(flags.cache_dir.as_deref())?,
            hub: Hub::new(&endpoint)?,
            revision: flags.revision.clone(),
            offline: flags.offline || hub_offline,
            quiet: flags.quiet,
        })
    }

    /// The model as it is in the cache, if all of its files are there.
    pub fn cached(&self, repo: &RepoName) -> Option<PathBuf> {
        let commit = self.cache.commit(repo, &self.revision)?;
        let folder = self.cache.snapshot(repo, &commit);
        let names: Vec<String> = cache::files(&folder).into_iter().map(|(name, _)| name).collect();
        let choice = select::select(repo, &names).ok()?;
        Some(open_path(&folder, choice.entry.as_deref()))
    }

    /// Fetches what is missing of a repository's model.
    ///
    /// # Errors
    /// When the hub cannot be reached or refuses, no file fits, or the disk is short.
    pub fn pull(&self, repo: &RepoName) -> Result<PathBuf, CliError> {
        let listing = self.hub.listing(repo, &self.revision)?;
        let names: Vec<String> = listing.files.iter().map(|f| f.path.clone()).collect();
        let choice = select::select(repo, &names)?;
        let wanted: Vec<&RemoteFile> = listing
            .files
            .iter()
            .filter(|f| choice.files.contains(&f.path))
            .collect();
        let root = self.cache.repo_dir(repo).join("blobs");
        std::fs::create_dir_all(&root).map_err(CliError::io(&root))?;
        require_space(&root, self.missing_bytes(repo, &wanted))?;
        for file in wanted {
            self.pull_file(repo, &listing, file)?;
        }
        self.cache.set_commit(repo, &self.revision, &listing.commit)?;
        Ok(open_path(
            &self.cache.snapshot(repo, &listing.commit),
            choice.entry.as_deref(),
        ))
    }

    fn missing_bytes(&self, repo: &RepoName, wanted: &[&RemoteFile]) -> u64 {
        let length = |path: &Path| std::fs::metadata(path).map_or(0, |data| data.len());
        wanted
            .iter()
            .map(|file| {
                let size = file.size.unwrap_or(0);
                let Some(blob) = &file.blob else { return size };
                let target = self.cache.blob(repo, blob);
                if target.exists() {
                    0
                } else {
                    size.saturating_sub(length(&fetch::partial_path(&target)))
                }
            })
            .sum()
    }

    fn pull_file(&self, repo: &RepoName, listing: &Listing, file: &RemoteFile) -> Result<(), CliError> {
        let url = self.hub.file_url(repo, &listing.commit, &file.path);
        let blob = file.blob.clone().ok_or_else(|| CliError::Http {
            url: url.clone(),
            reason: "the hub's listing has no id for this file".into(),
        })?;
        let target = self.cache.blob(repo, &blob);
        if !target.exists() {
            let order = Order {
                url: &url,
                token: self.hub.token(),
                target: &target,
                size: file.size,
                sha256: file.sha256.as_deref(),
                label: &file.path,
                quiet: self.quiet,
                retries: fetch::RETRIES,
            };
            fetch::fetch(self.hub.agent(), &order)?;
        }
        self.cache
            .link(repo, &listing.commit, &file.path, &blob)
            .map(|_| ())
    }

    /// Fetches a file of a web server into `galvani/` beside the hub's cache.
    ///
    /// # Errors
    /// When the URL names no file, the server refuses, or the hash differs.
    pub fn pull_url(&self, url: &str, sha256: Option<&str>) -> Result<PathBuf, CliError> {
        let target = self.url_path(url)?;
        if target.exists() && sha256.is_none() {
            return Ok(target);
        }
        if target.exists() {
            let got = fetch::hash_file(&target)?;
            match sha256.filter(|want| !want.eq_ignore_ascii_case(&got)) {
                None => return Ok(target),
                Some(_) => std::fs::remove_file(&target).map_err(CliError::io(&target))?,
            }
        }
        if self.offline {
            let reason = "not in the cache, and --offline is set".to_owned();
            return Err(CliError::Model {
                name: url.to_owned(),
                reason,
            });
        }
        let label = target
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let order = Order {
            url,
            token: None,
            target: &target,
            size: None,
            sha256,
            label: &label,
            quiet: self.quiet,
            retries: fetch::RETRIES,
        };
        let got = fetch::fetch(self.hub.agent(), &order)?;
        if sha256.is_none() && !self.quiet {
            eprintln!("{label}: SHA-256 {got} (nothing to compare it with; --sha256 HEX would)");
        }
        Ok(target)
    }

    /// Place of a URL's file: its host and path become folders.
    fn url_path(&self, url: &str) -> Result<PathBuf, CliError> {
        let wrong = || CliError::Model {
            name: url.to_owned(),
            reason: "allowed: a URL whose path ends in a file name of letters, digits, `.`, `_` and `-`"
                .into(),
        };
        let (_, rest) = url.split_once("://").ok_or_else(wrong)?;
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let clean = |part: &str| {
            part.bytes()
                .map(|b| {
                    if b.is_ascii_alphanumeric() || b"._-".contains(&b) {
                        char::from(b)
                    } else {
                        '_'
                    }
                })
                .collect::<String>()
        };
        let parts: Vec<String> = rest.split('/').filter(|p| !p.is_empty()).map(clean).collect();
        let safe = parts.len() >= 2 && parts.iter().all(|p| !p.starts_with('.'));
        if !safe || rest.contains('@') {
            return Err(wrong());
        }
        let base = self
            .cache
            .root()
            .parent()
            .unwrap_or(self.cache.root())
            .join("galvani");
        Ok(parts.iter().fold(base, |path, part| path.join(part)))
    }
}

fn open_path(folder: &Path, entry: Option<&str>) -> PathBuf {
    entry.map_or_else(|| folder.to_owned(), |file| folder.join(file))
}

/// Finds a model, fetching it if need be. `None` is the default model.
///
/// # Errors
/// When there is no such model here and it cannot be fetched.
pub fn resolve(store: &Store, name: Option<&str>) -> Result<Local, CliError> {
    let Some(text) = name else {
        let path = default_model::obtain(&store.cache, &store.hub, store.offline, store.quiet)?;
        return Ok(Local {
            path,
            name: default_model::NAME.to_owned(),
        });
    };
    match ModelName::parse(text)? {
        ModelName::Path(path) => {
            let name = path_name(&path);
            Ok(Local { path, name })
        }
        ModelName::Url(url) => {
            let path = store.pull_url(&url, None)?;
            let name = path_name(&path);
            Ok(Local { path, name })
        }
        ModelName::Repo(repo) => {
            if let Some(path) = store.cached(&repo) {
                return Ok(Local {
                    path,
                    name: repo.to_string(),
                });
            }
            if store.offline {
                let reason = format!(
                    "not in the cache ({}), and --offline is set; `galvani list` shows what is there",
                    store.cache.root().display()
                );
                return Err(CliError::Model {
                    name: text.to_owned(),
                    reason,
                });
            }
            let path = store.pull(&repo)?;
            Ok(Local {
                path,
                name: repo.to_string(),
            })
        }
    }
}

/// A file's name without its ending; a folder's name.
fn path_name(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let named = if path.is_dir() {
        full.file_name()
    } else {
        path.file_stem()
    };
    named.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}
