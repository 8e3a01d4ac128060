//! The names that a definition may refer to, which the caller of the checks provides.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::clients::ClientRules;
use super::diagnostic::{Diagnostic, FieldPath};
use super::policy::Policy;

/// The names that a definition may refer to.
#[derive(Debug, Clone, Default)]
pub struct ValidationContext {
    /// The declared tools.
    pub tools: BTreeSet<String>,
    /// The names that may stand before the colon of a model name.
    pub providers: BTreeSet<String>,
    /// The MCP servers.
    pub mcp_servers: BTreeSet<String>,
    /// The sandbox services.
    pub sandboxes: BTreeSet<String>,
    /// The programs that agents can be.
    pub runnables: BTreeSet<String>,
    /// The registered policies.
    pub middleware: BTreeMap<String, RegisteredPolicy>,
    /// The agents of this server, except the one that is checked.
    pub agents: BTreeSet<String>,
    /// The names that definitions of clients may use.
    pub clients: ClientRules,
    /// True if the definition was stored, perhaps by an earlier release, which allowed shorter time limits.
    pub is_stored: bool,
}

impl ValidationContext {
    /// Returns the context of tests: there is the provider `scripted`, and clients may use everything.
    #[cfg(test)]
    pub(super) fn of_tests() -> Self {
        let everything = || vec!["*".to_owned()];
        Self {
            providers: BTreeSet::from(["scripted".to_owned()]),
            clients: ClientRules {
                enabled: true,
                tools: everything(),
                models: everything(),
                agents: everything(),
            },
            ..Self::default()
        }
    }

    /// Returns what tells a listed policy from the others in its list: its name, and the setting by which several of
    /// its kind differ.
    pub(super) fn instance_of(&self, policy: &Policy) -> (String, Option<String>) {
        let registered = self.middleware.get(&policy.name);
        let setting = registered.and_then(|registered| policy.settings.get(registered.distinguished_by?));
        (policy.name.clone(), setting.map(Value::to_string))
    }

    /// Returns the message about a policy that is listed twice.
    pub(super) fn repeated(&self, name: &str) -> String {
        let setting = self
            .middleware
            .get(name)
            .and_then(|registered| registered.distinguished_by);
        let same = setting.map(|setting| format!(" with the same `{setting}`"));
        format!("`{name}` is listed twice{}", same.unwrap_or_default())
    }

    /// Returns the setting of the policy of this name that is the name of a model.
    pub fn model_setting(&self, policy: &str) -> Option<&'static str> {
        self.middleware.get(policy)?.model_setting
    }

    /// Returns the model that a listed policy names, with the setting that does.
    pub(super) fn model_of<'a>(&self, policy: &'a Policy) -> Option<(&'static str, &'a str)> {
        let setting = self.model_setting(&policy.name)?;
        Some((setting, policy.text(setting)?))
    }

    /// Returns the tools of the agent that a listed policy names, each with its place below `field`, that of the policy.
    pub(super) fn tools_of<'a>(&self, policy: &'a Policy, field: &FieldPath) -> Vec<(FieldPath, &'a str)> {
        let registered = self.middleware.get(&policy.name);
        let setting = registered.and_then(|registered| registered.tools_setting);
        setting.map(|setting| policy.names(setting, field)).unwrap_or_default()
    }
}

/// The part of a registered policy that definitions have to know.
#[derive(Clone, Default)]
pub struct RegisteredPolicy {
    check: Option<Arc<CheckSettings>>,
    /// The setting by which several of its kind in one list differ.
    distinguished_by: Option<&'static str>,
    /// The setting that is the name of a model.
    model_setting: Option<&'static str>,
    /// The setting that names a tool or tools of the agent.
    tools_setting: Option<&'static str>,
    /// The tools that it contributes.
    pub(super) tools: BTreeSet<String>,
}

/// Checks settings; returns `None` if the policy takes no settings.
type CheckSettings = dyn Fn(&Map<String, Value>) -> Option<Vec<Diagnostic>> + Send + Sync;

impl RegisteredPolicy {
    /// Creates a policy whose settings `check` checks. `check` returns `None` if the policy takes no settings.
    pub fn new(check: impl Fn(&Map<String, Value>) -> Option<Vec<Diagnostic>> + Send + Sync + 'static) -> Self {
        Self {
            check: Some(Arc::new(check)),
            ..Self::default()
        }
    }

    /// Allows several policies of this name in one list, if they differ in this setting.
    #[must_use]
    pub fn distinguished_by(self, setting: Option<&'static str>) -> Self {
        Self {
            distinguished_by: setting,
            ..self
        }
    }

    /// Sets the setting that is the name of a model.
    #[must_use]
    pub fn with_model_setting(self, setting: Option<&'static str>) -> Self {
        Self {
            model_setting: setting,
            ..self
        }
    }

    /// Sets the setting that names a tool or tools of the agent.
    #[must_use]
    pub fn with_tools_setting(self, setting: Option<&'static str>) -> Self {
        Self {
            tools_setting: setting,
            ..self
        }
    }

    /// Adds the names of the tools that the policy contributes.
    #[must_use]
    pub fn with_tools(self, tools: impl IntoIterator<Item = String>) -> Self {
        Self {
            tools: tools.into_iter().collect(),
            ..self
        }
    }

    /// Checks these settings; returns `None` if the policy takes no settings.
    pub fn check(&self, settings: &Map<String, Value>) -> Option<Vec<Diagnostic>> {
        self.check.as_ref().and_then(|check| check(settings))
    }
}

impl fmt::Debug for RegisteredPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredPolicy").finish_non_exhaustive()
    }
}
