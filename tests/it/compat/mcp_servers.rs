//! MCP servers of others as they are: those of the protocol's own project from npm, and one made with FastMCP from PyPI.
//!
//! They need the same as the tests of the SDKs; see [`super::sdk`].

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::sdk::{folder, node_modules};
use crate::support::server::python_with;
use crate::support::{TestServer, call, eventually, on_both_engines, script, transcript};

on_both_engines! {
    the_server_everything_has_usable_results,
    the_server_everything_asks_a_human,
    clients_see_the_progress_of_a_long_operation_of_the_server_everything,
    the_server_filesystem_is_used_within_its_folder,
    a_server_of_fastmcp_is_used,
    clients_see_the_progress_and_the_log_of_a_server_of_fastmcp,
    a_server_of_fastmcp_that_is_killed_in_a_call_is_started_again,
}

/// Configures this program as the MCP server `given`, and an agent `handy` that uses it.
async fn uses(server: &TestServer, program: &str, arguments: &[String]) {
    let place = format!("command = {program:?}\nargs = {arguments:?}");
    let settings = "start_timeout_s = 60\nelicitation = true\nafter_crash = \"fail\"";
    let agent = "[agents.handy]\nmodel = \"scripted:lab\"\ntools = [\"given/*\"]";
    server
        .is_configured_with(&format!("[mcp_servers.given]\n{place}\n{settings}\n\n{agent}\n"))
        .await;
}

/// Returns the program of a package from npm; none without the package.
fn program_of(package: &str) -> Option<String> {
    let modules = node_modules(&[package])?;
    Some(modules.join(package).join("dist/index.js").display().to_string())
}

/// Returns a call of a tool of the server.
fn given(id: &str, tool: &str, args: Value) -> Value {
    call(id, &format!("given__{tool}"), args)
}

/// Configures the server that has something of everything; none without it.
async fn everything(server: &TestServer) -> Option<()> {
    let program = program_of("@modelcontextprotocol/server-everything")?;
    uses(server, "node", &[program, "stdio".to_owned()]).await;
    Some(())
}

/// Configures the server that is made with FastMCP; none without FastMCP.
async fn fastmcp(server: &TestServer) -> Option<()> {
    let python = python_with(&["fastmcp"], "fastmcp")?;
    let program = folder().join("python/mcp_server.py").display().to_string();
    uses(server, &python, &["-B".to_owned(), program]).await;
    Some(())
}

async fn the_server_everything_has_usable_results(server: TestServer) {
    let Some(()) = everything(&server).await else { return };
    let alice = server.human("handy").await;
    let calls = [
        given("c1", "echo", json!({"message": "hello"})),
        given("c2", "get-sum", json!({"a": 2, "b": 3})),
        given("c3", "get-structured-content", json!({"location": "Chicago"})),
        given("c4", "get-tiny-image", json!({})),
    ];
    let values = alice.says(script().calls_all(calls).says("done")).await;
    let said = transcript(&values);
    assert_eq!(said[2], "given__echo: Echo: hello");
    assert!(said[3].contains("The sum of 2 and 3 is 5"), "{}", said[3]);
    let messages = values["messages"].as_array().expect("messages");
    assert!(messages[4]["artifact"]["temperature"].is_number(), "{}", messages[4]);
    let blocks = messages[5]["content"].as_array().expect("blocks").iter();
    let images = blocks.filter(|block| block["type"] == "image" && block["mime_type"] == "image/png");
    assert_eq!(images.count(), 1);
}

async fn the_server_everything_asks_a_human(server: TestServer) {
    let Some(()) = everything(&server).await else { return };
    let alice = server.human("handy").await;
    let asks = given("c1", "trigger-elicitation-request", json!({}));
    alice.says(script().calls(asks).says("done")).await;
    let open = alice.question().await;
    let answer = json!({"response": {"action": "accept", "content": {"name": "Ann"}}});
    let reply = alice.resolves(&open, answer).await.ok();
    alice.run(&reply).finishes().await;
    let said = alice.transcript().await;
    assert!(said[2].contains("Name: Ann"), "{}", said[2]);
}

