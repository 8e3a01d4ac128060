//! Servers of the Model Context Protocol, and the names of the tools of servers.
//!
//! Definitions name a tool as `server/tool`, and all tools of a server as `server/*`. Models know it under a name that
//! every provider takes.
//!
//! `names` has these names, `filter` the lists of tools that are offered, and `oauth` the access tokens.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::diagnostic::{Diagnostic, FieldPath, errors_of_given};
use super::headers::check_headers;
use super::read_access::check_read_access;
use super::tool::{AfterCrash, OnError};
use super::words::{LONGEST_TIMEOUT_S, address_problem, is_word, timeout_problem};
use crate::domain::headers::Headers;
use crate::domain::loopback::is_protected;
use crate::domain::read_access::ReadAccess;

mod filter;
mod names;
mod oauth;

pub use filter::McpFilter;
pub(super) use filter::filter_problems;
pub(super) use names::{LONGEST_NAME, before_digest};
pub use names::{McpReference, ToolNames, by_model_name, model_name, model_tool_name};
pub use oauth::{ClientAuthentication, McpOAuth, OAuthGrant};

/// The longest name of a server: it leaves room for that of the tool.
const LONGEST_SERVER: usize = 32;
/// The maximum number of servers of one agent.
const MOST_SERVERS: usize = 32;

/// The transport of a server behind HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum McpTransport {
    /// One POST for each message, with the answer in its response.
    #[default]
    Http,
    /// The older transport: one stream of events for all answers, which names the address for messages.
    Sse,
}

/// An MCP server: a program that is started, or an address.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct McpServerDefinition {
    /// The program that is the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment, beside what every program needs. Values may be secrets and are never printed.
    pub env: BTreeMap<String, String>,
    /// The folder in which it runs, relative to the file that names it; that of adjutant when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The address of a server behind HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Headers sent with every request.
    #[serde(skip_serializing_if = "Headers::is_empty")]
    #[cfg_attr(test, schemars(with = "BTreeMap<String, String>"))]
    pub headers: Headers,
    /// The access tokens, if the server requires OAuth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth: Option<McpOAuth>,
    /// The transport over HTTP.
    pub transport: McpTransport,
    /// The tools that are offered, as names or patterns; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
    /// The tools that are not offered, as names or patterns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disabled_tools: Vec<String>,
    /// Seconds to wait for the result of a call.
    pub timeout_s: f64,
    /// Seconds to wait until the server is connected and has listed its tools.
    pub start_timeout_s: f64,
    /// True if the server is connected when adjutant starts, and not only when an agent that has its tools first runs.
    pub connect_at_start: bool,
    /// True if the runs of agents that have its tools fail while it has never listed them. With false they go on without
    /// these tools until it has.
    pub required: bool,
    /// The handling of a call that was started before a crash.
    pub after_crash: AfterCrash,
    /// The effect of an error of one of its tools on the run.
    pub on_error: OnError,
    /// True if the server may ask humans in the middle of a call.
    pub elicitation: bool,
    /// True if connections always begin with a handshake, also where the server needs none.
    pub handshake: bool,
    /// The parts of its run that each call may read, with a token of its own: fields of the state, files and namespaces of
    /// the Store. Nothing when absent.
    #[serde(skip_serializing_if = "ReadAccess::is_empty")]
    pub read_access: ReadAccess,
}

impl Default for McpServerDefinition {
    fn default() -> Self {
        Self {
            command: None,
            args: vec![],
            env: BTreeMap::new(),
            url: None,
            cwd: None,
            headers: Headers::default(),
            oauth: None,
            transport: McpTransport::default(),
            allowed_tools: None,
            disabled_tools: vec![],
            timeout_s: 30.0,
            start_timeout_s: 10.0,
            connect_at_start: false,
            required: true,
            after_crash: AfterCrash::default(),
            on_error: OnError::default(),
            elicitation: false,
            handshake: false,
            read_access: ReadAccess::default(),
        }
    }
}

impl fmt::Debug for McpServerDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpServerDefinition")
            .field("command", &self.command)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("has_url", &self.url.is_some())
            .field("after_crash", &self.after_crash)
            .field("on_error", &self.on_error)
            .finish_non_exhaustive()
    }
}

