//! The stored form of messages: that of LangChain clients without the fields that are empty, which are most. [`Message`]
//! is read from both forms.

use std::sync::Arc;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::message::{Content, Message, Role, ToolCall, ToolStatus};

/// Returns whether a field has its default. Such fields are not stored.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The messages of an update, as they are stored.
pub(super) struct StoredMessages<'a>(pub(super) &'a [Arc<Message>]);

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
