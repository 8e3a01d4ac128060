//! The JSON Schema that a definition gives for the context of its runs.

use std::fmt;

use serde_json::{Map, Value};

use super::Invalid;
use super::schema::Schema;

/// A JSON Schema that the context of every run must match.
pub struct ContextSchema {
    schema: Value,
    compiled: Option<Schema>,
}

impl ContextSchema {
    /// Creates the check. An invalid schema is refused when the definition is read; here it accepts every context.
    pub fn new(schema: Value) -> Self {
        let compiled = Schema::compile(&schema).ok();
        Self { schema, compiled }
    }

    /// Returns the schema.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Validates the context of a run.
    ///
    /// # Errors
    /// Returns the first part that does not match.
    pub fn check(&self, context: &Map<String, Value>) -> Result<(), Invalid> {
        let Some(compiled) = &self.compiled else { return Ok(()) };
        compiled.check("context", &Value::Object(context.clone()))
    }
}

impl fmt::Debug for ContextSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ContextSchema").field(&self.schema).finish()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_error_names_the_invalid_part() {
        let schema = ContextSchema::new(json!({"type": "object", "required": ["who"],
            "properties": {"who": {"type": "object", "properties": {"age": {"type": "integer"}}}}}));
        let checked = |context: Value| {
            schema
                .check(context.as_object().expect("an object"))
                .map_err(|wrong| (wrong.field, wrong.reason))
        };
        assert_eq!(checked(json!({"who": {"age": 7}, "more": 1})), Ok(()));
        let missing = checked(json!({})).expect_err("who is missing");
        assert_eq!(missing.0.as_str(), "context");
        assert!(missing.1.contains("who"));
        assert_eq!(
            checked(json!({"who": {"age": "old"}})).map_err(|wrong| wrong.0),
            Err("context.who.age".to_owned())
        );
    }
}
