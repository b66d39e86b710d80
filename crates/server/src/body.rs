//! A request's body held against the table of fields: the only way by which a client's value reaches the code behind.

use serde_json::Value;
use serde_json::value::RawValue;

use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{self, Field, Kind};
use crate::json::{self, Fields};

/// A body whose every known field has the type and range that the table gives it.
#[derive(Debug)]
pub struct Body<'a> {
    endpoint: u8,
    fields: Fields<'a>,
    limits: &'a Limits,
    /// Fields that the endpoint does not know.
    pub ignored: Vec<String>,
}

impl<'a> Body<'a> {
    /// Parses and validates.
    ///
    /// # Errors
    /// By name of the first field at fault, in the order sent; for an unknown one only where `strict`.
    pub fn parse(bytes: &'a [u8], endpoint: u8, limits: &'a Limits, strict: bool) -> Result<Self, ApiError> {
        let fields = Fields::parse(bytes, limits)?;
        let mut ignored = Vec::new();
        for (name, raw) in &fields.0 {
            match fields::find(endpoint, name) {
                Some(field) if raw.get() != "null" => check(field, raw)?,
                Some(_) => {}
                None if strict => {
                    let name: String = name.chars().take(100).collect();
                    return Err(ApiError {
                        code: Some("unknown_field"),
                        ..ApiError::field(name, "this endpoint has no such field (see /openapi.json)")
                    });
                }
                None => ignored.push(name.chars().take(100).collect()),
            }
        }
        Ok(Self {
            endpoint,
            fields,
            limits,
            ignored,
        })
    }

    /// The limits that the body was read under.
    pub fn limits(&self) -> &'a Limits {
        self.limits
    }

    /// Whether the endpoint has such a field.
    pub fn knows(&self, name: &str) -> bool {
        fields::find(self.endpoint, name).is_some()
    }

    /// Whether the field is there and not `null`.
    pub fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    /// The field's text.
    pub fn raw(&self, name: &str) -> Option<&'a RawValue> {
        assert!(
            fields::find(self.endpoint, name).is_some(),
            "{name} has no row for this endpoint"
        );
        self.fields.get(name)
    }

    /// A `Number` field.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.raw(name)
            .and_then(|raw| serde_json::from_str(raw.get()).ok())
    }

    /// An `Integer` field.
    pub fn integer(&self, name: &str) -> Option<i64> {
        self.raw(name).and_then(|raw| whole(raw.get()))
    }

    /// An `Integer` field that the table keeps at 0 or above; larger than the machine holds is as good as its largest.
    pub fn count(&self, name: &str) -> Option<usize> {
        self.integer(name)
            .map(|value| usize::try_from(value.max(0)).unwrap_or(usize::MAX))
    }

    /// A `Bool` field.
    pub fn flag(&self, name: &str, default: bool) -> bool {
        self.raw(name).map_or(default, |raw| raw.get() == "true")
    }

    /// A `Text` or `Choice` field.
    pub fn text(&self, name: &str) -> Option<String> {
        self.raw(name)
            .and_then(|raw| serde_json::from_str(raw.get()).ok())
    }

    /// A field as a tree.
    ///
    /// # Errors
    /// When it is larger than the limits allow or holds a key twice.
    pub fn tree(&self, name: &str) -> Result<Option<Value>, ApiError> {
        self.raw(name)
            .map(|raw| json::tree(name, raw, self.limits.json_values_max))
            .transpose()
    }
}

/// A whole number, also where it is written `10.0` or `1e3`, as some clients do.
fn whole(text: &str) -> Option<i64> {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    text.parse::<i64>().ok().or_else(|| {
        let value: f64 = serde_json::from_str(text).ok()?;
        (value.fract() == 0.0 && value.abs() <= EXACT_MAX).then_some(value as i64)
    })
}

fn type_of(text: &str) -> &'static str {
    match text.as_bytes().first() {
        Some(b'"') => "string",
        Some(b'[') => "array",
        Some(b'{') => "object",
        Some(b't' | b'f') => "boolean",
        Some(b'n') => "null",
        _ => "number",
    }
}

