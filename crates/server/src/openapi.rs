//! `/openapi.json`, made from the table that validates.

use serde_json::{Map, Value, json};

use crate::fields::{self, FIELDS, Kind, on};

fn schema(kind: &Kind) -> Value {
    match kind {
        Kind::Number {
            min,
            max,
            open: false,
        } => json!({"type": "number", "minimum": min, "maximum": max}),
        Kind::Number { min, max, open: true } => {
            json!({"type": "number", "exclusiveMinimum": min, "maximum": max})
        }
        Kind::Integer {
            min: i64::MIN,
            max: i64::MAX,
        } => json!({"type": "integer", "format": "int64"}),
        Kind::Integer { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Text(usize::MAX) => json!({"type": "string"}),
        Kind::Text(bytes) => json!({"type": "string", "maxLength": bytes}),
        Kind::Choice(names) => json!({"type": "string", "enum": names}),
        Kind::Object => json!({"type": "object"}),
        Kind::List => json!({"type": "array", "items": {}}),
        Kind::OneOf(types) => json!({"oneOf": types.iter().map(|t| json!({"type": t})).collect::<Vec<_>>()}),
        Kind::Refused(_) => json!({"type": "null"}),
    }
}

fn body(endpoint: u8, required: &[&str]) -> Value {
    let mut properties = Map::new();
    for field in FIELDS.iter().filter(|field| field.on & endpoint != 0) {
        let mut schema = schema(&field.kind);
        let object = schema.as_object_mut().expect("a schema is an object");
        let default = if field.default.is_empty() {
            String::new()
        } else {
            format!(" Default: {}.", field.default)
        };
        object.insert(
            "description".to_owned(),
            json!(format!("{}.{default}", field.doc)),
        );
        if !matches!(field.kind, Kind::Refused(_)) {
            object.insert("nullable".to_owned(), json!(true));
        }
        properties.insert(field.name.to_owned(), schema);
    }
    for name in required {
        assert!(fields::find(endpoint, name).is_some(), "{name} has a row");
    }
    json!({"type": "object", "properties": properties, "required": required})
}

fn post(summary: &str, endpoint: u8, required: &[&str], streams: bool) -> Value {
    let mut content = json!({"application/json": {"schema": {"type": "object"}}});
    if streams {
        content["text/event-stream"] = json!({"schema": {"type": "string"}});
    }
    json!({"post": {
        "summary": summary,
        "requestBody": {"required": true, "content": {"application/json": {"schema": body(endpoint, required)}}},
        "responses": responses(&content),
    }})
}

fn get(summary: &str, media: &str, kind: &str) -> Value {
    json!({"get": {"summary": summary, "responses": responses(&json!({media: {"schema": {"type": kind}}}))}})
}

fn responses(content: &Value) -> Value {
    let error = |text: &str| json!({"description": text, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}});
    json!({
        "200": {"description": "the answer", "content": content},
        "400": error("a field is at fault; param names it"),
        "401": error("no valid API key"),
        "403": error("host or origin is not allowed"),
        "404": error("no such model or path"),
        "408": error("the body did not arrive in time"),
        "413": error("the body is too large"),
        "415": error("the body is not application/json"),
        "429": error("the queue is full; see Retry-After"),
        "500": error("a fault of the server"),
        "503": error("loading or shutting down; see Retry-After"),
    })
}

/// The document.
pub fn document() -> Value {
    let id = json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}]);
    let mut model = get("One model", "application/json", "object");
    model["get"]["parameters"] = id;
    json!({
        "openapi": "3.0.3",
        "info": {"title": "Galvani", "version": env!("CARGO_PKG_VERSION"), "license": {"name": "Apache-2.0"}},
        "paths": {
            "/v1/chat/completions": post("Answer a conversation", on::CHAT, &["messages"], true),
            "/v1/completions": post("Go on with a text", on::TEXT, &["prompt"], true),
            "/v1/models": get("Models served", "application/json", "object"),
            "/v1/models/{id}": model,
            "/tokenize": post("Text or conversation to tokens", on::TOKENIZE, &[], false),
            "/detokenize": post("Tokens to text", on::DETOKENIZE, &["tokens"], false),
            "/apply-template": post("Conversation to the prompt's text", on::TEMPLATE, &["messages"], false),
            "/health": get("Whether requests are taken", "application/json", "object"),
            "/health/live": get("Whether the process runs", "application/json", "object"),
            "/health/ready": get("Whether requests are taken", "application/json", "object"),
            "/metrics": get("Counts and times, Prometheus text format", "text/plain", "string"),
            "/props": get("Model, parsers, limits and defaults", "application/json", "object"),
            "/version": get("Version", "application/json", "object"),
            "/openapi.json": get("This document", "application/json", "object"),
        },
        "components": {
            "schemas": {"Error": {"type": "object", "required": ["error"], "properties": {"error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": "string", "nullable": true},
                    "code": {"type": "string", "nullable": true},
                },
            }}}},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"bearer": []}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_the_table_is_in_the_document() {
        let document = document();
        for (path, endpoint) in [
            ("/v1/chat/completions", on::CHAT),
            ("/v1/completions", on::TEXT),
            ("/tokenize", on::TOKENIZE),
            ("/detokenize", on::DETOKENIZE),
            ("/apply-template", on::TEMPLATE),
        ] {
            let schema =
                &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
            for field in FIELDS.iter().filter(|field| field.on & endpoint != 0) {
                assert!(
                    schema["properties"][field.name].is_object(),
                    "{path}: {}",
                    field.name
                );
            }
        }
        assert_eq!(
            document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
                ["properties"]["top_p"]["exclusiveMinimum"],
            0.0
        );
    }
}
