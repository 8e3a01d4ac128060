//! Schemas that are small to send and large to check.

use serde_json::{Map, Value, json};

/// A schema whose check would make 2^`levels` errors: each definition offers the one before it twice.
pub(crate) fn doubling(levels: usize) -> Value {
    let mut definitions = Map::from_iter([("d0".to_owned(), json!({"type": "string"}))]);
    for level in 1..=levels {
        let before = json!({"$ref": format!("#/$defs/d{}", level - 1)});
        definitions.insert(format!("d{level}"), json!({"anyOf": [before, before]}));
    }
    let field = json!({"$ref": format!("#/$defs/d{levels}")});
    json!({"type": "object", "properties": {"a": field}, "$defs": definitions})
}
