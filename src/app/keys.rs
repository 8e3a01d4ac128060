//! Warnings about missing API keys of providers. A server starts without them.

use std::collections::BTreeMap;

use super::registered::Registered;
use crate::config::{Config, LoadedConfig, Problem};
use crate::definition::check::ValidationContext;
use crate::definition::{AgentDefinition, ModelNames, Severity, SummarizationRule};

/// A missing key of a provider.
#[derive(Debug, Clone)]
pub(super) struct MissingProviderKey {
    pub(super) provider: String,
    /// The environment variable or the setting that would have the key.
    pub(super) source: String,
    reason: String,
    /// The agents and indexes that need the key.
    pub(super) users: Vec<String>,
}

#[cfg(test)]
impl MissingProviderKey {
    pub(super) fn for_test(provider: &str, source: &str, user: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            source: source.to_owned(),
            reason: String::new(),
            users: vec![user.to_owned()],
        }
    }
}

/// Returns one warning for each provider that lacks its key and is used by an agent or the index of the Store.
pub(super) fn missing(loaded: &LoadedConfig, registered: &Registered) -> Vec<Problem> {
    let missing = missing_keys(loaded, registered);
    missing.iter().map(|key| warning(loaded, key)).collect()
}

/// Returns the missing keys of the providers that are used by an agent or the index of the Store.
pub(super) fn missing_keys(loaded: &LoadedConfig, registered: &Registered) -> Vec<MissingProviderKey> {
    let providers = super::providers(&loaded.config).with_own(registered.sources());
    let mut missing: BTreeMap<String, MissingProviderKey> = BTreeMap::new();
    for (user, model) in models(&loaded.config) {
        let Some((provider, reason)) = providers.missing_key(model) else {
            continue;
        };
        let key = missing
            .entry(provider.to_owned())
            .or_insert_with(|| MissingProviderKey {
                provider: provider.to_owned(),
                source: match providers.key_variable(provider) {
                    Some(variable) => variable.to_owned(),
                    None => format!("providers.{provider}.api_key"),
                },
                reason,
                users: vec![],
            });
        if !key.users.contains(&user) {
            key.users.push(user);
        }
    }
    missing.into_values().collect()
}

fn warning(loaded: &LoadedConfig, key: &MissingProviderKey) -> Problem {
    let message = format!("{}; without it these fail: {}", key.reason, key.users.join(", "));
    let problem = Problem::in_file(loaded.source.clone(), message);
    Problem {
        severity: Severity::Warning,
        field: format!("providers.{}", key.provider),
        ..problem
    }
}

/// Returns each user of a model, with the name of the model.
pub(super) fn models(config: &Config) -> impl Iterator<Item = (String, &str)> {
    let registered = &config.files.settings.embedded.names;
    let of_agents = config.agents.iter().flat_map(move |(graph_id, agent)| {
        let user = format!("agent {graph_id}");
        models_of(agent, registered).map(move |model| (user.clone(), model))
    });
    let index = config
        .store
        .index
        .as_ref()
        .map(|index| ("the index of the Store".to_owned(), index.embed.as_str()));
    of_agents.chain(index)
}

fn models_of<'a>(agent: &'a AgentDefinition, registered: &'a ValidationContext) -> impl Iterator<Item = &'a str> {
    let below = agent.subagents.iter().filter_map(|subagent| subagent.model.as_ref());
    let general = Some(&agent.general_purpose_subagent).filter(|general| general.enabled);
    let policies = agent.subagents.iter().flat_map(|subagent| &subagent.middleware);
    let policies = policies
        .chain(&agent.middleware)
        .chain(general.into_iter().flat_map(|general| &general.middleware));
    let of_policies = policies.filter_map(move |policy| registered.model_of(policy));
    let rules = agent
        .subagents
        .iter()
        .filter_map(|subagent| subagent.summarization.as_ref());
    let summarizers = rules.chain([&agent.summarization]).filter_map(SummarizationRule::model);
    Some(&agent.model)
        .filter(|_| !agent.is_program())
        .into_iter()
        .chain(below)
        .chain(general.and_then(|general| general.model.as_ref()))
        .flat_map(ModelNames::all)
        .chain(&agent.configurable.models)
        .map(String::as_str)
        .chain(summarizers)
        .chain(of_policies.map(|(_, model)| model))
}