fn check(field: &Field, raw: &RawValue) -> Result<(), ApiError> {
    let text = raw.get();
    let found = type_of(text);
    let fits = match field.kind {
        Kind::Number { min, max, open } => {
            found == "number"
                && serde_json::from_str::<f64>(text)
                    .is_ok_and(|v| v <= max && if open { v > min } else { v >= min })
        }
        Kind::Integer { min, max } => found == "number" && whole(text).is_some_and(|v| v >= min && v <= max),
        Kind::Bool => found == "boolean",
        Kind::Text(bytes_max) => {
            if found == "string"
                && let Err(error) = serde_json::from_str::<String>(text)
            {
                let error = error.to_string();
                return Err(ApiError::field(
                    field.name,
                    error.split(" at line ").next().unwrap_or("bad string"),
                ));
            }
            found == "string" && text.len() - 2 <= bytes_max
        }
        Kind::Choice(names) => {
            found == "string"
                && serde_json::from_str::<String>(text).is_ok_and(|v| names.contains(&v.as_str()))
        }
        Kind::Object => found == "object",
        Kind::List => found == "array",
        Kind::OneOf(types) => types.contains(&found),
        Kind::Refused(reason) => {
            return Err(ApiError {
                code: Some("unsupported_field"),
                ..ApiError::field(field.name, reason)
            });
        }
    };
    if fits {
        return Ok(());
    }
    let shown: String = text.chars().take(60).collect();
    let dots = if shown.len() < text.len() { "..." } else { "" };
    Err(ApiError::field(
        field.name,
        format!("got {found} {shown}{dots}, allowed: {}", field.kind.allowed()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::on;

    /// Each numeric row is tried at, inside and outside both of its borders, and with every wrong type.
    #[test]
    fn every_row_holds_its_borders() {
        let limits = Limits::standard();
        let mut tried = 0;
        for field in fields::FIELDS {
            let endpoint = 1 << field.on.trailing_zeros();
            let ok = |value: &str| {
                let body = format!("{{\"{}\":{value}}}", field.name);
                Body::parse(body.as_bytes(), endpoint, &limits, true).map(|_| ())
            };
            let mut good: Vec<String> = vec!["null".to_owned()];
            let mut bad: Vec<String> = Vec::new();
            match field.kind {
                Kind::Number { min, max, open } => {
                    good.extend([format!("{max}"), format!("{}", f64::midpoint(min, max))]);
                    if open { &mut bad } else { &mut good }.push(format!("{min}"));
                    bad.extend([format!("{}", max + 0.001), format!("{}", min - 0.001)]);
                    bad.extend(["1e400", "-1e400", "\"1\"", "{}", "[]", "true"].map(str::to_owned));
                }
                Kind::Integer { min, max } => {
                    good.extend([format!("{min}"), format!("{max}"), "1.0".to_owned()]);
                    bad.extend([
                        format!("{}", i128::from(max) + 1),
                        format!("{}", i128::from(min) - 1),
                    ]);
                    bad.extend(["1.5", "1e400", "\"10\"", "{}", "[]", "false"].map(str::to_owned));
                }
                Kind::Bool => {
                    good.extend(["true", "false"].map(str::to_owned));
                    bad.extend(["\"false\"", "0", "1", "[]", "{}"].map(str::to_owned));
                }
                Kind::Text(bytes_max) => {
                    good.push("\"x\"".to_owned());
                    bad.extend(["1", "[]", "{}", "true", "\"\\ud800\""].map(str::to_owned));
                    if bytes_max < 1 << 21 {
                        good.push(format!("\"{}\"", "x".repeat(bytes_max)));
                        bad.push(format!("\"{}\"", "x".repeat(bytes_max + 1)));
                    }
                }
                Kind::Choice(names) => {
                    good.extend(names.iter().map(|name| format!("\"{name}\"")));
                    bad.extend(["\"\"", "\"other\"", "1", "[]"].map(str::to_owned));
                }
                Kind::Object => bad.extend(["1", "\"x\"", "[]", "true"].map(str::to_owned)),
                Kind::List => bad.extend(["1", "\"x\"", "{}", "true"].map(str::to_owned)),
                Kind::OneOf(_) => bad.push("1".to_owned()),
                Kind::Refused(_) => bad.extend(["1", "\"x\""].map(str::to_owned)),
            }
            for value in good {
                assert_eq!(
                    ok(&value),
                    Ok(()),
                    "{} = {}",
                    field.name,
                    &value[..value.len().min(40)]
                );
                tried += 1;
            }
            for value in bad {
                let error = ok(&value).expect_err(&format!("{} = {value:.40}", field.name));
                assert_eq!(
                    (error.status.as_u16(), error.param.as_deref()),
                    (400, Some(field.name)),
                    "{value:.40}"
                );
                tried += 1;
            }
        }
        assert!(tried > 400, "only {tried} values were tried");
    }

    #[test]
    fn unknown_fields_are_counted_or_refused() {
        let limits = Limits::standard();
        let body = br#"{"n":1,"mirostat":2}"#;
        let lax = Body::parse(body, on::CHAT, &limits, false).expect("taken");
        assert_eq!(lax.ignored, ["mirostat"]);
        let error = Body::parse(body, on::CHAT, &limits, true).expect_err("strict");
        assert_eq!(error.param.as_deref(), Some("mirostat"));
    }
}
