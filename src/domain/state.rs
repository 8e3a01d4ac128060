//! The state of a thread and the updates that change it.
//!
//! A step never hands over a new state, it hands over what it *writes*. Writes are what is stored, streamed, and sent up
//! from a subagent; the state is their sum. Hence nothing is counted twice and deletions travel.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::field::{FieldRule, Visibility};
use super::message::{Content, Message, REMOVE_ALL, Role};
use super::time::Timestamp;

/// The fields of a thread at one point of its history. Cloning copies pointers, not texts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct State {
    /// The conversation.
    pub messages: Vec<Arc<Message>>,
    /// The files of the thread's workspace, by absolute path.
    pub files: BTreeMap<String, Arc<File>>,
    /// Every other field, by name.
    pub fields: BTreeMap<String, Value>,
    /// The rules of those fields that have any.
    pub rules: BTreeMap<String, FieldRule>,
}

/// A file in the state.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct File {
    /// The text, or base64 of the bytes.
    pub content: String,
    /// How `content` is to be read.
    #[serde(default)]
    pub encoding: Encoding,
    /// When the file was first written, ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// When it was last written, ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<String>,
}

/// How the content of a [`File`] is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Encoding {
    /// As text.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// As base64 of bytes.
    #[serde(rename = "base64")]
    Base64,
}

impl File {
    /// A text file written at `now`.
    pub fn text(content: impl Into<String>, now: Timestamp) -> Self {
        let now = now.to_string();
        Self {
            content: content.into(),
            encoding: Encoding::Utf8,
            created_at: Some(now.clone()),
            modified_at: Some(now),
        }
    }
}

/// What a step writes. Serialised, this is the delta of a checkpoint and the payload of an `updates` event.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Update {
    /// Messages to append, to replace (same id) or to remove ([`Role::Remove`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Arc<Message>>,
    /// Files written, or deleted (`None`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, Option<Arc<File>>>,
    /// The rules of those fields that have any.
    #[serde(default, rename = "_rules", skip_serializing_if = "BTreeMap::is_empty")]
    pub rules: BTreeMap<String, FieldRule>,
    /// Other fields set.
    #[serde(flatten)]
    pub fields: BTreeMap<String, Value>,
}

impl Update {
    /// Writes nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Appends `messages`.
    pub fn messages(messages: impl IntoIterator<Item = Message>) -> Self {
        Self {
            messages: messages.into_iter().map(Arc::new).collect(),
            ..Self::default()
        }
    }

    /// Sets one field.
    pub fn field(name: impl Into<String>, value: Value) -> Self {
        Self {
            fields: BTreeMap::from([(name.into(), value)]),
            ..Self::default()
        }
    }

    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.files.is_empty() && self.fields.is_empty()
    }

    /// Adds the writes of `later`; where both write the same field or path, `later` wins.
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

    /// Whether clients do not see this field of it.
    pub fn hides(&self, field: &str) -> bool {
        is_hidden(field) || self.rules.get(field).is_some_and(|rule| rule.is_hidden())
    }

    /// The same update without the fields that clients do not see.
    pub fn public(&self) -> Update {
        let mut shown = self.clone();
        shown.fields.retain(|name, _| !self.hides(name));
        shown.rules.clear();
        shown
    }

    /// Adds the rules of its fields.
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

/// Fields that belong to a policy: stored with the thread, never shown to clients, never passed to or from a subagent.
const PRIVATE: [&str; 4] = [
    "hitl_edited_tool_calls",
    "memory_contents",
    SKILLS,
    "skills_load_errors",
];

/// The private field with the skills that an agent knows. A client may take it away, so that they are looked for anew.
pub const SKILLS: &str = "skills_metadata";

/// The field with the names of skills that a client wants to be read at once. It is given and not shown again.
pub const PINNED_SKILLS: &str = "pinned_skills";

/// The private field of a subagent whose instructions were written by who delegated to it.
pub const ORDERED_PROMPT: &str = "_system_prompt";

/// Fields that clients see but that never cross between an agent and its subagents.
const NOT_SHARED: [&str; 5] = ["todos", "structured_response", PINNED_SKILLS, "rubric", "async_tasks"];

/// The private field that tells a fork that it is one.
const FORKED: &str = "_deepagents_forked_context";

/// Fields that stay with an agent although its fork has all others: what they say is about its own turn.
const NOT_FORKED: [&str; 8] = [
    "todos",
    "structured_response",
    PINNED_SKILLS,
    "rubric",
    "hitl_edited_tool_calls",
    "_summarization_event",
    "_summarization_session_id",
    "_skill_tools_disclosed",
];

/// Whether clients never see this field. A leading underscore says so, as does the list above.
pub fn is_private(field: &str) -> bool {
    field.starts_with('_') || PRIVATE.contains(&field)
}

/// Whether clients do not see this standard field: a private one, or one that they only give.
fn is_hidden(field: &str) -> bool {
    is_private(field) || field == PINNED_SKILLS
}

/// Whether this field passes between an agent and its subagents, in both directions.
pub fn crosses_to_subagents(field: &str) -> bool {
    !is_private(field) && !NOT_SHARED.contains(&field)
}

