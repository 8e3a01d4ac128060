//! The state of a thread, and the updates that change it.
//!
//! A step never produces a new state, only the *writes* of an update. Updates are stored, streamed, and passed from a
//! subagent to its parent; the state is their sum. Hence nothing is added twice, and deletions are passed on, too.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use base64::engine::general_purpose::STANDARD;
use base64::{DecodeError, Engine};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::field::{FieldRule, FieldVisibility};
use super::file_content::FileContent;
use super::media::media_kind;
use super::message::{Content, Message};
use super::message_index;
use super::message_list::MessageList;
use super::summarization::{self, SummarizationEvent, UserRequest};
use super::time::Timestamp;

/// The fields of a thread at one checkpoint. Cloning copies pointers, not texts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct State {
    /// The messages.
    pub messages: MessageList,
    /// The files of the thread's workspace, by absolute path.
    pub files: BTreeMap<String, Arc<File>>,
    /// The other fields, by name.
    pub fields: BTreeMap<String, Value>,
    /// The rules of those fields that have any.
    pub rules: BTreeMap<String, FieldRule>,
}

/// A file in the state.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct File {
    /// The text, or the bytes as base64.
    pub content: FileContent,
    /// The encoding of `content`.
    #[serde(default)]
    pub encoding: Encoding,
    /// The time of the first write, ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// The time of the last write, ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<String>,
}

/// The encoding of the content of a [`File`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Encoding {
    /// Text.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// Bytes as base64.
    #[serde(rename = "base64")]
    Base64,
}

impl Encoding {
    /// Returns the number of bytes in a content of this length in bytes, which is without the padding of base64.
    pub fn decoded_size(self, length: usize) -> usize {
        match self {
            Self::Utf8 => length,
            Self::Base64 => length / 4 * 3 + length % 4 * 3 / 4,
        }
    }
}

impl File {
    /// Creates a text file written at `now`.
    pub fn text(content: impl Into<FileContent>, now: Timestamp) -> Self {
        let now = now.to_string();
        Self {
            content: content.into(),
            encoding: Encoding::Utf8,
            created_at: Some(now.clone()),
            modified_at: Some(now),
        }
    }

    /// Creates the file that the value of an item describes, without times; none if it describes no file. Other
    /// programs may have written the content as a list of lines.
    pub fn from_item(value: &Map<String, Value>) -> Option<Self> {
        let content = match value.get("content")? {
            Value::String(text) => text.clone(),
            Value::Array(lines) => {
                let lines: Option<Vec<&str>> = lines.iter().map(Value::as_str).collect();
                lines?.join("\n")
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return None,
        };
        let is_binary = value.get("encoding").and_then(Value::as_str) == Some("base64");
        Some(Self {
            content: content.into(),
            encoding: if is_binary { Encoding::Base64 } else { Encoding::Utf8 },
            created_at: None,
            modified_at: None,
        })
    }

    /// Creates a file with these bytes, without times: as text if they are one, else as base64.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        // A text with a zero character cannot be stored; it is no text for people either.
        let (content, encoding) = match String::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => (text, Encoding::Utf8),
            Ok(text) => (STANDARD.encode(text), Encoding::Base64),
            Err(error) => (STANDARD.encode(error.as_bytes()), Encoding::Base64),
        };
        Self {
            content: content.into(),
            encoding,
            created_at: None,
            modified_at: None,
        }
    }

    /// Returns whether this is a text file with exactly this text.
    pub fn has_text(&self, text: &str) -> bool {
        // A compressed content is decompressed to be compared.
        self.encoding == Encoding::Utf8 && self.content.len() == text.len() && self.content == *text
    }

    /// Returns the number of bytes.
    pub fn size(&self) -> usize {
        let length = match self.encoding {
            Encoding::Utf8 => self.content.len(),
            Encoding::Base64 => self.content.text().trim_end_matches('=').len(),
        };
        self.encoding.decoded_size(length)
    }

    /// Returns what is known of the file without its content.
    pub fn facts(&self) -> FileFacts {
        FileFacts {
            size: u64::try_from(self.size()).ok(),
            encoding: Some(self.encoding),
            created_at: self.created_at.clone(),
            modified_at: self.modified_at.clone(),
        }
    }

    /// Returns the bytes.
    ///
    /// # Errors
    /// If the content is not the base64 that it should be.
    pub fn to_bytes(&self) -> Result<Vec<u8>, DecodeError> {
        match self.encoding {
            Encoding::Utf8 => Ok(self.content.text().into_owned().into_bytes()),
            Encoding::Base64 => STANDARD.decode(&*self.content.text()),
        }
    }
}

