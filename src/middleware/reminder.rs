//! A reminder for a model that ends its turn in plain text although it must make a certain call.

use std::sync::Arc;

use super::HookResult;
use crate::domain::machine::{Failure, Jump};
use crate::domain::message::Message;
use crate::domain::state::{State, Update};
use crate::tool::Halt;

/// The maximum number of reminders in one turn.
const MAX_REMINDERS: usize = 2;

/// A reminder of one middleware.
pub(super) struct ToolUseReminder {
    /// The value that marks the middleware's messages.
    pub(super) source: &'static str,
    /// The text of the reminder.
    pub(super) text: String,
    /// The class and the message of the failure after the last reminder.
    pub(super) failure: (&'static str, &'static str),
}

impl ToolUseReminder {
    /// Returns the reminder, if the model's last message is plain text.
    ///
    /// # Errors
    /// The failure, if the maximum number of reminders was sent before.
    pub(super) fn remind(self, state: &State) -> Result<HookResult, Halt> {
        let Some(last) = state.last_ai() else {
            return Ok(HookResult::default());
        };
        if !last.tool_calls().is_empty() || !last.invalid_tool_calls().is_empty() {
            return Ok(HookResult::default());
        }
        let begins_turn = |message: &Arc<Message>| message.is_human() && !self.is_reminder(message);
        let messages = state.messages.recent_or_all(|recent| recent.iter().any(begins_turn));
        let turn = messages.iter().rev().take_while(|message| !begins_turn(message));
        if turn.filter(|message| self.is_reminder(message)).count() >= MAX_REMINDERS {
            let (class, text) = self.failure;
            return Err(Halt::Fail(Failure::new(class, text)));
        }
        let mut reminder = Message::human(self.text);
        reminder.set_source(self.source);
        Ok(HookResult {
            update: Update::messages([reminder]),
            jump: Some(Jump::Model),
            ..HookResult::default()
        })
    }

    fn is_reminder(&self, message: &Message) -> bool {
        message.is_human() && message.source() == Some(self.source)
    }
}
