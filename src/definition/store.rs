//! The access of agents to the Store.

use serde::{Deserialize, Deserializer, Serialize};

use super::builtins::{Builtin, STORE};
use super::diagnostic::{Diagnostic, FieldPath};
use super::namespace::check_namespace;
use super::untagged::{self, SwitchOrTable};

/// The rule for an agent's access to the Store.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum StoreRule {
    /// `true`: access to a namespace of the assistant's own; `false`: no tools.
    Switch(bool),
    /// The settings.
    Settings(NamespaceAccess),
}

/// The access of an agent to a namespace of the Store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NamespaceAccess {
    /// The namespace, with all namespaces below it. `{name}` in a label is replaced by the entry `name` of the run's
    /// context. The server itself fills in `{assistant_id}`, `{thread_id}` and `{agent_name}`.
    pub namespace: Vec<String>,
    /// True if the agent can only read.
    pub read_only: bool,
}

impl Default for NamespaceAccess {
    fn default() -> Self {
        Self {
            namespace: vec!["memories".to_owned(), "{assistant_id}".to_owned()],
            read_only: false,
        }
    }
}

impl Default for StoreRule {
    fn default() -> Self {
        Self::Switch(false)
    }
}

impl StoreRule {
    /// Returns the access of the agent, if it has any.
    pub fn access(&self) -> Option<NamespaceAccess> {
        match self {
            Self::Switch(on) => on.then(NamespaceAccess::default),
            Self::Settings(access) => Some(access.clone()),
        }
    }

    /// Returns the tools that the agent has for the Store.
    pub fn tools(&self) -> &'static [&'static str] {
        let tools = Builtin::tools_of(STORE);
        match self.access() {
            None => &[],
            Some(NamespaceAccess { read_only: true, .. }) => tools.get(..2).unwrap_or_default(),
            Some(NamespaceAccess { read_only: false, .. }) => tools,
        }
    }

    /// Checks the rule in `field`.
    pub(super) fn check(&self, field: &FieldPath) -> Vec<Diagnostic> {
        let Self::Settings(access) = self else { return vec![] };
        check_namespace(&field.then("namespace"), &access.namespace)
    }
}

impl<'de> Deserialize<'de> for StoreRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "true, false or a table with `namespace`";
        Ok(match untagged::read(deserializer, expected)? {
            SwitchOrTable::Switch(on) => Self::Switch(on),
            SwitchOrTable::Table(settings) => Self::Settings(settings),
        })
    }
}
