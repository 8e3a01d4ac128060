//! Servers of the Model Context Protocol, and how their tools are named.
//!
//! Definitions name a tool as `server/tool`, and all tools of a server as `server/*`. Models know it under a name that
//! every provider takes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::check::{address_problem, is_word};
use super::finding::{FieldPath, Finding, suggestion};
use super::{AfterCrash, Headers, OnError};

/// The longest name of a tool that every provider takes.
const LONGEST_NAME: usize = 64;
/// The longest name of a server: it leaves room for that of the tool.
const LONGEST_SERVER: usize = 32;
/// The longest time-out, in seconds.
const LONGEST_TIMEOUT_S: f64 = 86_400.0;

/// An MCP server, as its owner describes it: a program that is started, or an address.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct McpServerDefinition {
    /// The program that is the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment, beside what every program needs. Values may be secrets and are never printed.
    pub env: BTreeMap<String, String>,
    /// The address of a server behind HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Headers sent with every request.
    #[serde(skip_serializing_if = "Headers::is_empty")]
    pub headers: Headers,
    /// Seconds to wait for the result of a call.
    pub timeout_s: f64,
    /// Seconds to wait until the server is there and has told its tools.
    pub start_timeout_s: f64,
    /// What to do about a call that was begun before a crash.
    pub after_crash: AfterCrash,
    /// What an error of one of its tools means for the run.
    pub on_error: OnError,
}

impl Default for McpServerDefinition {
    fn default() -> Self {
        Self {
            command: None,
            args: vec![],
            env: BTreeMap::new(),
            url: None,
            headers: Headers::default(),
            timeout_s: 30.0,
            start_timeout_s: 10.0,
            after_crash: AfterCrash::default(),
            on_error: OnError::default(),
        }
    }
}

impl fmt::Debug for McpServerDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpServerDefinition")
            .field("command", &self.command)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("url", &self.url)
            .field("after_crash", &self.after_crash)
            .field("on_error", &self.on_error)
            .finish_non_exhaustive()
    }
}

impl McpServerDefinition {
    /// What makes no sense. The fields of the findings are relative to it.
    pub fn check(&self, name: &str) -> Vec<Finding> {
        let top = FieldPath::default();
        let mut findings = vec![];
        let mut wrong = |field: FieldPath, message: String| findings.push(Finding::error(field, message));
        if !is_word(name, LONGEST_SERVER, "") || name.contains("__") {
            let allowed = format!("1 to {LONGEST_SERVER} letters, digits, `-` or single `_`");
            wrong(top.clone(), format!("the server name `{name}` must be {allowed}"));
        }
        match (&self.command, &self.url) {
            (None, None) => wrong(top.then("command"), "must be given, or `url`: where the server is".to_owned()),
            (Some(_), Some(_)) => {
                wrong(top.then("url"), "goes without `command` only: it is one or the other".to_owned());
            }
            (Some(command), None) => {
                if command.trim().is_empty() {
                    wrong(top.then("command"), "must not be blank".to_owned());
                }
                if !self.headers.is_empty() {
                    wrong(top.then("headers"), "goes with `url` only".to_owned());
                }
            }
            (None, Some(url)) => {
                address_problem(url).into_iter().for_each(|problem| wrong(top.then("url"), problem));
                if !self.args.is_empty() {
                    wrong(top.then("args"), "goes with `command` only".to_owned());
                }
                if !self.env.is_empty() {
                    wrong(top.then("env"), "goes with `command` only".to_owned());
                }
            }
        }
        for name in self.env.keys().filter(|name| !is_word(name, 256, "")) {
            wrong(top.then("env").then(name), "is no name of an environment variable".to_owned());
        }
        for (field, seconds) in [("timeout_s", self.timeout_s), ("start_timeout_s", self.start_timeout_s)] {
            if !(seconds > 0.0 && seconds <= LONGEST_TIMEOUT_S) {
                wrong(top.then(field), format!("must be more than 0 and at most {LONGEST_TIMEOUT_S} seconds"));
            }
        }
        findings.extend(self.headers.check(&top.then("headers")));
        findings
    }
}