impl McpServerDefinition {
    /// Checks the definition. The fields of the diagnostics are relative to it.
    pub fn check(&self, name: &str) -> Vec<Diagnostic> {
        let top = FieldPath::default();
        let mut findings = vec![];
        let mut wrong = |field: FieldPath, message: String| findings.push(Diagnostic::error(field, message));
        if let Some(problem) = server_name_problem(name) {
            wrong(top.clone(), problem);
        }
        findings.extend(self.check_place());
        let mut wrong = |field: FieldPath, message: String| findings.push(Diagnostic::error(field, message));
        for name in self.env.keys().filter(|name| !is_word(name, 256, "")) {
            wrong(
                top.then("env").then(name),
                "is no name of an environment variable".to_owned(),
            );
        }
        for (field, seconds) in [("timeout_s", self.timeout_s), ("start_timeout_s", self.start_timeout_s)] {
            if let Some(problem) = timeout_problem(seconds, LONGEST_TIMEOUT_S) {
                wrong(top.then(field), problem);
            }
        }
        findings.extend(check_headers(&top.then("headers"), &self.headers));
        if let Some(oauth) = &self.oauth {
            findings.extend(
                oauth
                    .check()
                    .into_iter()
                    .map(|finding| finding.under(&top.then("oauth"))),
            );
            if self
                .headers
                .0
                .keys()
                .any(|name| name.eq_ignore_ascii_case("authorization"))
            {
                let message = "goes without the header `authorization`, which is the token";
                findings.push(Diagnostic::error(top.then("oauth"), message));
            }
            if self.needs_login() && self.url.as_deref().is_some_and(is_unencrypted_elsewhere) {
                let message = "must begin with https://, unless it names this machine: a login is worth stealing";
                findings.push(Diagnostic::error(top.then("url"), message));
            }
        }
        findings.extend(check_read_access(&top.then("read_access"), &self.read_access));
        findings.extend(filter_problems(self.allowed_tools.as_deref(), &self.disabled_tools));
        findings
    }

    /// Returns whether an operator has to log in before the server can be used.
    pub fn needs_login(&self) -> bool {
        let oauth = self.oauth.as_ref();
        oauth.is_some_and(|oauth| oauth.grant == OAuthGrant::AuthorizationCode)
    }

    /// Checks the program or the address.
    fn check_place(&self) -> Vec<Diagnostic> {
        let top = FieldPath::default();
        let only_with =
            |word: &str, fields: [(&str, bool); 3]| errors_of_given(&top, fields, &format!("goes with `{word}` only"));
        match (&self.command, &self.url) {
            (None, None) => vec![Diagnostic::error(
                top.then("command"),
                "must be given, or `url`: where the server is",
            )],
            (Some(_), Some(_)) => {
                vec![Diagnostic::error(
                    top.then("url"),
                    "goes without `command` only: it is one or the other",
                )]
            }
            (Some(command), None) => {
                let has_transport = self.transport != McpTransport::default();
                let given = [
                    ("headers", !self.headers.is_empty()),
                    ("oauth", self.oauth.is_some()),
                    ("transport", has_transport),
                ];
                let mut findings = only_with("url", given);
                if command.trim().is_empty() {
                    findings.push(Diagnostic::error(top.then("command"), "must not be blank"));
                }
                findings
            }
            (None, Some(url)) => {
                let given = [
                    ("args", !self.args.is_empty()),
                    ("env", !self.env.is_empty()),
                    ("cwd", self.cwd.is_some()),
                ];
                let mut findings = only_with("command", given);
                findings.extend(address_problem(url).map(|problem| Diagnostic::error(top.then("url"), problem)));
                findings
            }
        }
    }
}

/// Returns whether an address is one without encryption on another machine.
fn is_unencrypted_elsewhere(address: &str) -> bool {
    url::Url::parse(address).is_ok_and(|url| url.scheme() == "http" && !is_protected(&url))
}

/// Returns the reason why a server cannot have this name.
pub(super) fn server_name_problem(name: &str) -> Option<String> {
    let is_right = is_word(name, LONGEST_SERVER, "") && !name.contains("__");
    let allowed = format!("1 to {LONGEST_SERVER} letters, digits, `-` or single `_`");
    (!is_right).then(|| format!("the server name `{name}` must be {allowed}"))
}

/// Checks the servers in `field`.
pub(super) fn check_servers(field: &FieldPath, servers: &BTreeMap<String, McpServerDefinition>) -> Vec<Diagnostic> {
    let mut findings = vec![];
    if servers.len() > MOST_SERVERS {
        findings.push(Diagnostic::error(
            field.clone(),
            format!("has more than {MOST_SERVERS} servers"),
        ));
    }
    for (name, server) in servers {
        findings.extend(
            server
                .check(name)
                .into_iter()
                .map(|finding| finding.under(&field.then(name.as_str()))),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_program_or_an_address() {
        let findings = |server: &McpServerDefinition, name| -> Vec<String> {
            server.check(name).iter().map(ToString::to_string).collect()
        };
        let program = McpServerDefinition {
            command: Some("docs".to_owned()),
            ..Default::default()
        };
        assert_eq!(findings(&program, "docs"), [""; 0]);
        let both = McpServerDefinition {
            url: Some("http://x".to_owned()),
            timeout_s: 0.0,
            ..program
        };
        assert_eq!(findings(&both, "a__b").len(), 3);
        assert_eq!(
            findings(&McpServerDefinition::default(), "docs")[0],
            "command: must be given, or `url`: where the server is"
        );
    }
}
