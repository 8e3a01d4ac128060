//! Tools as their owners declare them.

#[cfg(test)]
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Headers, ReadAccess};

/// A tool that agents can name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ToolDefinition {
    /// The kind: behind HTTP, or in the server itself.
    pub kind: ToolKind,
    /// The description for the model. A built-in tool has its own.
    pub description: String,
    /// The address of a tool behind HTTP.
    pub url: String,
    /// The name of a built-in tool: `lookup` or `publish`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub builtin: Option<String>,
    /// JSON Schema of the arguments, an object schema. A built-in tool has its own.
    pub parameters: Value,
    /// Headers sent with every call. They may hold secrets and are never printed.
    #[cfg_attr(test, schemars(with = "BTreeMap<String, String>"))]
    pub headers: Headers,
    /// Seconds to wait for an answer.
    pub timeout_s: f64,
    /// The maximum number of times that a call of a tool behind HTTP is repeated if the tool cannot be reached or is busy
    /// (status 429, 502, 503 or 504). At most 10; all attempts together take no longer than `timeout_s`.
    pub max_retries: u32,
    /// The handling of a call that was started before a crash.
    pub after_crash: AfterCrash,
    /// The effect of an error on the run.
    pub on_error: OnError,
    /// The parts of its run that each call of a tool behind HTTP may read, with a token of its own: fields of the state,
    /// files and namespaces of the Store. Nothing when absent.
    #[serde(skip_serializing_if = "ReadAccess::is_empty")]
    pub read_access: ReadAccess,
}

impl Default for ToolDefinition {
    fn default() -> Self {
        Self {
            kind: ToolKind::default(),
            description: String::new(),
            url: String::new(),
            builtin: None,
            parameters: Value::Null,
            headers: Headers::default(),
            timeout_s: 30.0,
            max_retries: 0,
            after_crash: AfterCrash::default(),
            on_error: OnError::default(),
            read_access: ReadAccess::default(),
        }
    }
}

/// The tools that come with the server and can be declared with `kind = "builtin"`. They need no network.
pub const BUILT_IN: [&str; 2] = ["lookup", "publish"];

/// The kind of a declared tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// Behind HTTP.
    #[default]
    Http,
    /// In the server itself.
    Builtin,
}

/// The handling of a call that was started before a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AfterCrash {
    /// Call again with the same idempotency key.
    Repeat,
    /// Ask a human. The default: a tool behind HTTP may have effects.
    #[default]
    Ask,
    /// Tell the model that it failed.
    Fail,
}

/// The effect of an error of a tool on the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The model reads it as an error result.
    #[default]
    Report,
    /// The run ends.
    FailRun,
}
