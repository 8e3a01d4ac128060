//! The `config` of a run, an assistant or a thread, as LangGraph lays it out.
//!
//! LangGraph has two names for the values that a run passes to its agent: `context`, and the older `configurable` within
//! `config`. Clients send and read either. The server works with the context. Below HTTP, only this module knows where the
//! other one is.

use serde_json::{Map, Value};

/// The key of a config whose object repeats the context.
pub const CONFIGURABLE: &str = "configurable";

/// The error for `config.configurable` and `context` that are both given and differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("config.configurable and context differ")]
pub struct ContextConflict;

/// Returns the `configurable` of a config, if it is an object.
pub fn configurable(config: &Map<String, Value>) -> Option<&Map<String, Value>> {
    config.get(CONFIGURABLE).and_then(Value::as_object)
}

/// Returns the `configurable` of a config to change it, if it is an object.
pub fn configurable_mut(config: &mut Map<String, Value>) -> Option<&mut Map<String, Value>> {
    config.get_mut(CONFIGURABLE).and_then(Value::as_object_mut)
}

/// Puts a `configurable` into a config.
pub fn set_configurable(config: &mut Map<String, Value>, values: Map<String, Value>) {
    config.insert(CONFIGURABLE.to_owned(), Value::Object(values));
}

/// Makes the `configurable` of a config and a context equal: an empty one is filled from the other.
///
/// # Errors
/// Returns [`ContextConflict`] if both are given and differ.
pub fn mirror(config: &mut Map<String, Value>, context: &mut Map<String, Value>) -> Result<(), ContextConflict> {
    let given = configurable(config).filter(|given| !given.is_empty());
    match given {
        Some(given) if context.is_empty() => context.clone_from(given),
        Some(given) if *given != *context => return Err(ContextConflict),
        None if !context.is_empty() => set_configurable(config, context.clone()),
        Some(_) | None => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a config and a context, made equal.
    fn mirrored(config: Value, context: Value) -> Result<Value, ContextConflict> {
        let mut config = config.as_object().cloned().unwrap_or_default();
        let mut context = context.as_object().cloned().unwrap_or_default();
        mirror(&mut config, &mut context)?;
        Ok(json!([config, context]))
    }

    #[test]
    fn an_empty_one_of_configurable_and_context_is_filled_from_the_other() {
        assert_eq!(
            mirrored(json!({"tags": ["x"]}), json!({"who": "me"})),
            Ok(json!([{"tags": ["x"], "configurable": {"who": "me"}}, {"who": "me"}]))
        );
        assert_eq!(
            mirrored(json!({"configurable": {"a": 1}}), json!({})),
            Ok(json!([{"configurable": {"a": 1}}, {"a": 1}]))
        );
        assert_eq!(
            mirrored(json!({"configurable": null}), json!({"a": 1})),
            Ok(json!([{"configurable": {"a": 1}}, {"a": 1}]))
        );
    }

    #[test]
    fn a_config_stays_as_it_is_if_both_are_empty() {
        assert_eq!(mirrored(json!({}), json!({})), Ok(json!([{}, {}])));
        assert_eq!(
            mirrored(json!({"configurable": {}}), json!({})),
            Ok(json!([{"configurable": {}}, {}]))
        );
    }

    #[test]
    fn configurable_and_context_that_are_both_given_must_be_equal() {
        let same = json!({"a": 1});
        assert!(mirrored(json!({"configurable": same}), same.clone()).is_ok());
        assert_eq!(
            mirrored(json!({"configurable": {"a": 1}}), json!({"b": 1})),
            Err(ContextConflict)
        );
    }
}
