//! Commands of a thread's stream and their results on the wire.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::Object;
use crate::http::error::ErrorBody;

/// A command to a thread.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ThreadCommand {
    /// The client's id of the command; the result repeats it.
    pub id: i64,
    /// The method: `run.start`, `input.respond`, `agent.getTree`; on a WebSocket also `subscription.subscribe`,
    /// `subscription.unsubscribe`, `subscription.reconnect`.
    pub method: String,
    /// The parameters of the method.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub params: Value,
}

/// The result of a command: `success` with a result, or `error` with a code. Both have status 200.
#[derive(Debug, Serialize, ToSchema)]
pub struct CommandAnswer {
    /// The kind of the result: `success` or `error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The id of the command. For an invalid command, the value that was sent.
    pub id: Value,
    /// The result of a command that succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub result: Option<Value>,
    /// The error code of a command that failed: invalid_argument, unknown_command, no_such_run, no_such_interrupt,
    /// no_such_subscription, resume_gap, unknown_error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'static str>,
    /// The error in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `applied_through_seq`: events caused by the command have higher sequence numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub meta: Option<Value>,
    /// More details of the error.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub more: Object,
}

/// The response to an invalid command: a result that repeats its `id`, or an error body if it is not JSON.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum InvalidCommand {
    /// The body is JSON.
    Answer(Box<CommandAnswer>),
    /// The body is not JSON.
    Error(ErrorBody),
}

/// An error of a command.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandError {
    /// The stable error code.
    pub code: &'static str,
    /// The error in words.
    pub message: String,
    /// More details of the error.
    pub more: Object,
}

impl CommandError {
    /// Creates an error without details.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            more: Object::new(),
        }
    }

    /// Creates the error for an invalid parameter.
    pub fn argument(message: impl Into<String>) -> Self {
        Self::new("invalid_argument", message)
    }
}

impl CommandAnswer {
    /// The result of a command that succeeded.
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

    /// The result of a command that failed.
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
    /// Returns the response to an invalid command.
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

/// A subscription to the events of a thread.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ThreadStreamRequest {
    /// The channels: values, updates, messages, tools, lifecycle, input, checkpoints, tasks, custom, or
    /// `custom:<name>`.
    #[schema(example = json!(["values", "messages", "lifecycle"]))]
    pub channels: Vec<String>,
    /// The namespaces whose agents, and those below them, are included. A segment without `:` matches all of that name.
    pub namespaces: Option<Vec<Vec<String>>>,
    /// The maximum depth below the namespaces.
    #[schema(minimum = 0)]
    pub depth: Option<i64>,
    /// The sequence number after which events are sent.
    #[schema(minimum = 0)]
    pub since: Option<i64>,
}
