//! Servers of tools: those of the Model Context Protocol and services behind HTTP, and the names of their tools.
//!
//! Definitions name a tool as `server/tool`, and all tools of a server as `server/*`. Models know it under a name that
//! every provider takes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use super::mcp_oauth::{ClientAuthentication, McpOAuth, OAuthGrant};

use super::diagnostic::{Diagnostic, FieldPath, suggestion};
use super::read_access::check_read_access;
use super::words::{address_problem, is_word};
use super::{AfterCrash, AgentDefinition, Headers, OnError, ReadAccess, ToolServerDefinition, check_headers};
use crate::domain::loopback::is_protected;
use crate::domain::text_limits::first_chars;

/// The longest name of a tool that every provider takes.
pub(super) const LONGEST_NAME: usize = 64;
/// The part of a digest that is in the name of a tool, in bytes.
const DIGEST_BYTES: usize = 4;
/// The longest name of a server: it leaves room for that of the tool.
const LONGEST_SERVER: usize = 32;
/// The longest pattern of names of tools, in bytes.
const LONGEST_PATTERN: usize = 256;
/// The maximum number of servers of one agent.
const MOST_SERVERS: usize = 32;
/// The longest time-out, in seconds.
pub(super) const LONGEST_TIMEOUT_S: f64 = 86_400.0;

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
            if !(seconds > 0.0 && seconds <= LONGEST_TIMEOUT_S) {
                wrong(
                    top.then(field),
                    format!("must be more than 0 and at most {LONGEST_TIMEOUT_S} seconds"),
                );
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
        let only_with = |word: &str, given: &[(&str, bool)]| {
            let given = given.iter().filter(|(_, is_given)| *is_given);
            given
                .map(|(field, _)| Diagnostic::error(top.then(*field), format!("goes with `{word}` only")))
                .collect()
        };
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
                let mut findings: Vec<Diagnostic> = only_with("url", &given);
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
                let mut findings: Vec<Diagnostic> = only_with("command", &given);
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

/// Checks the lists of tools of a server. The fields of the diagnostics are relative to its definition.
pub(super) fn filter_problems(allowed_tools: Option<&[String]>, disabled_tools: &[String]) -> Vec<Diagnostic> {
    let top = FieldPath::default();
    let mut findings = vec![];
    let allowed = allowed_tools.unwrap_or_default();
    for (field, patterns) in [("allowed_tools", allowed), ("disabled_tools", disabled_tools)] {
        let wrong = patterns
            .iter()
            .enumerate()
            .filter_map(|(at, text)| Some((at, pattern(text).err()?)));
        findings.extend(wrong.map(|(at, why)| Diagnostic::error(top.then(field).then(at), why)));
    }
    if allowed_tools.is_some() && !disabled_tools.is_empty() {
        findings.push(Diagnostic::error(
            top.then("disabled_tools"),
            "goes without `allowed_tools` only",
        ));
    }
    findings
}

/// A server of tools of either kind.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerDefinition {
    /// A server of the Model Context Protocol.
    Mcp(Box<McpServerDefinition>),
    /// A service behind HTTP that describes its tools itself.
    Http(Box<ToolServerDefinition>),
}

impl From<McpServerDefinition> for ServerDefinition {
    fn from(definition: McpServerDefinition) -> Self {
        Self::Mcp(Box::new(definition))
    }
}

impl From<ToolServerDefinition> for ServerDefinition {
    fn from(definition: ToolServerDefinition) -> Self {
        Self::Http(Box::new(definition))
    }
}

impl ServerDefinition {
    /// Returns the address of a server behind HTTP; empty for a program.
    pub fn url(&self) -> &str {
        match self {
            Self::Mcp(server) => server.url.as_deref().unwrap_or_default(),
            Self::Http(server) => &server.url,
        }
    }

    /// Returns whether an operator has to log in before the server can be used.
    pub fn needs_login(&self) -> bool {
        match self {
            Self::Mcp(server) => server.needs_login(),
            Self::Http(_) => false,
        }
    }

    /// Returns the headers of its requests.
    pub fn headers(&self) -> &Headers {
        match self {
            Self::Mcp(server) => &server.headers,
            Self::Http(server) => &server.headers,
        }
    }

    /// Returns the definition with other headers.
    #[must_use]
    pub fn with_headers(mut self, headers: Headers) -> Self {
        match &mut self {
            Self::Mcp(server) => server.headers = headers,
            Self::Http(server) => server.headers = headers,
        }
        self
    }
}

