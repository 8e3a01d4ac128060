//! Approval rules: the tool calls that a human has to approve.

use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};

use super::untagged::{self, SwitchOrTable, TextOrTable};
use crate::domain::approvers::Approvers;
use crate::domain::condition::ArgumentCondition;
use crate::domain::interrupt::{Decision, DecisionKind};
use crate::domain::remembered::DecisionScope;

/// The longest time after which a question expires, in seconds: ten years.
pub const MAX_EXPIRY_S: u64 = 10 * 366 * 86_400;

/// The way in which an agent asks for approvals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterruptMode {
    /// One interrupt about all calls of an answer, before any of them runs.
    #[default]
    Batched,
    /// One interrupt for each call, when it would start; the other calls run meanwhile.
    PerCall,
}

/// The approval rule of a tool.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ApprovalRule {
    /// `true`: every decision is allowed; `false`: no approval.
    Switch(bool),
    /// Approval with these choices.
    Choices(Box<ApprovalChoices>),
}

/// The allowed decisions about calls of a tool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApprovalChoices {
    /// The allowed decisions; at least one.
    pub allowed_decisions: Vec<DecisionKind>,
    /// The calls that need approval, by their arguments; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<ArgumentCondition>,
    /// The text for the reviewer, instead of the standard text. `{name}`, `{args}`, `{args.to}` and `{tool_call_id}` in
    /// it are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The scopes that a decision may have; both when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_scopes: Option<Vec<DecisionScope>>,
    /// The time after which a question expires, in seconds; it waits for ever when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_after_s: Option<u64>,
    /// The decision about a call whose question has expired; `reject` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_expiry: Option<ExpiryDecision>,
    /// The users and roles who decide about the calls; the approvers of the agent when absent.
    #[serde(skip_serializing_if = "Approvers::is_empty")]
    pub approvers: Approvers,
}

/// The decision about a call whose question has expired.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ExpiryDecision(pub Decision);

impl<'de> Deserialize<'de> for ExpiryDecision {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "`approve`, `reject`, or a table with `type` and `message`";
        let word = match untagged::read(deserializer, expected)? {
            TextOrTable::Text(word) => word,
            TextOrTable::Table(decision) => return Ok(Self(decision)),
        };
        match word.as_str() {
            "approve" => Ok(Self(Decision::Approve)),
            "reject" => Ok(Self(Decision::Reject { message: None })),
            _ => Err(D::Error::invalid_value(Unexpected::Str(&word), &expected)),
        }
    }
}

impl<'de> Deserialize<'de> for ApprovalRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "true, false or a table with `allowed_decisions`";
        Ok(match untagged::read(deserializer, expected)? {
            SwitchOrTable::Switch(on) => Self::Switch(on),
            SwitchOrTable::Table(settings) => Self::Choices(Box::new(settings)),
        })
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

    /// Returns the scopes that a decision may have.
    pub fn scopes(&self) -> &[DecisionScope] {
        let own = self.choices().and_then(|choices| choices.allowed_scopes.as_deref());
        own.unwrap_or(&DecisionScope::ALL)
    }

    /// Returns the choices of the rule, if it has any.
    pub fn choices(&self) -> Option<&ApprovalChoices> {
        match self {
            Self::Switch(_) => None,
            Self::Choices(choices) => Some(choices),
        }
    }

    /// Returns those who decide about the calls, if the rule names any.
    pub fn approvers(&self) -> Option<&Approvers> {
        let approvers = self.choices().map(|choices| &choices.approvers);
        approvers.filter(|approvers| !approvers.is_empty())
    }
}
