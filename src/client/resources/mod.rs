//! Lists and pages of the resources of a server.

pub(super) mod agents;
pub(super) mod approvals;
pub(super) mod find;
pub(super) mod interrupts;
pub(super) mod runs;
pub(super) mod threads;

use serde_json::Value;

use crate::domain::time::Timestamp;

/// Returns the text of a field; empty if there is none.
pub(super) fn text(value: &Value, field: &str) -> String {
    match &value[field] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => other.to_string(),
    }
}

/// Returns the time of a field to the second.
pub(super) fn time(value: &Value, field: &str) -> String {
    let text = text(value, field);
    instant(value, field).map_or(text, Timestamp::to_second)
}

/// Returns the time of a field.
pub(super) fn instant(value: &Value, field: &str) -> Option<Timestamp> {
    value[field].as_str().and_then(Timestamp::read)
}

/// Returns the items of an array.
pub(super) fn items(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => vec![],
    }
}

/// Returns the text of a message's content: of a text, or of the blocks of text in a list.
pub(super) fn content_text(content: &Value) -> String {
    if let Some(text) = content.as_str() {
        return text.to_owned();
    }
    let blocks = content.as_array().into_iter().flatten();
    let texts = blocks.filter_map(|block| block.as_str().or_else(|| block["text"].as_str()));
    texts.collect::<Vec<_>>().join("")
}
