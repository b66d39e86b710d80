//! The whole way, on a checkpoint of a few hundred kilobytes with random weights: what it says is noise, but the same noise
//! from both containers, alone or served.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

fn golden(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../goldens/tiny")
        .join(name);
    path.to_str().expect("plain path").to_owned()
}

fn command(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_galvani"));
    command
        .env_clear()
        .env("HOME", home)
        .current_dir(home)
        .stdin(Stdio::null());
    command
}

fn galvani(home: &Path, arguments: &[&str]) -> Output {
    command(home).args(arguments).output().expect("the binary starts")
}

fn good(home: &Path, arguments: &[&str]) -> String {
    let output = galvani(home, arguments);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {err}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

const FAMILIES: [&str; 7] = [
    "llama",
    "smollm3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "granite",
    "gemma3_text",
];

#[test]
fn both_containers_say_the_same() {
    let home = tempfile::tempdir().expect("a folder");
    for family in FAMILIES {
        let mut answers = Vec::new();
        for model in [golden(family), golden(&format!("{family}/model-f32.gguf"))] {
            let common = [
                "run",
                "--raw",
                "a b c",
                "--temperature",
                "0",
                "-n",
                "8",
                "--context",
                "64",
                "-m",
                &model,
            ];
            for math in ["exact", "reference"] {
                answers.push(good(home.path(), &[&common[..], &["--cpu-math", math]].concat()));
            }
        }
        assert!(
            answers.iter().all(|answer| *answer == answers[0]),
            "{family}: {answers:?}"
        );
        assert!(!answers[0].trim().is_empty(), "{family}");
    }
}

#[test]
fn a_plan_takes_less_than_a_second() {
    let home = tempfile::tempdir().expect("a folder");
    let model = golden("llama/model-f32.gguf");
    let start = Instant::now();
    let text = good(
        home.path(),
        &["plan", "--json", &model, "--context", "64", "--sequences", "2"],
    );
    let took = start.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    let plan: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&plan["context"], &plan["sequences"]), (&json!(64), &json!(2)));
    let number = |key: &str| plan[key].as_u64().unwrap_or(0);
    let sum = ["weight_bytes", "cache_bytes", "arena_bytes", "logits_bytes"]
        .map(number)
        .iter()
        .sum::<u64>();
    assert_eq!(sum, number("total_bytes"));
    let per_token = plan["model"]["kv_bytes_per_token"].as_u64().expect("a number");
    assert_eq!(
        number("cache_bytes"),
        number("page_count") * number("page_tokens") * per_token
    );
    assert_eq!(
        number("page_count") * number("page_tokens"),
        2048,
        "1,024 tokens a sequence"
    );
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let home = tempfile::tempdir().expect("a folder");
    let model = golden("llama");
    std::fs::write(home.path().join("notes.txt"), "not a model").expect("a file");
    let cases: [(&[&str], i32, &str); 11] = [
        (&["-m", "notes.txt"], 1, "is no checkpoint"),
        (&["--context", "1"], 2, "--context: got 1, allowed: 2 to"),
        (&["--context", "99999999"], 2, "--context: got 99999999"),
        (&["--page-tokens", "24"], 2, "--page-tokens: got 24"),
        (&["--sequences", "0"], 2, "--sequences: got 0"),
        (&["--threads", "0"], 2, "--threads: got 0"),
        (&["--isa", "mmx"], 2, "--isa"),
        (&["--context", "128", "--cache-memory", "0"], 2, ""),
        (&["-m", "missing.gguf"], 1, "no such file"),
        (&["-m", "no/such", "--offline"], 1, "not in the cache"),
        (&["--config", "missing.toml"], 1, "missing.toml"),
    ];
    let mut wrong = Vec::new();
    for (arguments, code, words) in cases {
        let mut all = vec!["run", "--raw", "a", "-n", "2"];
        if !arguments.contains(&"-m") {
            all.extend(["-m", &model]);
        }
        all.extend(arguments);
        let output = galvani(home.path(), &all);
        let err = String::from_utf8_lossy(&output.stderr);
        if output.status.code() != Some(code) || !err.contains(words) || err.contains("panicked") {
            wrong.push(format!("{arguments:?}: {:?} {err}", output.status.code()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_blob_without_an_ending_and_an_empty_prompt() {
    let home = tempfile::tempdir().expect("a folder");
    let blob = home.path().join("sha256-0123");
    std::fs::copy(golden("llama/model-f32.gguf"), &blob).expect("a copy");
    let model = blob.to_str().expect("plain path");
    good(home.path(), &["show", model]);
    let output = galvani(home.path(), &["run", "-m", model]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("prompt on standard input is empty"), "{err}");
}

#[test]
fn a_model_is_shown() {
    let home = tempfile::tempdir().expect("a folder");
    let model = golden("llama");
    let facts = good(home.path(), &["show", &model]);
    assert!(
        facts.contains("family llama") && facts.contains("template") && facts.contains("tokenizer"),
        "{facts}"
    );
    let graph = good(home.path(), &["show", &model, "--graph"]);
    assert!(
        graph.contains("layers.0.self_attn.q_proj.weight") || graph.contains("q_proj"),
        "{graph}"
    );
    let plan = good(home.path(), &["show", &model, "--plan"]);
    assert!(
        plan.starts_with("arena of ") && plan.lines().count() > 5,
        "{plan}"
    );
    let tensors = good(home.path(), &["show", &model, "--tensors"]);
    assert!(tensors.contains("embed_tokens.weight"), "{tensors}");
}

/// P25 (a) and (b): the template of a GGUF is its metadata's; a folder with nothing but `chat_template.jinja` has that one.
#[test]
fn the_template_comes_from_the_checkpoint() {
    let home = tempfile::tempdir().expect("a folder");
    let template = |model: &str| {
        let facts = good(home.path(), &["show", model]);
        let line = facts.lines().find_map(|line| line.strip_prefix("template "));
        line.expect("a line for the template").trim().to_owned()
    };
    assert_eq!(
        template(&golden("llama/model-f32.gguf")),
        "tokenizer.chat_template"
    );

    let folder = home.path().join("model");
    std::fs::create_dir(&folder).expect("writable");
    for name in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        std::fs::copy(golden(&format!("llama/{name}")), folder.join(name)).expect("copied");
    }
    let config = std::fs::read_to_string(folder.join("tokenizer_config.json")).expect("read");
    assert!(!config.contains("chat_template"), "{config}");
    let model = folder.to_str().expect("plain path");
    assert_eq!(template(model), "none");
    std::fs::write(folder.join("chat_template.jinja"), "{{ messages[0].content }}").expect("writable");
    assert_eq!(template(model), "chat_template.jinja");
    // One that does not parse is named, with its place.
    std::fs::write(folder.join("chat_template.jinja"), "a\n{% if %}").expect("writable");
    let output = galvani(home.path(), &["show", model]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && err.contains("chat_template.jinja") && err.contains('2'),
        "{err}"
    );
}

#[test]
fn measurements_and_scores() {
    let home = tempfile::tempdir().expect("a folder");
    let model = golden("qwen3_moe/model-f32.gguf");
    let svg = home.path().join("chart.svg");
    let arguments = [
        "bench",
        &model,
        "--prefill",
        "20",
        "--decode",
        "4",
        "--streams",
        "1,3",
        "-r",
        "2",
        "-o",
        "json",
    ];
    let text = good(
        home.path(),
        &[&arguments[..], &["--svg", svg.to_str().expect("plain path")]].concat(),
    );
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let tests: Vec<_> = report["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| row["test"].clone())
        .collect();
    assert_eq!(tests, ["pp20", "tg4", "tg4 x3"]);
    assert!(
        report["rows"]
            .as_array()
            .expect("rows")
            .iter()
            .all(|row| row["tokens_per_second"].as_f64() > Some(0.0))
    );
    assert!(std::fs::read_to_string(svg).expect("written").contains("tg4 x3"));

    let book = home.path().join("book.txt");
    std::fs::write(&book, "the quick brown fox jumps over the lazy dog. ".repeat(40)).expect("written");
    let book = book.to_str().expect("plain path");
    let against = golden("qwen3_moe");
    let arguments = [
        "eval",
        book,
        "-m",
        &model,
        "--window",
        "32",
        "--windows",
        "3",
        "--cpu-math",
        "exact",
        "--json",
    ];
    let text = good(home.path(), &[&arguments[..], &["--against", &against]].concat());
    let score: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (&score["windows"], &score["tokens_scored"]),
        (&json!(3), &json!(3 * 15))
    );
    assert!(score["perplexity"].as_f64().is_some_and(|p| p > 1.0), "{score}");
    assert!(
        score["kl_mean"].as_f64().is_some_and(|kl| kl.abs() < 1e-6),
        "the same model: {score}"
    );
    assert_eq!(score["same_top"], 1.0);
}

struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(home: &Path, arguments: &[&str]) -> Server {
    let mut child = command(home)
        .args(["serve", "--port", "0"])
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let mut seen = Vec::new();
    let mut address = String::new();
    for line in lines.by_ref().map_while(Result::ok) {
        if let Some(rest) = line.split("listening on http://").nth(1) {
            address = rest.split(' ').next().unwrap_or_default().to_owned();
        }
        let ready = line.contains("ready in");
        seen.push(line);
        if ready {
            break;
        }
    }
    // Whoever writes to a closed pipe ends.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    assert!(!address.is_empty(), "{}", seen.join("\n"));
    let plan = seen.join("\n");
    for word in ["weights", "kv pool", "arena", "limits", "compute"] {
        assert!(plan.contains(word), "{word} is not told at start:\n{plan}");
    }
    Server { child, address }
}

fn request(address: &str, head: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("connects");
    write!(
        stream,
        "{head} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .expect("written");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("read");
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .expect("a status");
    (
        status,
        text.split_once("\r\n\r\n")
            .map(|(_, body)| body.to_owned())
            .unwrap_or_default(),
    )
}

#[cfg(unix)]
#[test]
fn a_served_answer_is_the_answer() {
    let home = tempfile::tempdir().expect("a folder");
    let model = golden("llama");
    let arguments = [
        &model,
        "--name",
        "tiny",
        "--name",
        "small",
        "--context",
        "128",
        "--cpu-math",
        "exact",
    ];
    let mut server = serve(home.path(), &arguments);
    let (status, body) = request(&server.address, "GET /v1/models", "");
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("\"tiny\""), "{body}");
    let prompt = json!({"model": "small", "prompt": "a b c", "temperature": 0, "max_tokens": 8});
    let (status, body) = request(&server.address, "POST /v1/completions", &prompt.to_string());
    assert_eq!(status, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).expect("JSON");
    let alone = [
        "run",
        "--raw",
        "a b c",
        "--temperature",
        "0",
        "-n",
        "8",
        "-m",
        &model,
        "--cpu-math",
        "exact",
    ];
    let alone = good(home.path(), &alone);
    assert_eq!(
        answer["choices"][0]["text"].as_str().expect("text"),
        alone.strip_suffix('\n').expect("a line")
    );
    let killed = Command::new("/bin/kill")
        .args(["-TERM", &server.child.id().to_string()])
        .status();
    assert!(killed.is_ok_and(|status| status.success()));
    let status = server.child.wait().expect("waited for");
    assert!(status.success(), "{status}");
}

#[test]
fn a_conversation_reads_lines() {
    let home = tempfile::tempdir().expect("a folder");
    let mut child = command(home.path())
        .args([
            "chat",
            "-m",
            &golden("llama"),
            "--context",
            "256",
            "--temperature",
            "0",
            "-n",
            "4",
            "--verbose",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin
        .write_all(b"a b\n/undo\nc d\n/help\n/nonsense\n/exit\n")
        .expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("ends");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{err}");
    assert!(
        out.contains("/retry") && out.contains("`/nonsense` is not known"),
        "{out}"
    );
    assert_eq!(err.matches("answer ").count(), 2, "{err}");
    assert!(home.path().join(".local/state/galvani/history").is_file());
}
