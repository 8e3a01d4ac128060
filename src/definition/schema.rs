//! Checks the JSON Schemas of a definition.

use serde_json::Value;

use super::diagnostic::{Diagnostic, FieldPath, Segment};
use crate::domain::schema::Schema;

/// The message about a schema of something other than an object.
pub(super) const NO_OBJECT: &str = "must be a JSON Schema of an object: `type = \"object\"`, `properties`, …";

/// Checks a schema of arguments or contexts, which has to be a valid schema of an object.
pub(super) fn check_object_schema(field: &FieldPath, schema: &Value) -> Option<Diagnostic> {
    if schema.get("type").and_then(Value::as_str) != Some("object") {
        return Some(Diagnostic::error(field.clone(), NO_OBJECT));
    }
    schema_problem(field, schema)
}

/// Returns the reason why `schema` is not a JSON Schema.
pub(super) fn schema_problem(field: &FieldPath, schema: &Value) -> Option<Diagnostic> {
    let error = Schema::compile(schema).err()?;
    let mut place = field.clone();
    for step in error.place.split('/').filter(|step| !step.is_empty()) {
        place
            .0
            .push(step.parse().map_or_else(|_| Segment::from(step), Segment::Index));
    }
    Some(Diagnostic::error(
        place,
        format!("is not valid in a JSON Schema: {error}"),
    ))
}
