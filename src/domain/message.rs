//! Messages of a thread, tool calls and their results.
//!
//! A message has one form everywhere: the dictionary that LangChain clients read and write (`type`, `content`,
//! `tool_calls`, …). It is stored in that form, so no field gets lost.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::json_size::{fields_size, value_size};

/// One message of a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The content.
    #[serde(default)]
    pub content: Content,
    /// Additional fields of the provider, which a client may send and expects to read back.
    #[serde(default)]
    pub additional_kwargs: Map<String, Value>,
    /// The provider's metadata of an answer (finish reason, model name).
    #[serde(default)]
    pub response_metadata: Map<String, Value>,
    /// The author, with the fields that only messages of this author have.
    #[serde(flatten)]
    pub role: Role,
    /// The name of the agent or tool.
    #[serde(default)]
    pub name: Option<String>,
    /// The id, unique within the thread. A message with a known id replaces the older one.
    #[serde(default)]
    pub id: Option<String>,
}

/// The author of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Role {
    /// A human, or a parent agent that delegates to a subagent.
    Human,
    /// Instructions.
    System,
    /// The model.
    Ai {
        /// Calls whose arguments are a JSON object.
        #[serde(default)]
        tool_calls: Vec<ToolCall>,
        /// Calls whose arguments could not be parsed.
        #[serde(default)]
        invalid_tool_calls: Vec<InvalidToolCall>,
        /// Token counts: `input_tokens`, `output_tokens`, `total_tokens` and their details.
        #[serde(default)]
        usage_metadata: Option<Value>,
    },
    /// The result of a tool call.
    Tool {
        /// The id of the call.
        tool_call_id: String,
        /// Output for programs, which the model does not receive.
        #[serde(default)]
        artifact: Option<Value>,
        /// True if the call succeeded.
        #[serde(default)]
        status: ToolStatus,
    },
    /// A removal, only valid in an update: the message with this id is deleted (`__remove_all__`: all messages before
    /// it).
    Remove,
}

impl Role {
    /// Returns the `type` of a message of this author.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Human => "human",
            Self::System => "system",
            Self::Ai { .. } => "ai",
            Self::Tool { .. } => "tool",
            Self::Remove => "remove",
        }
    }
}

/// The status of a tool result, as the model reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolStatus {
    /// The call succeeded.
    #[default]
    Success,
    /// The call failed; the content gives the reason.
    Error,
}

/// A tool call of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The name of the tool.
    pub name: String,
    /// The arguments, by name.
    #[serde(default)]
    pub args: Map<String, Value>,
    /// The id that the provider gave to the call.
    pub id: String,
    /// Always `tool_call`.
    #[serde(rename = "type", default = "tool_call")]
    pub kind: String,
}

fn tool_call() -> String {
    ToolCall::KIND.to_owned()
}

impl ToolCall {
    /// The `type` of a call.
    pub const KIND: &'static str = "tool_call";

    /// Creates a call of the tool `name`.
    pub fn new(id: impl Into<String>, name: impl Into<String>, args: Map<String, Value>) -> Self {
        Self {
            name: name.into(),
            args,
            id: id.into(),
            kind: tool_call(),
        }
    }

    /// Returns the text of an argument without blanks around it. It is empty if there is none, or if it is no text.
    pub fn text_argument(&self, name: &str) -> &str {
        self.args.get(name).and_then(Value::as_str).unwrap_or_default().trim()
    }
}

/// A call whose arguments are not the JSON text of an object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InvalidToolCall {
    /// The name of the tool, if it could be read.
    pub name: Option<String>,
    /// The arguments as text.
    pub args: Option<String>,
    /// The id that the provider gave to the call.
    pub id: Option<String>,
    /// The error.
    pub error: Option<String>,
    /// Always `invalid_tool_call`.
    #[serde(rename = "type", default = "invalid_tool_call")]
    pub kind: String,
}

fn invalid_tool_call() -> String {
    "invalid_tool_call".to_owned()
}

/// The content of a message: plain text, or blocks (`{"type": "text", …}`, images, files, reasoning).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Content blocks, as they were received.
    Blocks(Vec<Value>),
}

impl Default for Content {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl Content {
    /// Returns the text parts, joined.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Blocks(blocks) => blocks.iter().filter_map(block_text).collect(),
        }
    }

    /// Returns the length of the text parts, in bytes.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Blocks(blocks) => blocks.iter().filter_map(block_text).map(str::len).sum(),
        }
    }

    /// Returns the content with another text. Blocks that are not text stay, after it.
    pub fn with_text(&self, text: String) -> Self {
        match self {
            Self::Text(_) => Self::Text(text),
            Self::Blocks(blocks) => {
                let is_other = |block: &&Value| block_text(block).is_none_or(str::is_empty);
                let others = blocks.iter().filter(is_other).cloned();
                let text = json!({"type": "text", "text": text});
                Self::Blocks(std::iter::once(text).chain(others).collect())
            }
        }
    }
}