/// The filter of a server's tools.
#[derive(Debug, Clone)]
pub struct McpFilter {
    allowed: Option<GlobSet>,
    disabled: GlobSet,
}

impl McpFilter {
    /// Returns the filter of the lists of a definition. Invalid patterns were refused when the definition was read.
    pub fn of(allowed_tools: Option<&[String]>, disabled_tools: &[String]) -> Self {
        let set = |patterns: &[String]| {
            let mut set = GlobSetBuilder::new();
            for glob in patterns.iter().filter_map(|text| pattern(text).ok()) {
                set.add(glob);
            }
            set.build().unwrap_or_default()
        };
        Self {
            allowed: allowed_tools.map(set),
            disabled: set(disabled_tools),
        }
    }

    /// Returns whether the filter allows the tool of this name. Patterns may name it with its server, too.
    pub fn allows(&self, server: &str, tool: &str) -> bool {
        let names = [tool.to_owned(), format!("{server}_{tool}"), model_name(server, tool)];
        let is_in = |set: &GlobSet| names.iter().any(|name| set.is_match(name));
        self.allowed.as_ref().is_none_or(is_in) && !is_in(&self.disabled)
    }
}

/// Compiles a pattern of names: `*` is any text, `?` a character, `[…]` one of some.
fn pattern(text: &str) -> Result<Glob, String> {
    let glob = GlobBuilder::new(text)
        .backslash_escape(false)
        .build()
        .ok()
        .filter(|_| text.len() <= LONGEST_PATTERN);
    glob.filter(|_| !text.trim().is_empty())
        .ok_or_else(|| format!("`{text}` is neither a name nor a pattern"))
}

/// The owner of a server. Only the owner, and its subagents, can name the server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum McpOwner {
    /// The configuration; all agents can name it.
    #[default]
    Everyone,
    /// The agent with this `graph_id`.
    Agent(String),
    /// A subagent of the agent with this `graph_id`.
    Subagent(String, String),
}

impl McpOwner {
    /// Returns the name under which operators find a server of this owner: `name`, `agent/name` or `agent/subagent/name`.
    pub fn label(&self, name: &str) -> String {
        match self {
            Self::Everyone => name.to_owned(),
            Self::Agent(agent) => format!("{agent}/{name}"),
            Self::Subagent(agent, subagent) => format!("{agent}/{subagent}/{name}"),
        }
    }

    /// Returns the owners whose servers this owner can name, in the order in which a server is looked up.
    pub fn lookup_order(&self) -> Vec<Self> {
        let mut all = vec![self.clone()];
        if let Self::Subagent(agent, _) = self {
            all.push(Self::Agent(agent.clone()));
        }
        if *self != Self::Everyone {
            all.push(Self::Everyone);
        }
        all
    }
}

/// Servers, by owner and name.
pub type OwnedServers = BTreeMap<(McpOwner, String), ServerDefinition>;

impl AgentDefinition {
    /// Returns the servers of the agent of this `graph_id` and of its subagents.
    pub fn own_servers(&self, graph_id: &str) -> OwnedServers {
        let mut servers = OwnedServers::new();
        let agent = McpOwner::Agent(graph_id.to_owned());
        servers.extend(
            self.mcp_servers
                .iter()
                .map(|(name, server)| ((agent.clone(), name.clone()), server.clone().into())),
        );
        for subagent in &self.subagents {
            let owner = McpOwner::Subagent(graph_id.to_owned(), subagent.name.clone());
            let own = subagent.mcp_servers.iter();
            servers.extend(own.map(|(name, server)| ((owner.clone(), name.clone()), server.clone().into())));
        }
        servers
    }

    /// Returns the definition without MCP servers, which may hold secrets: the part of a file that is stored.
    #[must_use]
    pub fn without_servers(&self) -> Self {
        let mut without = self.clone();
        without.mcp_servers.clear();
        without
            .subagents
            .iter_mut()
            .for_each(|subagent| subagent.mcp_servers.clear());
        without
    }

    /// Returns the servers that are defined here, with their fields.
    pub fn servers_mut(&mut self) -> impl Iterator<Item = (FieldPath, &mut McpServerDefinition)> {
        let below =
            self.subagents.iter_mut().enumerate().flat_map(|(at, subagent)| {
                with_fields(FieldPath::of(["subagents"]).then(at), &mut subagent.mcp_servers)
            });
        with_fields(FieldPath::default(), &mut self.mcp_servers).chain(below)
    }
}

