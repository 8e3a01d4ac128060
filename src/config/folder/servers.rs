//! The MCP servers in the `mcp.json` of a folder, in the common form `{"mcpServers": {name: {…}}}`.
//!
//! They become servers of the folder's agent alone. The agent has all tools of each server, unless its settings name
//! some.

use serde_json::{Map, Value, json};

use super::Search;
use super::entry::FolderEntry;
use crate::config::problem::Positions;
use crate::definition::FieldPath;

/// The possible names of the file.
pub(super) const FILES: [&str; 2] = ["mcp.json", ".mcp.json"];

/// The keys of a server, by the names of the definition's fields.
const KEYS: [(&str, &str); 8] = [
    ("command", "command"),
    ("args", "args"),
    ("env", "env"),
    ("cwd", "cwd"),
    ("url", "url"),
    ("headers", "headers"),
    ("allowedTools", "allowed_tools"),
    ("disabledTools", "disabled_tools"),
];

/// Adds the servers of the file in a folder to the settings of its agent. `home` is the path from the agent's folder
/// to it.
pub(super) fn read(
    search: &mut Search<'_>,
    folder: &FolderEntry,
    prefix: &FieldPath,
    home: &str,
    into: &mut Map<String, Value>,
) -> Option<()> {
    let files: Vec<FolderEntry> = FILES
        .iter()
        .map(|name| folder.join(name))
        .filter(|file| file.real.exists())
        .collect();
    let file = match files.as_slice() {
        [] => return Some(()),
        [file] => file,
        [first, second, ..] => {
            let message = format!("is beside {}; only one of them can hold the servers", first.name());
            search.problems.push(second.problem(message));
            return None;
        }
    };
    let mut object = search.object(file)?;
    let Some(Value::Object(servers)) = object.shift_remove("mcpServers") else {
        search.report_error(file, "mcpServers", "must be a table of servers by their names");
        return None;
    };
    for key in object.keys() {
        search.report_warning(file, key, "is not read: servers are declared in `mcpServers`");
    }
    for (name, entry) in servers {
        if let Some(server) = server(search, file, &name, entry, home) {
            add(search, file, &name, server, into);
        }
    }
    search.add_origin(file, &prefix.then("mcp_servers"), Positions::new());
    Some(())
}

/// Adds a server to settings.
pub(super) fn add(
    search: &mut Search<'_>,
    file: &FolderEntry,
    name: &str,
    server: Value,
    into: &mut Map<String, Value>,
) {
    let servers = into.entry("mcp_servers").or_insert_with(|| json!({}));
    // A table of the wrong type is reported when the definition is read.
    let Value::Object(servers) = servers else { return };
    if servers.contains_key(name) {
        search.report_error(
            file,
            &format!("mcpServers.{name}"),
            "is also a server in the settings beside this file",
        );
    } else {
        servers.insert(name.to_owned(), server);
    }
}

/// Converts a server to the form of definitions; none if it is disabled or invalid.
fn server(search: &mut Search<'_>, file: &FolderEntry, name: &str, entry: Value, home: &str) -> Option<Value> {
    let field = format!("mcpServers.{name}");
    let Value::Object(mut entry) = entry else {
        search.report_error(file, &field, "must be a table with a `command` or a `url`");
        return None;
    };
    if entry.shift_remove("disabled") == Some(Value::Bool(true)) {
        return None;
    }
    let kinds = [entry.shift_remove("type"), entry.shift_remove("transport")];
    let kind = kinds.into_iter().flatten().next();
    let kind = match kind.as_ref().map(Value::as_str) {
        None if entry.contains_key("url") => "http",
        None => "stdio",
        Some(Some(word @ ("stdio" | "http" | "sse"))) => word,
        Some(Some("streamable_http" | "streamable-http" | "streamableHttp")) => "http",
        Some(_) => {
            let allowed = "must be `stdio`, `http` (also `streamable_http`) or `sse`";
            search.report_error(file, &format!("{field}.type"), allowed);
            return None;
        }
    };
    let (needed, other) = if kind == "stdio" {
        ("command", "url")
    } else {
        ("url", "command")
    };
    for (key, is_wrong, message) in [
        (
            needed,
            !entry.contains_key(needed),
            format!("must be given: the server has the type `{kind}`"),
        ),
        (
            other,
            entry.contains_key(other),
            format!("is only allowed with another `type`: the server has the type `{kind}`"),
        ),
    ] {
        if is_wrong {
            search.report_error(file, &format!("{field}.{key}"), &message);
            return None;
        }
    }
    let mut server = Map::new();
    for (key, value) in entry {
        match KEYS.iter().find(|(theirs, _)| *theirs == key) {
            Some((_, ours)) => drop(server.insert((*ours).to_owned(), value)),
            None => search.report_warning(file, &format!("{field}.{key}"), "is not supported and left out"),
        }
    }
    if kind == "sse" {
        server.insert("transport".to_owned(), "sse".into());
    }
    if kind == "stdio" {
        let inside = match server.get("cwd").map(Value::as_str) {
            None => home.to_owned(),
            Some(Some(path)) => format!("{home}/{path}"),
            // A value that is not text is reported when the definition is read.
            Some(None) => return Some(Value::Object(server)),
        };
        let is_absolute = server
            .get("cwd")
            .and_then(Value::as_str)
            .is_some_and(|path| path.starts_with('/'));
        if !is_absolute {
            server.insert("cwd".to_owned(), inside.into());
        }
    }
    Some(Value::Object(server))
}

/// Returns the entries of the folder that servers use as programs or working directories: the first segments of the
/// paths.
pub(super) fn used_entries(settings: &Map<String, Value>, home: &str) -> Vec<String> {
    let servers = settings
        .get("mcp_servers")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    let words = servers.flat_map(|(_, server)| {
        let args = server.get("args").and_then(Value::as_array).into_iter().flatten();
        args.chain(server.get("command"))
            .chain(server.get("cwd"))
            .filter_map(Value::as_str)
    });
    let first = |word: &str| {
        let inside = word.strip_prefix(home).unwrap_or(word).trim_start_matches('/');
        inside
            .split('/')
            .find(|part| !matches!(*part, "" | "."))
            .map(str::to_owned)
    };
    words.filter_map(first).collect()
}

/// Gives the agent all tools of each server of which its settings name no tools.
pub(super) fn offer_all_tools(settings: &mut Map<String, Value>) {
    let Some(Value::Object(servers)) = settings.get("mcp_servers") else {
        return;
    };
    let servers: Vec<String> = servers.keys().cloned().collect();
    let tools = settings.entry("tools").or_insert_with(|| json!([]));
    // A list of the wrong type is reported when the definition is read.
    let Value::Array(tools) = tools else { return };
    for server in servers {
        let start = format!("{server}/");
        if !tools
            .iter()
            .filter_map(Value::as_str)
            .any(|tool| tool.starts_with(&start))
        {
            tools.push(format!("{start}*").into());
        }
    }
}
