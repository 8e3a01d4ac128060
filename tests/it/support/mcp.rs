//! The MCP server of the tests: a program, or the same behind HTTP.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::server::{TestServer, skipped};

/// The definitions of the agents that use the server.
const AGENTS: &str = r#"
[agents.librarian]
model = "scripted:lab"
system_prompt = "You read."
tools = ["docs/*", "lookup"]
interrupt_on = { "docs/fail" = { allowed_decisions = ["approve", "edit", "reject"] } }

[[agents.librarian.subagents]]
name = "helper"
description = "Helps with one tool alone."
system_prompt = "You help."
tools = ["docs/echo"]
interrupt_on = { "docs/*" = true }

[[agents.librarian.subagents]]
name = "digger"
description = "Digs, and nothing else."
system_prompt = "You dig."
tools = ["docs/dig", "docs/process"]
interrupt_on = {}
"#;

/// The transports of the test server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum McpTransport {
    /// A program that adjutant starts.
    Stdio,
    /// A running server behind HTTP.
    Http,
}

/// The MCP server; dropping it stops a server behind HTTP.
pub(crate) struct McpDocsServer {
    running: Option<Child>,
    port: u16,
    tools: String,
}

/// Configures the MCP server `docs` and agents that use it; `None` without Python. `more` is added to its section.
pub(crate) async fn docs(server: &TestServer, way: McpTransport, more: &str) -> Option<McpDocsServer> {
    let python = python()?;
    let mut docs = McpDocsServer {
        running: None,
        port: 0,
        tools: server.tools.base.clone(),
    };
    let place = match way {
        McpTransport::Stdio => format!(
            "command = {:?}\nargs = [{:?}, \"${{ADJUTANT_TEST_NOTHING:-{}}}\"]\nenv = {{ DOCS_KEY = \"d0cs\" }}",
            python,
            script(),
            docs.tools
        ),
        McpTransport::Http => {
            docs.starts();
            format!(
                "url = \"http://127.0.0.1:{}/mcp\"\nheaders = {{ x-key = \"s3cret\" }}",
                docs.port
            )
        }
    };
    server
        .is_configured_with(&format!("[mcp_servers.docs]\n{place}\n{more}\n{AGENTS}"))
        .await;
    Some(docs)
}

/// Starts a server behind HTTP that is not configured yet; `None` without Python.
pub(crate) fn behind_http(server: &TestServer) -> Option<McpDocsServer> {
    python()?;
    let mut docs = McpDocsServer {
        running: None,
        port: 0,
        tools: server.tools.base.clone(),
    };
    docs.starts();
    Some(docs)
}

/// Returns the entry for the server in an `mcp.json`; `None` without Python.
pub(crate) fn program(server: &TestServer) -> Option<Value> {
    let command = python()?;
    let args = [
        script().display().to_string(),
        "${ADJUTANT_TEST_NOTHING:-".to_owned() + &server.tools.base + "}",
    ];
    Some(json!({"command": command, "args": args, "env": {"DOCS_KEY": "${ADJUTANT_TEST_NOTHING:-d0cs}"}}))
}

/// Returns the start of a section for the server as a program of a shell, which does this `first`; `None` without Python.
pub(crate) fn program_after(server: &TestServer, first: &str) -> Option<String> {
    let line = format!(
        "{first} exec {} {} {}",
        python()?,
        script().display(),
        server.tools.base
    );
    let path = std::env::var("PATH").unwrap_or_default();
    Some(format!(
        "[mcp_servers.docs]\ncommand = \"sh\"\nargs = [\"-c\", {line:?}]\nenv = {{ PATH = {path:?}, DOCS_KEY = \"d0cs\" }}\n"
    ))
}

pub(crate) fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/mcp_server.py")
}

pub(crate) fn python() -> Option<&'static str> {
    let found = Command::new("python3")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if found.is_ok_and(|status| status.success()) {
        Some("python3")
    } else {
        skipped("Python")
    }
}

impl McpDocsServer {
    /// Returns the URL with this path: `/mcp`, or `/sse` for the older transport.
    pub(crate) fn address(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Starts the server behind HTTP at its previous address.
    pub(crate) fn starts(&mut self) {
        let mut command = Command::new("python3");
        command.arg(script()).arg(&self.tools).arg(self.port.to_string());
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let line = lines.next().expect("a line").expect("text");
        self.port = line
            .rsplit(' ')
            .next()
            .and_then(|port| port.parse().ok())
            .expect("a port");
        self.running = Some(child);
    }

    /// Kills the server behind HTTP.
    pub(crate) fn dies(&mut self) {
        let mut child = self.running.take().expect("it is behind HTTP");
        child.kill().expect("SIGKILL");
        child.wait().expect("it is dead");
    }

    /// Lets the server behind HTTP delete all sessions.
    pub(crate) fn forgets(&self) {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.port)).expect("it is there");
        stream
            .write_all(b"DELETE /mcp HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .expect("it reads");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("it answers");
        assert!(answer.contains(" 200 "), "{answer}");
    }
}

impl Drop for McpDocsServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
