//! What a model is called: a path, `user/model[:quant]`, or a URL.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::CliError;

/// A repository of the hub, with the file wanted from it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepoName {
    /// Owner.
    pub user: String,
    /// Repository.
    pub model: String,
    /// Quantisation named after the colon, such as `Q4_K_M`.
    pub quant: Option<String>,
}

/// A model as the user named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelName {
    /// A file or folder.
    Path(PathBuf),
    /// A repository of the hub.
    Repo(RepoName),
    /// A file of a web server.
    Url(String),
}

impl fmt::Display for RepoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.user, self.model)?;
        match &self.quant {
            Some(quant) => write!(f, ":{quant}"),
            None => Ok(()),
        }
    }
}

impl RepoName {
    /// Reads `user/model[:quant]`; `None` when the text has another shape.
    pub fn parse(text: &str) -> Option<Self> {
        let (repo, quant) = match text.split_once(':') {
            Some((repo, quant)) => (repo, Some(quant)),
            None => (text, None),
        };
        let (user, model) = repo.split_once('/')?;
        let fine = is_name(user) && is_name(model) && quant.is_none_or(is_name);
        fine.then(|| RepoName {
            user: user.into(),
            model: model.into(),
            quant: quant.map(str::to_owned),
        })
    }

    /// `user/model`
    pub fn repo(&self) -> String {
        format!("{}/{}", self.user, self.model)
    }
}

/// The hub's own alphabet; it keeps `..`, separators and drive letters out of paths.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 96
        && !text.starts_with(['.', '-'])
        && !text.contains("..")
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

impl ModelName {
    /// Decides what `text` names. Something that exists on disk is a path.
    ///
    /// # Errors
    /// When it has none of the shapes, or looks like a path that does not exist.
    pub fn parse(text: &str) -> Result<Self, CliError> {
        if text.starts_with("http://") || text.starts_with("https://") {
            return Ok(ModelName::Url(text.to_owned()));
        }
        if Path::new(text).exists() {
            return Ok(ModelName::Path(PathBuf::from(text)));
        }
        let bare = text
            .strip_prefix("hf.co/")
            .or_else(|| text.strip_prefix("hf://"))
            .unwrap_or(text);
        if looks_like_path(bare) {
            let reason = "no such file or folder".to_owned();
            return Err(CliError::Model {
                name: text.to_owned(),
                reason,
            });
        }
        RepoName::parse(bare)
            .map(ModelName::Repo)
            .ok_or_else(|| CliError::Model {
                name: text.to_owned(),
                reason: "allowed: a file, a folder, `user/model[:quant]` of the hub, or an http(s) URL; \
                     `galvani list` shows what is in the cache"
                    .to_owned(),
            })
    }
}

fn looks_like_path(text: &str) -> bool {
    text.starts_with(['/', '.', '~'])
        || text.matches('/').count() > 1
        || text.ends_with(".gguf")
        || text.ends_with(".safetensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_shape() {
        let repo = |user: &str, model: &str, quant: Option<&str>| {
            Some(ModelName::Repo(RepoName {
                user: user.into(),
                model: model.into(),
                quant: quant.map(str::to_owned),
            }))
        };
        let cases = [
            ("a/b", repo("a", "b", None)),
            ("Qwen/Qwen3-0.6B", repo("Qwen", "Qwen3-0.6B", None)),
            ("a/b-GGUF:Q4_K_M", repo("a", "b-GGUF", Some("Q4_K_M"))),
            ("hf.co/a/b:Q8_0", repo("a", "b", Some("Q8_0"))),
            ("hf://a/b", repo("a", "b", None)),
            (
                "https://x.example/y.gguf",
                Some(ModelName::Url("https://x.example/y.gguf".into())),
            ),
            ("", None),
            ("a", None),
            ("a/", None),
            ("a/b:", None),
            ("a/b/c", None),
            ("a/..", None),
            ("../b", None),
            ("a/b:../c", None),
            ("a/missing.gguf", None),
            ("./missing", None),
            ("-a/b", None),
        ];
        let mut wrong = Vec::new();
        for (text, want) in cases {
            let got = ModelName::parse(text).ok();
            if got != want {
                wrong.push(format!("{text:?}: {got:?}, wanted {want:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
