//! The spellings of other systems and of earlier versions. They are translated when they are read, so the rest of the
//! server knows only the present spelling.

use serde::{Deserialize, Serialize};

pub mod deprecated;

/// The names of the `task` tool's arguments. Models that were tuned or prompted for another system use the names of
/// that system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskDialect {
    /// `description` and `subagent_type`, both needed.
    #[default]
    Deepagents,
    /// `description`, and `agent_type`, which may be left out for the general-purpose subagent.
    Synaptic,
    /// `instructions` and `task_name`, both needed, and `system_prompt` for the general-purpose subagent.
    Sagents,
}

/// The reaction to a call that names an unknown subagent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownSubagent {
    /// An error result that lists the known names.
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
