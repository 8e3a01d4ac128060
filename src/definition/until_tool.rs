//! The tools that end the work of a subagent.

use serde::{Deserialize, Serialize};

/// The tools that end a subagent's work: one name, or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "must be the name of a tool or a list of names")]
pub enum UntilTool {
    /// One tool.
    One(String),
    /// Any of these tools: the first that succeeds.
    Any(Vec<String>),
}

impl UntilTool {
    /// Returns the names.
    pub fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Any(names) => names,
        }
    }
}
