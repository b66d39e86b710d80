//! The hub over HTTP: what a repository holds.

use std::io::Read;
use std::time::Duration;

use serde::Deserialize;
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use super::cache::safe_revision;
use super::name::RepoName;
use crate::error::CliError;

/// Most bytes read of a listing.
const LISTING_BYTES_MAX: u64 = 64 << 20;

/// A client of one hub.
#[derive(Debug, Clone)]
pub struct Hub {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// A repository at a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Commit.
    pub commit: String,
    /// Files.
    pub files: Vec<RemoteFile>,
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// Path inside it.
    pub path: String,
    /// Bytes.
    pub size: Option<u64>,
    /// Name of the blob: the SHA-256 of large files, the git id of small ones.
    pub blob: Option<String>,
    /// SHA-256, for large files.
    pub sha256: Option<String>,
}

#[derive(Deserialize)]
struct RawListing {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<RawFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawFile {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<RawLfs>,
}

#[derive(Deserialize)]
struct RawLfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// The HTTP client: certificates from `SSL_CERT_FILE` if set (else the built-in list), proxies from the usual variables,
/// no credentials across redirects.
///
/// # Errors
/// When `SSL_CERT_FILE` cannot be read.
pub fn agent() -> Result<Agent, CliError> {
    let mut tls = TlsConfig::builder();
    if let Some(path) = std::env::var_os("SSL_CERT_FILE").filter(|v| !v.is_empty()) {
        let pem = std::fs::read(&path).map_err(CliError::io(&path))?;
        let certificates = parse_pem(&pem).filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            Ok(_) | Err(_) => None,
        });
        tls = tls.root_certs(RootCerts::new_with_certs(&certificates.collect::<Vec<_>>()));
    }
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_recv_response(Some(Duration::from_secs(30)))
        .max_redirects(5)
        .user_agent(concat!("galvani/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls.build())
        .build();
    Ok(config.into())
}

impl Hub {
    /// A client of `endpoint`, with the token of `HF_TOKEN` if there is one.
    ///
    /// # Errors
    /// When the address is not http(s) or the certificates cannot be read.
    pub fn new(endpoint: &str) -> Result<Self, CliError> {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            return Err(CliError::Usage(format!(
                "--hub: got `{endpoint}`, allowed: an http(s) URL"
            )));
        }
        let token = std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty());
        Ok(Self {
            agent: agent()?,
            endpoint,
            token,
        })
    }

    /// The client.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// The token, for downloads from this hub.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Address of a file.
    pub fn file_url(&self, repo: &RepoName, commit: &str, file: &str) -> String {
        format!(
            "{}/{}/resolve/{commit}/{}",
            self.endpoint,
            repo.repo(),
            escape(file)
        )
    }

    /// Asks what `repo` holds at `revision`.
    ///
    /// # Errors
    /// When the hub cannot be reached, refuses, or answers nonsense.
    pub fn listing(&self, repo: &RepoName, revision: &str) -> Result<Listing, CliError> {
        if !safe_revision(revision) {
            return Err(CliError::Usage(format!(
                "--revision: got `{revision}`, allowed: a branch, tag or commit"
            )));
        }
        let url = format!(
            "{}/api/models/{}/revision/{}?blobs=true",
            self.endpoint,
            repo.repo(),
            escape(revision)
        );
        let wrong = |reason: String| CliError::Http {
            url: url.clone(),
            reason,
        };
        let mut request = self.agent.get(&url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = request.call().map_err(|error| wrong(unreachable_text(&error)))?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(wrong(refusal(status, repo)));
        }
        let mut body = Vec::new();
        let mut reader = response.into_body().into_reader().take(LISTING_BYTES_MAX);
        reader
            .read_to_end(&mut body)
            .map_err(|error| wrong(format!("the answer broke off: {error}")))?;
        let raw: RawListing = serde_json::from_slice(&body)
            .map_err(|error| wrong(format!("the answer is not a listing: {error}")))?;
        let commit = raw.sha.filter(|sha| safe_revision(sha) && !sha.contains('/'));
        let commit = commit.ok_or_else(|| wrong("the answer names no commit".into()))?;
        Ok(Listing {
            commit,
            files: raw
                .siblings
                .into_iter()
                .filter_map(RemoteFile::from_raw)
                .collect(),
        })
    }
}

impl RemoteFile {
    /// Drops names that would leave the folder and ids that are not hexadecimal.
    fn from_raw(raw: RawFile) -> Option<Self> {
        let parts_fine = raw
            .rfilename
            .split('/')
            .all(|p| !p.is_empty() && p != "." && p != "..");
        if !parts_fine || raw.rfilename.contains(['\\', ':', '\0']) {
            return None;
        }
        let hex = |id: &String| id.len() >= 40 && id.len() <= 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
        let (sha256, lfs_size) = match raw.lfs {
            Some(lfs) => (lfs.sha256.filter(hex).filter(|h| h.len() == 64), lfs.size),
            None => (None, None),
        };
        let blob = sha256.clone().or(raw.blob_id.filter(hex));
        Some(RemoteFile {
            path: raw.rfilename,
            size: lfs_size.or(raw.size),
            blob,
            sha256,
        })
    }
}

/// What to say when no connection came about.
pub fn unreachable_text(error: &ureq::Error) -> String {
    format!(
        "cannot be reached ({error}); check the network, or use a model from `galvani list` with --offline"
    )
}

fn refusal(status: u16, repo: &RepoName) -> String {
    match status {
        401 | 403 => format!("status {status}: `{repo}` is private, gated or misspelt; set HF_TOKEN"),
        404 => format!(
            "status 404: no repository or revision of this name (`{}`)",
            repo.repo()
        ),
        429 => "status 429: the hub asks to wait; try again later".to_owned(),
        other => format!("status {other}"),
    }
}

/// Percent-encodes what may not stand in a path.
pub fn escape(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'/') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
