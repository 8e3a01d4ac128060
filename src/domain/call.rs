//! A tool call of the step under way, and what becomes of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::id::RunId;
use super::interrupt::Action;
use super::item::ItemChange;
use super::message::{Message, ToolCall, ToolStatus};
use super::state::{State, Update};

/// A tool call of the step under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The model's id of the call.
    pub id: String,
    /// What runs in its place, when a reviewer decided so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited: Option<Action>,
    /// What became of it.
    pub fate: Fate,
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It may run.
    Ready,
    /// It was begun. Read back after a crash this means: its outcome is unknown.
    Started,
    /// It waits for the answer to a question of its own.
    Asking,
    /// A child run works on it; `parked` while that child waits for somebody.
    Delegated {
        /// The child.
        child: RunId,
        /// Whether the child waits.
        parked: bool,
    },
    /// It is done.
    Answered(Box<Answer>),
}

/// What a call came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The result message, and whatever else the call writes.
    pub writes: Update,
    /// Whether the agent is done once all calls of the step are (a tool that returns directly, structured output).
    #[serde(default)]
    pub ends: bool,
    /// Whether the log already has this answer as an event of its own.
    #[serde(default)]
    pub shown: bool,
    /// What shall be remembered beyond the thread. It is stored together with the answer and then no longer part of it.
    #[serde(skip)]
    pub changes: Vec<ItemChange>,
}

impl Answer {
    /// An answer that consists of its message.
    pub fn message(message: Message) -> Self {
        Self {
            writes: Update::messages([message]),
            ends: false,
            shown: false,
            changes: vec![],
        }
    }

    /// An error result for `call`.
    pub fn error(call: &ToolCall, text: impl Into<String>) -> Self {
        Self::message(Message::tool(call, ToolStatus::Error, text.into()))
    }
}

/// The field in which the approval policy leaves what runs in place of a call.
pub const EDITED_CALLS: &str = "hitl_edited_tool_calls";

/// The calls of `answer` without a result among the `later` messages. One that could not be read is answered at once.
pub(super) fn pending_calls(answer: &Message, later: &[Arc<Message>], state: &State) -> Vec<Call> {
    let is_open = |id: &str| !later.iter().any(|m| m.answers() == Some(id));
    let edited = |id: &str| {
        let action = state.fields.get(EDITED_CALLS)?.get(id)?;
        serde_json::from_value::<Action>(action.clone()).ok()
    };
    let readable = answer
        .tool_calls()
        .iter()
        .filter(|call| is_open(&call.id))
        .map(|call| Call {
            id: call.id.clone(),
            edited: edited(&call.id),
            fate: Fate::Ready,
        });
    let unreadable = answer.invalid_tool_calls().iter().filter_map(|call| {
        let id = call.id.clone()?;
        let name = call.name.clone().unwrap_or_default();
        let text = format!(
            "The arguments of this call to `{name}` are not a JSON object ({}). Nothing was run. \
             Send the call again with valid JSON.",
            call.error.as_deref().unwrap_or("they could not be read")
        );
        let answered = Answer::error(&ToolCall::new(id.clone(), name, serde_json::Map::new()), text);
        is_open(&id).then(|| Call {
            id,
            edited: None,
            fate: Fate::Answered(Box::new(answered)),
        })
    });
    readable.chain(unreadable).collect()
}

impl Call {
    /// Whether the driver can do something about it now.
    pub(super) fn may_run(&self) -> bool {
        match &self.fate {
            Fate::Ready | Fate::Started | Fate::Delegated { parked: false, .. } => true,
            Fate::Asking | Fate::Delegated { parked: true, .. } | Fate::Answered(_) => false,
        }
    }

    /// What it came to, when it is done.
    pub fn answer(&self) -> Option<&Answer> {
        match &self.fate {
            Fate::Answered(answer) => Some(answer),
            Fate::Ready | Fate::Started | Fate::Asking | Fate::Delegated { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests;
