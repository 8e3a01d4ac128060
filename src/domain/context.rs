//! What the owner of an agent says about the context of its runs.

use std::fmt;

use serde_json::{Map, Value};

use super::Invalid;
use super::schema::Schema;

/// A JSON Schema that the context of every run has to fit.
pub struct ContextSchema {
    schema: Value,
    compiled: Option<Schema>,
}

impl ContextSchema {
    /// The context has to fit `schema`. One that is no JSON Schema was refused when the definition was read, and checks
    /// nothing here.
    pub fn new(schema: Value) -> Self {
        let compiled = Schema::compile(&schema).ok();
        Self { schema, compiled }
    }

    /// The schema itself.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Checks the context of a run.
    ///
    /// # Errors
    /// Names the first part that does not fit.
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
    fn the_part_that_does_not_fit_is_named() {
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
        assert_eq!(missing.1.contains("who"), true);
        assert_eq!(
            checked(json!({"who": {"age": "old"}})).map_err(|wrong| wrong.0),
            Err("context.who.age".to_owned())
        );
    }
}