/// Has an agent make this call, and returns the payloads of the custom events of this name.
async fn told(server: &TestServer, call: Value, name: &str) -> Vec<Value> {
    let alice = server.human("handy").await;
    let more = json!({"stream_mode": ["custom"]});
    let stream = alice.streams(script().calls(call).says("done"), more).await;
    let frames = stream.rest().await.into_iter();
    let custom = frames.filter(|frame| frame.mode() == "custom" && frame.data["name"] == name);
    custom.map(|frame| frame.data["payload"].clone()).collect()
}

async fn clients_see_the_progress_of_a_long_operation_of_the_server_everything(server: TestServer) {
    let Some(()) = everything(&server).await else { return };
    let arguments = json!({"duration": 2, "steps": 4});
    let operation = given("c1", "trigger-long-running-operation", arguments);
    let told = told(&server, operation, "tool_progress").await;
    let last = told.last().expect("a progress");
    assert_eq!(last["progress"], 4, "{told:?}");
    assert_eq!(last["total"], 4, "{told:?}");
    assert_eq!(last["tool_call_id"], "c1");
    assert!(told.len() > 1, "{told:?}");
}

async fn the_server_filesystem_is_used_within_its_folder(server: TestServer) {
    let Some(program) = program_of("@modelcontextprotocol/server-filesystem") else {
        return;
    };
    server.file_is_written("shelf/a.txt", "foxes");
    let shelf = server.path_of("shelf").canonicalize().expect("a folder");
    uses(&server, "node", &[program, shelf.display().to_string()]).await;
    let alice = server.human("handy").await;
    let new = shelf.join("b.txt");
    let script = script()
        .calls(given("c1", "read_text_file", json!({"path": shelf.join("a.txt")})))
        .calls(given("c2", "write_file", json!({"path": new, "content": "otters"})))
        .calls(given("c3", "read_text_file", json!({"path": "/etc/passwd"})))
        .says("done");
    let said = transcript(&alice.says(script).await);
    assert_eq!(said[2], "given__read_text_file: foxes");
    assert_eq!(fs::read_to_string(new).expect("a file"), "otters");
    assert!(
        said[6].starts_with("given__read_text_file failed: ") && said[6].contains("Access denied"),
        "{}",
        said[6]
    );
}

async fn a_server_of_fastmcp_is_used(server: TestServer) {
    let Some(()) = fastmcp(&server).await else { return };
    let alice = server.human("handy").await;
    let calls = [
        given("c1", "add", json!({"a": 1, "b": 2})),
        given("c2", "refuse", json!({})),
        given("c3", "add", json!({"a": "x"})),
    ];
    let values = alice.says(script().calls_all(calls).says("done")).await;
    let said = transcript(&values);
    assert_eq!(values["messages"][2]["artifact"], json!({"sum": 3}), "{}", said[2]);
    assert!(
        said[3].starts_with("given__refuse failed: ") && said[3].contains("sold out"),
        "{}",
        said[3]
    );
    assert!(said[4].contains("`b`: is required, but missing"), "{}", said[4]);
}

async fn clients_see_the_progress_and_the_log_of_a_server_of_fastmcp(server: TestServer) {
    let Some(()) = fastmcp(&server).await else { return };
    let progress = told(&server, given("c1", "report", json!({})), "tool_progress").await;
    assert_eq!(progress.len(), 1, "{progress:?}");
    assert_eq!(progress[0]["message"], "half of it");
    let lines = told(&server, given("c2", "report", json!({})), "tool_log").await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["level"], "info");
    assert!(lines[0]["data"].to_string().contains("packing"), "{lines:?}");
}

async fn a_server_of_fastmcp_that_is_killed_in_a_call_is_started_again(server: TestServer) {
    let Some(()) = fastmcp(&server).await else { return };
    let alice = server.human("handy").await;
    let file = server.path_of("process");
    let script = script()
        .calls(given("c1", "wait", json!({"file": file})))
        .calls(given("c2", "add", json!({"a": 3, "b": 4})))
        .says("done");
    let run = alice.asks(script).await;
    let process = || fs::read_to_string(&file).unwrap_or_default();
    eventually(async || !process().is_empty()).await;
    let killed = Command::new("kill").args(["-9", &process()]).status();
    assert!(killed.expect("kill").success());
    run.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[2].starts_with("given__wait failed: ") && said[2].contains("broke off before it answered"),
        "{}",
        said[2]
    );
    assert_eq!(said[4], "given__add: {\"sum\":7}");
}
