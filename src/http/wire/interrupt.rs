//! Questions to a human on the wire.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::Object;
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::domain::Invalid;
use crate::domain::interrupt::{Interrupt, QuestionKind};

/// A question as threads and states show it: `{id, value}`.
pub fn brief(interrupt: &Interrupt) -> Value {
    json!({"id": interrupt.id, "value": interrupt.question.value})
}

/// A question as streams and the answers of waiting requests show it. The schema of a valid answer is in
/// [`InterruptView`] only: it can be long.
pub fn full(interrupt: &Interrupt) -> Value {
    json!({"value": interrupt.question.value, "id": interrupt.id, "response_schema": null})
}

/// A question to a human, and what became of it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Interrupt")]
pub struct InterruptView {
    /// Identifies it: 32 hexadecimal digits.
    pub id: String,
    /// The thread that waits.
    pub thread_id: Uuid,
    /// The run of the main agent in whose course it was asked.
    pub run_id: Uuid,
    /// What became of it.
    pub status: InterruptStatus,
    /// What kind of answer is wanted.
    pub kind: InterruptKind,
    /// The agent that asks.
    pub agent_name: String,
    /// The names from the main agent down to it.
    pub agent_path: Vec<String>,
    /// The call of the `task` tool by which the agent was delegated to.
    pub task_call_id: Option<String>,
    /// What is asked; for approvals `{action_requests, review_configs}`.
    #[schema(value_type = Object)]
    pub value: Value,
    /// The JSON Schema of a valid answer.
    #[schema(value_type = Object)]
    pub response_schema: Value,
    /// When it was asked.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it can no longer be answered; null: never.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    /// The answer, once there is one, when it was given, and the run that went on with it.
    #[schema(value_type = Option<Object>)]
    pub resolution: Option<Value>,
}

/// What became of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InterruptStatus {
    /// It waits for an answer.
    Pending,
    /// It was answered.
    Resolved,
    /// Nobody answered in time.
    Expired,
    /// It no longer matters: the thread went on without an answer.
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

/// What kind of answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InterruptKind {
    /// May these tool calls be made?
    ToolApproval,
    /// A tool call was begun before a crash; what shall become of it?
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
    fn from(asked: InterruptRecord) -> Self {
        let resolution = asked.resolution.as_ref().map(|answer| {
            json!({
                "answer": answer,
                "resolved_at": asked.resolved_at.map(|at| at.to_string()),
                "run_id": asked.resumed_by,
            })
        });
        let question = asked.interrupt.question;
        Self {
            id: asked.interrupt.id.0,
            thread_id: asked.thread.0,
            run_id: asked.run.0,
            status: asked.status.into(),
            kind: question.kind.into(),
            agent_name: asked.agent,
            agent_path: asked.path,
            task_call_id: asked.task_call_id,
            value: with_call_ids(question.value, &question.calls),
            response_schema: question.schema,
            created_at: asked.created_at.to_string(),
            expires_at: None,
            resolution,
        }
    }
}

/// Tells each action request which tool call it is about.
fn with_call_ids(mut value: Value, calls: &[String]) -> Value {
    let requests = value.get_mut("action_requests").and_then(Value::as_array_mut);
    for (request, call) in requests.into_iter().flatten().zip(calls) {
        if let Some(request) = request.as_object_mut() {
            request.insert("tool_call_id".to_owned(), json!(call));
        }
    }
    value
}

/// A list of questions, in the order in which they were asked.
#[derive(Debug, Serialize, ToSchema)]
pub struct InterruptList {
    /// The questions.
    pub interrupts: Vec<InterruptView>,
}

impl From<Vec<InterruptRecord>> for InterruptList {
    fn from(asked: Vec<InterruptRecord>) -> Self {
        Self {
            interrupts: asked.into_iter().map(InterruptView::from).collect(),
        }
    }
}

/// The answer to a question: `decisions` for tool calls, `response` for anything else; one of the two.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct InterruptResolve {
    /// One decision for each action request, in their order.
    #[schema(value_type = Option<Vec<Object>>, example = json!([{"type": "approve"}]))]
    pub decisions: Option<Value>,
    /// The answer to any other question.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Object>)]
    pub response: Option<Value>,
}

/// A field that was given, be it as null.
fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl InterruptResolve {
    /// The answer.
    ///
    /// # Errors
    /// If there is none or two of them.
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

/// A question that was answered, and the run that goes on with the answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct InterruptResolved {
    /// The question.
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
    fn action_requests_are_told_their_calls() {
        let value = json!({"action_requests": [{"name": "a"}, {"name": "b"}]});
        let shown = with_call_ids(value, &["c1".to_owned(), "c2".to_owned()]);
        assert_eq!(shown["action_requests"][1]["tool_call_id"], "c2");
        assert_eq!(with_call_ids(json!("free"), &["c1".to_owned()]), "free");
    }
}
