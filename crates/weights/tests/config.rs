//! The strict config reader.

use galvani_weights::{Config, LoadError};

fn config(text: &str) -> Config {
    Config::from_json(text.as_bytes(), "config.json").unwrap()
}

#[track_caller]
fn refused<T>(result: Result<T, LoadError>, words: &[&str]) {
    let message = result.err().expect("must be refused").to_string();
    for word in words.iter().chain(&["config.json"]) {
        assert!(
            message.contains(word),
            "expected `{word}`, the message is: {message}"
        );
    }
}

const SAMPLE: &str = r#"{"hidden_size": 64, "eps": 1e-6, "theta": 10000, "tied": true, "act": "silu", "none": null,
    "eos": [1, 2], "bos": 1, "layers": ["a", "b"], "rope": {"type": "llama3", "factor": 8.0, "deep": {"x": 1}}}"#;

#[test]
fn values_have_their_types() {
    let c = config(SAMPLE);
    assert_eq!(c.usize("hidden_size").unwrap(), 64);
    assert_eq!(c.f32("eps").unwrap(), 1e-6);
    assert_eq!(c.f64("theta").unwrap(), 10000.0);
    assert!(c.bool("tied").unwrap());
    assert_eq!(c.str("act").unwrap(), "silu");
    assert_eq!(c.opt_usize("none").unwrap(), None);
    assert_eq!(c.usize_or("none", 3).unwrap(), 3);
    assert!(c.bool_or("absent", true).unwrap());
    assert_eq!(c.u32_or_list("eos").unwrap(), [1, 2]);
    assert_eq!(c.u32_or_list("bos").unwrap(), [1]);
    assert!(c.u32_or_list("absent").unwrap().is_empty());
    assert_eq!(c.opt_strs("layers").unwrap().unwrap(), ["a", "b"]);
    assert_eq!(c.one_of("act", &["gelu", "silu"], "gelu").unwrap(), "silu");
    assert_eq!(c.one_of("absent", &["gelu", "silu"], "gelu").unwrap(), "gelu");
    let rope = c.object("rope").unwrap().unwrap();
    assert_eq!(rope.f32("factor").unwrap(), 8.0);
    assert!(c.object("none").unwrap().is_none());
    assert!(c.has("rope") && !c.has("none") && !c.has("absent"));
}

