//! What is said to a model that ends its work in plain text although a certain call was asked for.

use serde_json::{Value, json};

use super::HookResult;
use crate::domain::machine::{Failure, Jump};
use crate::domain::message::Message;
use crate::domain::state::{State, Update};
use crate::tool::Halt;

/// How often a model is reminded in one turn.
const MOST: usize = 2;
/// The mark that says which policy a message comes from.
const SOURCE: &str = "lc_source";

/// A policy's reminder.
pub(super) struct ToolUseReminder {
    /// What marks the messages as this policy's.
    pub(super) source: &'static str,
    /// What is said.
    pub(super) text: String,
    /// The class and the words of the failure when it was said often enough.
    pub(super) failure: (&'static str, &'static str),
}

impl ToolUseReminder {
    /// Reminds, if the model's last message is plain text.
    ///
    /// # Errors
    /// The failure, when the model was reminded before and to no avail.
    pub(super) fn about(self, state: &State) -> Result<HookResult, Halt> {
        let Some(last) = state.last_ai() else {
            return Ok(HookResult::default());
        };
        if !last.tool_calls().is_empty() || !last.invalid_tool_calls().is_empty() {
            return Ok(HookResult::default());
        }
        let turn = state
            .messages
            .iter()
            .rev()
            .take_while(|message| !message.is_human() || self.is_ours(message));
        if turn.filter(|message| self.is_ours(message)).count() >= MOST {
            let (class, text) = self.failure;
            return Err(Halt::Fail(Failure::new(class, text)));
        }
        let mut reminder = Message::human(self.text);
        reminder.additional_kwargs.insert(SOURCE.to_owned(), json!(self.source));
        Ok(HookResult {
            update: Update::messages([reminder]),
            jump: Some(Jump::Model),
            ..HookResult::default()
        })
    }

    fn is_ours(&self, message: &Message) -> bool {
        message.is_human() && message.additional_kwargs.get(SOURCE).and_then(Value::as_str) == Some(self.source)
    }
}
