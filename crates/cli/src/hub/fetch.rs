//! One file over HTTP: resumed by ranges, checked by SHA-256, put in place in one rename.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use ureq::Agent;

use super::api::unreachable_text;
use crate::error::CliError;
use crate::progress::Progress;

/// Times a broken transfer is taken up again, usually.
pub const RETRIES: u32 = 5;
/// Room left on the disk beside the file.
const SPACE_RESERVE: u64 = 16 << 20;

/// What to fetch.
#[derive(Debug, Clone)]
pub struct Order<'a> {
    /// Address.
    pub url: &'a str,
    /// Sent to that address alone.
    pub token: Option<&'a str>,
    /// Where the finished file goes.
    pub target: &'a Path,
    /// Bytes, if known beforehand.
    pub size: Option<u64>,
    /// SHA-256, if known beforehand.
    pub sha256: Option<&'a str>,
    /// For the bar.
    pub label: &'a str,
    /// No bar.
    pub quiet: bool,
    /// Times a transfer that got nowhere is tried again.
    pub retries: u32,
}

/// Fetches one file and gives its SHA-256. A partial file of an earlier try is continued; a finished one is kept.
///
/// # Errors
/// When the server refuses, the disk is short (before the first byte), or the hash differs.
pub fn fetch(agent: &Agent, order: &Order<'_>) -> Result<String, CliError> {
    let folder = order.target.parent().expect("targets lie in a folder");
    std::fs::create_dir_all(folder).map_err(CliError::io(folder))?;
    let partial = partial_path(order.target);
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&partial)
        .map_err(CliError::io(&partial))?;
    // Two processes must not write one file; the lock goes with the process.
    file.lock().map_err(CliError::io(&partial))?;
    if order.target.exists() {
        let _ = std::fs::remove_file(&partial);
        return hash_file(order.target);
    }
    let mut state = Transfer::resume(&mut file, &partial, order)?;
    let mut tries = 0;
    loop {
        let before = state.done;
        match state.attempt(agent, order, &mut file, &partial) {
            Ok(()) => break,
            Err(Broken::Fatal(error)) => return Err(error),
            Err(Broken::Again(error)) => {
                tries = if state.done > before { 0 } else { tries + 1 };
                if tries > order.retries {
                    return Err(error);
                }
                std::thread::sleep(Duration::from_millis(200 << tries));
            }
        }
    }
    let got = hex(&state.hash.finalize());
    if let Some(expected) = order
        .sha256
        .filter(|expected| !expected.eq_ignore_ascii_case(&got))
    {
        std::fs::remove_file(&partial).map_err(CliError::io(&partial))?;
        return Err(CliError::Hash {
            what: order.label.to_owned(),
            got,
            expected: expected.to_owned(),
        });
    }
    file.sync_all().map_err(CliError::io(&partial))?;
    std::fs::rename(&partial, order.target).map_err(CliError::io(order.target))?;
    Ok(got)
}

/// Where an unfinished file lies.
pub fn partial_path(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".incomplete");
    target.with_file_name(name)
}

enum Broken {
    Fatal(CliError),
    Again(CliError),
}

struct Transfer {
    hash: Sha256,
    done: u64,
    bar: Progress,
    space_checked: bool,
}

impl Transfer {
    /// Hashes what is there already.
    fn resume(file: &mut File, path: &Path, order: &Order<'_>) -> Result<Self, CliError> {
        let mut done = file.metadata().map_err(CliError::io(path))?.len();
        if order.size.is_some_and(|size| done > size) {
            file.set_len(0).map_err(CliError::io(path))?;
            done = 0;
        }
        let mut hash = Sha256::new();
        file.seek(SeekFrom::Start(0)).map_err(CliError::io(path))?;
        copy(&mut file.take(done), |chunk| {
            hash.update(chunk);
            Ok(())
        })
        .map_err(CliError::io(path))?;
        let bar = Progress::new(order.label, order.size.unwrap_or(0), done, order.quiet);
        Ok(Self {
            hash,
            done,
            bar,
            space_checked: false,
        })
    }

