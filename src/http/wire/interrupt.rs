//! Interrupts on the wire.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::Object;
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::domain::Invalid;
use crate::domain::approvers::Approvers;
use crate::domain::interrupt::{Interrupt, QuestionKind};

/// An interrupt as threads and states show it: `{id, value}`.
pub fn brief(interrupt: &Interrupt) -> Value {
    json!({"id": interrupt.id, "value": interrupt.question.value})
}

/// An interrupt as streams and waiting requests show it. Only [`InterruptView`] has the schema of a valid answer, since
/// it can be long.
pub fn full(interrupt: &Interrupt) -> Value {
    json!({"value": interrupt.question.value, "id": interrupt.id, "response_schema": null})
}

/// An interrupt: a question to a human, and its answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Interrupt")]
pub struct InterruptView {
    /// The id of the interrupt: 32 hexadecimal digits.
    pub id: String,
    /// The interrupted thread.
    pub thread_id: Uuid,
    /// The run of the main agent that raised it.
    pub run_id: Uuid,
    /// The status of the interrupt.
    pub status: InterruptStatus,
    /// The kind of answer.
    pub kind: InterruptKind,
    /// The agent that raised it.
    pub agent_name: String,
    /// The names of the agents from the main agent down to this one.
    pub agent_path: Vec<String>,
    /// The id of the `task` call that started the agent.
    pub task_call_id: Option<String>,
    /// The users and roles that can answer it, beside the admins of the tenant; null if it is not assigned.
    pub approvers: Option<InterruptApprovers>,
    /// The question; for approvals `{action_requests, review_configs}`.
    #[schema(value_type = Object)]
    pub value: Value,
    /// The JSON Schema of a valid answer.
    #[schema(value_type = Object)]
    pub response_schema: Value,
    /// The time when it was raised.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The time when it expires; null if it never does.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    /// The answer with its time and the resumed run; null while the interrupt is open.
    #[schema(value_type = Option<Object>)]
    pub resolution: Option<Value>,
}

/// The users and roles to which an interrupt is assigned.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct InterruptApprovers {
    /// Users of the tenant.
    pub users: Vec<String>,
    /// Roles.
    pub roles: Vec<String>,
}

impl InterruptApprovers {
    fn of(approvers: Approvers) -> Option<Self> {
        (!approvers.is_empty()).then(|| Self {
            users: approvers.users.into_iter().map(String::from).collect(),
            roles: approvers.roles.iter().map(|role| role.word().to_owned()).collect(),
        })
    }
}

/// The status of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InterruptStatus {
    /// The interrupt is open.
    Pending,
    /// The interrupt was answered.
    Resolved,
    /// No answer arrived in time.
    Expired,
    /// The thread continued without an answer.
    Dropped,
}

impl From<InterruptState> for InterruptStatus {
    fn from(status: InterruptState) -> Self {
        match status {
            InterruptState::Pending => Self::Pending,
            InterruptState::Resolved => Self::Resolved,
            InterruptState::Expired => Self::Expired,
            InterruptState::Dropped => Self::Dropped,
        }
    }
}

/// The kind of answer that an interrupt asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InterruptKind {
    /// Approval of tool calls.
    ToolApproval,
    /// The outcome of a tool call that a crash interrupted.
    UnknownOutcome,
    /// Any other question.
    Question,
}

impl From<QuestionKind> for InterruptKind {
    fn from(kind: QuestionKind) -> Self {
        match kind {
            QuestionKind::ToolApproval => Self::ToolApproval,
            QuestionKind::UnknownOutcome => Self::UnknownOutcome,
            QuestionKind::Question => Self::Question,
        }
    }
}

impl From<InterruptRecord> for InterruptView {
    fn from(record: InterruptRecord) -> Self {
        let resolution = record.resolution.as_ref().map(|answer| {
            json!({
                "answer": answer,
                "resolved_at": record.resolved_at.map(|at| at.to_string()),
                "run_id": record.resumed_by,
            })
        });
        let question = record.interrupt.question;
        Self {
            id: record.interrupt.id.0,
            thread_id: record.thread.0,
            run_id: record.run.0,
            status: record.status.into(),
            kind: question.kind.into(),
            agent_name: record.agent,
            agent_path: record.path,
            task_call_id: record.task_call_id,
            approvers: InterruptApprovers::of(question.approvers),
            value: with_call_ids(question.value, &question.calls),
            response_schema: question.schema,
            created_at: record.created_at.to_string(),
            expires_at: None,
            resolution,
        }
    }
}

/// Adds the id of the tool call to each action request.
fn with_call_ids(mut value: Value, calls: &[String]) -> Value {
    let requests = value.get_mut("action_requests").and_then(Value::as_array_mut);
    for (request, call) in requests.into_iter().flatten().zip(calls) {
        if let Some(request) = request.as_object_mut() {
            request.insert("tool_call_id".to_owned(), json!(call));
        }
    }
    value
}

/// A list of interrupts in the order in which they were raised.
#[derive(Debug, Serialize, ToSchema)]
pub struct InterruptList {
    /// The interrupts.
    pub interrupts: Vec<InterruptView>,
}

impl From<Vec<InterruptRecord>> for InterruptList {
    fn from(records: Vec<InterruptRecord>) -> Self {
        Self {
            interrupts: records.into_iter().map(InterruptView::from).collect(),
        }
    }
}

/// The answer to an interrupt: either `decisions` for tool calls, or `response` for any other question.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct InterruptResolve {
    /// The decisions, one for each action request, in their order.
    #[schema(value_type = Option<Vec<Object>>, example = json!([{"type": "approve"}]))]
    pub decisions: Option<Value>,
    /// The answer to any other question.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Object>)]
    pub response: Option<Value>,
}

/// Deserializes a field that may be null.
fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl InterruptResolve {
    /// The answer as one value.
    ///
    /// # Errors
    /// If there is no answer, or more than one.
    pub fn answer(self) -> Result<Value, Invalid> {
        match (self.decisions, self.response) {
            (Some(decisions), None) => Ok(Object::from_iter([("decisions".to_owned(), decisions)]).into()),
            (None, Some(response)) => Ok(response),
            (None, None) | (Some(_), Some(_)) => {
                Err(Invalid::new("body", "must have either `decisions` or `response`"))
            }
        }
    }
}

/// An answered interrupt and the resumed run.
#[derive(Debug, Serialize, ToSchema)]
pub struct InterruptResolved {
    /// The interrupt.
    pub interrupt: InterruptView,
    /// The run.
    pub run_id: Uuid,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: Value) -> Result<Value, Invalid> {
        serde_json::from_value::<InterruptResolve>(body)
            .expect("the shape is right")
            .answer()
    }

    #[test]
    fn an_answer_is_a_list_of_decisions_or_a_response() {
        assert_eq!(answer(json!({"decisions": []})), Ok(json!({"decisions": []})));
        assert_eq!(answer(json!({"response": "yes"})), Ok(json!("yes")));
        assert_eq!(answer(json!({"response": null})), Ok(Value::Null));
        assert!(answer(json!({})).is_err());
        assert!(answer(json!({"decisions": [], "response": 1})).is_err());
    }

    #[test]
    fn action_requests_contain_their_call_ids() {
        let value = json!({"action_requests": [{"name": "a"}, {"name": "b"}]});
        let value = with_call_ids(value, &["c1".to_owned(), "c2".to_owned()]);
        assert_eq!(value["action_requests"][1]["tool_call_id"], "c2");
        assert_eq!(with_call_ids(json!("free"), &["c1".to_owned()]), "free");
    }
}
