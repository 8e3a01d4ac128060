//! JSON Schemas that are small but expensive to evaluate.

use serde_json::{Map, Value, json};

/// Returns a schema whose validation would report 2^`levels` errors: each definition refers to the previous one twice.
pub(crate) fn doubling(levels: usize) -> Value {
    let mut definitions = Map::from_iter([("d0".to_owned(), json!({"type": "string"}))]);
    for level in 1..=levels {
        let before = json!({"$ref": format!("#/$defs/d{}", level - 1)});
        definitions.insert(format!("d{level}"), json!({"anyOf": [before, before]}));
    }
    let field = json!({"$ref": format!("#/$defs/d{levels}")});
    json!({"type": "object", "properties": {"a": field}, "$defs": definitions})
}
