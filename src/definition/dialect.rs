//! In which words an agent delegates, and what becomes of words that fit nobody.

use serde::{Deserialize, Serialize};

/// The names of the `task` tool's arguments. Models that were tuned or prompted for one system keep their habits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskDialect {
    /// `description` and `subagent_type`, both needed.
    #[default]
    Deepagents,
    /// `description`, and `agent_type`, without which the general-purpose subagent is meant.
    Synaptic,
    /// `instructions` and `task_name`, both needed, and `system_prompt` for the general-purpose subagent.
    Sagents,
}

/// What happens when the model names a subagent that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownSubagent {
    /// An error result that names those that exist.
    Error,
    /// The general-purpose subagent does the work.
    Fallback,
}

impl TaskDialect {
    /// What systems of this dialect do when nothing else is said.
    pub fn unknown_subagent(self) -> UnknownSubagent {
        match self {
            Self::Deepagents | Self::Sagents => UnknownSubagent::Error,
            Self::Synaptic => UnknownSubagent::Fallback,
        }
    }
}

/// Whom an entry of the `context` reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContextScoping {
    /// Every agent of the run.
    #[default]
    Shared,
    /// Keys of the form `name:key` reach the agent called `name` alone; all others reach everybody.
    Prefix,
}

impl ContextScoping {
    /// Whether the entry `key` reaches `agent`.
    pub fn reaches(self, key: &str, agent: &str) -> bool {
        match (self, key.split_once(':')) {
            (Self::Prefix, Some((name, _))) => name == agent,
            (Self::Prefix, None) | (Self::Shared, _) => true,
        }
    }
}

/// The tools that end a subagent's work: one name, or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "must be the name of a tool or a list of names")]
pub enum UntilTool {
    /// One tool.
    One(String),
    /// Whichever of these succeeds first.
    Any(Vec<String>),
}

impl UntilTool {
    /// Their names.
    pub fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Any(names) => names,
        }
    }
}

/// With which conversation a subagent begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// With an empty one: it knows nothing but its order.
    #[default]
    Isolated,
    /// With its caller's, as far as that has come, and with its caller's instructions and tools.
    Fork,
}