/// The facts about a file that are known without its content. Not every workspace knows all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileFacts {
    /// The size, in bytes.
    pub size: Option<u64>,
    /// The encoding of the content.
    pub encoding: Option<Encoding>,
    /// The time of the first write, ISO 8601.
    pub created_at: Option<String>,
    /// The time of the last write, ISO 8601.
    pub modified_at: Option<String>,
}

/// Files to write, or to delete (`None`), by path.
pub type FileWrites = BTreeMap<String, Option<Arc<File>>>;

/// The writes of a step. Serialised, an update is the delta of a checkpoint and the payload of an `updates` event.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Update {
    /// Messages to append, to replace (same id) or to remove ([`Role::Remove`](super::message::Role::Remove)).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Arc<Message>>,
    /// Files to write, or to delete (`None`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: FileWrites,
    /// The rules of those fields that have any.
    #[serde(default, rename = "_rules", skip_serializing_if = "BTreeMap::is_empty")]
    pub rules: BTreeMap<String, FieldRule>,
    /// Other fields to set.
    #[serde(flatten)]
    pub fields: BTreeMap<String, Value>,
}

impl Update {
    /// Creates an update without writes.
    pub fn none() -> Self {
        Self::default()
    }

    /// Creates an update that appends `messages`.
    pub fn messages(messages: impl IntoIterator<Item = Message>) -> Self {
        Self {
            messages: messages.into_iter().map(Arc::new).collect(),
            ..Self::default()
        }
    }

    /// Creates an update that sets one field.
    pub fn field(name: impl Into<String>, value: Value) -> Self {
        Self {
            fields: BTreeMap::from([(name.into(), value)]),
            ..Self::default()
        }
    }

    /// Returns whether there are no writes.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.files.is_empty() && self.fields.is_empty()
    }

    /// Adds the writes of `later`, which win where both write the same field or path.
    pub fn merge(&mut self, later: Update) {
        self.messages.extend(later.messages);
        self.files.extend(later.files);
        self.rules.extend(later.rules);
        for (name, value) in later.fields {
            let value = match (self.rules.get(&name), self.fields.remove(&name)) {
                (Some(rule), Some(first)) => rule.combine(first, value),
                (_, _) => value,
            };
            self.fields.insert(name, value);
        }
    }

    /// Returns whether this field of the update is hidden from clients.
    pub fn hides(&self, field: &str) -> bool {
        is_hidden(field) || self.rules.get(field).is_some_and(|rule| rule.is_hidden())
    }

    /// Returns whether clients see nothing of the update.
    pub fn shows_nothing(&self) -> bool {
        self.messages.is_empty() && self.files.is_empty() && self.fields.keys().all(|name| self.hides(name))
    }

    /// Returns the update without the fields that are hidden from clients.
    pub fn public(&self) -> Update {
        let mut visible = self.clone();
        visible.fields.retain(|name, _| !self.hides(name));
        visible.rules.clear();
        visible
    }

    /// Returns the update with the rules of its fields added.
    pub fn ruled(mut self, rules: &BTreeMap<String, FieldRule>) -> Self {
        if !rules.is_empty() {
            let own = self
                .fields
                .keys()
                .filter_map(|name| Some((name.clone(), *rules.get(name)?)));
            self.rules.extend(own.collect::<Vec<_>>());
        }
        self
    }
}

