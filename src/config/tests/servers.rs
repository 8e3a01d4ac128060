//! Tests of the MCP servers in folders: `mcp.json` and `tools.json`.

use super::*;
use crate::definition::mcp::{McpServerDefinition, McpTransport};

const DEPLOY: &str = "[agent]\nname = \"w\"\nmodel = \"scripted:x\"\n";

/// Returns a folder `agents/w` with this `mcp.json`, in the layout of `deepagents.toml`.
fn with_servers(servers: &str) -> Directory {
    let file = format!("{{\"mcpServers\": {servers}}}");
    Directory::with(&[
        ("agents/w/deepagents.toml", DEPLOY),
        ("agents/w/AGENTS.md", "x"),
        ("agents/w/bin/x.js", ""),
        ("agents/w/mcp.json", file.as_str()),
    ])
}

#[test]
fn an_mcp_json_of_other_programs_is_read() {
    let directory = with_servers(
        r#"{"search": {"type": "http", "url": "https://a.b/mcp", "headers": {"x": "Bearer ${NONE:-key}"}},
            "old": {"transport": "sse", "url": "https://a.b/sse"},
            "plain": {"url": "https://a.b/plain", "disabledTools": ["write_*"]},
            "off": {"command": "off", "disabled": true},
            "files": {"command": "sh", "args": ["bin/x.js"], "env": {"A": "${NONE:-b}"}, "allowedTools": ["read"]},
            "below": {"command": "sh", "cwd": "bin"}}"#,
    );
    let loaded = directory.load();
    assert_eq!(loaded.warnings, Problems::default());
    let agent = &loaded.config.agents["w"];
    assert_eq!(agent.tools, ["search/*", "old/*", "plain/*", "files/*", "below/*"]);
    let servers = &agent.mcp_servers;
    assert_eq!(servers["search"].headers.0["x"], "Bearer key");
    assert_eq!(servers["old"].transport, McpTransport::Sse);
    assert_eq!(servers["plain"].transport, McpTransport::Http);
    assert_eq!(servers["plain"].disabled_tools, ["write_*"]);
    let files = &servers["files"];
    assert_eq!(files.command.as_deref(), Some("sh"));
    assert_eq!(files.env["A"].as_str(), "b");
    assert_eq!(files.allowed_tools.as_deref(), Some(["read".to_owned()].as_slice()));
    let ends =
        |server: &McpServerDefinition, end: &str| Path::new(server.cwd.as_deref().unwrap_or_default()).ends_with(end);
    assert!(
        ends(files, "agents/w") && ends(&servers["below"], "agents/w/bin"),
        "{servers:?}"
    );
}

#[test]
fn errors_in_an_mcp_json_name_the_file_and_the_field() {
    let directory = with_servers(
        r#"{"a": [], "b": {"type": "ws", "url": "https://a.b"}, "c": {"command": "x", "url": "https://a.b"},
            "d": {"type": "http"}, "e": {"url": "ftp://a.b", "timeout": 3}, "f": {"command": "x", "args": "y"},
            "g": {"url": "https://a.b", "headers": {"x": "${ADJUTANT_UNSET}"}}, "h h": {"url": "https://a.b"},
            "i": {"command": "bin/x.js", "cwd": "nowhere"}}"#,
    );
    assert_eq!(
        directory.complaints(),
        "\
agents/w/mcp.json: error: mcpServers.a: must be a table with a `command` or a `url`
agents/w/mcp.json: error: mcpServers.b.type: must be `stdio`, `http` (also `streamable_http`) or `sse`
agents/w/mcp.json: error: mcpServers.c.command: is only allowed with another `type`: the server has the type `http`
agents/w/mcp.json: error: mcpServers.d.url: must be given: the server has the type `http`
agents/w/mcp.json: warning: mcpServers.e.timeout: is not supported and left out
agents/w/mcp.json: error: g.headers.x: the environment variable ADJUTANT_UNSET is not set
agents/w/mcp.json: error: e.url: must begin with http:// or https:// and name a host
agents/w/mcp.json: error: \"h h\": the server name `h h` must be 1 to 32 letters, digits, `-` or single `_`
agents/w/mcp.json: error: i.cwd: `./nowhere` is no folder
agents/w/mcp.json: error: f.args: must be a list, not a text"
    );
    let directory = Directory::with(&[
        ("agents/w/AGENTS.md", AGENT),
        ("agents/w/mcp.json", "{\"servers\": {}}"),
        ("agents/v/AGENTS.md", AGENT),
        ("agents/v/mcp.json", "{"),
        ("agents/u/AGENTS.md", AGENT),
        ("agents/u/mcp.json", "{\"mcpServers\": {}}"),
        ("agents/u/.mcp.json", "{\"mcpServers\": {}}"),
        ("agents/t/AGENTS.md", AGENT),
    ]);
    assert_eq!(
        directory.complaints(),
        "\
agents/u/.mcp.json: error: is beside mcp.json; only one of them can hold the servers
agents/v/mcp.json:1:1: error: is not JSON: EOF while parsing an object
agents/w/mcp.json: error: mcpServers: must be a table of servers by their names"
    );
}