/// Returns servers with their fields; `holder` is the field of their agent.
fn with_fields(
    holder: FieldPath,
    servers: &mut BTreeMap<String, McpServerDefinition>,
) -> impl Iterator<Item = (FieldPath, &mut McpServerDefinition)> {
    let list = holder.then("mcp_servers");
    servers
        .iter_mut()
        .map(move |(name, server)| (list.then(name.as_str()), server))
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

/// A reference to one tool of a server, or to all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct McpReference<'a> {
    /// The server.
    pub server: &'a str,
    /// The tool; `None` for all.
    pub tool: Option<&'a str>,
}

impl<'a> McpReference<'a> {
    /// Reads `server/tool` and `server/*`; `None` for the name of another tool.
    pub fn read(name: &'a str) -> Option<Self> {
        let (server, tool) = name.split_once('/')?;
        Some(Self {
            server,
            tool: (tool != "*").then_some(tool),
        })
    }

    /// Returns the name under which models know the tool; for all tools of a server the prefix of their names, and `*`.
    pub fn model_name(self) -> String {
        match self.tool {
            Some(tool) => model_name(self.server, tool),
            None => format!("{}__*", self.server),
        }
    }

    /// Returns the problem of a reference, given the servers that exist.
    pub(super) fn problem(self, servers: &BTreeSet<String>) -> Option<String> {
        if self.tool == Some("") {
            return Some(format!(
                "must be `{0}/tool`, or `{0}/*` for all tools of the server",
                self.server
            ));
        }
        let known = || suggestion(self.server, servers.iter().map(String::as_str), "there are");
        (!servers.contains(self.server)).then(|| format!("there is no server `{}` of tools; {}", self.server, known()))
    }
}

/// Returns the name under which models know a tool of an MCP server: `server__tool`. Characters that providers refuse
/// become `_`, and then, or if it is too long, a part of a digest of the full name tells it from others.
pub fn model_name(server: &str, tool: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') {
            c
        } else {
            '_'
        }
    };
    let name = format!("{server}__{}", tool.chars().map(plain).collect::<String>());
    if name.len() <= LONGEST_NAME && name.ends_with(tool) {
        return name;
    }
    let digest = Sha256::digest(format!("{server}/{tool}"));
    let mark = hex::encode(&digest[..DIGEST_BYTES]);
    let kept = first_chars(&name, LONGEST_NAME - mark.len() - 1);
    format!("{kept}_{mark}")
}

/// Returns the beginning of a [`model_name`] that ends with a part of a digest, which is without some characters of the name
/// that the server gave, and without its end if the whole has [`LONGEST_NAME`]; `None` for another name.
pub(super) fn before_digest(name: &str) -> Option<&str> {
    let (kept, mark) = name.rsplit_once('_')?;
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let has_mark = mark.len() == 2 * DIGEST_BYTES && mark.bytes().all(is_hex);
    (has_mark && kept.contains("__")).then_some(kept)
}

/// Returns the name under which models know the tool of this name in a definition.
pub fn model_tool_name(name: &str) -> String {
    McpReference::read(name).map_or_else(|| name.to_owned(), McpReference::model_name)
}

/// Tools by the names under which models know them: single ones, and all of a server.
#[derive(Debug, Clone, Default)]
pub struct ToolNames {
    single: BTreeSet<String>,
    /// The prefixes of the names of all tools of a server.
    starts: BTreeSet<String>,
}

impl ToolNames {
    /// Collects the tools of these names in a definition.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a String>) -> Self {
        let mut all = Self::default();
        for name in names {
            match McpReference::read(name) {
                Some(McpReference { server, tool: None }) => all.starts.insert(format!("{server}__")),
                Some(_) | None => all.single.insert(model_tool_name(name)),
            };
        }
        all
    }

    /// Returns whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.single.is_empty() && self.starts.is_empty()
    }

    /// Returns whether it contains the tool that models know under this name.
    pub fn contains(&self, name: &str) -> bool {
        self.single.contains(name) || self.starts.iter().any(|start| name.starts_with(start))
    }

    /// Returns whether a tool may be in both sets.
    pub fn overlaps(&self, others: &Self) -> bool {
        self.single.iter().any(|name| others.contains(name))
            || others.single.iter().any(|name| self.contains(name))
            || !self.starts.is_disjoint(&others.starts)
    }
}

