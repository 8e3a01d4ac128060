//! MCP servers, those for all agents and those of single ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::secrets::References;
use super::{Config, variable};
use crate::definition::mcp::McpServerDefinition;
use crate::definition::{Diagnostic, FieldPath};

/// The environment variables of the server that every program sees which it starts. The others are none of its
/// business.
const INHERITED: [&str; 12] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TMPDIR",
    "TZ",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// The environment of every program that is started.
pub fn inherited() -> BTreeMap<String, String> {
    INHERITED
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), variable(name)?)))
        .collect()
}

/// Replaces the references in the definitions of servers. Returns what is wrong with them.
///
/// A server of an agent that has nothing but an address is the configured one at that address, if there is one: with
/// its headers, for example.
pub(super) fn fill_in(config: &mut Config, references: &mut References<'_>) -> Vec<Diagnostic> {
    let mut findings = vec![];
    for (name, server) in &mut config.mcp_servers {
        let field = FieldPath::of(["mcp_servers", name.as_str()]);
        fill(&field, server, references, &mut findings);
    }
    for (name, server) in &mut config.tool_servers {
        let field = FieldPath::of(["tool_servers", name.as_str()]);
        references.fill(field.then("url"), &mut server.url, &mut findings);
        references.fill_headers(&field.then("headers"), &mut server.headers, &mut findings);
    }
    let configured: Vec<McpServerDefinition> = config.mcp_servers.values().cloned().collect();
    for (graph_id, agent) in &mut config.agents {
        let top = FieldPath::of(["agents", graph_id.as_str()]);
        for (field, server) in agent.servers_mut() {
            fill(&top.join(&field), server, references, &mut findings);
            let bare = McpServerDefinition {
                url: server.url.clone(),
                ..McpServerDefinition::default()
            };
            let twin = configured
                .iter()
                .find(|other| other.url.is_some() && other.url == server.url);
            if let Some(twin) = twin.filter(|_| *server == bare) {
                server.clone_from(twin);
            }
        }
    }
    findings
}

fn fill(
    top: &FieldPath,
    server: &mut McpServerDefinition,
    references: &mut References<'_>,
    findings: &mut Vec<Diagnostic>,
) {
    for (field, text) in [
        ("command", &mut server.command),
        ("url", &mut server.url),
        ("cwd", &mut server.cwd),
    ] {
        if let Some(text) = text {
            references.fill(top.then(field), text, findings);
        }
    }
    for (at, arg) in server.args.iter_mut().enumerate() {
        references.fill(top.then("args").then(at), arg, findings);
    }
    for (key, value) in &mut server.env {
        references.fill(top.then("env").then(key), value, findings);
    }
    references.fill_headers(&top.then("headers"), &mut server.headers, findings);
    if let Some(oauth) = &mut server.oauth {
        let field = top.then("oauth");
        references.fill(field.then("client_id"), &mut oauth.client_id, findings);
        references.fill(field.then("client_secret"), &mut oauth.client_secret.0, findings);
        if let Some(url) = &mut oauth.token_url {
            references.fill(field.then("token_url"), url, findings);
        }
    }
}

/// Puts the folder in which a server runs, relative to `folder` until now, in its place.
pub(super) fn settle(field: &FieldPath, server: &mut McpServerDefinition, folder: &Path) -> Option<Diagnostic> {
    let named = server.cwd.as_mut()?;
    let place = folder.join(&*named);
    if !place.is_dir() {
        return Some(Diagnostic::error(field.then("cwd"), format!("`{named}` is no folder")));
    }
    // A program that is started elsewhere would not find a relative one.
    *named = std::path::absolute(&place).unwrap_or(place).display().to_string();
    None
}

/// Returns warnings about programs of MCP servers that cannot be found. A missing program is no error of the
/// configuration. The server reports it again when it starts the program, but a check does not start any.
pub(super) fn missing_programs(config: &mut Config) -> Vec<Diagnostic> {
    let all = config
        .mcp_servers
        .iter()
        .map(|(name, server)| (FieldPath::of(["mcp_servers", name.as_str()]), server));
    let mut findings: Vec<Diagnostic> = all
        .filter_map(|(field, server)| missing_program(&field, server))
        .collect();
    for (graph_id, agent) in &mut config.agents {
        let top = FieldPath::of(["agents", graph_id.as_str()]);
        findings.extend(
            agent
                .servers_mut()
                .filter_map(|(at, server)| missing_program(&top.join(&at), server)),
        );
    }
    findings
}

fn missing_program(field: &FieldPath, server: &McpServerDefinition) -> Option<Diagnostic> {
    let command = Path::new(server.command.as_ref()?);
    let path = server
        .env
        .get("PATH")
        .cloned()
        .or_else(|| variable("PATH"))
        .unwrap_or_default();
    let is_missing = |folder: PathBuf| !folder.join(command).is_file();
    let message = match command.components().count() {
        _ if command.is_absolute() => (!command.is_file()).then_some("there is no such program"),
        1 => std::env::split_paths(&path).all(is_missing).then_some("is not in PATH"),
        // In which folder a relative path begins depends on the system.
        _ => None,
    };
    message.map(|message| Diagnostic::warning(field.then("command"), format!("`{}`: {message}", command.display())))
}
