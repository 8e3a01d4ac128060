//! The choices of an agent's runs, and the agents that are built for them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};

use super::registered::RegisteredAgent;
use crate::domain::Invalid;
use crate::domain::context::ContextSchema;
use crate::model::ModelError;

/// The maximum number of agents that are kept.
const KEPT: usize = 64;

/// Returns the entries of a context that choose something other than the default.
type SelectChoices = dyn Fn(&Map<String, Value>) -> Map<String, Value> + Send + Sync;

/// Builds the agent of a choice.
type BuildChosen = dyn Fn(&Map<String, Value>) -> Result<Arc<RegisteredAgent>, ModelError> + Send + Sync;

/// A choice, and the agent that was built for it.
type BuiltAgent = (Map<String, Value>, Arc<RegisteredAgent>);

/// The choices that runs have.
pub(super) struct Choices {
    schema: ContextSchema,
    select: Box<SelectChoices>,
    build: Box<BuildChosen>,
    /// The agents that were built last, the newest at the end.
    built: Mutex<VecDeque<BuiltAgent>>,
}

impl Choices {
    /// Creates it. The `schema` describes the entries of the context by which runs choose.
    pub(super) fn new(
        schema: Value,
        select: impl Fn(&Map<String, Value>) -> Map<String, Value> + Send + Sync + 'static,
        build: impl Fn(&Map<String, Value>) -> Result<Arc<RegisteredAgent>, ModelError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            schema: ContextSchema::new(schema),
            select: Box::new(select),
            build: Box::new(build),
            built: Mutex::default(),
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

    /// Returns the agent that a context chooses; none if it chooses the default.
    ///
    /// # Errors
    /// As [`Choices::check`].
    pub(super) fn agent(&self, context: &Map<String, Value>) -> Result<Option<Arc<RegisteredAgent>>, Invalid> {
        self.check(context)?;
        let chosen = (self.select)(context);
        if chosen.is_empty() {
            return Ok(None);
        }
        if let Some(agent) = self.find(&chosen) {
            return Ok(Some(agent));
        }
        let agent = (self.build)(&chosen).map_err(|error| Invalid::new("context.model", error.to_string()))?;
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        built.push_back((chosen, Arc::clone(&agent)));
        if built.len() > KEPT {
            built.pop_front();
        }
        Ok(Some(agent))
    }

    fn find(&self, chosen: &Map<String, Value>) -> Option<Arc<RegisteredAgent>> {
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let at = built.iter().position(|(choices, _)| choices == chosen)?;
        let found = built.remove(at)?;
        let agent = Arc::clone(&found.1);
        built.push_back(found);
        Some(agent)
    }
}