/// Returns rules about tools by the names that models use.
pub fn by_model_name<T: Clone>(rules: &BTreeMap<String, T>) -> BTreeMap<String, T> {
    rules
        .iter()
        .map(|(name, rule)| (model_tool_name(name), rule.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_get_names_that_every_provider_takes() {
        assert_eq!(model_name("docs", "search_all"), "docs__search_all");
        let odd = [
            model_name("docs", "read.file"),
            model_name("docs", "read/file"),
            model_name("docs", &"x".repeat(90)),
        ];
        for name in &odd {
            assert!(is_word(name, LONGEST_NAME, "") && name.starts_with("docs__"), "{name}");
        }
        assert_ne!(odd[0], odd[1], "two tools never get one name");
    }

    #[test]
    fn references_name_one_tool_or_all() {
        assert_eq!(
            McpReference::read("docs/a/b"),
            Some(McpReference {
                server: "docs",
                tool: Some("a/b")
            })
        );
        assert_eq!(
            McpReference::read("docs/*").map(McpReference::model_name),
            Some("docs__*".to_owned())
        );
        assert_eq!(McpReference::read("lookup"), None);
        let servers = ["docs".to_owned()].into_iter().collect();
        let problem = |name| McpReference::read(name).and_then(|reference| reference.problem(&servers));
        assert_eq!(problem("docs/*"), None);
        assert_eq!(
            problem("doc/*"),
            Some("there is no server `doc` of tools; did you mean `docs`? there are: docs".to_owned())
        );
        assert!(problem("docs/").is_some_and(|problem| problem.starts_with("must be `docs/tool`")));
    }

    #[test]
    fn tools_are_among_those_that_are_named_singly_or_with_their_server() {
        let names = |names: &[&str]| ToolNames::of(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let some = names(&["docs/read", "web/*", "lookup"]);
        for (name, is_one) in [
            ("docs__read", true),
            ("docs__write", false),
            ("web__any", true),
            ("lookup", true),
            ("read", false),
        ] {
            assert_eq!(some.contains(name), is_one, "{name}");
        }
        for (other, meets) in [
            ("docs/*", true),
            ("docs/read", true),
            ("docs/write", false),
            ("web/x", true),
            ("web/*", true),
            ("dig", false),
        ] {
            assert_eq!(some.overlaps(&names(&[other])), meets, "{other}");
            assert_eq!(names(&[other]).overlaps(&some), meets, "{other}");
        }
        assert!(ToolNames::default().is_empty() && !some.is_empty());
    }

    #[test]
    fn a_server_may_have_fewer_tools_than_it_tells() {
        let admitted = |server: McpServerDefinition| {
            let allowed = server.allowed_tools.as_deref();
            assert_eq!(filter_problems(allowed, &server.disabled_tools), []);
            let filter = McpFilter::of(allowed, &server.disabled_tools);
            ["read_file", "read_dir", "write"]
                .into_iter()
                .filter(|tool| filter.allows("fs", tool))
                .collect::<Vec<_>>()
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        assert_eq!(admitted(McpServerDefinition::default()).len(), 3);
        let allowed = |list| McpServerDefinition {
            allowed_tools: Some(names(list)),
            ..Default::default()
        };
        assert_eq!(admitted(allowed(&["read_*"])), ["read_file", "read_dir"]);
        assert_eq!(admitted(allowed(&["fs_write", "fs__read_dir"])), ["read_dir", "write"]);
        assert_eq!(admitted(allowed(&[])), [""; 0]);
        let disabled = McpServerDefinition {
            disabled_tools: names(&["read_?i*"]),
            ..Default::default()
        };
        assert_eq!(admitted(disabled), ["write"]);
        let wrong = McpServerDefinition {
            disabled_tools: names(&["[", ""]),
            ..allowed(&["a"])
        };
        let fields: Vec<String> = filter_problems(wrong.allowed_tools.as_deref(), &wrong.disabled_tools)
            .iter()
            .map(|finding| finding.field.to_string())
            .collect();
        assert_eq!(fields, ["disabled_tools[0]", "disabled_tools[1]", "disabled_tools"]);
    }

    #[test]
    fn a_server_is_looked_for_outwards() {
        let subagent = McpOwner::Subagent("a".to_owned(), "b".to_owned());
        let agent = McpOwner::Agent("a".to_owned());
        assert_eq!(
            subagent.lookup_order(),
            [subagent.clone(), agent.clone(), McpOwner::Everyone]
        );
        assert_eq!(agent.lookup_order(), [agent.clone(), McpOwner::Everyone]);
    }

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
