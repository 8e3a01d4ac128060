//! The stored form of updates and messages: that of LangChain clients without the fields that are empty, which are most.
//! [`Update`] and [`Message`] are read from both forms.

use std::sync::Arc;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::message::{Content, Message, Role, ToolCall, ToolStatus};
use super::state::Update;

/// The writes of a step, as they are stored.
pub struct StoredWrites<'a>(pub &'a [Update]);

impl Serialize for StoredWrites<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(StoredUpdate))
    }
}

/// Returns whether a field has its default. Such fields are not stored.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Serialises an update as it is stored.
///
/// # Errors
/// If the serialiser fails.
pub fn update<S: Serializer>(update: &Update, serializer: S) -> Result<S::Ok, S::Error> {
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

/// The messages of an update, as they are stored.
struct StoredMessages<'a>(&'a [Arc<Message>]);

impl Serialize for StoredMessages<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let messages = self.0.iter().map(|message| StoredMessage {
            message,
            id: message.id.as_deref(),
        });
        serializer.collect_seq(messages)
    }
}

/// Messages as they are stored, each with the id at the same index in the place of its own.
pub(super) struct MessagesWithIds<'a> {
    pub(super) messages: &'a [Arc<Message>],
    pub(super) ids: &'a [Option<String>],
}

impl Serialize for MessagesWithIds<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let messages = self.messages.iter().zip(self.ids).map(|(message, id)| StoredMessage {
            message,
            id: id.as_deref(),
        });
        serializer.collect_seq(messages)
    }
}

struct StoredMessage<'a> {
    message: &'a Message,
    id: Option<&'a str>,
}

impl Serialize for StoredMessage<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Message {
            content,
            additional_kwargs,
            response_metadata,
            role,
            name,
            id: _,
        } = self.message;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", role.word())?;
        if let Some(id) = self.id {
            map.serialize_entry("id", id)?;
        }
        if let Some(name) = name {
            map.serialize_entry("name", name)?;
        }
        if *content != Content::default() {
            map.serialize_entry("content", content)?;
        }
        match role {
            Role::Ai {
                tool_calls,
                invalid_tool_calls,
                usage_metadata,
            } => {
                if !tool_calls.is_empty() {
                    map.serialize_entry("tool_calls", &StoredCalls(tool_calls))?;
                }
                if !invalid_tool_calls.is_empty() {
                    map.serialize_entry("invalid_tool_calls", invalid_tool_calls)?;
                }
                if let Some(usage) = usage_metadata {
                    map.serialize_entry("usage_metadata", usage)?;
                }
            }
            Role::Tool {
                tool_call_id,
                artifact,
                status,
            } => {
                map.serialize_entry("tool_call_id", tool_call_id)?;
                if let Some(artifact) = artifact {
                    map.serialize_entry("artifact", artifact)?;
                }
                if *status != ToolStatus::default() {
                    map.serialize_entry("status", status)?;
                }
            }
            Role::Human | Role::System | Role::Remove => {}
        }
        some_fields(&mut map, "additional_kwargs", additional_kwargs)?;
        some_fields(&mut map, "response_metadata", response_metadata)?;
        map.end()
    }
}

fn some_fields<M: SerializeMap>(map: &mut M, name: &str, fields: &Map<String, Value>) -> Result<(), M::Error> {
    if fields.is_empty() {
        Ok(())
    } else {
        map.serialize_entry(name, fields)
    }
}

struct StoredCalls<'a>(&'a [ToolCall]);

impl Serialize for StoredCalls<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(StoredCall))
    }
}

struct StoredCall<'a>(&'a ToolCall);

impl Serialize for StoredCall<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ToolCall { name, args, id, kind } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", name)?;
        map.serialize_entry("id", id)?;
        some_fields(&mut map, "args", args)?;
        if kind != ToolCall::KIND {
            map.serialize_entry("type", kind)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::message::InvalidToolCall;

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
