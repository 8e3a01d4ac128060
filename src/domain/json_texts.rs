//! Rewrites the texts in a JSON value.

use serde_json::Value;

/// Passes each text in a value, at any depth, to `rewrite`. Keys stay as they are.
///
/// # Errors
/// The first error of `rewrite`.
pub fn try_rewrite<E>(value: &mut Value, rewrite: &mut impl FnMut(&mut String) -> Result<(), E>) -> Result<(), E> {
    try_rewrite_besides(value, &[], rewrite)
}

/// Passes each text in a value to `rewrite`, as [`try_rewrite`] does, but for the values under these keys.
///
/// # Errors
/// The first error of `rewrite`.
pub fn try_rewrite_besides<E>(
    value: &mut Value,
    keys: &[&str],
    rewrite: &mut impl FnMut(&mut String) -> Result<(), E>,
) -> Result<(), E> {
    match value {
        Value::String(text) => rewrite(text),
        Value::Array(items) => items
            .iter_mut()
            .try_for_each(|item| try_rewrite_besides(item, keys, rewrite)),
        Value::Object(fields) => fields
            .iter_mut()
            .filter(|(key, _)| !keys.contains(&key.as_str()))
            .try_for_each(|(_, field)| try_rewrite_besides(field, keys, rewrite)),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}
