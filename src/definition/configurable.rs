//! The parts of an agent that each run may choose: the model, a part of the tools, and texts in the instructions.
//!
//! A definition says what may be chosen. The choice is in the `context` of the run, or of the assistant for all of its
//! runs, so it is stored with the run and holds when the run is resumed. It concerns the main agent, and the fields
//! that its subagents inherit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The parts of an agent that runs may choose.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Configurable {
    /// The models that a run may have in the place of the agent's first one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// The tools of the agent that a run may leave out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// The texts that a run may write into the instructions, in the place of the name in braces; with their defaults.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub prompt_slots: BTreeMap<String, String>,
}

impl Configurable {
    /// Returns whether runs have no choice.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