/// What stands for one tool of a server, or for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct McpReference<'a> {
    /// The server.
    pub server: &'a str,
    /// The tool; none for all.
    pub tool: Option<&'a str>,
}

impl<'a> McpReference<'a> {
    /// Reads `server/tool` and `server/*`. None when it is the name of another tool.
    pub fn read(name: &'a str) -> Option<Self> {
        let (server, tool) = name.split_once('/')?;
        Some(Self { server, tool: (tool != "*").then_some(tool) })
    }

    /// The name under which models know it; for all tools of a server what their names begin with, and `*`.
    pub fn model_name(self) -> String {
        match self.tool {
            Some(tool) => model_name(self.server, tool),
            None => format!("{}__*", self.server),
        }
    }

    /// What is wrong with it, in view of the servers that there are.
    pub(super) fn problem(self, servers: &BTreeSet<String>) -> Option<String> {
        if self.tool == Some("") {
            return Some(format!("must be `{0}/tool`, or `{0}/*` for all tools of the server", self.server));
        }
        let known = || suggestion(self.server, servers.iter().map(String::as_str), "there are");
        (!servers.contains(self.server)).then(|| format!("there is no MCP server `{}`; {}", self.server, known()))
    }
}

/// The name under which models know a tool of an MCP server: `server__tool`. What providers do not take becomes `_`, and
/// then, or if it is too long, a part of a digest of the full name tells it from others.
pub fn model_name(server: &str, tool: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    let name = format!("{server}__{}", tool.chars().map(plain).collect::<String>());
    if name.len() <= LONGEST_NAME && name.ends_with(tool) {
        return name;
    }
    let digest = Sha256::digest(format!("{server}/{tool}"));
    let mark: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let kept: String = name.chars().take(LONGEST_NAME - mark.len() - 1).collect();
    format!("{kept}_{mark}")
}

/// The name under which models know the tool of this name in a definition.
pub fn named(name: &str) -> String {
    McpReference::read(name).map_or_else(|| name.to_owned(), McpReference::model_name)
}

/// The keys of rules about tools, as models name them.
pub fn by_model_name<T: Clone>(rules: &BTreeMap<String, T>) -> BTreeMap<String, T> {
    rules.iter().map(|(name, rule)| (named(name), rule.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_get_names_that_every_provider_takes() {
        assert_eq!(model_name("docs", "search_all"), "docs__search_all");
        let odd =
            [model_name("docs", "read.file"), model_name("docs", "read/file"), model_name("docs", &"x".repeat(90))];
        for name in &odd {
            assert!(is_word(name, LONGEST_NAME, "") && name.starts_with("docs__"), "{name}");
        }
        assert_ne!(odd[0], odd[1], "two tools never get one name");
    }

    #[test]
    fn references_name_one_tool_or_all() {
        assert_eq!(McpReference::read("docs/a/b"), Some(McpReference { server: "docs", tool: Some("a/b") }));
        assert_eq!(McpReference::read("docs/*").map(McpReference::model_name), Some("docs__*".to_owned()));
        assert_eq!(McpReference::read("lookup"), None);
        let servers = ["docs".to_owned()].into_iter().collect();
        let problem = |name| McpReference::read(name).and_then(|reference| reference.problem(&servers));
        assert_eq!(problem("docs/*"), None);
        assert_eq!(
            problem("doc/*"),
            Some("there is no MCP server `doc`; did you mean `docs`? there are: docs".to_owned())
        );
        assert!(problem("docs/").is_some_and(|problem| problem.starts_with("must be `docs/tool`")));
    }

    #[test]
    fn a_server_is_a_program_or_an_address() {
        let findings = |server: &McpServerDefinition, name| -> Vec<String> {
            server.check(name).iter().map(ToString::to_string).collect()
        };
        let program = McpServerDefinition { command: Some("docs".to_owned()), ..Default::default() };
        assert_eq!(findings(&program, "docs"), [""; 0]);
        let both = McpServerDefinition { url: Some("http://x".to_owned()), timeout_s: 0.0, ..program };
        assert_eq!(findings(&both, "a__b").len(), 3);
        assert_eq!(
            findings(&McpServerDefinition::default(), "docs")[0],
            "command: must be given, or `url`: where the server is"
        );
    }
}
