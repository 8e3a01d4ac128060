//! Middleware: every call has a result.
//!
//! A call without a result would make the next model request invalid. That happens if the run was cancelled, or if a
//! new message was sent instead of a decision.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use super::{HookResult, Middleware};
use crate::definition::builtins;
use crate::domain::machine::HookPoint;
use crate::domain::message::{InvalidToolCall, Message, REMOVE_ALL, Role, ToolCall, ToolStatus};
use crate::domain::state::{State, Update};
use crate::tool::{Halt, Scope};

/// The middleware that adds missing results.
#[derive(Debug, Clone, Copy, Default)]
pub struct DanglingCalls;

#[async_trait]
impl Middleware for DanglingCalls {
    fn name(&self) -> &str {
        builtins::REPAIR
    }

    fn hook_points(&self) -> &[HookPoint] {
        &[HookPoint::BeforeAgent]
    }

    async fn hook(&self, _: HookPoint, _: &Scope, state: &State) -> Result<HookResult, Halt> {
        let messages = &state.messages;
        // The calls of compressed messages, and of those that have left the state, have results.
        let repaired = match messages.left_len() {
            0 => repaired(messages.recent()).and_then(|_| repaired(&messages.all())),
            _ => repaired_from_first(messages.recent()),
        };
        Ok(repaired.map(HookResult::from).unwrap_or_default())
    }
}

/// Returns the update that gives each call of a conversation a result; none if no result is missing.
pub fn repaired(messages: &[Arc<Message>]) -> Option<Update> {
    let missing = missing_results(messages);
    if missing.iter().all(Vec::is_empty) {
        return None;
    }
    let mut anew = vec![Arc::new(Message::new(Role::Remove, "").with_id(REMOVE_ALL))];
    let mut waiting: Vec<Arc<Message>> = vec![];
    for (message, missing) in messages.iter().zip(missing) {
        // Results directly follow their answer; added ones come after the existing ones.
        if message.answers().is_none() {
            anew.append(&mut waiting);
        }
        anew.push(Arc::clone(message));
        waiting.extend(missing.into_iter().map(Arc::new));
    }
    anew.append(&mut waiting);
    Some(Update {
        messages: anew,
        ..Update::none()
    })
}

/// Returns the same as [`repaired`], but writes only the messages after the first answer that lacks a result: the removal of
/// all messages would also make the state forget which messages have left it.
fn repaired_from_first(messages: &[Arc<Message>]) -> Option<Update> {
    let first = missing_results(messages)
        .iter()
        .position(|missing| !missing.is_empty())?;
    let mut update = repaired(&messages[first..])?;
    let later = messages[first + 1..].iter().filter_map(|message| message.id.clone());
    let removals = later.map(|id| Arc::new(Message::new(Role::Remove, "").with_id(id)));
    // In the places of the removal of all, and of the answer itself, which stays.
    update.messages.splice(..2, removals);
    Some(update)
}

/// Returns for each message the results for its calls that have none.
fn missing_results(messages: &[Arc<Message>]) -> Vec<Vec<Message>> {
    // The ids of the results behind a message. Providers may reuse ids in later answers: a result belongs to the nearest
    // answer before it.
    let mut answered: BTreeSet<&str> = BTreeSet::new();
    let mut all: Vec<Vec<Message>> = vec![];
    for message in messages.iter().rev() {
        all.push(missing_results_of(message, &answered));
        for call in message.tool_calls() {
            answered.remove(call.id.as_str());
        }
        answered.extend(message.answers());
    }
    all.reverse();
    all
}

/// Returns results for the calls of a message that are not among the `answered` ones.
fn missing_results_of(message: &Message, answered: &BTreeSet<&str>) -> Vec<Message> {
    let is_open = |id: &str| !answered.contains(id);
    let unanswered = message.tool_calls().iter().filter(|call| is_open(&call.id)).map(|call| {
        let text = format!(
            "Tool call {} with id {} did not complete - no result was recorded. It may have been cancelled or interrupted.",
            call.name, call.id
        );
        Message::tool(call, ToolStatus::Error, text)
    });
    let unreadable = message
        .invalid_tool_calls()
        .iter()
        .filter(|call| call.id.as_deref().is_some_and(&is_open))
        .filter_map(result_of_unreadable);
    unanswered.chain(unreadable).collect()
}

