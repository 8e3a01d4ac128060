//! The spellings of other systems and of older times. What they are read as, the rest of the server knows; what they were, it
//! does not.

use serde::{Deserialize, Serialize};

pub mod deprecated;

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

/// The reaction to a call that names an unknown subagent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownSubagent {
    /// An error result that names those that exist.
    Error,
    /// The general-purpose subagent does the work.
    Fallback,
}

impl TaskDialect {
    /// Returns the default reaction of this dialect.
    pub fn unknown_subagent(self) -> UnknownSubagent {
        match self {
            Self::Deepagents | Self::Sagents => UnknownSubagent::Error,
            Self::Synaptic => UnknownSubagent::Fallback,
        }
    }
}