/// Fields of policies: stored with the thread, hidden from clients, and not passed to or from a subagent.
const PRIVATE: [&str; 8] = [
    "hitl_edited_tool_calls",
    "memory_contents",
    SKILLS,
    "skills_load_errors",
    THREAD_MODEL_CALLS,
    RUN_MODEL_CALLS,
    THREAD_TOOL_CALLS,
    RUN_TOOL_CALLS,
];

/// The private field with the number of model calls on the thread, for its limit.
pub const THREAD_MODEL_CALLS: &str = "thread_model_call_count";

/// The private field with the number of model calls since the last input.
pub const RUN_MODEL_CALLS: &str = "run_model_call_count";

/// The private field with the numbers of tool calls on the thread, by limit.
pub const THREAD_TOOL_CALLS: &str = "thread_tool_call_count";

/// The private field with the numbers of tool calls since the last input, by limit.
pub const RUN_TOOL_CALLS: &str = "run_tool_call_count";

/// The private field with the skills that an agent has loaded. If a client deletes it, they are loaded again.
pub const SKILLS: &str = "skills_metadata";

/// The field with the names of skills that are loaded with their instructions at once. Clients write it and cannot read
/// it.
pub const PINNED_SKILLS: &str = "pinned_skills";

/// The private field of a subagent with instructions from the agent that delegated to it.
pub const DELEGATED_PROMPT: &str = "_system_prompt";

/// Fields that clients see but that are not passed between an agent and its subagents.
const NOT_SHARED: [&str; 6] = [
    "todos",
    "structured_response",
    PINNED_SKILLS,
    "rubric",
    "async_tasks",
    summarization::STATUS,
];

/// The private field that marks the state of a fork.
const FORKED: &str = "_deepagents_forked_context";

/// Fields that are not copied to a fork, since they belong to the current turn of the agent.
const NOT_FORKED: [&str; 13] = [
    "todos",
    "structured_response",
    PINNED_SKILLS,
    "rubric",
    "hitl_edited_tool_calls",
    summarization::EVENT,
    summarization::STATUS,
    "_summarization_session_id",
    "_skill_tools_disclosed",
    THREAD_MODEL_CALLS,
    RUN_MODEL_CALLS,
    THREAD_TOOL_CALLS,
    RUN_TOOL_CALLS,
];

/// Returns whether the field is hidden from clients: it has a leading underscore, or is listed in `PRIVATE`.
pub fn is_private(field: &str) -> bool {
    field.starts_with('_') || PRIVATE.contains(&field)
}

/// Returns whether this standard field is hidden from clients: a private field, or one that they only write.
fn is_hidden(field: &str) -> bool {
    is_private(field) || field == PINNED_SKILLS
}

/// Returns whether this field is passed between an agent and its subagents, in both directions.
pub fn crosses_to_subagents(field: &str) -> bool {
    !is_private(field) && !NOT_SHARED.contains(&field)
}

