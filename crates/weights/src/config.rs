//! The strict reader of `config.json`.
//!
//! A config says what a model means, so a key that nobody looked at is a model that nobody understood. Every getter
//! marks its key; [`Config::finish`] fails with the keys that are left, in nested objects too.

use std::cell::{Cell, OnceCell};
use std::fmt::Display;
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::LoadError;
use crate::error::shown;

mod json;

/// One JSON object, whose keys are read by name and type. A `null` counts as absent. Cheap to clone; clones share what
/// has been read.
#[derive(Debug, Clone)]
pub struct Config {
    node: Rc<Node>,
}

#[derive(Debug)]
struct Node {
    origin: Rc<str>,
    /// Path of this object, with a dot behind it unless it is the outermost.
    prefix: String,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    key: String,
    value: Value,
    read: Cell<bool>,
    /// Made when the value is an object and asked for as one.
    child: OnceCell<Rc<Node>>,
}

impl Config {
    /// Parses `bytes`; `origin` (the file's name) stands in messages.
    ///
    /// # Errors
    /// When it is not JSON, not an object, has a key twice, or is too large.
    pub fn from_json(bytes: &[u8], origin: &str) -> Result<Self, LoadError> {
        let value = json::parse(bytes).map_err(|reason| LoadError::malformed(origin, reason))?;
        match value {
            Value::Object(object) => Ok(Self::from_object(object, origin)),
            other => Err(LoadError::malformed(
                origin,
                format!("holds {}, expected an object", brief(&other)),
            )),
        }
    }

    /// Takes an object made elsewhere, such as from GGUF keys.
    pub fn from_object(object: Map<String, Value>, origin: &str) -> Self {
        Self {
            node: Rc::new(Node::new(object, origin.into(), String::new())),
        }
    }

    /// Where this was read from.
    pub fn origin(&self) -> &str {
        &self.node.origin
    }

    /// All keys, in order. Marks nothing.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.node.entries.iter().map(|entry| entry.key.as_str())
    }

    /// Whether the key is there and not null. Marks nothing.
    pub fn has(&self, key: &str) -> bool {
        self.node.find(key).is_some_and(|entry| !entry.value.is_null())
    }

    /// The plain value, read as a whole with all that it holds. `None` when absent or null.
    pub fn value(&self, key: &str) -> Option<&Value> {
        let entry = self.node.find(key)?;
        entry.read.set(true);
        (!entry.value.is_null()).then_some(&entry.value)
    }

    /// Marks keys that do not change what the model computes, or are known and handled elsewhere.
    pub fn ignore(&self, keys: &[&str]) -> &Self {
        for key in keys {
            self.value(key);
        }
        self
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// Names every key, here and in the objects handed out, that nobody read.
    pub fn finish(&self) -> Result<(), LoadError> {
        let mut keys = Vec::new();
        self.node.unread(&mut keys);
        if keys.is_empty() {
            return Ok(());
        }
        Err(LoadError::UnreadKeys {
            origin: self.origin().to_owned(),
            keys,
        })
    }

    /// The error for a value that was read and is not supported.
    pub fn unsupported(&self, key: &str, allowed: impl Display) -> LoadError {
        let found = self
            .node
            .find(key)
            .map_or("absent".to_owned(), |entry| brief(&entry.value));
        LoadError::Value {
            origin: self.origin().to_owned(),
            key: self.node.path(key),
            found,
            allowed: allowed.to_string(),
        }
    }

    /// Where the key stands (and is not null), it must have this value; absent is taken as having it.
    ///
    /// # Errors
    /// When it has another.
    pub fn require_eq(&self, key: &str, expected: impl Into<Value>) -> Result<(), LoadError> {
        let expected = expected.into();
        match self.value(key) {
            Some(found) if !same(found, &expected) => Err(self.unsupported(key, brief(&expected))),
            _ => Ok(()),
        }
    }

    /// A nested object. Its unread keys count in this config's [`Config::finish`].
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn object(&self, key: &str) -> Result<Option<Config>, LoadError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(object)) => {
                let entry = self.node.find(key).expect("its value was just found");
                let prefix = format!("{}.", self.node.path(key));
                let child = entry
                    .child
                    .get_or_init(|| Rc::new(Node::new(object.clone(), self.node.origin.clone(), prefix)));
                Ok(Some(Config { node: child.clone() }))
            }
            Some(other) => Err(self.wrong(key, other, "an object")),
        }
    }

    /// A string out of a closed list, `default` when absent.
    ///
    /// # Errors
    /// When it is another string or no string.
    pub fn one_of(
        &self,
        key: &str,
        allowed: &[&'static str],
        default: &'static str,
    ) -> Result<&'static str, LoadError> {
        let Some(found) = self.opt_str(key)? else {
            return Ok(default);
        };
        let known = allowed.iter().find(|&&candidate| candidate == found);
        known
            .copied()
            .ok_or_else(|| self.unsupported(key, allowed.join(", ")))
    }

    fn wrong(&self, key: &str, found: &Value, wanted: &str) -> LoadError {
        LoadError::Key {
            origin: self.origin().to_owned(),
            key: self.node.path(key),
            reason: format!("is {}, expected {wanted}", brief(found)),
        }
    }

    fn missing(&self, key: &str, wanted: &str) -> LoadError {
        LoadError::Key {
            origin: self.origin().to_owned(),
            key: self.node.path(key),
            reason: format!("is missing, expected {wanted}"),
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        decode: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => decode(value)
                .map(Some)
                .ok_or_else(|| self.wrong(key, value, wanted)),
        }
    }

    fn list<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        decode: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, LoadError> {
        self.typed(key, wanted, |value| {
            value.as_array()?.iter().map(&decode).collect()
        })
    }
}

