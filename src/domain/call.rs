//! Tool calls of the current step, and their status.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::failure::Failure;
use super::id::RunId;
use super::interrupt::ReviewAction;
use super::item::ItemChange;
use super::message::{Content, Message, Role, ToolCall, ToolStatus, answered_calls};
use super::state::{State, Update};
use super::stored;
use super::stored_update;

/// A tool call of the current step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The id that the model gave to the call.
    pub id: String,
    /// The call that runs instead, if a reviewer edited it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited: Option<ReviewAction>,
    /// The status of the call.
    #[serde(rename = "fate")]
    pub status: CallStatus,
    /// The results of the delegations after which the tool is called again, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delegations: Vec<DelegationResult>,
}

/// The result of a delegation, for the tool that asked for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DelegationResult {
    /// The subagent's name.
    pub subagent: String,
    /// The subagent's last text, its structured answer as JSON, or the reason why there is neither.
    pub content: Content,
    /// The outcome: an error if the subagent has failed.
    pub status: ToolStatus,
    /// The writes of the subagent to shared fields and files. They become part of the output of the call.
    #[serde(default, serialize_with = "stored_update::serialize")]
    pub writes: Update,
}

impl DelegationResult {
    /// Creates the result from what the delegating model would read otherwise.
    pub fn new(subagent: impl Into<String>, output: ToolOutput) -> Self {
        let mut writes = output.writes;
        let last = writes.messages.pop();
        let is_error = |message: &Arc<Message>| {
            matches!(
                message.role,
                Role::Tool {
                    status: ToolStatus::Error,
                    ..
                }
            )
        };
        Self {
            subagent: subagent.into(),
            status: match last.as_ref().is_some_and(is_error) {
                true => ToolStatus::Error,
                false => ToolStatus::Success,
            },
            content: last.map_or_else(|| String::new().into(), |message| message.content.clone()),
            writes,
        }
    }

    /// Returns the result as tools outside the server read it.
    pub fn for_tool(&self) -> Value {
        json!({"subagent_type": self.subagent, "status": self.status, "content": self.content})
    }
}

/// The status of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// The call may be executed.
    Ready,
    /// The call was started. Read back after a crash: its outcome is unknown.
    Started,
    /// The call waits for the answer to an interrupt of its own.
    Asking,
    /// A child run executes the call; `parked` while the child waits.
    Delegated {
        /// The child run.
        child: RunId,
        /// True if the child run waits for answers to interrupts.
        parked: bool,
    },
    /// The call is complete.
    Answered(Box<ToolOutput>),
}

impl CallStatus {
    /// Returns the child run that executes the call, if one does.
    pub fn child(&self) -> Option<RunId> {
        match self {
            Self::Delegated { child, .. } => Some(*child),
            Self::Ready | Self::Started | Self::Asking | Self::Answered(_) => None,
        }
    }
}

/// The output of a tool call.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ToolOutput {
    /// The result message, and the other writes of the call. A call that is no longer in the conversation has no result.
    #[serde(serialize_with = "stored_update::serialize")]
    pub writes: Update,
    /// True if the agent ends once all calls of the step are complete (a tool that returns directly, structured
    /// output).
    #[serde(default, skip_serializing_if = "stored::is_default")]
    pub ends: bool,
    /// True if the log already has this output as an event of its own.
    #[serde(default, rename = "shown", skip_serializing_if = "stored::is_default")]
    pub is_logged: bool,
    /// Writes to the Store. They are stored together with the output and are no longer part of it then.
    #[serde(skip)]
    pub changes: Vec<ItemChange>,
    /// The failure of the tool that the output reports to the model. It is for the middleware around the call, and not
    /// stored.
    #[serde(skip)]
    pub failure: Option<Failure>,
}

impl ToolOutput {
    /// Creates an output that consists of one message.
    pub fn message(message: Message) -> Self {
        Self {
            writes: Update::messages([message]),
            ends: false,
            is_logged: false,
            changes: vec![],
            failure: None,
        }
    }

    /// Returns the output with the failure that it reports.
    #[must_use]
    pub fn with_failure(self, failure: Failure) -> Self {
        Self {
            failure: Some(failure),
            ..self
        }
    }

    /// Creates an error result for `call`.
    pub fn error(call: &ToolCall, text: impl Into<String>) -> Self {
        Self::message(Message::tool(call, ToolStatus::Error, text.into()))
    }
}

/// The state field in which the approval policy stores edited calls.
pub const EDITED_CALLS: &str = "hitl_edited_tool_calls";

/// Returns the call that a reviewer has put in the place of the call with this id, if there is one.
pub fn edited_call(state: &State, id: &str) -> Option<ReviewAction> {
    let action = state.fields.get(EDITED_CALLS)?.get(id)?;
    serde_json::from_value(action.clone()).ok()
}

/// Returns the calls of `answer` that have no result among the `later` messages. A call that could not be parsed gets
/// an error result at once.
pub(super) fn pending_calls(answer: &Message, later: &[Arc<Message>], state: &State) -> Vec<Call> {
    let answered = answered_calls(later);
    let is_open = |id: &str| !answered.contains(id);
    let readable = answer
        .tool_calls()
        .iter()
        .filter(|call| is_open(&call.id))
        .map(|call| Call {
            id: call.id.clone(),
            edited: edited_call(state, &call.id),
            status: CallStatus::Ready,
            delegations: vec![],
        });
    let unreadable = answer.invalid_tool_calls().iter().filter_map(|call| {
        let id = call.id.clone()?;
        let name = call.name.clone().unwrap_or_default();
        let text = format!(
            "The arguments of this call to `{name}` are not a JSON object ({}). Nothing was run. \
             Send the call again with valid JSON.",
            call.error.as_deref().unwrap_or("they could not be read")
        );
        let answered = ToolOutput::error(&ToolCall::new(id.clone(), name, serde_json::Map::new()), text);
        is_open(&id).then(|| Call {
            id,
            edited: None,
            status: CallStatus::Answered(Box::new(answered)),
            delegations: vec![],
        })
    });
    readable.chain(unreadable).collect()
}

impl Call {
    /// Returns whether the driver can execute or continue the call now.
    pub(super) fn may_run(&self) -> bool {
        match &self.status {
            CallStatus::Ready | CallStatus::Started | CallStatus::Delegated { parked: false, .. } => true,
            CallStatus::Asking | CallStatus::Delegated { parked: true, .. } | CallStatus::Answered(_) => false,
        }
    }

    /// Returns the output of a call that is complete.
    pub fn answer(&self) -> Option<&ToolOutput> {
        match &self.status {
            CallStatus::Answered(answer) => Some(answer),
            CallStatus::Ready | CallStatus::Started | CallStatus::Asking | CallStatus::Delegated { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests;
