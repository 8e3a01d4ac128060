//! The messages of a remote agent, read from the state of its thread.

use std::sync::Arc;

use serde_json::Value;

use crate::domain::message::{Message, Role};
use crate::domain::state::Update;

/// The maximum size of the messages before the answer, in bytes of JSON. If they are larger, only the answer is kept.
const MAX_KEPT_BYTES: usize = 1024 * 1024;

/// The messages that the agent wrote.
pub(super) struct Transcript {
    /// The messages before the answer.
    pub(super) before: Update,
    /// The last message of the agent's model.
    pub(super) answer: Message,
}

/// Reads the messages after `last`, which is the id of the last message that was sent, from the values of a state.
/// Without it, or if it is not there, the messages after the first human one are read.
///
/// # Errors
/// The reason why there is no answer.
pub(super) fn transcript(values: &Value, last: Option<&str>) -> Result<Transcript, &'static str> {
    let messages = values.get("messages").and_then(Value::as_array);
    let messages = messages.ok_or("its final state has no `messages`")?;
    let text = |message: &Value, name: &str| message.get(name).and_then(Value::as_str).map(str::to_owned);
    let sent = last.and_then(|last| {
        let is_last = |message: &Value| text(message, "id").as_deref() == Some(last);
        messages.iter().rposition(is_last)
    });
    let task = sent.or_else(|| {
        let is_human = |message: &Value| text(message, "type").as_deref() == Some("human");
        messages.iter().position(is_human)
    });
    let replies = &messages[task.map_or(0, |at| at + 1)..];
    let mut replies: Vec<Message> = replies
        .iter()
        .filter_map(|message| serde_json::from_value(message.clone()).ok())
        .collect();
    let mut answer = match replies.iter().rposition(Message::is_ai) {
        Some(last) => replies.drain(last..).next().unwrap_or_else(|| Message::ai("")),
        None => Message::ai(""),
    };
    // The calls were answered on the other server; here they would appear as open.
    if let Role::Ai {
        tool_calls,
        invalid_tool_calls,
        ..
    } = &mut answer.role
    {
        tool_calls.clear();
        invalid_tool_calls.clear();
    }
    let size = serde_json::to_string(&replies).map_or(usize::MAX, |text| text.len());
    let kept = if size > MAX_KEPT_BYTES { vec![] } else { replies };
    let mut before = Update {
        messages: kept.into_iter().map(Arc::new).collect(),
        ..Update::none()
    };
    if let Some(structured) = values.get("structured_response").filter(|value| !value.is_null()) {
        before
            .fields
            .insert("structured_response".to_owned(), structured.clone());
    }
    Ok(Transcript { before, answer })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_message_is_the_answer_and_the_others_are_kept() {
        let call = json!({"name": "dig", "args": {}, "id": "c1", "type": "tool_call"});
        let values = json!({
            "messages": [
                {"type": "human", "content": "dig"},
                {"type": "ai", "content": "", "id": "a1", "tool_calls": [call]},
                {"type": "tool", "content": "found", "tool_call_id": "c1"},
                {"type": "of another time"},
                {"type": "ai", "content": "gold", "id": "a2", "tool_calls": [call]},
            ],
            "structured_response": {"metal": "gold"},
        });
        let Transcript { before, answer } = transcript(&values, None).expect("an answer");
        assert_eq!(answer.content.text(), "gold");
        assert_eq!(answer.id.as_deref(), Some("a2"));
        assert_eq!(answer.tool_calls().len(), 0);
        assert_eq!(before.messages.len(), 2);
        assert_eq!(before.fields["structured_response"], json!({"metal": "gold"}));
    }

    #[test]
    fn only_messages_after_the_last_one_that_was_sent_are_read() {
        let message = |kind: &str, id: &str| json!({"type": kind, "content": id, "id": id});
        let values = json!({"messages": [message("human", "h1"), message("ai", "a1"), message("human", "h2"),
            message("ai", "a2"), message("ai", "a3")]});
        let ids = |last: &str| -> Vec<String> {
            let Transcript { before, answer } = transcript(&values, Some(last)).expect("an answer");
            let all = before.messages.iter().map(AsRef::as_ref).chain([&answer]);
            all.filter_map(|message| message.id.clone()).collect()
        };
        assert_eq!(ids("h2"), ["a2", "a3"]);
        assert_eq!(ids("unknown"), ["a1", "h2", "a2", "a3"]);
    }

    #[test]
    fn a_state_without_messages_is_an_error_and_one_without_an_answer_is_empty() {
        assert!(transcript(&json!({"result": 1}), None).is_err());
        assert!(transcript(&json!({"messages": "all"}), None).is_err());
        let Transcript { before, answer } =
            transcript(&json!({"messages": [{"type": "human", "content": "?"}]}), None).expect("an empty one");
        assert!(before.is_empty() && answer.content.text().is_empty());
    }

    #[test]
    fn of_a_huge_conversation_only_the_answer_is_kept() {
        let long = "x".repeat(MAX_KEPT_BYTES);
        let values = json!({"messages": [{"type": "ai", "content": long}, {"type": "ai", "content": "done"}]});
        let Transcript { before, answer } = transcript(&values, None).expect("an answer");
        assert_eq!(before.messages.len(), 0);
        assert_eq!(answer.content.text(), "done".to_owned());
    }
}
