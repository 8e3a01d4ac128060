//! Rewrites the texts in a JSON value.

use serde_json::Value;

/// Passes each text in a value, at any depth, to `rewrite`. Keys stay as they are.
///
/// # Errors
/// The first error of `rewrite`.
pub fn try_rewrite<E>(value: &mut Value, rewrite: &mut impl FnMut(&mut String) -> Result<(), E>) -> Result<(), E> {
    match value {
        Value::String(text) => rewrite(text),
        Value::Array(items) => items.iter_mut().try_for_each(|item| try_rewrite(item, rewrite)),
        Value::Object(fields) => fields.values_mut().try_for_each(|field| try_rewrite(field, rewrite)),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}