#[test]
fn wrong_types_and_missing_keys_are_named() {
    let c = config(SAMPLE);
    refused(c.usize("absent"), &["`absent`", "missing", "integer"]);
    refused(c.usize("none"), &["`none`", "missing"]);
    refused(c.usize("eps"), &["`eps`", "1e-6", "integer"]);
    refused(c.usize("act"), &["`act`", "\"silu\""]);
    refused(c.f32("tied"), &["`tied`", "true", "number"]);
    refused(c.bool("bos"), &["`bos`", "1", "true or false"]);
    refused(c.str("eos"), &["`eos`", "[1,2]", "string"]);
    refused(c.object("act"), &["`act`", "object"]);
    refused(c.opt_usizes("layers"), &["`layers`", "list of integers"]);
    refused(
        c.one_of("act", &["gelu"], "gelu"),
        &["`act`", "\"silu\"", "supported: gelu"],
    );
    refused(c.u32_or_list("layers"), &["`layers`"]);
    let rope = c.object("rope").unwrap().unwrap();
    refused(rope.usize("type"), &["`rope.type`", "llama3"]);
    refused(
        rope.object("deep").unwrap().unwrap().bool("x"),
        &["`rope.deep.x`"],
    );
    refused(
        Err::<(), _>(rope.unsupported("type", "yarn, linear")),
        &["`rope.type`", "\"llama3\"", "yarn, linear"],
    );
    let c = config(r#"{"a": -1, "b": 1e40, "c": 4294967296}"#);
    refused(c.usize("a"), &["-1"]);
    refused(c.f32("b"), &["1e+40", "f32"]);
    refused(c.u32("c"), &["4294967296"]);
    assert_eq!(c.f64("b").unwrap(), 1e40);
}

#[test]
fn require_eq_takes_absent_and_equal() {
    let c = config(r#"{"act": "silu", "bias": false, "n": 1.0, "gone": null}"#);
    c.require_eq("act", "silu").unwrap();
    c.require_eq("bias", false).unwrap();
    c.require_eq("n", 1).unwrap();
    c.require_eq("gone", 7).unwrap();
    c.require_eq("absent", 7).unwrap();
    refused(
        c.require_eq("act", "gelu"),
        &["`act`", "\"silu\"", "supported: \"gelu\""],
    );
    refused(c.require_eq("bias", true), &["`bias`", "false"]);
    refused(c.require_eq("n", 2), &["`n`", "1.0"]);
    refused(c.require_eq("n", "1.0"), &["`n`"]);
}

#[test]
fn finish_names_every_key_that_nobody_read() {
    let c = config(SAMPLE);
    let error = c.finish().unwrap_err();
    let LoadError::UnreadKeys { keys, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(keys.len(), 10);
    assert_eq!(keys[0], "hidden_size = 64");
    assert_eq!(keys[9], "rope = an object of 3 keys");
    c.ignore(&[
        "hidden_size",
        "eps",
        "theta",
        "tied",
        "act",
        "none",
        "eos",
        "bos",
        "layers",
        "no such key",
    ]);
    let rope = c.object("rope").unwrap().unwrap();
    rope.str("type").unwrap();
    refused(
        c.finish(),
        &["rope.factor = 8.0", "rope.deep = an object of 1 keys"],
    );
    // Another handle on the same object shares what was read.
    c.object("rope").unwrap().unwrap().f32("factor").unwrap();
    let deep = rope.object("deep").unwrap().unwrap();
    refused(c.finish(), &["rope.deep.x = 1"]);
    deep.usize("x").unwrap();
    c.finish().unwrap();
    // A failed or tentative look is a look, but `has` is not.
    let c = config(r#"{"a": 1}"#);
    assert!(c.has("a"));
    refused(c.finish(), &["a = 1"]);
    // Read as a plain value, an object is read with all that it holds.
    let c = config(r#"{"q": {"x": {"y": 1}}}"#);
    assert_eq!(c.value("q").unwrap()["x"]["y"], 1);
    c.finish().unwrap();
}

#[test]
fn text_that_is_not_a_sound_object_is_refused() {
    let deep = "[".repeat(1000);
    let long = format!("[{}0]", "0,".repeat(1 << 18));
    let huge = " ".repeat((1 << 24) + 1);
    let cases: [(&[u8], &str); 12] = [
        (b"", "empty"),
        (b"[1]", "expected an object"),
        (b"3", "expected an object"),
        (b"{", "not sound JSON"),
        (b"{} x", "not sound JSON"),
        (b"{\"a\": NaN}", "not sound JSON"),
        (b"{\"a\": 1, \"a\": 1}", "key `a` is there twice"),
        (b"{\"a\": {\"b\": 1, \"b\": 2}}", "key `b` is there twice"),
        (b"{\"\xff\": 1}", "UTF-8 at byte 2"),
        (deep.as_bytes(), "recursion"),
        (long.as_bytes(), "more than 262144 values"),
        (huge.as_bytes(), "at most 16777216"),
    ];
    for (text, words) in cases {
        refused(Config::from_json(text, "config.json"), &[words]);
    }
}

#[test]
fn objects_made_elsewhere_read_the_same() {
    let serde_json::Value::Object(object) = serde_json::json!({"a": 1, "b": {"c": null}}) else {
        unreachable!("it is an object");
    };
    let c = Config::from_object(object, "config.json");
    assert_eq!(c.usize("a").unwrap(), 1);
    assert_eq!(c.keys().collect::<Vec<_>>(), ["a", "b"]);
    refused(c.finish(), &["b = an object of 1 keys"]);
}
