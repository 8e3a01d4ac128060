//! Interrupts on the wire.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::Object;
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::domain::Invalid;
use crate::domain::approvers::Approvers;
use crate::domain::audit::{AuditEntry, AuditOutcome};
use crate::domain::id::InterruptId;
use crate::domain::interrupt::{Interrupt, QuestionKind};
use crate::domain::schema_text::SchemaText;
use crate::domain::time::Timestamp;

/// An interrupt as threads and states show it.
#[derive(Debug, Serialize, ToSchema)]
pub struct InterruptSummary {
    /// The id of the interrupt: 32 hexadecimal digits.
    pub id: String,
    /// The question; for approvals `{action_requests, review_configs}`.
    pub value: Value,
    /// The JSON Schema of a valid answer; only for approvals of one call and questions of `ask_user`. A server whose agents
    /// call this one tells by it what it may answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub response_schema: Option<Value>,
    /// The subagent that raised it; absent for the main agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_name: Option<String>,
    /// The names of the agents from the main agent down to this subagent; absent for the main agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_path: Option<Vec<String>>,
}

/// An interrupt as threads and states show it, as JSON.
pub fn brief(interrupt: &Interrupt) -> Value {
    let question = &interrupt.question;
    let path = Some(&question.agent_path).filter(|path| path.len() > 1);
    super::json(&InterruptSummary {
        id: interrupt.id.0.clone(),
        value: question.value.clone(),
        response_schema: question.shows_schema().then(|| question.schema.parse()),
        agent_name: path.and_then(|path| path.last().cloned()),
        agent_path: path.cloned(),
    })
}

/// Adds the name and the path of the subagent that asks. Interrupts of the main agent have neither.
pub fn with_agent(mut shown: Value, interrupt: &Interrupt) -> Value {
    if let [_, .., name] = interrupt.question.agent_path.as_slice() {
        shown["agent_name"] = json!(name);
        shown["agent_path"] = json!(interrupt.question.agent_path);
    }
    shown
}

/// An interrupt as streams and waiting requests show it. The schema of a valid answer can be long, so only some kinds
/// have it here; [`InterruptView`] always has it.
pub fn full(interrupt: &Interrupt) -> Value {
    let question = &interrupt.question;
    let mut shown = json!({"value": question.value, "id": interrupt.id, "response_schema": null});
    if question.shows_schema() {
        shown["response_schema"] = question.schema.parse();
    }
    with_agent(shown, interrupt)
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
    pub value: Value,
    /// The JSON Schema of a valid answer.
    #[schema(value_type = Object)]
    pub response_schema: SchemaText,
    /// The time when it was raised.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The time when it expires; null if it never does.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    /// The answer with its time and the resumed run; null while the interrupt is open.
    #[schema(value_type = Option<Object>)]
    pub resolution: Option<Value>,
    /// The events of the interrupt, oldest first; only with `include=audit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<Vec<InterruptEvent>>,
}

/// An event of an interrupt.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct InterruptEvent {
    /// The event.
    pub event: InterruptEventKind,
    /// The time.
    #[schema(format = DateTime)]
    pub at: String,
    /// The user who caused the event; null for the server, and without authentication.
    pub user: Option<String>,
    /// The types of the decisions, in the order of the calls; null for other answers and events.
    #[schema(value_type = Option<Vec<String>>)]
    pub decisions: Option<Value>,
    /// The run that brought the answer; null for other events.
    pub run_id: Option<Uuid>,
}

/// The kinds of events of an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InterruptEventKind {
    /// The interrupt was raised.
    Raised,
    /// An answer was refused, since the interrupt is assigned to others.
    Refused,
    /// The interrupt was answered.
    Answered,
    /// The interrupt got the answer for the case that nobody answers in time.
    Expired,
    /// The thread continued without an answer.
    Dropped,
    /// A decision that was remembered for the thread was revoked.
    Revoked,
}

