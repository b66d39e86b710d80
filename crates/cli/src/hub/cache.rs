//! The hub's cache on disk: `models--user--model/{blobs,refs,snapshots}`, shared with every other program that uses it.

use std::path::{Path, PathBuf};

use super::name::RepoName;
use crate::error::CliError;

/// The folder that holds `models--*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    root: PathBuf,
}

/// A model found in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// `user/model`
    pub repo: RepoName,
    /// Commit.
    pub revision: String,
    /// The snapshot's folder.
    pub folder: PathBuf,
}

impl Cache {
    /// The cache in `root`, or where the usual variables say: `HF_HUB_CACHE`, `HF_HOME/hub`,
    /// `XDG_CACHE_HOME/huggingface/hub`, `~/.cache/huggingface/hub`.
    ///
    /// # Errors
    /// When none is set and there is no home.
    pub fn locate(root: Option<&Path>) -> Result<Self, CliError> {
        let variable = |name: &str| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        let root = root
            .map(Path::to_owned)
            .or_else(|| variable("HF_HUB_CACHE"))
            .or_else(|| variable("HF_HOME").map(|home| home.join("hub")))
            .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("huggingface/hub")))
            .or_else(|| variable("HOME").map(|home| home.join(".cache/huggingface/hub")));
        let root =
            root.ok_or_else(|| CliError::Usage("no cache folder: set --cache-dir or HF_HOME".into()))?;
        Ok(Self { root })
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Folder of a repository.
    pub fn repo_dir(&self, repo: &RepoName) -> PathBuf {
        self.root.join(format!("models--{}--{}", repo.user, repo.model))
    }

    /// Where a blob lies.
    pub fn blob(&self, repo: &RepoName, id: &str) -> PathBuf {
        self.repo_dir(repo).join("blobs").join(id)
    }

    /// Folder of a commit's files.
    pub fn snapshot(&self, repo: &RepoName, commit: &str) -> PathBuf {
        self.repo_dir(repo).join("snapshots").join(commit)
    }

    /// The commit that a revision stood for when it was last fetched; a commit stands for itself.
    pub fn commit(&self, repo: &RepoName, revision: &str) -> Option<String> {
        if !safe_revision(revision) {
            return None;
        }
        let noted = std::fs::read_to_string(self.repo_dir(repo).join("refs").join(revision)).ok();
        let commit = noted
            .map(|text| text.trim().to_owned())
            .unwrap_or_else(|| revision.to_owned());
        (safe_revision(&commit) && self.snapshot(repo, &commit).is_dir()).then_some(commit)
    }

    /// Notes what a revision stands for.
    ///
    /// # Errors
    /// When the note cannot be written.
    pub fn set_commit(&self, repo: &RepoName, revision: &str, commit: &str) -> Result<(), CliError> {
        if revision == commit || !safe_revision(revision) {
            return Ok(());
        }
        let path = self.repo_dir(repo).join("refs").join(revision);
        let folder = path.parent().expect("a joined path has a parent");
        std::fs::create_dir_all(folder).map_err(CliError::io(folder))?;
        let fresh = path.with_extension(format!("new-{}", std::process::id()));
        std::fs::write(&fresh, commit).map_err(CliError::io(&fresh))?;
        std::fs::rename(&fresh, &path).map_err(CliError::io(&path))
    }

    /// Puts a blob under its name into a commit's folder.
    ///
    /// # Errors
    /// When the link cannot be made.
    pub fn link(&self, repo: &RepoName, commit: &str, file: &str, id: &str) -> Result<PathBuf, CliError> {
        let path = self.snapshot(repo, commit).join(file);
        let folder = path.parent().expect("a joined path has a parent");
        std::fs::create_dir_all(folder).map_err(CliError::io(folder))?;
        let up = "../".repeat(2 + file.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{id}"));
        let fresh = folder.join(format!(".link-{}", std::process::id()));
        let _ = std::fs::remove_file(&fresh);
        make_link(&target, &self.blob(repo, id), &fresh).map_err(CliError::io(&fresh))?;
        std::fs::rename(&fresh, &path).map_err(CliError::io(&path))?;
        Ok(path)
    }

    /// Every model in the cache, sorted by name.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        let Ok(folders) = std::fs::read_dir(&self.root) else {
            return entries;
        };
        for folder in folders.flatten() {
            let name = folder.file_name().to_string_lossy().into_owned();
            let Some((user, model)) = name
                .strip_prefix("models--")
                .and_then(|rest| rest.split_once("--"))
            else {
                continue;
            };
            let Some(repo) = RepoName::parse(&format!("{user}/{model}")) else {
                continue;
            };
            let Ok(snapshots) = std::fs::read_dir(folder.path().join("snapshots")) else {
                continue;
            };
            for snapshot in snapshots.flatten().filter(|s| s.path().is_dir()) {
                let revision = snapshot.file_name().to_string_lossy().into_owned();
                entries.push(Entry {
                    repo: repo.clone(),
                    revision,
                    folder: snapshot.path(),
                });
            }
        }
        entries.sort_by(|a, b| (&a.repo, &a.revision).cmp(&(&b.repo, &b.revision)));
        entries
    }
}

/// Relative paths of a snapshot's files that are really there (no dangling links), sorted.
pub fn files(folder: &Path) -> Vec<(String, u64)> {
    let mut out = Vec::new();
    collect(folder, "", 0, &mut out);
    out.sort();
    out
}

fn collect(folder: &Path, prefix: &str, depth: usize, out: &mut Vec<(String, u64)>) {
    let Ok(items) = std::fs::read_dir(folder) else {
        return;
    };
    for item in items.flatten() {
        let name = item.file_name().to_string_lossy().into_owned();
        let Ok(data) = std::fs::metadata(item.path()) else {
            continue;
        };
        let path = if prefix.is_empty() {
            name
        } else {
            format!("{prefix}/{name}")
        };
        if data.is_file() {
            out.push((path, data.len()));
        } else if depth < 4 {
            collect(&item.path(), &path, depth + 1, out);
        }
    }
}

/// Revisions become file names.
pub fn safe_revision(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && !text.starts_with(['/', '.', '-'])
        && !text.contains("..")
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/'))
}

#[cfg(unix)]
fn make_link(target: &Path, _blob: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn make_link(_target: &Path, blob: &Path, link: &Path) -> std::io::Result<()> {
    std::fs::hard_link(blob, link)
}