#[test]
fn settings_choose_among_the_tools_of_an_mcp_json() {
    let settings = "---\nmodel: scripted:x\ntools: [docs/read]\n---\nYou write.";
    let servers = r#"{"mcpServers": {"docs": {"url": "https://a.b"}, "more": {"url": "https://a.c"}}}"#;
    let directory = Directory::with(&[
        ("agents/w/AGENTS.md", settings),
        ("agents/w/mcp.json", servers),
        (
            "agents/w/subagents/scout/AGENTS.md",
            "---\ndescription: Finds a lot of sources.\n---\nYou find.",
        ),
        (
            "agents/w/subagents/scout/mcp.json",
            r#"{"mcpServers": {"web": {"command": "web"}}}"#,
        ),
        (
            "agents/w/subagents/critic/AGENTS.md",
            "---\ndescription: Finds all the mistakes.\n---\nYou read.",
        ),
        (
            "agents/w/subagents/thief/AGENTS.md",
            "---\ndescription: Takes all that it gets.\ntools: [web/*]\n---\nx",
        ),
    ]);
    let problems = directory.complaints();
    assert_eq!(
        problems,
        "agents/w/subagents/thief/AGENTS.md:3:1: error: tools[0]: there is no server `web` of tools; there are: docs, more"
    );
    fs::remove_dir_all(directory.0.path().join("agents/w/subagents/thief")).expect("a folder");
    let loaded = directory.load();
    let agent = &loaded.config.agents["w"];
    assert_eq!(agent.tools, ["docs/read", "more/*"]);
    let tools: Vec<_> = agent
        .subagents
        .iter()
        .map(|subagent| subagent.tools.as_deref())
        .collect();
    assert_eq!(tools, [None, Some(["web/*".to_owned()].as_slice())]);
    let folder = agent.subagents[1].mcp_servers["web"].cwd.as_deref().map(Path::new);
    assert!(
        folder.is_some_and(|folder| folder.ends_with("agents/w/subagents/scout")),
        "{folder:?}"
    );
}

#[test]
fn servers_of_a_tools_json_are_identified_by_their_urls() {
    let config = "[mcp_servers.hub]\nurl = \"https://hub.example.org/mcp\"\nheaders = { x-key = \"${NONE:-k}\" }\n";
    let tools = r#"{"tools": [
        {"name": "read", "mcp_server_url": "https://hub.example.org/mcp", "mcp_server_name": "The Hub!"},
        {"name": "write", "mcp_server_url": "https://hub.example.org/mcp/"},
        {"name": "find", "mcp_server_url": "https://find.example.org/mcp"},
        {"name": "other", "mcp_server_url": "http://[::1]:9/mcp"},
        {"name": "dig", "mcp_server_url": "https://own.example.org/mcp"}],
        "interrupt_config": {"https://hub.example.org/mcp::write::The Hub!": true, "http://[::1]:9/mcp::other": true}}"#;
    let directory = Directory::with(&[
        ("adjutant.toml", config),
        ("agents/w/agent.json", r#"{"name": "w", "model": "scripted:x"}"#),
        ("agents/w/AGENTS.md", "x"),
        ("agents/w/tools.json", tools),
        (
            "agents/w/mcp.json",
            r#"{"mcpServers": {"own": {"url": "https://own.example.org/mcp"}}}"#,
        ),
    ]);
    let loaded = directory.load();
    assert_eq!(loaded.warnings, Problems::default());
    let agent = &loaded.config.agents["w"];
    assert_eq!(
        agent.tools,
        [
            "The-Hub/read",
            "The-Hub/write",
            "find-example-org/find",
            "1/other",
            "own/dig"
        ]
    );
    assert_eq!(
        agent.mcp_servers["The-Hub"].headers.0["x-key"], "k",
        "it is the configured one"
    );
    let asked: Vec<&String> = agent.interrupt_on.keys().collect();
    assert_eq!(asked, ["1/other", "The-Hub/write"]);
}

#[test]
fn a_definition_is_stored_without_its_servers() {
    let directory = with_servers(r#"{"search": {"url": "https://a.b/mcp?key=s3cret", "headers": {"x": "s3cret"}}}"#);
    let agent = &directory.load().config.agents["w"];
    assert!(!agent.without_servers().text().contains("s3cret"));
    assert!(!format!("{agent:?}").contains("s3cret"));
    assert_eq!(agent.own_servers("w").len(), 1);
}