/// Returns the text of a block: a bare string or a `text` block; none for other blocks.
fn block_text(block: &Value) -> Option<&str> {
    match block {
        Value::String(text) => Some(text),
        Value::Object(fields) => match fields.get("type").and_then(Value::as_str) {
            Some("text" | "input_text" | "output_text") | None => fields.get("text")?.as_str(),
            Some(_) => None,
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// The id of a removal that deletes every message before it.
pub const REMOVE_ALL: &str = "__remove_all__";

/// The key in the `additional_kwargs` of a message under which LangChain's clients find what has written it, unless a client
/// or a model has.
pub const SOURCE: &str = "lc_source";

/// The size added for each message beside its texts: its id, name and role.
const MESSAGE_BYTES: usize = 64;

impl Message {
    /// Returns the first block of a human's message for which `reason` returns an error, with its index and the error.
    pub fn unsupported(&self, reason: impl Fn(&Value) -> Option<String>) -> Option<(usize, String)> {
        let Content::Blocks(blocks) = &self.content else {
            return None;
        };
        if self.role != Role::Human {
            return None;
        }
        blocks
            .iter()
            .enumerate()
            .find_map(|(at, block)| Some((at, reason(block)?)))
    }

    /// Creates a message of `role` with no other field set.
    pub fn new(role: Role, content: impl Into<Content>) -> Self {
        Self {
            content: content.into(),
            additional_kwargs: Map::new(),
            response_metadata: Map::new(),
            role,
            name: None,
            id: None,
        }
    }

    /// Creates a human's message.
    pub fn human(content: impl Into<Content>) -> Self {
        Self::new(Role::Human, content)
    }

    /// Creates a model's message without calls.
    pub fn ai(content: impl Into<Content>) -> Self {
        Self::new(
            Role::Ai {
                tool_calls: vec![],
                invalid_tool_calls: vec![],
                usage_metadata: None,
            },
            content,
        )
    }

    /// Creates a model's message with these calls.
    pub fn calling(calls: impl IntoIterator<Item = ToolCall>) -> Self {
        let tool_calls = calls.into_iter().collect();
        Self::new(
            Role::Ai {
                tool_calls,
                invalid_tool_calls: vec![],
                usage_metadata: None,
            },
            "",
        )
    }

    /// Creates the result of `call`, as the model reads it.
    pub fn tool(call: &ToolCall, status: ToolStatus, content: impl Into<Content>) -> Self {
        let role = Role::Tool {
            tool_call_id: call.id.clone(),
            artifact: None,
            status,
        };
        Self {
            name: Some(call.name.clone()),
            ..Self::new(role, content)
        }
    }

    /// Returns the message with this id.
    pub fn with_id(self, id: impl Into<String>) -> Self {
        Self {
            id: Some(id.into()),
            ..self
        }
    }

    /// Returns what has written the message, unless a client or a model has.
    pub fn source(&self) -> Option<&str> {
        self.additional_kwargs.get(SOURCE).and_then(Value::as_str)
    }

    /// Marks the message with what has written it.
    pub fn set_source(&mut self, source: &str) {
        self.additional_kwargs
            .insert(SOURCE.to_owned(), Value::String(source.to_owned()));
    }

    /// Returns the calls of a model's message; none for other roles.
    pub fn tool_calls(&self) -> &[ToolCall] {
        match &self.role {
            Role::Ai { tool_calls, .. } => tool_calls,
            Role::Human | Role::System | Role::Tool { .. } | Role::Remove => &[],
        }
    }

    /// Returns the invalid calls of a model's message; none for other roles.
    pub fn invalid_tool_calls(&self) -> &[InvalidToolCall] {
        match &self.role {
            Role::Ai { invalid_tool_calls, .. } => invalid_tool_calls,
            Role::Human | Role::System | Role::Tool { .. } | Role::Remove => &[],
        }
    }

    /// Returns whether this is the error result of a call.
    pub fn is_error_result(&self) -> bool {
        matches!(
            self.role,
            Role::Tool {
                status: ToolStatus::Error,
                ..
            }
        )
    }

    /// Returns the id of the call that a tool's message answers.
    pub fn answers(&self) -> Option<&str> {
        match &self.role {
            Role::Tool { tool_call_id, .. } => Some(tool_call_id),
            Role::Human | Role::System | Role::Ai { .. } | Role::Remove => None,
        }
    }

    /// Returns the size, in bytes, counted as [`value_size`] does: what is stored is slightly longer.
    pub fn size(&self) -> usize {
        let content = match &self.content {
            Content::Text(text) => text.len(),
            Content::Blocks(blocks) => blocks.iter().map(value_size).sum(),
        };
        let role_size = match &self.role {
            Role::Ai {
                tool_calls,
                invalid_tool_calls,
                usage_metadata: _,
            } => {
                let calls: usize = tool_calls
                    .iter()
                    .map(|call| MESSAGE_BYTES + fields_size(&call.args))
                    .sum();
                let unread = invalid_tool_calls
                    .iter()
                    .map(|call| call.args.as_ref().map_or(0, String::len));
                calls + unread.sum::<usize>()
            }
            Role::Tool { artifact, .. } => artifact.as_ref().map_or(0, value_size),
            Role::Human | Role::System | Role::Remove => 0,
        };
        let metadata = fields_size(&self.additional_kwargs) + fields_size(&self.response_metadata);
        MESSAGE_BYTES + content + role_size + metadata
    }

    /// Returns whether the author is the model.
    pub fn is_ai(&self) -> bool {
        matches!(self.role, Role::Ai { .. })
    }

    /// Returns whether the author is a human.
    pub fn is_human(&self) -> bool {
        matches!(self.role, Role::Human)
    }
}

/// Returns the ids of the calls that have results among these messages.
pub fn answered_calls<'a>(messages: impl IntoIterator<Item = &'a Arc<Message>>) -> HashSet<&'a str> {
    messages.into_iter().filter_map(|message| message.answers()).collect()
}
