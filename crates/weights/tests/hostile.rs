//! Files from strangers: every case of `goldens/hostile`, every prefix and every bit flip in the header of a small
//! checkpoint. Each loads as what it is or fails with a message; none panics or allocates much.

use std::path::{Path, PathBuf};

use galvani_weights::gguf::{Gguf, type_id};
use galvani_weights::safetensors::Safetensors;
use galvani_weights::{LoadError, RawDtype, RawTensor};
use serde_json::Value;

#[path = "support/counting.rs"]
mod counting;
#[path = "support/rewrite.rs"]
mod rewrite;

/// What may be allocated beyond twice the file.
const ALLOWANCE_BYTES: usize = 64 << 20;
/// What may be allocated for one of the small hand-made files.
const SMALL_BYTES: usize = 1 << 20;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/hostile")
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

fn open(path: &Path) -> Result<(), LoadError> {
    if path.extension().is_some_and(|ending| ending == "gguf") {
        Gguf::open(path).map(drop)
    } else {
        Safetensors::open(path).map(drop)
    }
}

#[test]
fn hand_made_files_are_refused_by_name() {
    let table = String::from_utf8(fixture("expected.tsv")).unwrap();
    let mut failures = Vec::new();
    let mut count = 0;
    for line in table.lines() {
        let (name, words) = line.split_once('\t').unwrap();
        let (result, peak) = counting::peak_bytes(|| open(&folder().join(name)));
        match result {
            Ok(()) => failures.push(format!("{name}: loads")),
            Err(error) => {
                let message = error.to_string();
                if !message.contains(words) || !message.contains(name) || message.len() > 700 {
                    failures.push(format!("{name}: expected `{words}`, the message is: {message}"));
                }
            }
        }
        if peak > SMALL_BYTES {
            failures.push(format!("{name}: {peak} bytes were allocated"));
        }
        count += 1;
    }
    assert!(count > 100, "the table has {count} lines");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Runs `check` on each variant and holds its allocations against the limit; panics count as failures of the test.
fn sweep(
    variants: impl Iterator<Item = (String, Vec<u8>)>,
    check: impl Fn(&[u8]) -> Result<bool, String>,
) -> [usize; 2] {
    let mut failures = Vec::new();
    let mut outcomes = [0, 0];
    for (what, bytes) in variants {
        let (result, peak) = counting::peak_bytes(|| check(&bytes));
        match result {
            Ok(loaded) => outcomes[usize::from(loaded)] += 1,
            Err(reason) => failures.push(format!("{what}: {reason}")),
        }
        let limit = ALLOWANCE_BYTES + 2 * bytes.len();
        if peak > limit {
            failures.push(format!("{what}: {peak} bytes were allocated, limit {limit}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    outcomes
}

fn prefixes(file: &[u8]) -> impl Iterator<Item = (String, Vec<u8>)> {
    (0..file.len()).map(|len| (format!("the first {len} bytes"), file[..len].to_vec()))
}

fn bit_flips(file: &[u8], header_len: usize) -> impl Iterator<Item = (String, Vec<u8>)> {
    (0..8 * header_len).map(|bit| {
        let mut bytes = file.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        (format!("byte {}, bit {} flipped", bit / 8, bit % 8), bytes)
    })
}

/// Whether it loads; where it does, what was read must be what stands there: written again, it gives the same header.
fn check_gguf(bytes: &[u8]) -> Result<bool, String> {
    let Ok(gguf) = Gguf::from_bytes("t.gguf", bytes.to_vec()) else {
        return Ok(false);
    };
    let written = rewrite::gguf_header(&gguf, bytes)?;
    if bytes.get(..written.len()) != Some(&written[..]) {
        return Err("loads as something else than what it says".to_owned());
    }
    Ok(true)
}

fn check_safetensors(bytes: &[u8]) -> Result<bool, String> {
    let Ok(checkpoint) = Safetensors::from_bytes("t.safetensors", bytes.to_vec()) else {
        return Ok(false);
    };
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).map_err(|error| error.to_string())?;
    let mut entries = header.as_object().unwrap().clone();
    entries.remove("__metadata__");
    if entries.len() != checkpoint.tensors().len() {
        return Err(format!(
            "{} tensors out of {}",
            checkpoint.tensors().len(),
            entries.len()
        ));
    }
    for tensor in checkpoint.tensors() {
        let entry = &entries[&tensor.name];
        let begin = entry["data_offsets"][0].as_u64().unwrap() as usize;
        let mut data = vec![0; tensor.byte_count()];
        checkpoint
            .read(tensor, 0..data.len(), &mut data)
            .map_err(|error| error.to_string())?;
        let same = entry["dtype"] == tensor.dtype.to_string()
            && entry["shape"] == serde_json::json!(tensor.dims)
            && data == bytes[8 + len + begin..][..data.len()];
        if !same {
            return Err(format!("tensor `{}` loads as something else", tensor.name));
        }
    }
    Ok(true)
}

#[test]
fn every_prefix_of_a_gguf_is_refused() {
    let file = fixture("tiny.gguf");
    assert_eq!(check_gguf(&file), Ok(true));
    assert_eq!(sweep(prefixes(&file), check_gguf)[1], 0, "a prefix loads");
}

#[test]
fn every_header_bit_flip_of_a_gguf_loads_equal_or_fails() {
    let file = fixture("tiny.gguf");
    let gguf = Gguf::from_bytes("tiny.gguf", file.clone()).unwrap();
    let header_len = rewrite::gguf_header(&gguf, &file).unwrap().len();
    let [refused, loaded] = sweep(bit_flips(&file, header_len), check_gguf);
    // Flips in names and values are sound files that say something else; flips in structure are not.
    assert!(
        refused > 1000 && loaded > 1000,
        "{refused} refused, {loaded} loaded"
    );
}

#[test]
fn every_prefix_of_a_safetensors_is_refused() {
    let file = fixture("tiny.safetensors");
    assert_eq!(check_safetensors(&file), Ok(true));
    assert_eq!(sweep(prefixes(&file), check_safetensors)[1], 0, "a prefix loads");
}

#[test]
fn every_header_bit_flip_of_a_safetensors_loads_equal_or_fails() {
    let file = fixture("tiny.safetensors");
    let header_len = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let [refused, loaded] = sweep(bit_flips(&file, header_len), check_safetensors);
    assert!(
        refused > 1000 && loaded > 100,
        "{refused} refused, {loaded} loaded"
    );
}

#[test]
fn large_headers_of_small_things_stay_within_the_limit() {
    let string = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    // As many keys of one byte as are allowed, and as many tensors of one number.
    let head = |tensors: u64, keys: u64| {
        let counts = [tensors.to_le_bytes(), keys.to_le_bytes()].concat();
        [&b"GGUF"[..], &3u32.to_le_bytes(), &counts].concat()
    };
    let mut keys = head(0, 1 << 16);
    for index in 0..1 << 16 {
        keys.extend(string(&format!("{index}")));
        keys.extend([0, 0, 0, 0, 7]);
    }
    let mut tensors = head(1 << 18, 0);
    for index in 0..1u64 << 18 {
        tensors.extend(string(&format!("{index}")));
        tensors.extend(1u32.to_le_bytes());
        tensors.extend(1u64.to_le_bytes());
        tensors.extend(24u32.to_le_bytes());
        tensors.extend((32 * index).to_le_bytes());
    }
    tensors.resize(tensors.len() + 32 + (32 << 18), 0);
    let mut strings = head(0, 1);
    strings.extend(string("k"));
    strings.extend([9, 0, 0, 0, 8, 0, 0, 0]);
    strings.extend((1u64 << 20).to_le_bytes());
    strings.resize(strings.len() + (8 << 20), 0);
    let entry = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let many: Vec<String> = (0..1 << 18).map(|index| format!("\"{index}\":{entry}")).collect();
    let many = format!("{{{}}}", many.join(","));
    let entries = [&(many.len() as u64).to_le_bytes()[..], many.as_bytes()].concat();
    let cases = [
        ("keys", keys, true),
        ("tensors", tensors, true),
        ("strings", strings, true),
        ("entries", entries, false),
    ];
    for (name, file, is_gguf) in cases {
        let limit = ALLOWANCE_BYTES + 2 * file.len();
        let (result, peak) = counting::peak_bytes(|| match is_gguf {
            true => Gguf::from_bytes(name, file).map(drop),
            false => Safetensors::from_bytes(name, file).map(drop),
        });
        result.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(
            peak <= limit,
            "{name}: {peak} bytes were allocated, limit {limit}"
        );
    }
}

#[test]
fn the_sound_files_read_as_they_were_written() {
    let gguf = Gguf::open(&folder().join("tiny.gguf")).unwrap();
    let meta = gguf.metadata();
    assert_eq!(meta.get_str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(meta.get_u32("k.u8").unwrap(), Some(200));
    assert_eq!(meta.get_i64("k.i16").unwrap(), Some(-2));
    assert_eq!(meta.get_usize("k.u64").unwrap(), Some(1 << 40));
    assert_eq!(meta.get_f32("k.f64").unwrap(), Some(0.1));
    assert_eq!(meta.get_bool("k.bool").unwrap(), Some(true));
    let words: Vec<&str> = meta.get_strings("k.words").unwrap().unwrap().iter().collect();
    assert_eq!(words, ["", "a", "é", "long word"]);
    assert_eq!(meta.get_i32s("k.types").unwrap(), Some(vec![1, -1, 3]));
    assert_eq!(meta.get_f32s("k.scores").unwrap(), Some(&[0.5, -2.0][..]));
    assert_eq!(meta.get_bools("k.flags").unwrap(), Some(vec![true, false]));
    assert_eq!(meta.get_u32("absent").unwrap(), None);
    for (key, error) in [
        ("k.i8", meta.get_u32("k.i8").unwrap_err()),
        ("k.u64", meta.get_u32("k.u64").unwrap_err()),
        ("k.f32", meta.get_u32("k.f32").unwrap_err()),
        ("k.words", meta.get_i32s("k.words").unwrap_err()),
        ("k.types", meta.get_usizes("k.types").unwrap_err()),
        ("k.bool", meta.get_str("k.bool").unwrap_err()),
        ("absent", meta.need::<u32>("absent", None).unwrap_err()),
    ] {
        assert!(error.to_string().contains(&format!("`{key}`")), "{error}");
    }
    let tensor = gguf.tensor("blk.0.ffn.weight").unwrap();
    assert_eq!(tensor.dims, [2, 2, 32]);
    assert_eq!(tensor.dtype, RawDtype::Format(galvani_graph::Format::Q4_0));
    assert_eq!(type_id(tensor.format().unwrap()), 2);
    assert_eq!(
        (tensor.byte_count(), tensor.element_count(), tensor.row_len()),
        (72, 128, 32)
    );
    let mut part = [0; 18];
    gguf.read(tensor, 18..36, &mut part).unwrap();
    let file = fixture("tiny.gguf");
    assert!(file.windows(18).filter(|window| *window == part).count() == 1);

    let checkpoint = Safetensors::open(&folder().join("tiny.safetensors")).unwrap();
    assert_eq!(checkpoint.notes(), [("format".to_owned(), "pt".to_owned())]);
    let dims = |name: &str| {
        checkpoint
            .tensor(name)
            .map(|tensor: &RawTensor| tensor.dims.clone())
    };
    assert_eq!(dims("w"), Some(vec![2, 3]));
    assert_eq!(dims("s"), Some(vec![]));
    assert_eq!(dims("none"), Some(vec![0, 4]));
    assert_eq!(dims("x"), None);
    let error = checkpoint.tensor("q").unwrap().format().unwrap_err().to_string();
    assert!(error.contains("`q`") && error.contains("F8_E4M3"), "{error}");
}
