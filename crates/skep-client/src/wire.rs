//! Bytes in JSON: how names that are not text travel.
//!
//! Inside skep such a name is `{ "b64": … }`. Outside, as CLI.md promises, `path` is always a
//! string (the nearest text) and `path_bytes` holds the exact bytes in base64 where the text is
//! not exact. In a list, where there is no second key, the first form stays.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// Base64, for bytes that are not text.
pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The bytes of a base64 text.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// From the inner form to the outer.
pub fn out(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(out).collect()),
        Value::Object(fields) => {
            let mut shown = Map::new();
            for (key, value) in fields {
                match encoded(&value) {
                    Some(bytes) => {
                        let text = String::from_utf8_lossy(&bytes).into_owned();
                        shown.insert(format!("{key}_bytes"), Value::String(base64(&bytes)));
                        shown.insert(key, Value::String(text));
                    }
                    None => drop(shown.insert(key, out(value))),
                }
            }
            Value::Object(shown)
        }
        other => other,
    }
}

/// From the outer form to the inner.
pub fn back(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(back).collect()),
        Value::Object(mut fields) => {
            let exact: Vec<(String, String)> = fields
                .iter()
                .filter_map(|(key, value)| {
                    let name = key.strip_suffix("_bytes")?;
                    let text = value.as_str()?;
                    fields.get(name)?.is_string().then(|| (name.to_owned(), text.to_owned()))
                })
                .collect();
            for (key, b64) in exact {
                fields.remove(&format!("{key}_bytes"));
                fields.insert(key, serde_json::json!({ "b64": b64 }));
            }
            Value::Object(fields.into_iter().map(|(key, value)| (key, back(value))).collect())
        }
        other => other,
    }
}

fn encoded(value: &Value) -> Option<Vec<u8>> {
    let fields = value.as_object().filter(|fields| fields.len() == 1)?;
    from_base64(fields.get("b64")?.as_str()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn any_name_travels_both_ways() {
        let inner = json!({
            "path": { "b64": base64(b"a\xff") }, "stdout_bytes": 3, "upper_bytes": 7,
            "changes": [{ "path": "plain" }, { "path": { "b64": base64(b"\xfe") } }],
            "lines": [{ "b64": base64(b"\xff") }],
        });
        let outer = out(inner.clone());
        assert_eq!(outer["path"], "a\u{fffd}");
        assert_eq!(outer["path_bytes"], base64(b"a\xff"));
        assert_eq!(outer["changes"][1]["path_bytes"], base64(b"\xfe"));
        assert_eq!(back(outer), inner);
    }
}