/// Returns the events of an interrupt, oldest first. The audit has entries only for callers that authenticate, and only
/// for a time; what happened in the end is known without it.
pub fn events_of(record: &InterruptRecord, entries: &[AuditEntry]) -> Vec<InterruptEvent> {
    let event = |kind: InterruptEventKind, at: Timestamp| InterruptEvent {
        event: kind,
        at: at.to_string(),
        user: None,
        decisions: None,
        run_id: None,
    };
    let of_entry = |entry: &AuditEntry| {
        let kind = match entry.outcome {
            AuditOutcome::Denied => InterruptEventKind::Refused,
            AuditOutcome::Allowed if entry.detail.contains_key("revoked") => InterruptEventKind::Revoked,
            AuditOutcome::Allowed => return None,
        };
        Some((
            entry.created_at,
            InterruptEvent {
                user: Some(entry.user.clone()),
                ..event(kind, entry.created_at)
            },
        ))
    };
    let end = match record.status {
        InterruptState::Pending => None,
        InterruptState::Resolved => Some(InterruptEventKind::Answered),
        InterruptState::Expired => Some(InterruptEventKind::Expired),
        InterruptState::Dropped => Some(InterruptEventKind::Dropped),
    };
    let mut all = vec![(record.created_at, event(InterruptEventKind::Raised, record.created_at))];
    all.extend(entries.iter().filter_map(of_entry));
    if let Some(kind) = end {
        let at = record.resolved_at.unwrap_or(record.created_at);
        let is_answer = |entry: &&AuditEntry| entry.outcome == AuditOutcome::Allowed && entry.created_at == at;
        let user = entries
            .iter()
            .find(is_answer)
            .filter(|_| kind == InterruptEventKind::Answered);
        let answered = InterruptEvent {
            user: user.map(|entry| entry.user.clone()),
            decisions: record.resolution.as_ref().and_then(decision_types),
            run_id: record.resumed_by.map(|run| run.0),
            ..event(kind, at)
        };
        all.push((at, answered));
    }
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, event)| event).collect()
}

/// Returns the types of the decisions in an answer. Arguments and messages are in the interrupt itself.
fn decision_types(answer: &Value) -> Option<Value> {
    let list = answer.get("decisions").and_then(Value::as_array);
    let one = || answer.get("type").map(|_| std::slice::from_ref(answer));
    let decisions = list.map(Vec::as_slice).or_else(one)?;
    Some(decisions.iter().map(|decision| decision["type"].clone()).collect())
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
    pub(super) fn of(approvers: Approvers) -> Option<Self> {
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
        let expires_at = record.expires_at().map(|at| at.to_string());
        let question = Arc::unwrap_or_clone(record.interrupt.question);
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
            expires_at,
            resolution,
            audit: None,
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
    #[serde(default, deserialize_with = "super::read_nullable")]
    pub response: Option<Value>,
}

impl InterruptResolve {
    /// The answer as one value.
    ///
    /// # Errors
    /// If there is no answer, or more than one.
    pub fn answer(&self) -> Result<Value, Invalid> {
        match (&self.decisions, &self.response) {
            (Some(decisions), None) => Ok(Object::from_iter([("decisions".to_owned(), decisions.clone())]).into()),
            (None, Some(response)) => Ok(response.clone()),
            (None, None) | (Some(_), Some(_)) => {
                Err(Invalid::new("body", "must have either `decisions` or `response`"))
            }
        }
    }

    /// Returns the refusal of this answer to an interrupt with the field of this request, in place of that of a command.
    pub fn refused(&self, interrupt: &InterruptId, refusal: Invalid) -> Invalid {
        let Some(place) = refusal.field.strip_prefix("command.resume") else {
            return refusal;
        };
        let place = place.strip_prefix(&format!(".{}", interrupt.0)).unwrap_or_default();
        let field = match &self.decisions {
            Some(_) => format!("decisions{}", place.strip_prefix(".decisions").unwrap_or_default()),
            None => format!("response{place}"),
        };
        Invalid { field, ..refusal }
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
    fn a_refusal_names_the_field_of_the_request() {
        let named = |body: Value, field: &str| {
            let body: InterruptResolve = serde_json::from_value(body).expect("the shape is right");
            body.refused(&InterruptId("a1".to_owned()), Invalid::new(field, "is wrong"))
                .field
        };
        let list = || json!({"decisions": [{"type": "ok"}]});
        assert_eq!(
            named(list(), "command.resume.a1.decisions[0].type"),
            "decisions[0].type"
        );
        assert_eq!(named(list(), "command.resume.a1.decisions"), "decisions");
        assert_eq!(named(list(), "command.resume.a1"), "decisions");
        assert_eq!(named(list(), "command.resume"), "decisions");
        let alone = || json!({"response": {"type": "ok"}});
        assert_eq!(named(alone(), "command.resume.a1.type"), "response.type");
        assert_eq!(named(alone(), "context"), "context");
    }

    #[test]
    fn action_requests_contain_their_call_ids() {
        let value = json!({"action_requests": [{"name": "a"}, {"name": "b"}]});
        let value = with_call_ids(value, &["c1".to_owned(), "c2".to_owned()]);
        assert_eq!(value["action_requests"][1]["tool_call_id"], "c2");
        assert_eq!(with_call_ids(json!("free"), &["c1".to_owned()]), "free");
    }
}
