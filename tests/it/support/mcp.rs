//! The MCP server of the tests: a program, or the same behind HTTP.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::server::{TestServer, skipped};

/// What the agents that use it are.
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

/// How a server of the tests is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It is a program that adjutant starts.
    Stdio,
    /// It is there already, behind HTTP.
    Http,
}

/// The MCP server, as long as it is held; a program is the business of adjutant.
pub(crate) struct Docs {
    running: Option<Child>,
    port: u16,
    tools: String,
}

/// The MCP server `docs`, with agents that use it; none if there is no Python here. `more` goes into its section.
pub(crate) async fn docs(server: &TestServer, way: Way, more: &str) -> Option<Docs> {
    let python = python()?;
    let mut docs = Docs {
        running: None,
        port: 0,
        tools: server.tools.base.clone(),
    };
    let place = match way {
        Way::Stdio => format!(
            "command = {:?}\nargs = [{:?}, \"${{ADJUTANT_TEST_NOTHING:-{}}}\"]\nenv = {{ DOCS_KEY = \"d0cs\" }}",
            python,
            script(),
            docs.tools
        ),
        Way::Http => {
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

/// A server behind HTTP that nothing speaks of yet; none if there is no Python here.
pub(crate) fn behind_http(server: &TestServer) -> Option<Docs> {
    python()?;
    let mut docs = Docs {
        running: None,
        port: 0,
        tools: server.tools.base.clone(),
    };
    docs.starts();
    Some(docs)
}

/// How a program that is such a server is named in an `mcp.json`; none if there is no Python here.
pub(crate) fn program(server: &TestServer) -> Option<Value> {
    let command = python()?;
    let args = [
        script().display().to_string(),
        "${ADJUTANT_TEST_NOTHING:-".to_owned() + &server.tools.base + "}",
    ];
    Some(json!({"command": command, "args": args, "env": {"DOCS_KEY": "${ADJUTANT_TEST_NOTHING:-d0cs}"}}))
}

fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/mcp_server.py")
}

fn python() -> Option<&'static str> {
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

impl Docs {
    /// Its address; `/mcp`, or `/sse` for the older way.
    pub(crate) fn address(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Starts the server behind HTTP, at the address that it had.
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

    /// The server behind HTTP dies.
    pub(crate) fn dies(&mut self) {
        let mut child = self.running.take().expect("it is behind HTTP");
        child.kill().expect("SIGKILL");
        child.wait().expect("it is dead");
    }

    /// The server behind HTTP forgets all sessions.
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

impl Drop for Docs {
    fn drop(&mut self) {
        if let Some(mut child) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