    /// One request, from where the file ends.
    fn attempt(
        &mut self,
        agent: &Agent,
        order: &Order<'_>,
        file: &mut File,
        path: &Path,
    ) -> Result<(), Broken> {
        let http = |reason: String| CliError::Http {
            url: order.url.to_owned(),
            reason,
        };
        let disk = |source| {
            Broken::Fatal(CliError::Io {
                path: path.to_owned(),
                source,
            })
        };
        if order.size == Some(self.done) && self.done > 0 {
            return Ok(());
        }
        let mut request = agent.get(order.url);
        if self.done > 0 {
            request = request.header("range", format!("bytes={}-", self.done));
        }
        if let Some(token) = order.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = request.call().map_err(|error| match error {
            ureq::Error::TooManyRedirects | ureq::Error::BadUri(_) | ureq::Error::HostNotFound => {
                Broken::Fatal(http(unreachable_text(&error)))
            }
            other => Broken::Again(http(unreachable_text(&other))),
        })?;
        let header = |name: &str| {
            response
                .headers()
                .get(name)
                .and_then(|v| v.to_str().ok())
                .map(str::to_owned)
        };
        let length = header("content-length").and_then(|v| v.parse::<u64>().ok());
        match response.status().as_u16() {
            200 => {
                // The server ignores ranges: from the start again.
                file.set_len(0).map_err(disk)?;
                self.hash = Sha256::new();
                self.done = 0;
            }
            206 if starts_at(header("content-range").as_deref(), self.done) => {}
            206 | 416 => {
                file.set_len(0).map_err(disk)?;
                self.hash = Sha256::new();
                self.done = 0;
                return Err(Broken::Again(http(
                    "the server answered with another range".into(),
                )));
            }
            status if status == 429 || status >= 500 => {
                return Err(Broken::Again(http(format!("status {status}"))));
            }
            status => return Err(Broken::Fatal(http(format!("status {status}")))),
        }
        let total = length.map(|length| length + self.done).or(order.size);
        if let (Some(want), Some(total)) = (order.size, total)
            && want != total
        {
            return Err(Broken::Fatal(http(format!(
                "the server has {total} bytes, {want} were announced"
            ))));
        }
        self.check_space(total, path).map_err(Broken::Fatal)?;
        file.seek(SeekFrom::Start(self.done)).map_err(disk)?;
        let mut reader = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 17];
        loop {
            let count = reader.read(&mut buffer).map_err(|error| {
                Broken::Again(http(format!("broke off after {} bytes: {error}", self.done)))
            })?;
            if count == 0 {
                break;
            }
            if total.is_some_and(|total| self.done + count as u64 > total) {
                return Err(Broken::Fatal(http("sends more bytes than it announced".into())));
            }
            file.write_all(&buffer[..count]).map_err(disk)?;
            self.hash.update(&buffer[..count]);
            self.done += count as u64;
            self.bar.set(self.done);
        }
        match total {
            Some(total) if self.done < total => Err(Broken::Again(http(format!(
                "broke off after {} of {total} bytes",
                self.done
            )))),
            Some(_) | None => Ok(()),
        }
    }

    fn check_space(&mut self, total: Option<u64>, path: &Path) -> Result<(), CliError> {
        if let Some(total) = total.filter(|_| !self.space_checked) {
            require_space(path.parent().unwrap_or(Path::new("/")), total - self.done)?;
            self.space_checked = true;
        }
        Ok(())
    }
}

fn starts_at(range: Option<&str>, done: u64) -> bool {
    range
        .and_then(|text| text.strip_prefix("bytes "))
        .and_then(|text| text.split('-').next())
        .and_then(|first| first.parse().ok())
        == Some(done)
}

/// Refuses to begin what cannot end.
///
/// # Errors
/// When `bytes` and a reserve do not fit on the folder's disk.
pub fn require_space(folder: &Path, bytes: u64) -> Result<(), CliError> {
    check_space(folder, bytes, free_bytes(folder)?)
}

fn check_space(folder: &Path, bytes: u64, free: u64) -> Result<(), CliError> {
    let needed = bytes.saturating_add(SPACE_RESERVE);
    if bytes > 0 && needed > free {
        return Err(CliError::Space {
            path: folder.to_owned(),
            needed,
            free,
        });
    }
    Ok(())
}

/// Bytes free for this user on the disk of `folder`.
///
/// # Errors
/// When the system does not say.
#[cfg(unix)]
pub fn free_bytes(folder: &Path) -> Result<u64, CliError> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes())
        .map_err(|_| CliError::Usage(format!("{}: a zero byte in the path", folder.display())))?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` is a C string that lives through the call, and `stat` has room for what the call writes.
    let failed = unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) } != 0;
    if failed {
        return Err(CliError::Io {
            path: folder.to_owned(),
            source: std::io::Error::last_os_error(),
        });
    }
    // SAFETY: the call succeeded, so it has written the whole struct.
    let stat = unsafe { stat.assume_init() };
    #[allow(clippy::unnecessary_cast)] // the fields' widths differ between systems
    Ok((stat.f_bavail as u64).saturating_mul(stat.f_frsize as u64))
}

/// Bytes free for this user on the disk of `folder`; not known on this system.
///
/// # Errors
/// Never.
#[cfg(not(unix))]
pub fn free_bytes(_folder: &Path) -> Result<u64, CliError> {
    Ok(u64::MAX)
}

/// SHA-256 of a file, lower-case hexadecimal.
///
/// # Errors
/// When it cannot be read.
pub fn hash_file(path: &Path) -> Result<String, CliError> {
    let mut file = File::open(path).map_err(CliError::io(path))?;
    let mut hash = Sha256::new();
    copy(&mut file, |chunk| {
        hash.update(chunk);
        Ok(())
    })
    .map_err(CliError::io(path))?;
    Ok(hex(&hash.finalize()))
}

/// Feeds everything of `from` to `sink` in chunks.
pub(super) fn copy(
    from: &mut impl Read,
    mut sink: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 17];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            count => sink(&buffer[..count])?,
        }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_checked_at_its_border() {
        let folder = Path::new("/cache");
        for (bytes, free, fits) in [
            (0, 0, true),
            (1, SPACE_RESERVE, false),
            (1, SPACE_RESERVE + 1, true),
            (u64::MAX, u64::MAX - 1, false),
        ] {
            assert_eq!(
                check_space(folder, bytes, free).is_ok(),
                fits,
                "{bytes} of {free}"
            );
        }
        let text = check_space(folder, 100, 50).unwrap_err().to_string();
        assert!(text.contains(&(100 + SPACE_RESERVE).to_string()), "{text}");
    }

    #[test]
    fn ranges_are_read() {
        for (text, done, fine) in [
            (Some("bytes 5-9/10"), 5, true),
            (Some("bytes 0-9/10"), 5, false),
            (Some("items 5-9/10"), 5, false),
            (None, 0, false),
        ] {
            assert_eq!(starts_at(text, done), fine, "{text:?}");
        }
    }
}
