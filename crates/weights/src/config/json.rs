//! JSON to a value, with limits, and with no key twice in an object.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::error::shown;

/// Longest text, bytes. The largest known configs list a scheme for each of some thousand layers: half a megabyte.
const BYTES_MAX: usize = 1 << 24;
/// Most values, keys not counted. Bounds the memory that short text such as `[0,0,0` can ask for.
const VALUES_MAX: usize = 1 << 18;

/// The value in `bytes`, or what is wrong with them.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, String> {
    if bytes.len() > BYTES_MAX {
        return Err(format!(
            "is {} bytes; at most {BYTES_MAX} are allowed",
            bytes.len()
        ));
    }
    if bytes.is_empty() {
        return Err("is empty (0 bytes)".to_owned());
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| format!("is not UTF-8 at byte {}", error.valid_up_to()))?;
    let left = Cell::new(VALUES_MAX);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Strict { left: &left }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| format!("is not sound JSON: {error}"))
}

#[derive(Clone, Copy)]
struct Strict<'a> {
    /// Values that may still come.
    left: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self.left.get();
        if left == 0 {
            return Err(D::Error::custom(format!("more than {VALUES_MAX} values")));
        }
        self.left.set(left - 1);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number that is not finite"))?;
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(self)?;
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("key `{}` is there twice", shown(&key))));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}
