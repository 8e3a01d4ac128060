//! Shapes on the wire: what clients send and read, and nothing else. The promises made here are never broken.
//!
//! Conversions outward are total; those inward name the field that is wrong.

use serde_json::{Map, Value};
use uuid::Uuid;

use super::error::ApiError;
use crate::domain::Invalid;
use crate::domain::id::CheckpointId;
use crate::domain::machine::Failure;

pub mod assistant;
pub mod child;
pub mod cron;
pub mod interrupt;
pub mod item;
pub mod retention;
pub mod run;
pub mod state;
pub mod thread;

/// A JSON object as a schema shows it.
pub type Object = Map<String, Value>;

/// A failure as clients know it: `{"error": "<class>", "message": "<text>"}`.
pub fn failure(failure: &Failure) -> Value {
    serde_json::json!({"error": failure.class, "message": failure.message})
}

/// The JSON of a view. Views are plain records, so there always is one.
pub fn json(view: &impl serde::Serialize) -> Value {
    serde_json::to_value(view).unwrap_or_default()
}

/// Whether `whole` has everything that `part` has: every key of its objects, every item of its lists.
pub fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, value)| whole.get(key).is_some_and(|found| contains(found, value)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            part.iter().all(|value| whole.iter().any(|found| contains(found, value)))
        }
        (whole, part) => whole == part,
    }
}

/// A checkpoint named by its id, or by an object with its id (`checkpoint`), which wins.
///
/// # Errors
/// If the id is no UUID, or the object names a checkpoint of a subagent.
pub fn checkpoint(id: Option<&str>, object: Option<&Object>) -> Result<Option<CheckpointId>, ApiError> {
    let within = |name: &str| object.and_then(|object| object.get(name)).and_then(Value::as_str);
    if within("checkpoint_ns").is_some_and(|namespace| !namespace.is_empty()) {
        let reason = "must be empty: only checkpoints of the main agent can be named";
        return Err(Invalid::new("checkpoint.checkpoint_ns", reason).into());
    }
    let id = within("checkpoint_id").or(id);
    id.map(|id| id.parse::<Uuid>().map(CheckpointId).map_err(|_| ApiError::bad_checkpoint_id())).transpose()
}

/// One of several words, or the field that holds another one.
///
/// # Errors
/// Names the allowed words.
pub fn word<T>(field: &str, word: Option<&str>, all: &[(&str, T)]) -> Result<Option<T>, Invalid>
where
    T: Copy,
{
    let Some(word) = word else { return Ok(None) };
    let found = all.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
    found.map(Some).ok_or_else(|| {
        let allowed = all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        Invalid::new(field, format!("is {word:?}, but allowed are: {allowed}"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn containment_looks_into_objects_and_lists() {
        let whole = json!({"a": 1, "b": {"c": 2, "d": [1, 2]}});
        assert!(contains(&whole, &json!({})));
        assert!(contains(&whole, &json!({"b": {"c": 2}})));
        assert!(contains(&whole, &json!({"b": {"d": [2]}})));
        assert!(!contains(&whole, &json!({"b": {"c": 3}})));
        assert!(!contains(&whole, &json!({"x": null})));
    }

    #[test]
    fn a_checkpoint_is_named_by_id_or_object() {
        let id = CheckpointId::mint();
        let object = json!({"checkpoint_id": id.0, "checkpoint_ns": ""});
        assert_eq!(checkpoint(Some(&id.to_string()), None), Ok(Some(id)));
        assert_eq!(checkpoint(None, object.as_object()), Ok(Some(id)));
        assert_eq!(checkpoint(None, None), Ok(None));
        assert_eq!(
            checkpoint(Some("nope"), None).map_err(|e| e.message().to_owned()),
            Err("Invalid checkpoint ID".into())
        );
        let inner = json!({"checkpoint_id": id.0, "checkpoint_ns": "tools:x"});
        assert!(checkpoint(None, inner.as_object()).is_err());
    }
}