/// Returns the result of a call whose arguments cannot be read; none if it has no id.
pub(super) fn result_of_unreadable(call: &InvalidToolCall) -> Option<Message> {
    let id = call.id.as_deref()?;
    let call = ToolCall::new(id, call.name.clone().unwrap_or_default(), serde_json::Map::new());
    let text = format!(
        "Tool call {} with id {id} was not made: its arguments are not a JSON object.",
        call.name
    );
    Some(Message::tool(&call, ToolStatus::Error, text))
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::domain::message::Content;
    use crate::domain::message_list::MessageList;

    fn calling(ids: &[&str]) -> Message {
        let tool_calls = ids
            .iter()
            .map(|id| ToolCall::new(*id, "send_email", Map::new()))
            .collect();
        Message::new(
            Role::Ai {
                tool_calls,
                invalid_tool_calls: vec![],
                usage_metadata: None,
            },
            "",
        )
    }

    fn result(id: &str) -> Message {
        Message::tool(
            &ToolCall::new(id, "send_email", Map::new()),
            ToolStatus::Success,
            "done",
        )
    }

    fn repair(messages: Vec<Message>) -> Option<Vec<Message>> {
        let messages: Vec<Arc<Message>> = messages.into_iter().map(Arc::new).collect();
        let mut state = State {
            messages: messages.clone().into(),
            ..State::default()
        };
        state.apply(&repaired(&messages)?);
        Some(
            state
                .messages
                .recent()
                .iter()
                .map(|message| (**message).clone())
                .collect(),
        )
    }

    fn text(id: &str) -> String {
        format!(
            "Tool call send_email with id {id} did not complete - no result was recorded. \
             It may have been cancelled or interrupted."
        )
    }

    fn patched(id: &str) -> Message {
        Message::tool(
            &ToolCall::new(id, "send_email", Map::new()),
            ToolStatus::Error,
            text(id),
        )
    }

    #[test]
    fn messages_that_have_left_the_state_stay_known_when_a_result_is_added() {
        let with_ids = |messages: Vec<Message>| {
            let with_id = |(at, message): (usize, Message)| Arc::new(message.with_id(format!("m{at}")));
            messages.into_iter().enumerate().map(with_id).collect::<Vec<_>>()
        };
        let given = vec![
            Message::human("0"),
            Message::ai("old"),
            Message::human("1"),
            calling(&["a", "b"]),
            result("b"),
            Message::human("2"),
            Message::human("3"),
        ];
        let mut messages = MessageList::from(with_ids(given));
        assert!(messages.leave("m1", "m2"));
        let mut state = State {
            messages,
            ..State::default()
        };
        let update = repaired_from_first(state.messages.recent()).expect("a result is missing");
        state.apply(&update);
        let texts = state.messages.texts();
        assert_eq!(texts, ["1", "", "done", text("a").as_str(), "2", "3"]);
        assert!(state.messages.has_left("m0"));
        assert_eq!(state.messages.left_len(), 2);
        assert_eq!(repaired_from_first(state.messages.recent()), None);
    }

    #[test]
    fn a_complete_conversation_is_left_alone() {
        assert_eq!(
            repair(vec![
                Message::human("hi"),
                calling(&["a"]),
                result("a"),
                Message::ai("ok")
            ]),
            None
        );
        assert_eq!(repair(vec![]), None);
    }

    #[test]
    fn a_missing_result_follows_the_existing_ones() {
        let given = vec![
            Message::human("1"),
            calling(&["a", "b"]),
            result("b"),
            Message::human("2"),
        ];
        let expected = vec![
            Message::human("1"),
            calling(&["a", "b"]),
            result("b"),
            patched("a"),
            Message::human("2"),
        ];
        assert_eq!(repair(given), Some(expected));
    }

    #[test]
    fn an_id_that_was_used_twice_needs_two_results() {
        let given = vec![calling(&["a"]), Message::human("2"), calling(&["a"]), result("a")];
        let expected = vec![
            calling(&["a"]),
            patched("a"),
            Message::human("2"),
            calling(&["a"]),
            result("a"),
        ];
        assert_eq!(repair(given), Some(expected));
    }

    #[test]
    fn a_conversation_of_calls_without_results_is_repaired_in_one_pass() {
        let ids = |at: usize| (0..6).map(move |call| format!("{at}-{call}"));
        let message = |at: usize| {
            let ids: Vec<String> = ids(at).collect();
            Arc::new(calling(&ids.iter().map(String::as_str).collect::<Vec<_>>()))
        };
        let messages: Vec<Arc<Message>> = (0..10_000).map(message).collect();
        let update = repaired(&messages).expect("results are missing");
        assert_eq!(update.messages.len(), 1 + 10_000 * 7);
        assert_eq!(update.messages[8 + 6].answers(), Some("1-5"));
    }

    #[test]
    fn an_invalid_call_is_answered() {
        let broken = InvalidToolCall {
            name: Some("send_email".to_owned()),
            args: Some("{".to_owned()),
            id: Some("x".to_owned()),
            error: None,
            kind: "invalid_tool_call".to_owned(),
        };
        let role = Role::Ai {
            tool_calls: vec![],
            invalid_tool_calls: vec![broken],
            usage_metadata: None,
        };
        let repaired = repair(vec![Message::new(role, ""), Message::human("2")]).expect("a repair");
        assert_eq!(repaired[1].answers(), Some("x"));
        assert!(matches!(&repaired[1].content, Content::Text(text) if text.contains("not a JSON object")));
    }
}
