//! Warnings about missing API keys of providers. A server starts without them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::registered::Registered;
use super::tenants;
use crate::config::{Config, LoadedConfig, Problem};
use crate::definition::{FieldPath, HarnessProfiles, ModelUsage, Severity};
use crate::model::providers::Providers;

/// A missing key of a provider.
#[derive(Debug, Clone)]
pub(super) struct MissingProviderKey {
    pub(super) provider: String,
    /// The section of the provider.
    section: FieldPath,
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
            section: FieldPath::of(["providers", provider]),
            source: source.to_owned(),
            reason: String::new(),
            users: vec![user.to_owned()],
        }
    }
}

/// A model that an agent or the index of the Store may ask.
pub(super) struct UsedModel {
    /// The agent; none for the index of the Store.
    graph_id: Option<String>,
    /// The name.
    pub(super) name: String,
}

impl UsedModel {
    fn user(&self) -> String {
        match &self.graph_id {
            Some(graph_id) => format!("agent {graph_id}"),
            None => "the index of the Store".to_owned(),
        }
    }
}

/// Returns one warning for each provider that lacks its key and is used by an agent or the index of the Store.
pub(super) fn missing(loaded: &LoadedConfig, registered: &Registered) -> Vec<Problem> {
    let missing = missing_keys(loaded, registered);
    missing.iter().map(|key| warning(loaded, key)).collect()
}

/// Returns the missing keys of the providers that are used by an agent or the index of the Store: those of the server, and
/// those of tenants that have keys of their own.
pub(super) fn missing_keys(loaded: &LoadedConfig, registered: &Registered) -> Vec<MissingProviderKey> {
    let config = &loaded.config;
    let providers = Arc::new(super::providers(config).with_own(registered.sources()));
    let used = used_models(config);
    let mut missing = MissingKeys::default();
    for model in &used {
        missing.add(&providers, &FieldPath::default(), &model.name, model.user());
    }
    // A loaded configuration has no wrong names of tenants.
    let sections = config.tenant_sections().unwrap_or_default();
    let settings = config.tenant_settings().unwrap_or_default();
    for (tenant, section) in sections {
        let settings = settings.of(&tenant);
        let own = tenants::providers_of(&providers, section, settings);
        let holder = FieldPath::of(["tenants", tenant.as_str()]);
        for model in &used {
            let graph_id = model.graph_id.as_ref();
            // The index of the Store belongs to the server.
            let is_asked = graph_id.is_some_and(|graph_id| settings.agents.allows(graph_id));
            if is_asked && own.check_allowed(&model.name).is_ok() {
                let user = format!("{} for the tenant {tenant}", model.user());
                missing.add(&own, &holder, &model.name, user);
            }
        }
    }
    missing.0.into_values().collect()
}

/// Missing keys, by the section of their provider.
#[derive(Default)]
struct MissingKeys(BTreeMap<FieldPath, MissingProviderKey>);

impl MissingKeys {
    /// Adds the key that `user` needs for a model, if it is missing. The sections of `providers` are in `holder`.
    fn add(&mut self, providers: &Providers, holder: &FieldPath, model: &str, user: String) {
        let Some((provider, reason)) = providers.missing_key(model) else {
            return;
        };
        let section = holder.then("providers").then(provider);
        let key = self.0.entry(section.clone()).or_insert_with(|| MissingProviderKey {
            provider: provider.to_owned(),
            source: match providers.key_variable(provider) {
                Some(variable) => variable.to_owned(),
                None => section.then("api_key").to_string(),
            },
            section,
            reason,
            users: vec![],
        });
        if !key.users.contains(&user) {
            key.users.push(user);
        }
    }
}

fn warning(loaded: &LoadedConfig, key: &MissingProviderKey) -> Problem {
    let message = format!("{}; without it these fail: {}", key.reason, key.users.join(", "));
    let problem = Problem::in_file(loaded.source.clone(), message);
    Problem {
        severity: Severity::Warning,
        field: key.section.to_string(),
        ..problem
    }
}

/// Returns the models that agents and the index of the Store may ask, each once for each user. The agents are those of the
/// configuration, with the profiles of their models and with each choice of a model that runs have.
pub(super) fn used_models(config: &Config) -> Vec<UsedModel> {
    let policies = &config.files.settings.embedded.names;
    let profiles = HarnessProfiles(config.profiles.clone());
    let mut used = vec![];
    for (graph_id, agent) in &config.agents {
        let mut names = BTreeSet::new();
        for choices in agent.model_choices() {
            let applied = profiles.applied(agent.configured(&choices).resolved());
            let named = applied.named_models(|policy| policies.model_setting(policy));
            let asked = named.iter().filter(|model| model.usage != ModelUsage::Never);
            names.extend(asked.map(|model| model.name.to_owned()));
        }
        used.extend(names.into_iter().map(|name| UsedModel {
            graph_id: Some(graph_id.clone()),
            name,
        }));
    }
    used.extend(config.store.index.as_ref().map(|index| UsedModel {
        graph_id: None,
        name: index.embed.clone(),
    }));
    used
}
