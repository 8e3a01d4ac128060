//! The outcomes of calls.

use serde_json::Value;

use crate::domain::call::ToolOutput;
use crate::domain::message::Message;
use crate::domain::run::{AfterDelegation, DelegatedTask};

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum CallOutcome {
    /// A result.
    Answer(ToolOutput),
    /// A delegation to a subagent, whose result is the result of the call.
    Delegate(Delegation),
}

/// A request to delegate work to a subagent. Only the loop starts runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Delegation {
    /// The subagent's name.
    pub subagent: String,
    /// The work.
    pub order: DelegatedTask,
}

impl Delegation {
    /// Delegates `work` to the subagent of this name, which gets only this text.
    pub fn to(subagent: impl Into<String>, work: impl Into<String>) -> Self {
        let order = DelegatedTask {
            description: work.into(),
            ..DelegatedTask::default()
        };
        Self {
            subagent: subagent.into(),
            order,
        }
    }

    /// Sets the form of the result (`response_format`), which replaces the subagent's own.
    #[must_use]
    pub fn with_response_format(mut self, format: Option<Value>) -> Self {
        self.order.response_format = format;
        self
    }

    /// Sets the instructions, which replace the subagent's own, unless they are blank.
    #[must_use]
    pub fn with_system_prompt(mut self, system_prompt: Option<String>) -> Self {
        self.order.system_prompt = system_prompt.filter(|prompt| !prompt.trim().is_empty());
        self
    }

    /// Has the tool called again with the result, which is the result of the call otherwise.
    #[must_use]
    pub fn then(mut self, then: AfterDelegation) -> Self {
        self.order.then = then;
        self
    }

    /// Adds messages before the work, after those with which the subagent begins anyway.
    #[must_use]
    pub fn with_initial_messages(mut self, messages: impl IntoIterator<Item = Message>) -> Self {
        self.order.initial_messages.extend(messages);
        self
    }
}
