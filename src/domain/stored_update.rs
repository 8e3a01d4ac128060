//! The stored form of updates: that for clients without the fields that are empty, and with the stored form of messages.
//! [`Update`] is read from both forms.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::state::Update;
use super::stored::StoredMessages;

/// The writes of a step, as they are stored.
pub struct StoredWrites<'a>(pub &'a [Update]);

impl Serialize for StoredWrites<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(StoredUpdate))
    }
}

/// Serialises an update as it is stored.
///
/// # Errors
/// If the serialiser fails.
pub fn serialize<S: Serializer>(update: &Update, serializer: S) -> Result<S::Ok, S::Error> {
    StoredUpdate(update).serialize(serializer)
}

struct StoredUpdate<'a>(&'a Update);

impl Serialize for StoredUpdate<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Update {
            messages,
            files,
            rules,
            fields,
        } = self.0;
        let mut map = serializer.serialize_map(None)?;
        if !messages.is_empty() {
            map.serialize_entry("messages", &StoredMessages(messages))?;
        }
        if !files.is_empty() {
            map.serialize_entry("files", files)?;
        }
        if !rules.is_empty() {
            map.serialize_entry("_rules", rules)?;
        }
        for (name, value) in fields {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::domain::message::{Content, InvalidToolCall, Message, Role, ToolCall, ToolStatus};

    /// Reads what is stored of an update, and checks that it is the update.
    fn stored(update: &Update) -> String {
        let text = serde_json::to_string(&StoredUpdate(update)).expect("it can be stored");
        let read: Update = serde_json::from_str(&text).expect("it can be read");
        assert_eq!(read, *update, "{text}");
        text
    }

    fn one(message: Message) -> Update {
        Update::messages([message])
    }

    #[test]
    fn empty_fields_are_not_stored() {
        let call = ToolCall::new("c1", "lookup", Map::new());
        let shortest = [
            (
                Message::human("go").with_id("m1"),
                json!({"type": "human", "id": "m1", "content": "go"}),
            ),
            (Message::ai("done"), json!({"type": "ai", "content": "done"})),
            (
                Message::calling([call.clone()]),
                json!({"type": "ai", "tool_calls": [{"name": "lookup", "id": "c1"}]}),
            ),
            (
                Message::tool(&call, ToolStatus::Success, "42"),
                json!({"type": "tool", "name": "lookup", "content": "42", "tool_call_id": "c1"}),
            ),
            (
                Message::new(Role::Remove, "").with_id("m1"),
                json!({"type": "remove", "id": "m1"}),
            ),
        ];
        for (message, expected) in shortest {
            let text = stored(&one(message));
            let read: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(read, json!({"messages": [expected]}));
        }
        assert_eq!(stored(&Update::none()), "{}");
    }

    #[test]
    fn fields_with_content_are_stored() {
        let invalid = InvalidToolCall {
            name: None,
            args: Some("{".to_owned()),
            id: Some("c2".to_owned()),
            error: None,
            kind: "invalid_tool_call".to_owned(),
        };
        let mut call = ToolCall::new("c1", "lookup", Map::from_iter([("query".to_owned(), json!("x"))]));
        call.kind = "other".to_owned();
        let answer = Message {
            additional_kwargs: Map::from_iter([("reasoning_content".to_owned(), json!("hm"))]),
            response_metadata: Map::from_iter([("finish_reason".to_owned(), json!("stop"))]),
            role: Role::Ai {
                tool_calls: vec![call.clone()],
                invalid_tool_calls: vec![invalid],
                usage_metadata: Some(json!({"input_tokens": 1, "input_token_details": {}})),
            },
            name: Some("writer".to_owned()),
            ..Message::ai(Content::Blocks(vec![json!({"type": "text", "text": ""})]))
        };
        let mut result = Message::tool(&call, ToolStatus::Error, "it broke");
        result.role = Role::Tool {
            tool_call_id: "c1".to_owned(),
            artifact: Some(json!({"rows": []})),
            status: ToolStatus::Error,
        };
        stored(&one(answer.with_id("lc_run--1")));
        stored(&one(result));
        stored(&one(Message::new(Role::System, "rules")));
        stored(&Update::field("todos", json!([])));
    }

    #[test]
    fn messages_that_were_stored_with_empty_fields_are_read() {
        for message in [Message::human("go"), Message::ai("done"), Message::calling([])] {
            let text = serde_json::to_string(&one(message.clone())).expect("JSON");
            assert_eq!(
                serde_json::from_str::<Update>(&text).expect("it can be read"),
                one(message)
            );
        }
    }
}