impl State {
    /// Returns the number in a field that counts; 0 if there is none.
    pub fn count(&self, field: &str) -> u64 {
        self.fields.get(field).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Applies `update` to the state.
    pub fn apply(&mut self, update: &Update) {
        message_index::put_all(&mut self.messages, &update.messages);
        for (path, file) in &update.files {
            match file {
                Some(file) => self.files.insert(path.clone(), Arc::clone(file)),
                None => self.files.remove(path),
            };
        }
        self.write(update.fields.clone(), &update.rules);
        if update.fields.contains_key(summarization::EVENT) {
            self.compress();
        }
    }

    /// Compresses what a model will hardly read again when its conversation was summarised: the messages that the summary
    /// stands for, if they are many, and the texts of files. Of these messages, those that the event names leave the state, or
    /// their media. Messages that were compressed for a summary that is not there any more, or stands for fewer, are
    /// decompressed. Returns whether other messages are compressed than before, or some have left or are changed.
    pub fn compress(&mut self) -> bool {
        for file in self.files.values_mut().filter(|file| file.encoding == Encoding::Utf8) {
            if let Some(content) = file.content.compressed() {
                *file = Arc::new(File {
                    content,
                    encoding: file.encoding,
                    created_at: file.created_at.clone(),
                    modified_at: file.modified_at.clone(),
                });
            }
        }
        let event = SummarizationEvent::of(&self.fields);
        let last = event.as_ref().and_then(SummarizationEvent::last_summarized);
        let is_in_use = last.is_some_and(|last| self.messages.has_recent(last));
        // A client may have written an older event, or none: a model would read neither these messages nor a summary.
        let is_undone = !is_in_use && self.messages.earlier_len() > 0;
        if is_undone {
            self.messages.decompress();
        }
        let in_use = event.as_ref().zip(last.filter(|_| is_in_use));
        let has_left = in_use.is_some_and(|(event, last)| self.leave(event, last));
        let is_smaller = last.is_some_and(|last| self.messages.compress_before(last));
        is_undone || has_left || is_smaller
    }

    /// Lets messages and media leave the state that an event names. Returns whether there were any.
    fn leave(&mut self, event: &SummarizationEvent, last_summarized: &str) -> bool {
        let media = event.media_left_until.as_deref();
        let has_left_media = media.is_some_and(|until| self.messages.leave_media(until));
        let messages = event.left_until.as_deref();
        let has_left = messages.is_some_and(|until| self.messages.leave(until, last_summarized));
        // The history of the thread may have been deleted, and the messages with it.
        self.messages.count_left(event.left_messages);
        has_left_media || has_left
    }

    /// Writes fields by their rules.
    pub fn write(&mut self, fields: BTreeMap<String, Value>, rules: &BTreeMap<String, FieldRule>) {
        if rules.is_empty() {
            return self.fields.extend(fields);
        }
        for (name, value) in fields {
            let value = match rules.get(&name) {
                Some(rule) => rule.write(self.fields.remove(&name), value),
                None => value,
            };
            self.fields.insert(name, value);
        }
        self.rules
            .extend(rules.iter().map(|(name, rule)| (name.clone(), *rule)));
    }

    /// Returns whether this field is hidden from clients.
    pub fn hides(&self, field: &str) -> bool {
        is_hidden(field) || self.rules.get(field).is_some_and(|rule| rule.is_hidden())
    }

    /// Returns whether this field is passed between an agent and its subagents.
    pub fn shares(&self, field: &str) -> bool {
        let is_own = self
            .rules
            .get(field)
            .is_some_and(|rule| rule.visibility == FieldVisibility::Private);
        crosses_to_subagents(field) && !is_own
    }

    /// Returns the fields that are passed to a subagent: all except the messages and the fields of policies.
    pub fn for_subagent(&self) -> Update {
        Update {
            messages: vec![],
            files: self
                .files
                .iter()
                .map(|(path, file)| (path.clone(), Some(Arc::clone(file))))
                .collect(),
            fields: self
                .fields
                .iter()
                .filter(|(name, _)| self.shares(name))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            ..Update::none()
        }
        .ruled(&self.rules)
    }

    /// Returns the messages before the last answer of the model, whose calls are being executed: those of
    /// [`MessageList::recent`].
    pub fn before_last_answer(&self) -> &[Arc<Message>] {
        let messages = self.messages.recent();
        let answer = messages.iter().rposition(|message| message.is_ai());
        &messages[..answer.unwrap_or(messages.len())]
    }

    /// Returns the fields for a fork of the agent: all except those of the agent's current turn.
    pub fn fields_for_fork(&self) -> BTreeMap<String, Value> {
        let own = self
            .fields
            .iter()
            .filter(|(name, _)| !NOT_FORKED.contains(&name.as_str()));
        let mut fields: BTreeMap<String, Value> = own.map(|(name, value)| (name.clone(), value.clone())).collect();
        fields.insert(FORKED.to_owned(), Value::Bool(true));
        fields
    }

    /// Returns whether the state is that of a fork, which began with the messages of its caller.
    pub fn is_fork(&self) -> bool {
        self.fields.contains_key(FORKED)
    }

    /// Returns the update that creates this state from an empty one.
    pub fn as_update(&self) -> Update {
        Update {
            messages: self.messages.all().into_owned(),
            files: self
                .files
                .iter()
                .map(|(path, file)| (path.clone(), Some(Arc::clone(file))))
                .collect(),
            fields: self.fields.clone(),
            rules: self.rules.clone(),
        }
    }

    /// Returns the last request of the user if it has left the state, without its middle if it is long.
    pub fn left_request(&self) -> Option<Arc<Message>> {
        if self.messages.left_len() == 0 {
            return None;
        }
        let UserRequest { id, text, .. } = SummarizationEvent::of(&self.fields)?.left_request?;
        Some(Arc::new(Message {
            id,
            ..Message::human(text)
        }))
    }

    /// Returns the model's last message, if there is one.
    pub fn last_ai(&self) -> Option<&Arc<Message>> {
        self.messages.last_answer().map(|(answer, _)| answer)
    }

    /// Returns the final answer of the agent: its structured response, or its last message with a text.
    pub fn conclusion(&self) -> Option<String> {
        self.conclusion_after(None)
    }

    /// Returns the final answer of the agent, ignoring the messages before the one with this id, which other agents
    /// wrote.
    pub fn conclusion_after(&self, order: Option<&str>) -> Option<String> {
        let is_own = |message: &&Arc<Message>| order.is_none() || message.id.as_deref() != order;
        let text_of = |message: &Arc<Message>| {
            let text = message.content.text();
            (message.is_ai() && !text.trim().is_empty()).then(|| text.trim_end().to_owned())
        };
        match self.fields.get("structured_response").filter(|value| !value.is_null()) {
            Some(Value::String(text)) => Some(text.clone()),
            Some(value) => Some(value.to_string()),
            None => {
                let newest_of = |messages: &[Arc<Message>]| messages.iter().rev().take_while(is_own).find_map(text_of);
                newest_of(self.messages.recent()).or_else(|| newest_of(&self.messages.all()))
            }
        }
    }

    /// Returns the blocks of the model's last message that are media: images, audio, video and files.
    pub fn media(&self) -> Vec<Value> {
        let is_media = |block: &&Value| media_kind(block).is_some();
        match self.last_ai().map(|message| &message.content) {
            Some(Content::Blocks(blocks)) => blocks.iter().filter(is_media).cloned().collect(),
            Some(Content::Text(_)) | None => vec![],
        }
    }

    /// Returns one of the public fields; see [`State::values`].
    pub fn value(&self, name: &str) -> Option<Cow<'_, Value>> {
        match name {
            "messages" => serde_json::to_value(&self.messages).ok().map(Cow::Owned),
            "files" => serde_json::to_value(&self.files).ok().map(Cow::Owned),
            name if self.hides(name) => None,
            name => self.fields.get(name).map(Cow::Borrowed),
        }
    }

    /// Returns the public fields as one JSON object, which clients call the *values* of a thread.
    pub fn values(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(values)) => values,
            Ok(_) | Err(_) => Map::new(),
        }
    }
}

impl Serialize for State {
    /// Serialises the public fields: `messages`, `files`, then the others by name.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("messages", &self.messages)?;
        map.serialize_entry("files", &self.files)?;
        for (name, value) in self.fields.iter().filter(|(name, _)| !self.hides(name)) {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests;
