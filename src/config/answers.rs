//! The `[answers]` section of the configuration file, and its validation.

use std::time::Duration;

use serde::Deserialize;

use super::sections::seconds;
use crate::definition::words::timeout_problem;

/// `[answers]`: limits of the size and pace of responses from models, tools, MCP servers and remote agents. Tools and
/// MCP servers also have a `timeout_s` for the whole response.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AnswersSection {
    /// The maximum time from a request to the first piece of a model's answer, in seconds. Models that reason for a
    /// long time before they answer need more.
    pub first_token_s: f64,
    /// The maximum time between two pieces of a model's answer, in seconds.
    pub between_tokens_s: f64,
    /// The maximum time from a call to the first byte of the response, for tools behind HTTP, MCP servers and remote
    /// agents, in seconds. A call to an MCP server behind HTTP without a handshake has its `timeout_s` for that.
    pub first_byte_s: f64,
    /// The maximum time between two pieces of such a response, in seconds.
    pub between_bytes_s: f64,
    /// The maximum size of a model's answer, in bytes: text, reasoning and arguments of calls.
    pub max_model_bytes: usize,
    /// The maximum size of a line or event in a model's answer or in the stream of a remote agent's run, in bytes.
    pub max_line_bytes: usize,
    /// The maximum number of bytes that are read of a model provider's error response.
    pub max_error_bytes: usize,
    /// The maximum size of a response of a tool behind HTTP, in bytes.
    pub max_tool_bytes: usize,
    /// The maximum size of a message of an MCP server, in bytes.
    pub max_mcp_bytes: usize,
    /// The maximum size of a response of a remote agent's server, in bytes.
    pub max_remote_agent_bytes: usize,
    /// The maximum size of a remote agent's stream for one turn, in bytes.
    pub max_remote_stream_bytes: usize,
}

impl Default for AnswersSection {
    fn default() -> Self {
        Self {
            first_token_s: 120.0,
            between_tokens_s: 120.0,
            first_byte_s: 120.0,
            between_bytes_s: 120.0,
            max_model_bytes: 8 * 1024 * 1024,
            max_line_bytes: 8 * 1024 * 1024,
            max_error_bytes: 1024 * 1024,
            max_tool_bytes: 8 * 1024 * 1024,
            max_mcp_bytes: 8 * 1024 * 1024,
            max_remote_agent_bytes: 16 * 1024 * 1024,
            max_remote_stream_bytes: 512 * 1024 * 1024,
        }
    }
}

impl AnswersSection {
    /// Returns [`AnswersSection::first_token_s`] as a duration.
    pub fn first_token(&self) -> Duration {
        seconds(self.first_token_s)
    }

    /// Returns [`AnswersSection::between_tokens_s`] as a duration.
    pub fn between_tokens(&self) -> Duration {
        seconds(self.between_tokens_s)
    }

    /// Returns [`AnswersSection::first_byte_s`] as a duration.
    pub fn first_byte(&self) -> Duration {
        seconds(self.first_byte_s)
    }

    /// Returns [`AnswersSection::between_bytes_s`] as a duration.
    pub fn between_bytes(&self) -> Duration {
        seconds(self.between_bytes_s)
    }

    /// Returns the invalid fields, each with the reason.
    pub(super) fn problems(&self) -> Vec<(Vec<&str>, String)> {
        let times = [
            ("first_token_s", self.first_token_s),
            ("between_tokens_s", self.between_tokens_s),
            ("first_byte_s", self.first_byte_s),
            ("between_bytes_s", self.between_bytes_s),
        ];
        let wrong_times = times
            .into_iter()
            .filter_map(|(field, given)| Some((vec![field], timeout_problem(given, 86_400.0)?)));
        let sizes = [
            ("max_model_bytes", self.max_model_bytes),
            ("max_line_bytes", self.max_line_bytes),
            ("max_error_bytes", self.max_error_bytes),
            ("max_tool_bytes", self.max_tool_bytes),
            ("max_mcp_bytes", self.max_mcp_bytes),
            ("max_remote_agent_bytes", self.max_remote_agent_bytes),
            ("max_remote_stream_bytes", self.max_remote_stream_bytes),
        ];
        let wrong_sizes = sizes.into_iter().filter(|(_, given)| *given == 0);
        let wrong_sizes =
            wrong_sizes.map(|(field, _)| (vec![field], "must be a whole number of at least 1".to_owned()));
        wrong_times.chain(wrong_sizes).collect()
    }
}
