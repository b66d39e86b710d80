//! Bodies into fields: one pass over the bytes that allocates nothing by what a client claims, then each field on demand.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use crate::config::Limits;
use crate::error::ApiError;

/// The top-level fields of a body, each still text.
#[derive(Debug)]
pub struct Fields<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Fields<'a> {
    /// Splits a body.
    ///
    /// # Errors
    /// When it is not a JSON object, is nested too deeply, or names a field twice.
    pub fn parse(body: &'a [u8], limits: &Limits) -> Result<Self, ApiError> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Err(invalid("the body is empty; send a JSON object".to_owned()));
        }
        check_depth(body, limits.json_depth_max)?;
        let mut json = serde_json::Deserializer::from_slice(body);
        let fields = json.deserialize_map(TopLevel).map_err(|error| at(body, &error))?;
        json.end().map_err(|error| at(body, &error))?;
        Ok(Self(fields))
    }

    /// A field's text; `null` counts as absent.
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        let (_, raw) = self.0.iter().find(|(key, _)| key == name)?;
        (raw.get() != "null").then_some(*raw)
    }
}

fn invalid(message: String) -> ApiError {
    ApiError {
        code: Some("invalid_json"),
        ..ApiError::bad_request(message)
    }
}

/// Names the byte at which reading stopped.
fn at(body: &[u8], error: &serde_json::Error) -> ApiError {
    if error.is_data() {
        let text = error.to_string();
        let text = text
            .rsplit_once(" at line ")
            .map_or(text.as_str(), |(head, _)| head);
        return invalid(format!("the body must be a JSON object: {text}"));
    }
    let line_start = match error.line() {
        0 | 1 => 0,
        line => body
            .iter()
            .enumerate()
            .filter(|(_, b)| **b == b'\n')
            .nth(line - 2)
            .map_or(0, |(i, _)| i + 1),
    };
    // The column counts bytes up to the one at fault; at the end there is none.
    let position = match error.is_eof() {
        true => body.len(),
        false => (line_start + error.column().saturating_sub(1)).min(body.len()),
    };
    let text = error.to_string();
    let text = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(head, _)| head);
    invalid(format!("invalid JSON at byte {position}: {text}"))
}

/// Nesting is counted before anything is parsed, so that no parser recurses over it.
fn check_depth(body: &[u8], depth_max: usize) -> Result<(), ApiError> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for (position, byte) in body.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > depth_max {
                    return Err(invalid(format!(
                        "invalid JSON at byte {position}: nested deeper than {depth_max} levels"
                    )));
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

struct TopLevel;

impl<'de> Visitor<'de> for TopLevel {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        // More fields than any table has are a mistake or an attack; either way the limit keeps the search below short.
        const FIELDS_MAX: usize = 256;
        let mut fields: Self::Value = Vec::new();
        while let Some(Key(key)) = map.next_key()? {
            if fields.iter().any(|(seen, _)| *seen == key) {
                return Err(A::Error::custom(format!("field {key:?} is given twice")));
            }
            if fields.len() == FIELDS_MAX {
                return Err(A::Error::custom(format!("more than {FIELDS_MAX} fields")));
            }
            fields.push((key, map.next_value()?));
        }
        Ok(fields)
    }
}

struct Key<'a>(Cow<'a, str>);

impl<'de> serde::Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a field name")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(V)
    }
}

/// Reads a field as a tree of at most `values_max` values, refusing keys given twice.
///
/// # Errors
/// When it has more, or a number or string no program can hold.
pub fn tree(name: &str, raw: &RawValue, values_max: usize) -> Result<Value, ApiError> {
    let mut left = values_max;
    let mut json = serde_json::Deserializer::from_str(raw.get());
    Tree { left: &mut left }.deserialize(&mut json).map_err(|error| {
        let text = error.to_string();
        let text = text
            .rsplit_once(" at line ")
            .map_or(text.as_str(), |(head, _)| head);
        if left == 0 {
            ApiError::field(name, format!("holds more than {values_max} values"))
        } else {
            ApiError::field(name, text)
        }
    })
}

struct Tree<'a> {
    left: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        *self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| D::Error::custom("too many values"))?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("number out of range"))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Tree { left: self.left })? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(Tree { left: self.left })?;
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("key {key:?} is given twice")));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(body: &[u8]) -> ApiError {
        Fields::parse(body, &Limits::standard()).expect_err("refused")
    }

    #[test]
    fn bodies_that_are_no_object_are_refused_with_the_place() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
        let cases: &[(&[u8], &str)] = &[
            (b"", "the body is empty"),
            (b" \n", "the body is empty"),
            (b"[]", "must be a JSON object"),
            (b"\"x\"", "must be a JSON object"),
            (b"null", "must be a JSON object"),
            (b"1", "must be a JSON object"),
            (b"{", "invalid JSON at byte 1"),
            (b"{\"a\":1,}", "invalid JSON at byte 7"),
            (b"{\n\"a\": tru}", "invalid JSON at byte 1"),
            (b"{\"a\":NaN}", "invalid JSON at byte 5"),
            (b"{\"a\":1} x", "invalid JSON at byte 8"),
            (b"\xef\xbb\xbf{}", "invalid JSON at byte 0"),
            (b"{\"a\":1,\"a\":2}", "given twice"),
            (deep.as_bytes(), "nested deeper than 64"),
        ];
        for (body, message) in cases {
            let error = fails(body);
            assert!(
                error.message.contains(message),
                "{:?}: {}",
                &body[..body.len().min(20)],
                error.message
            );
            assert_eq!(error.status, 400);
        }
    }

    #[test]
    fn brackets_in_strings_do_not_count_as_nesting() {
        let body = format!("{{\"a\":\"{}\\\"[\"}}", "[".repeat(200));
        assert!(Fields::parse(body.as_bytes(), &Limits::standard()).is_ok());
    }

    #[test]
    fn trees_are_bounded_and_strict() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).expect("valid");
        assert!(tree("x", &raw("[1,2,3]"), 4).is_ok());
        assert!(
            tree("x", &raw("[1,2,3]"), 3)
                .expect_err("4")
                .message
                .contains("more than 3 values")
        );
        assert!(
            tree("x", &raw("{\"a\":1,\"a\":1}"), 9)
                .expect_err("dup")
                .message
                .contains("twice")
        );
        assert!(
            tree("x", &raw("1e400"), 9)
                .expect_err("inf")
                .message
                .contains("out of range")
        );
        assert!(
            tree("x", &raw("\"\\ud800\""), 9)
                .expect_err("surrogate")
                .message
                .contains("x: ")
        );
    }
}
