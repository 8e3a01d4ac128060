//! Warnings about missing API keys of providers. A server starts without them.

use std::collections::BTreeMap;

use super::builder::Registered;
use crate::config::{Config, LoadedConfig, Problem};
use crate::definition::{AgentDefinition, Severity};

/// A missing key.
struct MissingKey {
    reason: String,
    /// The agents and indexes that need the key.
    users: Vec<String>,
}

/// Returns one warning for each provider that lacks its key and is used by an agent or the index of the Store.
pub(super) fn missing(loaded: &LoadedConfig, registered: &Registered) -> Vec<Problem> {
    let providers = super::providers(&loaded.config).with_own(registered.sources());
    let mut missing: BTreeMap<String, MissingKey> = BTreeMap::new();
    for (user, model) in models(&loaded.config) {
        let Some((provider, reason)) = providers.missing_key(model) else {
            continue;
        };
        let key = missing
            .entry(provider.to_owned())
            .or_insert_with(|| MissingKey { reason, users: vec![] });
        if !key.users.contains(&user) {
            key.users.push(user);
        }
    }
    missing
        .iter()
        .map(|(provider, key)| warning(loaded, provider, key))
        .collect()
}

fn warning(loaded: &LoadedConfig, provider: &str, key: &MissingKey) -> Problem {
    let message = format!("{}; without it these fail: {}", key.reason, key.users.join(", "));
    let problem = Problem::in_file(loaded.source.clone(), message);
    Problem {
        severity: Severity::Warning,
        field: format!("providers.{provider}"),
        ..problem
    }
}

/// Returns each user of a model, with the name of the model.
fn models(config: &Config) -> impl Iterator<Item = (String, &str)> {
    let of_agents = config.agents.iter().flat_map(|(graph_id, agent)| {
        let user = format!("agent {graph_id}");
        models_of(agent).map(move |model| (user.clone(), model))
    });
    let index = config
        .store
        .index
        .as_ref()
        .map(|index| ("the index of the Store".to_owned(), index.embed.as_str()));
    of_agents.chain(index)
}

fn models_of(agent: &AgentDefinition) -> impl Iterator<Item = &str> {
    let below = agent.subagents.iter().filter_map(|subagent| subagent.model.as_deref());
    let general = &agent.general_purpose_subagent;
    let general = general.model.as_deref().filter(|_| general.enabled);
    [agent.model.as_str()].into_iter().chain(below).chain(general)
}
