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

/// Reads the messages from the values of a state.
///
/// # Errors
/// The reason why there is no answer.
pub(super) fn transcript(values: &Value) -> Result<Transcript, &'static str> {
    let messages = values.get("messages").and_then(Value::as_array);
    let messages = messages.ok_or("its final state has no `messages`")?;
    let task = messages
        .iter()
        .position(|message| message.get("type").and_then(Value::as_str) == Some("human"));
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
        let Transcript { before, answer } = transcript(&values).expect("an answer");
        assert_eq!(answer.content.text(), "gold");
        assert_eq!(answer.id.as_deref(), Some("a2"));
        assert_eq!(answer.tool_calls().len(), 0);
        assert_eq!(before.messages.len(), 2);
        assert_eq!(before.fields["structured_response"], json!({"metal": "gold"}));
    }

    #[test]
    fn a_state_without_messages_is_an_error_and_one_without_an_answer_is_empty() {
        assert!(transcript(&json!({"result": 1})).is_err());
        assert!(transcript(&json!({"messages": "all"})).is_err());
        let Transcript { before, answer } =
            transcript(&json!({"messages": [{"type": "human", "content": "?"}]})).expect("an empty one");
        assert!(before.is_empty() && answer.content.text().is_empty());
    }

    #[test]
    fn of_a_huge_conversation_only_the_answer_is_kept() {
        let long = "x".repeat(MAX_KEPT_BYTES);
        let values = json!({"messages": [{"type": "ai", "content": long}, {"type": "ai", "content": "done"}]});
        let Transcript { before, answer } = transcript(&values).expect("an answer");
        assert_eq!(before.messages.len(), 0);
        assert_eq!(answer.content.text(), "done".to_owned());
    }
}
