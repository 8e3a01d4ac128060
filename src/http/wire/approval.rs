//! Remembered decisions on the wire.

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::interrupt::InterruptApprovers;
use crate::domain::remembered::RememberedDecision;

/// A decision that is applied to later calls of the same agent on the same thread.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "RememberedDecision")]
pub struct ApprovalView {
    /// The id.
    pub id: Uuid,
    /// The thread.
    pub thread_id: Uuid,
    /// The interrupt that was answered with it.
    pub interrupt_id: String,
    /// The run that brought the decision.
    pub run_id: Uuid,
    /// The agent whose calls it covers.
    pub agent_name: String,
    /// The names of the agents from the main agent down to this one.
    pub agent_path: Vec<String>,
    /// The tool whose calls it covers.
    pub tool: String,
    /// `approve` or `reject`.
    pub decision: String,
    /// The reason of a rejection; null if there is none.
    pub message: Option<String>,
    /// The condition on the arguments of the calls that it covers; null for all calls of the tool.
    #[serde(rename = "for")]
    #[schema(value_type = Option<Object>)]
    pub covers: Value,
    /// The users and roles that can revoke it, beside the admins of the tenant; null if it is not assigned.
    pub approvers: Option<InterruptApprovers>,
    /// The user who decided; null without authentication.
    pub decided_by: Option<String>,
    /// The time of the decision.
    #[schema(format = DateTime)]
    pub created_at: String,
}

impl From<RememberedDecision> for ApprovalView {
    fn from(decision: RememberedDecision) -> Self {
        Self {
            id: decision.id.0,
            thread_id: decision.thread.0,
            interrupt_id: decision.interrupt.0,
            run_id: decision.run.0,
            agent_name: decision.path.last().cloned().unwrap_or_default(),
            agent_path: decision.path,
            tool: decision.tool,
            decision: decision.decision.word().to_owned(),
            message: decision.message,
            covers: json!(decision.condition),
            approvers: InterruptApprovers::of(decision.approvers),
            decided_by: decision.given_by.map(String::from),
            created_at: decision.created_at.to_string(),
        }
    }
}

/// A list of remembered decisions, oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct ApprovalList {
    /// The decisions.
    pub approvals: Vec<ApprovalView>,
}

impl From<Vec<RememberedDecision>> for ApprovalList {
    fn from(decisions: Vec<RememberedDecision>) -> Self {
        Self {
            approvals: decisions.into_iter().map(ApprovalView::from).collect(),
        }
    }
}
