//! Types of a call's arguments, from the tool's JSON schema: a style that writes bare text needs them to write JSON.

use serde_json::Value;

/// Which JSON types a schema allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Types {
    pub string: bool,
    pub null: bool,
    pub integer: bool,
    pub number: bool,
    pub boolean: bool,
    pub object: bool,
    pub array: bool,
}

impl Types {
    /// Text that is taken as it stands.
    pub const STRING: Self = Self {
        string: true,
        null: false,
        integer: false,
        number: false,
        boolean: false,
        object: false,
        array: false,
    };

    /// Whether nothing but a string is allowed, so that it can be passed on as it comes.
    pub fn only_string(self) -> bool {
        self == Self::STRING
    }

    fn add_name(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "null" => self.null = true,
            "integer" => self.integer = true,
            "number" => self.number = true,
            "boolean" => self.boolean = true,
            "object" => self.object = true,
            "array" => self.array = true,
            _ => {}
        }
    }

    fn add_value(&mut self, value: &Value) {
        self.add_name(match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(n) if n.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        });
    }
}

/// References that are followed at most.
const DEPTH_MAX: usize = 16;

/// Types of a property of a function's parameters; a string where nothing is said.
pub(crate) fn property_types(parameters: Option<&Value>, property: &str) -> Types {
    let mut types = Types::default();
    if let Some(root) = parameters
        && let Some(schema) = root.get("properties").and_then(|p| p.get(property))
    {
        collect(root, schema, DEPTH_MAX, &mut types);
    }
    if types == Types::default() {
        Types::STRING
    } else {
        types
    }
}

fn collect(root: &Value, schema: &Value, depth: usize, types: &mut Types) {
    let Some(depth) = depth.checked_sub(1) else { return };
    match schema.get("type") {
        Some(Value::String(name)) => types.add_name(name),
        Some(Value::Array(names)) => names
            .iter()
            .filter_map(Value::as_str)
            .for_each(|n| types.add_name(n)),
        _ => {
            if let Some(values) = schema.get("enum").and_then(Value::as_array) {
                values.iter().for_each(|v| types.add_value(v));
            }
            if let Some(value) = schema.get("const") {
                types.add_value(value);
            }
        }
    }
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        types.null = true;
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        let parts = schema.get(key).and_then(Value::as_array);
        parts
            .into_iter()
            .flatten()
            .for_each(|s| collect(root, s, depth, types));
    }
    if let Some(target) = schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|r| r.strip_prefix('#'))
        && let Some(schema) = root.pointer(target)
    {
        collect(root, schema, depth, types);
    }
}

/// The `parameters` of a tool in a request's `tools`.
pub(crate) fn parameters<'a>(tools: Option<&'a Value>, name: &str) -> Option<&'a Value> {
    let functions = tools?
        .as_array()?
        .iter()
        .map(|tool| tool.get("function").unwrap_or(tool));
    functions
        .into_iter()
        .find(|f| f.get("name").and_then(Value::as_str) == Some(name))?
        .get("parameters")
}

/// Bare text as JSON of the first allowed type that it fits; a string if none does.
pub(crate) fn to_json(text: &str, types: Types) -> String {
    let word = text.trim();
    if types.null && word == "null" {
        return "null".into();
    }
    if types.boolean && (word.eq_ignore_ascii_case("true") || word.eq_ignore_ascii_case("false")) {
        return word.to_ascii_lowercase();
    }
    if let Ok(number @ Value::Number(_)) = serde_json::from_str::<Value>(word) {
        if types.number || (types.integer && !word.contains(['.', 'e', 'E'])) {
            return word.into();
        }
        if let Some(whole) = number
            .as_f64()
            .filter(|x| types.integer && x.fract() == 0.0 && x.abs() < 9e15)
        {
            return (whole as i64).to_string();
        }
    }
    if ((types.object && word.starts_with('{')) || (types.array && word.starts_with('[')))
        && let Ok(value) = serde_json::from_str::<Value>(word)
    {
        return value.to_string();
    }
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_of_properties() {
        let parameters = json!({"$defs": {"Id": {"type": "integer"}, "Loop": {"$ref": "#/$defs/Loop"}}, "properties": {
            "s": {"type": "string"}, "l": {"type": ["string", "null"]}, "a": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "r": {"$ref": "#/$defs/Id"}, "e": {"enum": [1, "x", null]}, "c": {"const": 1.5}, "n": {"type": "number", "nullable": true},
            "u": {}, "loop": {"$ref": "#/$defs/Loop"}, "out": {"$ref": "http://x"},
        }});
        let t = |names: &[&str]| {
            let mut types = Types::default();
            names.iter().for_each(|n| types.add_name(n));
            types
        };
        let cases: [(&str, &[&str]); 11] = [
            ("s", &["string"]),
            ("l", &["string", "null"]),
            ("a", &["string", "null"]),
            ("r", &["integer"]),
            ("e", &["integer", "string", "null"]),
            ("c", &["number"]),
            ("n", &["number", "null"]),
            ("u", &["string"]),
            ("loop", &["string"]),
            ("out", &["string"]),
            ("missing", &["string"]),
        ];
        for (property, want) in cases {
            assert_eq!(property_types(Some(&parameters), property), t(want), "{property}");
        }
        assert_eq!(property_types(None, "s"), Types::STRING);
    }

    #[test]
    fn conversions() {
        let any = Types {
            string: true,
            null: true,
            integer: true,
            number: true,
            boolean: true,
            object: true,
            array: true,
        };
        let only = |name: &str| {
            let mut types = Types::default();
            types.add_name(name);
            types
        };
        let cases = [
            ("00123", only("string"), r#""00123""#),
            ("true", only("string"), r#""true""#),
            ("4.0", only("number"), "4.0"),
            ("4.0", only("integer"), "4"),
            ("4.5", only("integer"), r#""4.5""#),
            ("00123", only("integer"), r#""00123""#),
            ("null", any, "null"),
            (" True ", only("boolean"), "true"),
            ("yes", only("boolean"), r#""yes""#),
            (
                r#"{"k":[1,null,false]}"#,
                only("object"),
                r#"{"k":[1,null,false]}"#,
            ),
            ("{'k': 1}", only("object"), r#""{'k': 1}""#),
            ("[1, 2]", only("array"), "[1,2]"),
            ("[1", only("array"), r#""[1""#),
            ("1e3", only("number"), "1e3"),
            ("a\nb", any, r#""a\nb""#),
            (
                "1",
                Types {
                    string: true,
                    integer: true,
                    ..Types::default()
                },
                "1",
            ),
            ("null", only("integer"), r#""null""#),
            ("[1]", only("object"), r#""[1]""#),
            ("{}", only("array"), r#""{}""#),
        ];
        for (text, types, want) in cases {
            assert_eq!(to_json(text, types), want, "{text} {types:?}");
        }
    }
}
