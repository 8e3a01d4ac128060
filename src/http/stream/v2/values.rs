//! States and writes in the v2 protocol: messages without provider data.

use std::sync::Arc;

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::domain::message::{Content, Message, Role};
use crate::domain::message_list::MessageList;
use crate::domain::state::{State, Update};

/// A state.
pub(super) struct StreamedValues<'a>(pub &'a State);

impl Serialize for StreamedValues<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let State {
            messages,
            files,
            fields,
            rules: _,
        } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("messages", &ListJson(messages))?;
        map.serialize_entry("files", files)?;
        for (name, value) in fields.iter().filter(|(name, _)| !self.0.hides(name)) {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// The writes of a step.
pub(super) struct Writes<'a>(pub &'a Update);

impl Serialize for Writes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Update {
            messages,
            files,
            fields,
            rules: _,
        } = self.0;
        let mut map = serializer.serialize_map(None)?;
        if !messages.is_empty() {
            map.serialize_entry("messages", &MessagesJson(messages))?;
        }
        if !files.is_empty() {
            map.serialize_entry("files", files)?;
        }
        for (name, value) in fields.iter().filter(|(name, _)| !self.0.hides(name)) {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// The messages of a state.
struct ListJson<'a>(&'a MessageList);

impl Serialize for ListJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        self.0
            .try_each(|message| list.serialize_element(&MessageJson(message)))?;
        list.end()
    }
}

struct MessagesJson<'a>(&'a [Arc<Message>]);

impl Serialize for MessagesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        self.0
            .iter()
            .try_for_each(|message| list.serialize_element(&MessageJson(message)))?;
        list.end()
    }
}

/// One message.
struct MessageJson<'a>(&'a Message);

impl Serialize for MessageJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let message = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", message.role.word())?;
        if message.is_ai() {
            map.serialize_entry("content", &blocks(message))?;
        } else {
            map.serialize_entry("content", &message.content)?;
        }
        map.serialize_entry("id", &message.id)?;
        if let Some(name) = &message.name {
            map.serialize_entry("name", name)?;
        }
        match &message.role {
            Role::Ai {
                tool_calls,
                invalid_tool_calls,
                ..
            } => {
                let mut metadata = without_id(&message.response_metadata);
                metadata.insert("output_version".to_owned(), json!("v1"));
                map.serialize_entry("response_metadata", &metadata)?;
                if !tool_calls.is_empty() {
                    map.serialize_entry("tool_calls", tool_calls)?;
                }
                if !invalid_tool_calls.is_empty() {
                    map.serialize_entry("invalid_tool_calls", invalid_tool_calls)?;
                }
            }
            Role::Tool {
                tool_call_id,
                artifact,
                status,
            } => {
                some_metadata(&mut map, &message.response_metadata)?;
                map.serialize_entry("tool_call_id", tool_call_id)?;
                map.serialize_entry("status", status)?;
                map.serialize_entry("artifact", artifact)?;
            }
            Role::Human | Role::System | Role::Remove => some_metadata(&mut map, &message.response_metadata)?,
        }
        map.end()
    }
}

fn some_metadata<M: SerializeMap>(map: &mut M, metadata: &Map<String, Value>) -> Result<(), M::Error> {
    if metadata.is_empty() {
        Ok(())
    } else {
        map.serialize_entry("response_metadata", metadata)
    }
}

/// The content of a model's message as blocks: reasoning, text, calls.
fn blocks(message: &Message) -> Vec<Value> {
    let mut blocks = vec![];
    if let Some(reasoning) = reasoning(message) {
        blocks.push(json!({"type": "reasoning", "reasoning": reasoning}));
    }
    match &message.content {
        Content::Text(text) if text.is_empty() => {}
        Content::Text(text) => blocks.push(json!({"type": "text", "text": text, "index": blocks.len()})),
        Content::Blocks(own) => {
            let is_call =
                |block: &Value| matches!(block["type"].as_str(), Some("tool_use" | "tool_call" | "function_call"));
            blocks.extend(own.iter().filter(|block| !is_call(block)).cloned());
        }
    }
    let calls = message.tool_calls().iter();
    blocks.extend(calls.map(|call| json!({"type": "tool_call", "id": call.id, "name": call.name, "args": call.args})));
    blocks.extend(message.invalid_tool_calls().iter().map(|call| json!(call)));
    blocks
}

/// The provider's metadata without its own id of the answer, which is not that of the message.
pub(super) fn without_id(metadata: &Map<String, Value>) -> Map<String, Value> {
    metadata
        .iter()
        .filter(|(name, _)| *name != "id")
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// The reasoning of a model's message.
pub(super) fn reasoning(message: &Message) -> Option<&str> {
    let text = message
        .additional_kwargs
        .get("reasoning_content")
        .and_then(Value::as_str);
    text.filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::summarization;

    #[test]
    fn messages_that_are_compressed_are_streamed_like_the_others() {
        let said = |id: usize| {
            let author = if id.is_multiple_of(2) {
                Message::human("said")
            } else {
                Message::ai("said")
            };
            author.with_id(format!("m{id}"))
        };
        let mut state = State::default();
        state.apply(&Update::messages((0..300).map(said)));
        let plain = json!(StreamedValues(&state))["messages"].clone();
        let event = json!({"last_message_id": "m290", "summary_message": {"type": "human", "content": "S"}});
        state.apply(&Update::field(summarization::EVENT, event));
        assert!(state.messages.earlier_len() > 0);
        assert_eq!(json!(StreamedValues(&state))["messages"], plain);
    }
}