impl State {
    /// Writes `update` into the state.
    pub fn apply(&mut self, update: &Update) {
        for message in &update.messages {
            self.put(message);
        }
        for (path, file) in &update.files {
            match file {
                Some(file) => self.files.insert(path.clone(), Arc::clone(file)),
                None => self.files.remove(path),
            };
        }
        self.write(update.fields.clone(), &update.rules);
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

    /// Whether clients do not see this field.
    pub fn hides(&self, field: &str) -> bool {
        is_hidden(field) || self.rules.get(field).is_some_and(|rule| rule.is_hidden())
    }

    /// Whether this field passes between an agent and its subagents.
    pub fn shares(&self, field: &str) -> bool {
        let is_own = self
            .rules
            .get(field)
            .is_some_and(|rule| rule.visibility == Visibility::Private);
        crosses_to_subagents(field) && !is_own
    }

    /// Appends a message, replaces the one of the same id in its place, or takes one away.
    fn put(&mut self, message: &Arc<Message>) {
        let id = message.id.as_deref();
        if message.role == Role::Remove {
            match id {
                Some(REMOVE_ALL) => self.messages.clear(),
                Some(_) => self.messages.retain(|m| m.id.as_deref() != id),
                None => {}
            }
            return;
        }
        // The newest messages are the ones that get replaced.
        let same = id.and_then(|id| self.messages.iter().rposition(|m| m.id.as_deref() == Some(id)));
        match same {
            Some(at) => self.messages[at] = Arc::clone(message),
            None => self.messages.push(Arc::clone(message)),
        }
    }

    /// The fields that pass down to a subagent: everything but its conversation and what policies keep to themselves.
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

    /// The conversation as it was before the answer that is being carried out: what that answer's calls come from.
    pub fn before_last_answer(&self) -> &[Arc<Message>] {
        let end = self
            .messages
            .iter()
            .rposition(|message| message.is_ai())
            .unwrap_or(self.messages.len());
        &self.messages[..end]
    }

    /// The fields that a fork of the agent has: but for what is about the agent's own turn, all.
    pub fn fields_for_fork(&self) -> BTreeMap<String, Value> {
        let own = self
            .fields
            .iter()
            .filter(|(name, _)| !NOT_FORKED.contains(&name.as_str()));
        let mut fields: BTreeMap<String, Value> = own.map(|(name, value)| (name.clone(), value.clone())).collect();
        fields.insert(FORKED.to_owned(), Value::Bool(true));
        fields
    }

    /// The update that makes this state of an empty one.
    pub fn as_update(&self) -> Update {
        Update {
            messages: self.messages.clone(),
            files: self
                .files
                .iter()
                .map(|(path, file)| (path.clone(), Some(Arc::clone(file))))
                .collect(),
            fields: self.fields.clone(),
            rules: self.rules.clone(),
        }
    }

    /// The model's last message, if it said anything yet.
    pub fn last_ai(&self) -> Option<&Arc<Message>> {
        self.messages.iter().rev().find(|m| m.is_ai())
    }

    /// What the agent came to: its structured answer, or the last thing it said.
    pub fn conclusion(&self) -> Option<String> {
        self.conclusion_after(None)
    }

    /// The same, when what stands before the message of this id was said by somebody else.
    pub fn conclusion_after(&self, order: Option<&str>) -> Option<String> {
        let is_own = |message: &&Arc<Message>| order.is_none() || message.id.as_deref() != order;
        let said = |message: &Arc<Message>| {
            let text = message.content.text();
            (message.is_ai() && !text.trim().is_empty()).then(|| text.trim_end().to_owned())
        };
        match self.fields.get("structured_response").filter(|value| !value.is_null()) {
            Some(Value::String(text)) => Some(text.clone()),
            Some(value) => Some(value.to_string()),
            None => self.messages.iter().rev().take_while(is_own).find_map(said),
        }
    }

    /// What the agent said last that is no text: images, files.
    pub fn media(&self) -> Vec<Value> {
        let is_media = |block: &&Value| {
            let kind = block.get("type").and_then(Value::as_str);
            matches!(
                kind,
                Some("image" | "image_url" | "audio" | "input_audio" | "video" | "file")
            )
        };
        match self.last_ai().map(|message| &message.content) {
            Some(Content::Blocks(blocks)) => blocks.iter().filter(is_media).cloned().collect(),
            Some(Content::Text(_)) | None => vec![],
        }
    }

    /// One of the public fields; see [`State::values`].
    pub fn value(&self, name: &str) -> Option<Cow<'_, Value>> {
        match name {
            "messages" => serde_json::to_value(&self.messages).ok().map(Cow::Owned),
            "files" => serde_json::to_value(&self.files).ok().map(Cow::Owned),
            name if self.hides(name) => None,
            name => self.fields.get(name).map(Cow::Borrowed),
        }
    }

    /// The public fields as one JSON object: what clients call the *values* of a thread.
    pub fn values(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(values)) => values,
            Ok(_) | Err(_) => Map::new(),
        }
    }
}

impl Serialize for State {
    /// The public fields: `messages`, `files`, then the others by name.
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
