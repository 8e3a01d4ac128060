//! The MCP SDK for Python uses agents as tools, by the versions of the protocol with and without sessions.

use super::sdk::{in_python, runs_to_its_end};
use crate::support::server::python_with;
use crate::support::{TestServer, on_both_engines, without_postgres};

on_both_engines! {
    the_mcp_sdk_uses_agents_as_tools,
}

without_postgres! {
    the_mcp_sdk_uses_agents_with_a_key,
}

/// Runs the script with these arguments.
async fn uses_agents(server: &TestServer, arguments: &[&str]) {
    let Some(mut command) = in_python("mcp_client.py", server) else {
        return;
    };
    if python_with(&["mcp.client.client"], "the package mcp").is_none() {
        return;
    }
    command.args(arguments);
    assert_eq!(
        runs_to_its_end(command).await,
        "the agents are tools\n",
        "{arguments:?}"
    );
}

async fn the_mcp_sdk_uses_agents_as_tools(server: TestServer) {
    for mode in ["legacy", "auto"] {
        uses_agents(&server, &[mode]).await;
    }
}

async fn the_mcp_sdk_uses_agents_with_a_key(server: TestServer) {
    let keys = server.is_protected().await;
    uses_agents(&server, &["auto", &keys.text("ann")]).await;
}