/// Getters of one type: required, with a default, optional, and as a list.
macro_rules! getters {
    ($type:ty, $wanted:literal, $wanted_list:literal, $decode:expr, $get:ident, $or:ident, $opt:ident, $list:ident) => {
        impl Config {
            #[doc = concat!("The key's value, ", $wanted, ".\n\n# Errors\nWhen it is absent or something else.")]
            pub fn $get(&self, key: &str) -> Result<$type, LoadError> {
                self.$opt(key)?.ok_or_else(|| self.missing(key, $wanted))
            }

            #[doc = concat!("The key's value, ", $wanted, ", or `default` when absent.\n\n# Errors\nWhen it is something else.")]
            pub fn $or(&self, key: &str, default: $type) -> Result<$type, LoadError> {
                Ok(self.$opt(key)?.unwrap_or(default))
            }

            #[doc = concat!("The key's value, ", $wanted, ", if there.\n\n# Errors\nWhen it is something else.")]
            pub fn $opt(&self, key: &str) -> Result<Option<$type>, LoadError> {
                self.typed(key, $wanted, $decode)
            }

            #[doc = concat!("The key's value, ", $wanted_list, ", if there.\n\n# Errors\nWhen it is something else.")]
            pub fn $list(&self, key: &str) -> Result<Option<Vec<$type>>, LoadError> {
                self.list(key, $wanted_list, $decode)
            }
        }
    };
}

getters!(
    usize,
    "an integer that is not negative",
    "a list of integers that are not negative",
    as_usize,
    usize,
    usize_or,
    opt_usize,
    opt_usizes
);
getters!(
    u32,
    "an integer of 0 to 2^32-1",
    "a list of integers of 0 to 2^32-1",
    as_u32,
    u32,
    u32_or,
    opt_u32,
    opt_u32s
);
getters!(
    f32,
    "a number in f32's range",
    "a list of numbers in f32's range",
    as_f32,
    f32,
    f32_or,
    opt_f32,
    opt_f32s
);
getters!(
    f64,
    "a number",
    "a list of numbers",
    Value::as_f64,
    f64,
    f64_or,
    opt_f64,
    opt_f64s
);
getters!(
    bool,
    "true or false",
    "a list of truth values",
    Value::as_bool,
    bool,
    bool_or,
    opt_bool,
    opt_bools
);
getters!(
    String,
    "a string",
    "a list of strings",
    as_string,
    str,
    str_or,
    opt_str,
    opt_strs
);

impl Config {
    /// A token id or a list of them, as `eos_token_id` is; empty when absent.
    ///
    /// # Errors
    /// When it is something else.
    pub fn u32_or_list(&self, key: &str) -> Result<Vec<u32>, LoadError> {
        let ids = self.typed(
            key,
            "an integer or a list of integers of 0 to 2^32-1",
            |value| match value {
                Value::Array(values) => values.iter().map(as_u32).collect(),
                one => as_u32(one).map(|id| vec![id]),
            },
        )?;
        Ok(ids.unwrap_or_default())
    }
}

fn as_usize(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok())
}

fn as_u32(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok())
}

fn as_f32(value: &Value) -> Option<f32> {
    value
        .as_f64()
        .map(|number| number as f32)
        .filter(|number| number.is_finite())
}

fn as_string(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

impl Node {
    fn new(object: Map<String, Value>, origin: Rc<str>, prefix: String) -> Self {
        let entries = object.into_iter().map(|(key, value)| Entry {
            key,
            value,
            read: Cell::new(false),
            child: OnceCell::new(),
        });
        Self {
            origin,
            prefix,
            entries: entries.collect(),
        }
    }

    fn find(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    fn path(&self, key: &str) -> String {
        format!("{}{}", self.prefix, shown(key))
    }

    fn unread(&self, keys: &mut Vec<String>) {
        for entry in &self.entries {
            match entry.child.get() {
                Some(child) => child.unread(keys),
                None if entry.read.get() => {}
                None => keys.push(format!("{} = {}", self.path(&entry.key), brief(&entry.value))),
            }
        }
    }
}

/// Equality of values, numbers by size: 1 and 1.0 are the same.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// A value for a message.
fn brief(value: &Value) -> String {
    match value {
        Value::Array(values) if values.len() > 8 => format!("a list of {} values", values.len()),
        Value::Object(object) => format!("an object of {} keys", object.len()),
        other => shown(&other.to_string()),
    }
}
