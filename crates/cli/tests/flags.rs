//! Flags, environment, file and defaults: each layer wins over the next, whoever names it wrongly is told so.

use std::path::Path;
use std::process::{Command, Output};

/// Runs the binary with nothing of the surroundings but what is given.
fn galvani(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_galvani"))
        .args(arguments)
        .env_clear()
        .env("HOME", folder)
        .envs(environment.iter().copied())
        .current_dir(folder)
        .output()
        .expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn each_layer_wins_over_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("g.toml");
    std::fs::write(
        &file,
        "port = 1111\ncontext = 100\n[serve]\nqueue = 7\ncontext = 200\n[run]\ntokens = 1\n",
    )
    .expect("written");
    let file = file.to_str().expect("plain path");
    // (key, arguments, environment, wanted line, wanted origin)
    type Case<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)], &'a str, &'a str);
    let cases: [Case<'_>; 12] = [
        ("port", &[], &[], "port = 8080", "default"),
        ("port", &["--config", file], &[], "port = 1111", "g.toml: port"),
        (
            "port",
            &["--config", file],
            &[("GALVANI_PORT", "2222")],
            "port = 2222",
            "environment GALVANI_PORT",
        ),
        (
            "port",
            &["--config", file, "--port", "3333"],
            &[("GALVANI_PORT", "2222")],
            "port = 3333",
            "command line",
        ),
        ("port", &["--port=8080"], &[], "port = 8080", "command line"),
        (
            "port",
            &[],
            &[("GALVANI_CONFIG", file)],
            "port = 1111",
            "g.toml: port",
        ),
        (
            "context",
            &["--config", file],
            &[],
            "context = 200",
            "g.toml: serve.context",
        ),
        (
            "queue",
            &["--config", file],
            &[],
            "queue = 7",
            "g.toml: serve.queue",
        ),
        ("context", &[], &[], "# context =", "unset"),
        (
            "strict",
            &[],
            &[("GALVANI_STRICT", "1")],
            "strict = 1",
            "environment GALVANI_STRICT",
        ),
        ("strict", &["--strict"], &[], "strict = true", "command line"),
        (
            "api-key",
            &["--api-key", "hidden"],
            &[],
            "api-key = \"***\"",
            "command line",
        ),
    ];
    let mut wrong = Vec::new();
    for (key, arguments, environment, line, origin) in cases {
        let all: Vec<&str> = ["config", "--origin"].iter().chain(arguments).copied().collect();
        let output = galvani(folder.path(), &all, environment);
        let out = text(&output.stdout);
        let found = out
            .lines()
            .find(|l| l.trim_start_matches("# ").starts_with(&format!("{key} =")));
        let fine = found.is_some_and(|l| l.starts_with(line) && l.contains(origin));
        if !fine || out.contains("hidden") {
            wrong.push(format!(
                "{all:?} {environment:?}: {found:?}\n{}",
                text(&output.stderr)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_printed_settings_are_a_file_that_gives_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = galvani(
        folder.path(),
        &["config", "--port", "4444", "--name", "a", "--name", "b"],
        &[],
    );
    let file = folder.path().join("again.toml");
    std::fs::write(&file, &first.stdout).expect("written");
    let again = galvani(
        folder.path(),
        &["config", "--config", file.to_str().expect("plain path")],
        &[],
    );
    let body = |bytes: &[u8]| text(bytes).lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        body(&first.stdout),
        body(&again.stdout),
        "{}",
        text(&again.stderr)
    );
    assert!(
        text(&first.stdout).contains("name = [\"a\", \"b\"]"),
        "{}",
        text(&first.stdout)
    );
}

#[test]
fn the_users_own_file_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join(".config/galvani");
    std::fs::create_dir_all(&place).expect("made");
    std::fs::write(place.join("galvani.toml"), "port = 5555\n").expect("written");
    let output = galvani(folder.path(), &["config", "--origin"], &[]);
    assert!(
        text(&output.stdout).contains("port = 5555"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn wrong_settings_name_their_layer() {
    let folder = tempfile::tempdir().expect("a folder");
    // (file, arguments, environment, words of the message)
    type Case<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)], &'a [&'a str]);
    let cases: [Case<'_>; 12] = [
        (
            "prot = 1",
            &[],
            &[],
            &["c.toml", "unknown key `prot`", "did you mean `port`"],
        ),
        (
            "[sevre]\nport = 1",
            &[],
            &[],
            &["unknown key `sevre.port`", "serve"],
        ),
        (
            "[serve]\nprot = 1",
            &[],
            &[],
            &["`serve.prot`", "did you mean `port`"],
        ),
        ("port = 70000", &[], &[], &["c.toml", "70000", "--port"]),
        ("port = [1, {a = 2}]", &[], &[], &["port", "table", "allowed"]),
        ("port = 2020-01-01", &[], &[], &["date"]),
        ("port = ", &[], &[], &["c.toml"]),
        ("", &["--port", "x"], &[], &["'x'", "--port"]),
        ("", &[], &[("GALVANI_PORT", "x")], &["'x'", "--port"]),
        ("", &["--prot", "1"], &[], &["--prot", "--port"]),
        ("", &["--cpu-math", "wild"], &[], &["wild", "fast", "exact"]),
        ("", &["--lora", "x"], &[], &["--lora", "merge"]),
    ];
    let mut wrong = Vec::new();
    for (file, arguments, environment, words) in cases {
        std::fs::write(folder.path().join("c.toml"), file).expect("written");
        let all: Vec<&str> = ["config", "--config", "c.toml"]
            .iter()
            .chain(arguments)
            .copied()
            .collect();
        let output = galvani(folder.path(), &all, environment);
        let err = text(&output.stderr);
        if output.status.code() != Some(2) || words.iter().any(|word| !err.contains(word)) {
            wrong.push(format!(
                "{file:?} {arguments:?}: {:?} {err}",
                output.status.code()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Command lines as they are copied from elsewhere. Each works (with these settings), or is refused with a word of advice.
#[test]
fn command_lines_of_other_servers() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases: [(&str, Result<&[&str], &str>); 26] = [
        (
            "-m x.gguf -c 4096 -np 4 -ngl 99",
            Ok(&["model = \"x.gguf\"", "context = 4096", "sequences = 4"]),
        ),
        (
            "-hf a/b:Q4_K_M --host 0.0.0.0 --port 9000",
            Ok(&["model = \"a/b:Q4_K_M\"", "host = \"0.0.0.0\"", "port = 9000"]),
        ),
        (
            "--model x --ctx-size 8192 --parallel 2 -fa on -b 256",
            Ok(&["context = 8192", "sequences = 2", "step-tokens = 256"]),
        ),
        ("-m x -fa --jinja --metrics --slots", Ok(&["model = \"x\""])),
        ("-m x -t 2 -tb 4", Ok(&["threads = 2"])),
        (
            "-m x --alias small --api-key k",
            Ok(&["name = \"small\"", "api-key = \"***\""]),
        ),
        ("-m x -ctk f16 -ctv f16", Ok(&["model = \"x\""])),
        ("-m x -ctk q8_0", Err("f16")),
        ("-m x --mmproj y", Err("images")),
        ("-m x -md y", Err("speculative")),
        ("-m x --mlock --no-mmap -cb", Ok(&["model = \"x\""])),
        ("-m x --no-webui", Ok(&["web = false"])),
        (
            "a/b --max-model-len 2048 --max-num-seqs 16",
            Ok(&["context = 2048", "sequences = 16"]),
        ),
        ("a/b --max_model_len=2048", Ok(&["context = 2048"])),
        (
            "a/b --gpu-memory-utilization 0.9 --tensor-parallel-size 1",
            Ok(&["port = 8080"]),
        ),
        ("a/b --tensor-parallel-size 2", Err("leave it out or give 1")),
        ("a/b -tp 4", Err("leave it out or give 1")),
        (
            "a/b --served-model-name q --enable-prefix-caching",
            Ok(&["name = \"q\"", "prefix-cache = true"]),
        ),
        (
            "a/b --no-enable-prefix-caching --enforce-eager",
            Ok(&["prefix-cache = false"]),
        ),
        (
            "a/b --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3",
            Ok(&["port = 8080"]),
        ),
        (
            "a/b --dtype half --trust-remote-code --kv-cache-dtype auto",
            Ok(&["port = 8080"]),
        ),
        ("a/b --kv-cache-dtype fp8", Err("f16")),
        (
            "a/b --max-num-batched-tokens 1024 --block-size 32",
            Ok(&["step-tokens = 1024", "page-tokens = 32"]),
        ),
        (
            "--model-path a/b --context-length 4096 --mem-fraction-static 0.8 --tp 1",
            Ok(&["model = \"a/b\"", "context = 4096"]),
        ),
        (
            "--model-id a/b --num-shard 1 --max-total-tokens 512",
            Ok(&["context = 512"]),
        ),
        ("--lora-modules x=y", Err("merge")),
    ];
    let mut wrong = Vec::new();
    for (line, want) in cases {
        let all: Vec<&str> = std::iter::once("config").chain(line.split(' ')).collect();
        let output = galvani(folder.path(), &all, &[]);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let fine = match want {
            Ok(lines) => output.status.success() && lines.iter().all(|l| out.lines().any(|o| o == *l)),
            Err(word) => output.status.code() == Some(2) && err.contains(word),
        };
        if !fine {
            wrong.push(format!("{line}: {:?}\n{out}\n{err}", output.status.code()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn strict_refuses_flags_without_meaning() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = galvani(folder.path(), &["config", "--strict", "-ngl", "99"], &[]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("-ngl"), "{}", text(&output.stderr));
    let loose = galvani(folder.path(), &["config", "-ngl", "99"], &[]);
    assert!(loose.status.success());
    assert!(
        text(&loose.stderr).contains("note: -ngl is left out"),
        "{}",
        text(&loose.stderr)
    );
}

#[test]
fn completions_and_help_name_the_commands() {
    let folder = tempfile::tempdir().expect("a folder");
    for shell in ["bash", "zsh", "fish"] {
        let output = galvani(folder.path(), &["completions", shell], &[]);
        let out = text(&output.stdout);
        assert!(
            output.status.success()
                && out.contains("galvani")
                && out.contains("max") | out.contains("step-tokens"),
            "{shell}"
        );
    }
    let help = text(&galvani(folder.path(), &["--help"], &[]).stdout);
    for verb in [
        "run",
        "chat",
        "serve",
        "pull",
        "list",
        "show",
        "plan",
        "bench",
        "eval",
        "config",
        "doctor",
        "completions",
    ] {
        assert!(
            help.lines().any(|l| l.trim_start().starts_with(verb)),
            "{verb} is not in\n{help}"
        );
    }
}
