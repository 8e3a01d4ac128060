//! Commands to a thread's stream on the wire, and what is answered to them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::Object;
use crate::http::error::ErrorBody;

/// A command to a thread.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ThreadCommand {
    /// The client's number for it; the answer repeats it.
    pub id: i64,
    /// `run.start`, `input.respond`, `agent.getTree`, or on a socket `subscription.subscribe`,
    /// `subscription.unsubscribe`, `subscription.reconnect`.
    pub method: String,
    /// What the method wants to know.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub params: Value,
}

/// What is answered to a command: `success` with a result, or `error` with a code. Both come with status 200.
#[derive(Debug, Serialize, ToSchema)]
pub struct CommandAnswer {
    /// `success` or `error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The number of the command; of what is no command, whatever stood there.
    pub id: Value,
    /// What came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub result: Option<Value>,
    /// Why nothing came of it: invalid_argument, unknown_command, no_such_run, no_such_interrupt, no_such_subscription,
    /// resume_gap, unknown_error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'static str>,
    /// The same for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `applied_through_seq`: what is caused by the command has higher numbers than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub meta: Option<Value>,
    /// More about the error.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub more: Object,
}

/// What is answered to what is no command: an answer that repeats its `id`, or when it is no JSON an error like any other.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum InvalidCommand {
    /// It is JSON.
    Answer(Box<CommandAnswer>),
    /// It is none.
    Error(ErrorBody),
}

/// Why a command was not obeyed.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandError {
    /// For programs.
    pub code: &'static str,
    /// For people.
    pub message: String,
    /// What else is said about it.
    pub more: Object,
}

impl CommandError {
    /// A refusal that says no more than this.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            more: Object::new(),
        }
    }

    /// A parameter is wrong.
    pub fn argument(message: impl Into<String>) -> Self {
        Self::new("invalid_argument", message)
    }
}

impl CommandAnswer {
    /// The command was obeyed.
    pub fn success(id: Value, result: Value, seq: Option<i64>) -> Self {
        let meta = seq.map(|seq| json!({"applied_through_seq": seq}));
        Self {
            kind: "success",
            id,
            result: Some(result),
            error: None,
            message: None,
            meta,
            more: Object::new(),
        }
    }

    /// It was not.
    pub fn refusal(id: Value, refusal: CommandError) -> Self {
        let CommandError { code, message, more } = refusal;
        Self {
            kind: "error",
            id,
            result: None,
            error: Some(code),
            message: Some(message),
            meta: None,
            more,
        }
    }
}

impl ThreadCommand {
    /// Reads a command.
    ///
    /// # Errors
    /// The answer to what is none.
    pub fn read(value: &Value) -> Result<Self, Box<CommandAnswer>> {
        let id = value.get("id").cloned().unwrap_or_default();
        match (id.as_i64(), value.get("method").and_then(Value::as_str)) {
            (Some(id), Some(method)) => {
                let params = value.get("params").cloned().unwrap_or_default();
                Ok(Self {
                    id,
                    method: method.to_owned(),
                    params,
                })
            }
            _ => {
                let text = "Protocol commands must include an integer id and string method.";
                Err(Box::new(CommandAnswer::refusal(id, CommandError::argument(text))))
            }
        }
    }
}

/// What a client wants to see of a thread.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ThreadStreamRequest {
    /// values, updates, messages, tools, lifecycle, input, checkpoints, tasks, custom, or `custom:<name>`.
    #[schema(example = json!(["values", "messages", "lifecycle"]))]
    pub channels: Vec<String>,
    /// Only agents at or below one of these places; a segment without `:` stands for all of that name.
    pub namespaces: Option<Vec<Vec<String>>>,
    /// How far below those places.
    #[schema(minimum = 0)]
    pub depth: Option<i64>,
    /// Only events with a higher number.
    #[schema(minimum = 0)]
    pub since: Option<i64>,
}
