//! The config reader: any getter on any key gives a value or words.

use galvani_weights::{Config, LoadError};

use super::{Target, fixtures};

pub const TARGET: Target = Target {
    name: "config",
    about: "config.json: strict JSON, every getter on every key",
    run,
    seeds: || {
        let mut seeds = fixtures("", "config.json");
        seeds.push(br#"{"a": 1, "b": [1, 2.5, null, true], "c": {"d": "x", "e": {}}, "f": -1e-6}"#.to_vec());
        seeds
    },
    dictionary: &[
        b"null",
        b"true",
        b"[[[[[[[[",
        b"{\"a\":",
        b"1e999",
        b"-0.0",
        b"18446744073709551616",
        b"\\ud800",
        b"\"\":",
        b"NaN",
        b",",
        b"\"hidden_size\":",
        b"\"rope_scaling\":{",
    ],
};

fn run(input: &[u8]) -> String {
    let config = match Config::from_json(input, "input") {
        Ok(config) => config,
        Err(error) => return error.to_string(),
    };
    let mut outcomes = Vec::new();
    read(&config, &mut outcomes, 0);
    config.finish().expect("every key was read");
    outcomes.sort_unstable();
    outcomes.dedup();
    format!("reads {}", outcomes.join(" "))
}

fn read(config: &Config, outcomes: &mut Vec<String>, depth: usize) {
    let keys: Vec<String> = config.keys().map(str::to_owned).collect();
    for key in &keys {
        let key = key.as_str();
        let mut kinds = [
            ("usize", say(config.opt_usize(key))),
            ("u32", say(config.opt_u32(key))),
            ("f32", say(config.opt_f32(key))),
            ("f64", say(config.opt_f64(key))),
            ("bool", say(config.opt_bool(key))),
            ("str", say(config.opt_str(key))),
            ("usizes", say(config.opt_usizes(key))),
            ("f32s", say(config.opt_f32s(key))),
            ("strs", say(config.opt_strs(key))),
            ("ids", config.u32_or_list(key).is_ok()),
            ("equal", config.require_eq(key, 1).is_ok()),
            ("object", say(config.object(key))),
        ];
        kinds.sort_unstable_by_key(|kind| !kind.1);
        let taken: Vec<&str> = kinds.iter().filter(|kind| kind.1).map(|kind| kind.0).collect();
        outcomes.push(format!("{depth}:{}", taken.join("+")));
        if let Ok(Some(child)) = config.object(key) {
            read(&child, outcomes, depth + 1);
        }
    }
}

/// Whether a value came; its error, if any, must have words.
fn say<T>(result: Result<Option<T>, LoadError>) -> bool {
    match result {
        Ok(value) => value.is_some(),
        Err(error) => {
            assert!(error.to_string().starts_with("input: "));
            false
        }
    }
}
