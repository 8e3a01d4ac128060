//! Approval rules: the tool calls that a human has to approve.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::domain::approvers::Approvers;
use crate::domain::interrupt::DecisionKind;

/// The approval rule of a tool.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ApprovalRule {
    /// `true`: every decision is allowed; `false`: no approval.
    Switch(bool),
    /// Approval with these choices.
    Choices(ApprovalChoices),
}

/// The allowed decisions about calls of a tool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApprovalChoices {
    /// The allowed decisions; at least one.
    pub allowed_decisions: Vec<DecisionKind>,
    /// The text for the reviewer, instead of the standard text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The users and roles who decide about the calls; the approvers of the agent when absent.
    #[serde(skip_serializing_if = "Approvers::is_empty")]
    pub approvers: Approvers,
}

impl<'de> Deserialize<'de> for ApprovalRule {
    /// Written by hand, since the derived code would only report that no variant matched.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Rule;

        impl<'de> Visitor<'de> for Rule {
            type Value = ApprovalRule;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or a table with `allowed_decisions`")
            }

            fn visit_bool<E>(self, on: bool) -> Result<ApprovalRule, E> {
                Ok(ApprovalRule::Switch(on))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ApprovalRule, A::Error> {
                ApprovalChoices::deserialize(MapAccessDeserializer::new(map)).map(ApprovalRule::Choices)
            }
        }

        deserializer.deserialize_any(Rule)
    }
}

impl ApprovalRule {
    /// The allowed decisions; none when no approval is needed.
    pub fn allowed(&self) -> &[DecisionKind] {
        match self {
            Self::Switch(true) => &DecisionKind::ALL,
            Self::Switch(false) => &[],
            Self::Choices(choices) => &choices.allowed_decisions,
        }
    }

    /// Returns those who decide about the calls, if the rule names any.
    pub fn approvers(&self) -> Option<&Approvers> {
        match self {
            Self::Switch(_) => None,
            Self::Choices(choices) => Some(&choices.approvers).filter(|approvers| !approvers.is_empty()),
        }
    }
}
