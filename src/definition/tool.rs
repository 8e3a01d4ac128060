//! Tools as their owners declare them.

#[cfg(test)]
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::builtins::is_policy_tool;
use super::diagnostic::{Diagnostic, FieldPath, suggestion};
use super::headers::check_headers;
use super::read_access::check_read_access;
use super::schema::check_object_schema;
use super::words::{LONGEST_TIMEOUT_S, address_problem, is_word, timeout_problem};
use crate::domain::headers::Headers;
use crate::domain::read_access::ReadAccess;

/// The maximum of `max_retries`.
pub const MOST_RETRIES: u32 = 10;

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

impl ToolDefinition {
    /// Checks the definition. The fields of the diagnostics are relative to it.
    pub fn check(&self, name: &str) -> Vec<Diagnostic> {
        let top = FieldPath::default();
        let mut findings: Vec<Diagnostic> = tool_name_problem(name)
            .map(|message| Diagnostic::error(top.clone(), message))
            .into_iter()
            .collect();
        match self.kind {
            ToolKind::Http => findings.extend(self.check_http()),
            ToolKind::Builtin => findings.extend(self.check_built_in()),
        }
        let mut error = |name: &str, message: String| findings.push(Diagnostic::error(top.then(name), message));
        if self.max_retries > MOST_RETRIES {
            error("max_retries", format!("must be at most {MOST_RETRIES}"));
        } else if self.max_retries > 0 && self.kind != ToolKind::Http {
            error("max_retries", "goes with `kind = \"http\"` only".to_owned());
        }
        if !self.read_access.is_empty() && self.kind != ToolKind::Http {
            error("read_access", "goes with `kind = \"http\"` only".to_owned());
        }
        findings.extend(check_read_access(&top.then("read_access"), &self.read_access));
        let timeout = timeout_problem(self.timeout_s, LONGEST_TIMEOUT_S);
        findings.extend(timeout.map(|problem| Diagnostic::error(top.then("timeout_s"), problem)));
        findings
    }

    /// Checks a tool behind HTTP.
    fn check_http(&self) -> Vec<Diagnostic> {
        let top = FieldPath::default();
        let mut findings = vec![];
        let mut error = |name: &str, message: String| findings.push(Diagnostic::error(top.then(name), message));
        if self.description.trim().is_empty() {
            error("description", "must be given: the model chooses by it".to_owned());
        }
        if self.url.is_empty() {
            error("url", "must be given: the address that is called".to_owned());
        } else if let Some(problem) = address_problem(&self.url) {
            error("url", problem);
        }
        if self.builtin.is_some() {
            error("builtin", "goes with `kind = \"builtin\"` only".to_owned());
        }
        if self.parameters.is_null() {
            error(
                "parameters",
                "must be given: the JSON Schema of the arguments".to_owned(),
            );
        } else {
            findings.extend(check_object_schema(&top.then("parameters"), &self.parameters));
        }
        findings.extend(check_headers(&top.then("headers"), &self.headers));
        findings
    }

    /// Checks a tool that comes with the server.
    fn check_built_in(&self) -> Vec<Diagnostic> {
        let top = FieldPath::default();
        let mut findings = vec![];
        let mut error = |name: &str, message: String| findings.push(Diagnostic::error(top.then(name), message));
        match self.builtin.as_deref() {
            None => error("builtin", format!("must be given: one of {}", BUILT_IN.join(", "))),
            Some(name) if !BUILT_IN.contains(&name) => {
                let known = suggestion(name, BUILT_IN, "there are");
                error("builtin", format!("there is no built-in tool `{name}`; {known}"));
            }
            Some(_) => {}
        }
        if !self.url.is_empty() {
            error("url", "goes with `kind = \"http\"` only".to_owned());
        }
        if !self.headers.is_empty() {
            error("headers", "goes with `kind = \"http\"` only".to_owned());
        }
        if !self.parameters.is_null() {
            findings.extend(check_object_schema(&top.then("parameters"), &self.parameters));
        }
        findings
    }
}

/// Returns the reason why no declared tool can have this name.
pub fn tool_name_problem(name: &str) -> Option<String> {
    if !is_word(name, 64, "") {
        return Some(format!(
            "the tool name `{name}` must be 1 to 64 of A-Z, a-z, 0-9, `_` and `-`"
        ));
    }
    is_policy_tool(name).then(|| format!("the name `{name}` belongs to a tool of the server; choose another"))
}
