//! The `tools.json` beside an `agent.json`: tools with the URLs of their MCP servers, and which of them need
//! approval.
//!
//! Each URL becomes a server of the folder's agent alone, unless an `mcp.json` beside it declares one. Other settings
//! of the server, such as headers, come from the configured server with the same URL, if there is one.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::config::folder::entry::FolderEntry;
use crate::config::folder::{Search, servers};
use crate::config::problem::Positions;
use crate::definition::FieldPath;
use crate::definition::words::address_problem;
use crate::domain::text_limits::first_chars;

/// The maximum length of a generated server name.
const MAX_NAME_CHARS: usize = 32;

/// Adds the tools of the file to the settings of an agent. Without the file, a folder has no such tools.
pub(in crate::config::folder) fn read(
    search: &mut Search<'_>,
    file: &FolderEntry,
    prefix: &FieldPath,
    into: &mut Map<String, Value>,
) -> Option<()> {
    let mut object = search.object(file)?;
    let mut servers_of_tools = ToolServers::of(into);
    let mut names = vec![];
    match object.shift_remove("tools") {
        Some(Value::Array(tools)) => {
            for (at, tool) in tools.iter().enumerate() {
                names.extend(servers_of_tools.tool(search, file, at, tool));
            }
        }
        Some(_) | None => search.report_error(file, "tools", "must be a list"),
    }
    let rules = match object.shift_remove("interrupt_config") {
        None => Map::new(),
        Some(Value::Object(config)) => servers_of_tools.rules(search, file, config),
        Some(_) => {
            search.report_error(file, "interrupt_config", "must be a table");
            Map::new()
        }
    };
    for key in object.keys() {
        search.report_error(file, key, "unknown key; allowed are: tools, interrupt_config");
    }
    for (name, url) in servers_of_tools.found {
        servers::add(search, file, &name, json!({"url": url}), into);
        search.add_origin(file, &prefix.then("mcp_servers").then(name.as_str()), Positions::new());
    }
    let mut listed = Map::from_iter([("tools".to_owned(), Value::Array(names))]);
    if !rules.is_empty() {
        listed.insert("interrupt_on".to_owned(), Value::Object(rules));
    }
    search.add(file, listed, &Positions::new(), into);
    search.add_origin(file, &prefix.then("tools"), Positions::new());
    Some(())
}

/// The servers of the tools.
struct ToolServers {
    /// The names of the servers, by URL.
    names: BTreeMap<String, String>,
    /// The servers that only this file declares, in its order.
    found: Vec<(String, String)>,
}

impl ToolServers {
    /// Collects the servers that an agent has already.
    fn of(settings: &Map<String, Value>) -> Self {
        let servers = settings
            .get("mcp_servers")
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        let known =
            servers.filter_map(|(name, server)| Some((canonical_url(server.get("url")?.as_str()?), name.clone())));
        Self {
            names: known.collect(),
            found: vec![],
        }
    }

    /// Converts a tool to its name in definitions.
    fn tool(&mut self, search: &mut Search<'_>, file: &FolderEntry, at: usize, tool: &Value) -> Option<Value> {
        let word = |key: &str| {
            tool.get(key)
                .and_then(Value::as_str)
                .filter(|text| !text.trim().is_empty())
        };
        let Some((name, url)) = word("name").zip(word("mcp_server_url")) else {
            search.report_error(
                file,
                &format!("tools[{at}]"),
                "must have a `name` and an `mcp_server_url`",
            );
            return None;
        };
        if let Some(problem) = address_problem(url) {
            search.report_error(file, &format!("tools[{at}].mcp_server_url"), &problem);
            return None;
        }
        let server = match self.names.get(&canonical_url(url)) {
            Some(server) => server.clone(),
            None => {
                let server = self.free_name(word("mcp_server_name"), url);
                self.names.insert(canonical_url(url), server.clone());
                self.found.push((server.clone(), url.to_owned()));
                server
            }
        };
        Some(format!("{server}/{name}").into())
    }

    /// Returns an unused name for the server at a URL, derived from the given name or the host.
    fn free_name(&self, called: Option<&str>, url: &str) -> String {
        let host = url::Url::parse(url)
            .ok()
            .and_then(|url| url.host_str().map(str::to_owned))
            .unwrap_or_default();
        let mut name = String::new();
        for c in called.unwrap_or(&host).chars() {
            let c = if c.is_ascii_alphanumeric() { c } else { '-' };
            if c != '-' || !(name.is_empty() || name.ends_with('-')) {
                name.push(c);
            }
        }
        name.truncate(MAX_NAME_CHARS);
        let name = name.trim_end_matches('-');
        if !name.is_empty() && self.names.values().all(|taken| taken != name) {
            return name.to_owned();
        }
        let mark = hex::encode(&Sha256::digest(url)[..4]);
        let kept = first_chars(name, MAX_NAME_CHARS - mark.len() - 1);
        format!("{kept}-{mark}").trim_start_matches('-').to_owned()
    }

    /// Converts the approval rules, which the file names by server URL and tool.
    fn rules(&self, search: &mut Search<'_>, file: &FolderEntry, config: Map<String, Value>) -> Map<String, Value> {
        let mut rules = Map::new();
        for (key, rule) in config {
            let field = format!("interrupt_config.{key}");
            let Some((url, rest)) = split(&key) else {
                search.report_error(file, &field, "must be `<server url>::<tool>`");
                continue;
            };
            let tool = rest.split("::").next().unwrap_or(rest);
            match self.names.get(&canonical_url(url)) {
                Some(server) => drop(rules.insert(format!("{server}/{tool}"), rule)),
                // A rule that needs no approval may name an unknown tool.
                None if rule == Value::Bool(false) => {}
                None => search.report_error(file, &field, "names a server of which no tool is listed"),
            }
        }
        // Rules that need no approval are not needed.
        rules.retain(|_, rule| *rule != Value::Bool(false));
        rules
    }
}

/// Splits `<server url>::<tool>`; the host of a URL may contain two colons, too.
fn split(key: &str) -> Option<(&str, &str)> {
    let path = key.find("://").map_or(0, |at| at + 3);
    let path = path + key[path..].find(['/', ']']).unwrap_or(0);
    let (before, tool) = key[path..].split_once("::").filter(|(_, tool)| !tool.is_empty())?;
    Some((&key[..path + before.len()], tool))
}

/// Returns a URL in canonical form.
fn canonical_url(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
}
