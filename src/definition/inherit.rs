//! The settings of inheritance: the parts of its parent that a subagent has, beyond those that every subagent has.

use serde::{Deserialize, Serialize};

/// The parts of its parent that a subagent has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Inherit {
    /// True if the parent's instructions stand before its own.
    pub prompt: bool,
    /// True if it has its parent's memory, before its own.
    pub memory: bool,
    /// The policies of its parent that it has, before its own.
    pub middleware: InheritedPolicies,
    /// True if the subagent has the tools of its parent besides the tools that its definition names.
    pub tools: bool,
    /// True if its parent's approvals hold for tools without a rule of its own, even if it has rules for other tools.
    pub interrupt_on: bool,
    /// True if it shares its parent's files.
    #[serde(skip_serializing_if = "is_true")]
    pub files: bool,
    /// True if it shares the fields of its parent's state.
    #[serde(skip_serializing_if = "is_true")]
    pub state: bool,
}

impl Default for Inherit {
    fn default() -> Self {
        Self {
            prompt: false,
            memory: false,
            middleware: InheritedPolicies::default(),
            tools: false,
            interrupt_on: false,
            files: true,
            state: true,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_true(truth: &bool) -> bool {
    *truth
}

/// The policies of its parent that a subagent has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "must be true, false or a list of names of policies")]
pub enum InheritedPolicies {
    /// All, or none.
    Switch(bool),
    /// The policies with these names.
    Named(Vec<String>),
}

impl Default for InheritedPolicies {
    fn default() -> Self {
        Self::Switch(false)
    }
}

impl InheritedPolicies {
    pub(super) fn includes(&self, name: &str) -> bool {
        match self {
            Self::Switch(all) => *all,
            Self::Named(names) => names.iter().any(|included| included == name),
        }
    }
}
