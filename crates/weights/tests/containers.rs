//! Checkpoints of several files, and folders.

use std::fs;
use std::path::{Path, PathBuf};

use galvani_weights::gguf::Gguf;
use galvani_weights::safetensors::Safetensors;
use tempfile::TempDir;

fn hostile(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../goldens/hostile")
        .join(name)
}

/// A folder of its own with the files of `goldens/hostile/<name>`.
fn copy(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(hostile(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

fn shard(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("m-{number:05}-of-00003.gguf"))
}

#[track_caller]
fn refused<T>(result: Result<T, galvani_weights::LoadError>, words: &[&str]) {
    let message = result.err().expect("must be refused").to_string();
    for word in words {
        assert!(
            message.contains(word),
            "expected `{word}`, the message is: {message}"
        );
    }
}

#[test]
fn a_split_opens_from_any_shard() {
    for number in 1..=3 {
        let gguf = Gguf::open(&shard(&hostile("split"), number)).unwrap();
        let names: Vec<&str> = gguf.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["t0", "t1", "t2", "last"]);
        assert_eq!(gguf.metadata().get_u32("k.only-first").unwrap(), Some(7));
        for (name, file, byte_count) in [("t0", 1, 32), ("t1", 2, 32), ("last", 3, 16)] {
            let tensor = gguf.tensor(name).unwrap();
            let mut data = vec![0; tensor.byte_count()];
            gguf.read(tensor, 0..byte_count, &mut data).unwrap();
            let whole = fs::read(shard(&hostile("split"), file)).unwrap();
            assert!(whole.windows(byte_count).any(|window| window == data), "{name}");
        }
        let total: u64 = (1..=3)
            .map(|n| fs::metadata(shard(&hostile("split"), n)).unwrap().len())
            .sum();
        assert_eq!(gguf.file_bytes(), total);
    }
}

#[test]
fn splits_that_do_not_belong_together_are_refused() {
    let folder = copy("split");
    fs::remove_file(shard(folder.path(), 2)).unwrap();
    refused(
        Gguf::open(&shard(folder.path(), 3)),
        &["missing", "m-00002-of-00003.gguf"],
    );

    let folder = copy("split");
    fs::copy(shard(folder.path(), 3), shard(folder.path(), 2)).unwrap();
    refused(
        Gguf::open(&shard(folder.path(), 1)),
        &["m-00002-of-00003.gguf", "does not belong"],
    );

    let folder = copy("split");
    fs::write(shard(folder.path(), 2), b"GGUF").unwrap();
    refused(
        Gguf::open(&shard(folder.path(), 1)),
        &["m-00002-of-00003.gguf", "the version"],
    );

    let folder = copy("split");
    fs::rename(shard(folder.path(), 1), folder.path().join("renamed.gguf")).unwrap();
    refused(
        Gguf::open(&folder.path().join("renamed.gguf")),
        &["-00001-of-00003.gguf"],
    );

    // A shard with other tensors than it should have.
    let folder = copy("split");
    let mut bytes = fs::read(shard(folder.path(), 2)).unwrap();
    let at = bytes.windows(2).rposition(|window| window == b"t1").unwrap();
    bytes[at + 1] = b'0';
    fs::write(shard(folder.path(), 2), &bytes).unwrap();
    refused(Gguf::open(&shard(folder.path(), 1)), &["`t0`", "twice"]);
    let at = bytes
        .windows(19)
        .position(|window| window == b"split.tensors.count")
        .unwrap();
    bytes[at + 23] = 9;
    fs::write(shard(folder.path(), 2), &bytes).unwrap();
    refused(Gguf::open(&shard(folder.path(), 1)), &["does not belong", "9"]);

    let bytes = fs::read(shard(&hostile("split"), 2)).unwrap();
    refused(Gguf::from_bytes("memory", bytes), &["memory", "shard 2 of 3"]);
}

#[test]
fn a_stated_tensor_count_must_hold() {
    let folder = copy("split");
    for number in 1..=3 {
        let mut bytes = fs::read(shard(folder.path(), number)).unwrap();
        let at = bytes
            .windows(19)
            .position(|window| window == b"split.tensors.count")
            .unwrap();
        bytes[at + 23] = 5;
        fs::write(shard(folder.path(), number), bytes).unwrap();
    }
    refused(
        Gguf::open(&shard(folder.path(), 1)),
        &["split.tensors.count", "is 5", "hold 4"],
    );
}

#[test]
fn shards_open_from_the_folder_the_index_and_any_shard() {
    let folder = hostile("shards");
    let first = "model-00001-of-00002.safetensors";
    for path in [
        folder.clone(),
        folder.join("model.safetensors.index.json"),
        folder.join(first),
    ] {
        let checkpoint = Safetensors::open(&path).unwrap();
        let names: Vec<&str> = checkpoint
            .tensors()
            .iter()
            .map(|tensor| tensor.name.as_str())
            .collect();
        assert_eq!(names, ["a", "b", "c"], "{}", path.display());
        let tensor = checkpoint.tensor("b").unwrap();
        let mut data = [0; 2];
        checkpoint.read(tensor, 2..4, &mut data).unwrap();
        let whole = fs::read(folder.join("model-00002-of-00002.safetensors")).unwrap();
        assert_eq!(data, whole[whole.len() - 3..whole.len() - 1]);
    }
}

#[test]
fn indexes_that_do_not_hold_are_refused() {
    let index = |text: &str| {
        let folder = copy("shards");
        fs::write(folder.path().join("model.safetensors.index.json"), text).unwrap();
        (Safetensors::open(folder.path()), folder)
    };
    let first = "model-00001-of-00002.safetensors";
    let cases: [(String, &[&str]); 12] = [
        (
            format!(r#"{{"weight_map":{{"z":"{first}"}}}}"#),
            &["tensor `z`", first],
        ),
        (
            format!(r#"{{"weight_map":{{"b":"{first}","c":"model-00002-of-00002.safetensors"}}}}"#),
            &["tensor `b`", first],
        ),
        (
            r#"{"weight_map":{"a":"other.safetensors"}}"#.to_owned(),
            &["not there", "other.safetensors"],
        ),
        (
            r#"{"weight_map":{"a":"../a.safetensors"}}"#.to_owned(),
            &["../a.safetensors", "plain names"],
        ),
        (
            r#"{"weight_map":{"a":"/etc/passwd"}}"#.to_owned(),
            &["/etc/passwd", "plain names"],
        ),
        (
            r#"{"weight_map":{"a":".."}}"#.to_owned(),
            &["`..`", "plain names"],
        ),
        (r#"{"weight_map":{"a":""}}"#.to_owned(), &["``", "plain names"]),
        (r#"{"weight_map":{}}"#.to_owned(), &["no file"]),
        (r#"{"weight_map":{"a":3}}"#.to_owned(), &["not a sound index"]),
        (r#"{"metadata":{}}"#.to_owned(), &["weight_map"]),
        (String::new(), &["not a sound index"]),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n".to_owned(),
            &["Git LFS pointer"],
        ),
    ];
    for (text, words) in cases {
        refused(index(&text).0, words);
    }
    let folder = copy("shards");
    let second = folder.path().join("model-00002-of-00002.safetensors");
    fs::copy(folder.path().join(first), &second).unwrap();
    refused(
        Safetensors::open(folder.path()),
        &["tensor `a`", "twice", "model-00002-of-00002.safetensors"],
    );
}

#[test]
fn folders_without_a_checkpoint_say_what_was_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    refused(
        Safetensors::open(folder.path()),
        &["no safetensors file", "model.safetensors"],
    );
    let tiny = hostile("tiny.safetensors");
    fs::copy(&tiny, folder.path().join("adapter.safetensors")).unwrap();
    assert_eq!(Safetensors::open(folder.path()).unwrap().tensors().len(), 4);
    fs::copy(&tiny, folder.path().join("more.safetensors")).unwrap();
    refused(
        Safetensors::open(folder.path()),
        &["2 safetensors files", "index"],
    );
    fs::copy(&tiny, folder.path().join("model.safetensors")).unwrap();
    assert_eq!(Safetensors::open(folder.path()).unwrap().tensors().len(), 4);
}

#[test]
fn what_is_not_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    refused(Gguf::open(folder.path()), &["not a regular file"]);
    refused(
        Gguf::open(&folder.path().join("absent.gguf")),
        &["absent.gguf", "cannot open"],
    );
    refused(
        Safetensors::open(&folder.path().join("absent")),
        &["absent", "cannot open"],
    );
    #[cfg(unix)]
    refused(
        Gguf::open(Path::new("/dev/null")),
        &["/dev/null", "not a regular file"],
    );
}

/// A file that shrinks while it is open gives an error, not a signal as a mapped one would.
#[test]
fn a_file_cut_while_open_fails_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.gguf");
    fs::copy(hostile("tiny.gguf"), &path).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(64)
        .unwrap();
    let tensor = gguf.tensor("norm").unwrap();
    let mut data = vec![0; tensor.byte_count()];
    refused(
        gguf.read(tensor, 0..tensor.byte_count(), &mut data),
        &["t.gguf", "cannot read"],
    );
}
