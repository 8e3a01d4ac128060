//! The `tools.json` beside an `agent.json`: tools, each with the address of the MCP server that offers it, and which of them
//! need leave.
//!
//! Each address becomes a server of the folder's agent alone, unless an `mcp.json` beside it has one there already. What else
//! such a server needs, headers for example, is said by the configured server of that address, if there is one.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::Search;
use super::entry::FolderEntry;
use super::servers;
use crate::config::problem::Positions;
use crate::definition::FieldPath;
use crate::definition::check::address_problem;

/// The longest name that a server is given.
const LONGEST_NAME: usize = 32;

/// Adds the tools of the file to the settings of an agent. A folder without the file has none of them.
pub(super) fn read(
    search: &mut Search<'_>,
    file: &FolderEntry,
    holds: &FieldPath,
    into: &mut Map<String, Value>,
) -> Option<()> {
    let mut object = search.object(file)?;
    let mut offers = Offers::of(into);
    let mut names = vec![];
    match object.shift_remove("tools") {
        Some(Value::Array(tools)) => {
            for (at, tool) in tools.iter().enumerate() {
                names.extend(offers.tool(search, file, (at, tool)));
            }
        }
        Some(_) | None => search.report_error(file, "tools", "must be a list"),
    }
    let rules = match object.shift_remove("interrupt_config") {
        None => Map::new(),
        Some(Value::Object(config)) => offers.rules(search, file, config),
        Some(_) => {
            search.report_error(file, "interrupt_config", "must be a table");
            Map::new()
        }
    };
    for key in object.keys() {
        search.report_error(file, key, "unknown key; allowed are: tools, interrupt_config");
    }
    for (name, url) in offers.found {
        servers::add(search, file, (&name, json!({"url": url})), into);
        search.note(file, &holds.then("mcp_servers").then(name.as_str()), Positions::new());
    }
    let mut listed = Map::from_iter([("tools".to_owned(), Value::Array(names))]);
    if !rules.is_empty() {
        listed.insert("interrupt_on".to_owned(), Value::Object(rules));
    }
    search.add(file, listed, &Positions::new(), into);
    search.note(file, &holds.then("tools"), Positions::new());
    Some(())
}

/// The servers that offer the tools.
struct Offers {
    /// What they are called, by their addresses.
    names: BTreeMap<String, String>,
    /// Those that only this file tells of, in its order.
    found: Vec<(String, String)>,
}

impl Offers {
    /// Those that an agent has already.
    fn of(settings: &Map<String, Value>) -> Self {
        let servers = settings
            .get("mcp_servers")
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        let known = servers.filter_map(|(name, server)| Some((plain(server.get("url")?.as_str()?), name.clone())));
        Self {
            names: known.collect(),
            found: vec![],
        }
    }

    /// One tool, as definitions name it.
    fn tool(&mut self, search: &mut Search<'_>, file: &FolderEntry, (at, tool): (usize, &Value)) -> Option<Value> {
        let word = |key: &str| {
            tool.get(key)
                .and_then(Value::as_str)
                .filter(|text| !text.trim().is_empty())
        };
        let (Some(name), Some(url)) = (word("name"), word("mcp_server_url")) else {
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
        let server = match self.names.get(&plain(url)) {
            Some(server) => server.clone(),
            None => {
                let server = self.free_name(word("mcp_server_name"), url);
                self.names.insert(plain(url), server.clone());
                self.found.push((server.clone(), url.to_owned()));
                server
            }
        };
        Some(format!("{server}/{name}").into())
    }

    /// A name for the server at an address, out of what it is called or of its host.
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
        name.truncate(LONGEST_NAME);
        let name = name.trim_end_matches('-');
        if !name.is_empty() && self.names.values().all(|taken| taken != name) {
            return name.to_owned();
        }
        let mark: String = Sha256::digest(url)
            .iter()
            .take(4)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let kept: String = name.chars().take(LONGEST_NAME - mark.len() - 1).collect();
        format!("{kept}-{mark}").trim_start_matches('-').to_owned()
    }

    /// The rules about tools, which the file names by the address of the server and the tool.
    fn rules(&self, search: &mut Search<'_>, file: &FolderEntry, config: Map<String, Value>) -> Map<String, Value> {
        let mut rules = Map::new();
        for (key, rule) in config {
            let field = format!("interrupt_config.{key}");
            let Some((url, rest)) = split(&key) else {
                search.report_error(file, &field, "must be `<server url>::<tool>`");
                continue;
            };
            let tool = rest.split("::").next().unwrap_or(rest);
            match self.names.get(&plain(url)) {
                Some(server) => drop(rules.insert(format!("{server}/{tool}"), rule)),
                // What asks for nothing may speak of tools that are not there.
                None if rule == Value::Bool(false) => {}
                None => search.report_error(file, &field, "names a server of which no tool is listed"),
            }
        }
        // The same of tools of servers that are there.
        rules.retain(|_, rule| *rule != Value::Bool(false));
        rules
    }
}

/// Takes `<server url>::<tool>` apart; two colons may stand in the host of an address, too.
fn split(key: &str) -> Option<(&str, &str)> {
    let path = key.find("://").map_or(0, |at| at + 3);
    let path = path + key[path..].find(['/', ']']).unwrap_or(0);
    let (before, tool) = key[path..].split_once("::").filter(|(_, tool)| !tool.is_empty())?;
    Some((&key[..path + before.len()], tool))
}

/// An address in one way of writing it.
fn plain(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
}
