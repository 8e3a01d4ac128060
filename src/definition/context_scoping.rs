//! The agents of a run that see an entry of its context.

use serde::{Deserialize, Serialize};

/// The agents that see an entry of the `context`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContextScoping {
    /// Every agent of the run.
    #[default]
    Shared,
    /// Keys of the form `name:key` reach only the agent called `name`. All other keys reach every agent.
    Prefix,
}

impl ContextScoping {
    /// Returns whether `agent` sees the entry `key`.
    pub fn reaches(self, key: &str, agent: &str) -> bool {
        match (self, key.split_once(':')) {
            (Self::Prefix, Some((name, _))) => name == agent,
            (Self::Prefix, None) | (Self::Shared, _) => true,
        }
    }
}
