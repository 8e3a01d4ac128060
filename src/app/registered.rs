//! The parts that an embedding program brings: tools, policies, programs and models.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::middleware::Middleware;
use crate::model::providers::ModelSource;
use crate::model::{Model, ModelError};
use crate::tool::execute::CommandLauncher;
use crate::tool::{Runnable, Tool};

/// The parts that a program has registered, by name.
#[derive(Clone, Default)]
pub(super) struct Registered {
    pub(super) tools: BTreeMap<String, Arc<dyn Tool>>,
    pub(super) policies: BTreeMap<String, Arc<dyn Middleware>>,
    pub(super) runnables: BTreeMap<String, Arc<dyn Runnable>>,
    /// Starts the commands of agents.
    pub(super) commands: CommandLauncher,
    pub(super) sources: BTreeMap<String, ModelSource>,
    /// The models by the name after the colon, by the provider's name before it.
    pub(super) models: BTreeMap<String, BTreeMap<String, Arc<dyn Model>>>,
}

impl Registered {
    /// Returns the registered providers, combined with the registered single models.
    pub(super) fn sources(&self) -> BTreeMap<String, ModelSource> {
        let mut sources = self.sources.clone();
        for (provider, models) in &self.models {
            let other = sources.remove(provider);
            let models = models.clone();
            let provider = provider.clone();
            let key = provider.clone();
            let source: ModelSource = Arc::new(move |name| match (models.get(name), &other) {
                (Some(model), _) => Ok(Arc::clone(model)),
                (None, Some(other)) => other(name),
                (None, None) => {
                    let known: Vec<&str> = models.keys().map(String::as_str).collect();
                    let message = format!("`{provider}` has no model `{name}`; it has {}", known.join(", "));
                    Err(ModelError::Misconfigured { message })
                }
            });
            sources.insert(key, source);
        }
        sources
    }
}
