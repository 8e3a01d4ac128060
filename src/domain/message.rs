//! What is said on a thread: messages, tool calls and their results.
//!
//! A message has one form everywhere: the dictionary that the field's clients read and write (`type`, `content`,
//! `tool_calls`, …). It is stored as it is shown, so nothing is lost on the way between the two.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message of a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// What was said.
    #[serde(default)]
    pub content: Content,
    /// Provider extras that a client may send and expects back.
    #[serde(default)]
    pub additional_kwargs: Map<String, Value>,
    /// What the provider told about its answer (finish reason, model name).
    #[serde(default)]
    pub response_metadata: Map<String, Value>,
    /// Who speaks, and what only that kind of speaker says.
    #[serde(flatten)]
    pub role: Role,
    /// The agent's or tool's name.
    #[serde(default)]
    pub name: Option<String>,
    /// Identifies the message within its thread; a message with a known id replaces the older one.
    #[serde(default)]
    pub id: Option<String>,
}

/// Who speaks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Role {
    /// A person, or a parent agent speaking to its subagent.
    Human,
    /// Instructions.
    System,
    /// The model.
    Ai {
        /// Calls whose arguments are a JSON object.
        #[serde(default)]
        tool_calls: Vec<ToolCall>,
        /// Calls whose arguments could not be read.
        #[serde(default)]
        invalid_tool_calls: Vec<InvalidToolCall>,
        /// Tokens, as `input_tokens`, `output_tokens`, `total_tokens` and their details.
        #[serde(default)]
        usage_metadata: Option<Value>,
    },
    /// The result of a call.
    Tool {
        /// The call this answers.
        tool_call_id: String,
        /// What the tool returned for programs, not for the model.
        #[serde(default)]
        artifact: Option<Value>,
        /// Whether the call did what it should.
        #[serde(default)]
        status: ToolStatus,
    },
    /// Not a message but a mark in an update: the message of this id goes away (`__remove_all__`: all before it).
    Remove,
}

/// How a call ended, as the model is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolStatus {
    /// It did what it should.
    #[default]
    Success,
    /// It did not; the content says why.
    Error,
}

/// A tool call of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// Its arguments, by name.
    #[serde(default)]
    pub args: Map<String, Value>,
    /// The provider's id of the call.
    pub id: String,
    /// Always `tool_call`.
    #[serde(rename = "type", default = "tool_call")]
    pub kind: String,
}

fn tool_call() -> String {
    "tool_call".to_owned()
}

impl ToolCall {
    /// A call of `name`.
    pub fn new(id: impl Into<String>, name: impl Into<String>, args: Map<String, Value>) -> Self {
        Self {
            name: name.into(),
            args,
            id: id.into(),
            kind: tool_call(),
        }
    }
}

/// A call whose arguments the model spelled so badly that they are no JSON object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InvalidToolCall {
    /// The tool, when it could be read.
    pub name: Option<String>,
    /// The arguments as text.
    pub args: Option<String>,
    /// The provider's id of the call.
    pub id: Option<String>,
    /// What is wrong.
    pub error: Option<String>,
    /// Always `invalid_tool_call`.
    #[serde(rename = "type", default = "invalid_tool_call")]
    pub kind: String,
}

fn invalid_tool_call() -> String {
    "invalid_tool_call".to_owned()
}

/// What a message says: plain text, or blocks (`{"type": "text", …}`, images, files, reasoning).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Content blocks, kept as they came.
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
    /// The text parts, joined.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Blocks(blocks) => blocks.iter().filter_map(block_text).collect(),
        }
    }
}

/// The text of a block: a bare string or a `text` block; other kinds have none.
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

/// The id under which a removal takes away every message before it.
pub const REMOVE_ALL: &str = "__remove_all__";

impl Message {
    /// The first block of what a human said for which there is a reason why it cannot be used, with that reason.
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

    /// A message of `role` with nothing else set.
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

    /// A human's message.
    pub fn human(content: impl Into<Content>) -> Self {
        Self::new(Role::Human, content)
    }

    /// A model's message without calls.
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

    /// A model's message that makes these calls.
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

    /// The result of `call`, as the model reads it.
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

    /// The same message under an id.
    pub fn with_id(self, id: impl Into<String>) -> Self {
        Self {
            id: Some(id.into()),
            ..self
        }
    }

    /// The calls of a model's message; none for the others.
    pub fn tool_calls(&self) -> &[ToolCall] {
        match &self.role {
            Role::Ai { tool_calls, .. } => tool_calls,
            Role::Human | Role::System | Role::Tool { .. } | Role::Remove => &[],
        }
    }

    /// The unreadable calls of a model's message; none for the others.
    pub fn invalid_tool_calls(&self) -> &[InvalidToolCall] {
        match &self.role {
            Role::Ai { invalid_tool_calls, .. } => invalid_tool_calls,
            Role::Human | Role::System | Role::Tool { .. } | Role::Remove => &[],
        }
    }

    /// The call that a tool's message answers.
    pub fn answers(&self) -> Option<&str> {
        match &self.role {
            Role::Tool { tool_call_id, .. } => Some(tool_call_id),
            Role::Human | Role::System | Role::Ai { .. } | Role::Remove => None,
        }
    }

    /// Whether the model said this.
    pub fn is_ai(&self) -> bool {
        matches!(self.role, Role::Ai { .. })
    }

    /// Whether a human said this.
    pub fn is_human(&self) -> bool {
        matches!(self.role, Role::Human)
    }
}
