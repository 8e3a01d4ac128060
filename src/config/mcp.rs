//! MCP servers, those for all agents and those of single ones: secrets come from the environment, where the text says
//! `${NAME}` or `${NAME:-otherwise}`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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

/// Puts the values of variables where the definitions of servers name them. What is not set is told.
///
/// A server of an agent that has nothing but an address is the configured one at that address, if there is one: with
/// its headers, for example.
pub(super) fn fill_in(config: &mut Config) -> Vec<Diagnostic> {
    let mut findings = vec![];
    for (name, server) in &mut config.mcp_servers {
        findings.extend(fill(&FieldPath::of(["mcp_servers", name.as_str()]), server));
    }
    let configured: Vec<McpServerDefinition> = config.mcp_servers.values().cloned().collect();
    for (graph_id, agent) in &mut config.agents {
        let top = FieldPath::of(["agents", graph_id.as_str()]);
        for (field, server) in agent.servers_mut() {
            findings.extend(fill(&top.join(&field), server));
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

fn fill(top: &FieldPath, server: &mut McpServerDefinition) -> Vec<Diagnostic> {
    let mut findings = vec![];
    let mut fill = |field: FieldPath, text: &mut String| match filled(text, variable) {
        Ok(filled) => *text = filled,
        Err(problem) => findings.push(Diagnostic::error(field, problem)),
    };
    for (field, text) in [
        ("command", &mut server.command),
        ("url", &mut server.url),
        ("cwd", &mut server.cwd),
    ] {
        text.iter_mut().for_each(|text| fill(top.then(field), text));
    }
    for (at, arg) in server.args.iter_mut().enumerate() {
        fill(top.then("args").then(at), arg);
    }
    for (key, value) in &mut server.env {
        fill(top.then("env").then(key), value);
    }
    for (key, value) in &mut server.headers.0 {
        fill(top.then("headers").then(key), value);
    }
    findings
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

/// The programs of servers that cannot be found. That is no mistake of the configuration, and the server says so again
/// when it starts one, but who only checks would not hear of it.
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

/// The text with the values of the variables that it names.
fn filled(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((inside, after)) = after.split_once('}') else {
            break;
        };
        let (name, otherwise) = inside
            .split_once(":-")
            .map_or((inside, None), |(name, otherwise)| (name, Some(otherwise)));
        let value = variable(name).or_else(|| otherwise.map(str::to_owned));
        filled.push_str(before);
        filled.push_str(&value.ok_or_else(|| format!("the environment variable {name} is not set"))?);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_by_their_values() {
        let fill = |text| filled(text, |name| (name == "KEY").then(|| "s3cret".to_owned()));
        assert_eq!(fill("Bearer ${KEY}!"), Ok("Bearer s3cret!".to_owned()));
        assert_eq!(fill("${NONE:-x}${KEY} $KEY ${"), Ok("xs3cret $KEY ${".to_owned()));
        assert_eq!(
            fill("${NONE}"),
            Err("the environment variable NONE is not set".to_owned())
        );
    }
}
