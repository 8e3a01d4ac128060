//! The choices of an agent's runs: the entries of their context by which they choose.

use serde_json::{Map, Value};

use crate::domain::Invalid;
use crate::domain::context::ContextSchema;

/// Returns the entries of a context that choose something other than the default.
type SelectChoices = dyn Fn(&Map<String, Value>) -> Map<String, Value> + Send + Sync;

/// The choices that runs have.
pub(super) struct Choices {
    schema: ContextSchema,
    select: Box<SelectChoices>,
}

impl Choices {
    /// Creates it. The `schema` describes the entries of the context by which runs choose.
    pub(super) fn new(
        schema: Value,
        select: impl Fn(&Map<String, Value>) -> Map<String, Value> + Send + Sync + 'static,
    ) -> Self {
        Self {
            schema: ContextSchema::new(schema),
            select: Box::new(select),
        }
    }

    /// Checks what a context chooses.
    ///
    /// # Errors
    /// Names the first entry that chooses something that is not allowed.
    pub(super) fn check(&self, context: &Map<String, Value>) -> Result<(), Invalid> {
        self.schema.check(context)
    }

    /// Returns the names of the entries of a context by which runs choose.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        let properties = self.schema.schema().get("properties").and_then(Value::as_object);
        properties.into_iter().flat_map(Map::keys)
    }

    /// Returns the entries of a context that choose something other than the default.
    ///
    /// # Errors
    /// As [`Choices::check`].
    pub(super) fn chosen(&self, context: &Map<String, Value>) -> Result<Map<String, Value>, Invalid> {
        self.check(context)?;
        Ok((self.select)(context))
    }
}
