//! A program of deepagents and a configuration of this server ask their models for the same, but for known differences.
//!
//! `tests/comparison` has both sides, their conversation, the comparison, and the list of the differences, of which
//! `docs/comparison-with-deepagents.md` is made (`UPDATE_DOCS=1`). It needs a Python with `tests/comparison/requirements.txt`.

use std::path::Path;
use std::process::Command;

use super::sdk::runs_to_its_end;
use crate::support::server::python_with;
use crate::support::{TestServer, on_both_engines};

on_both_engines! {
    all_differences_from_the_requests_of_deepagents_are_listed,
}

async fn all_differences_from_the_requests_of_deepagents_are_listed(server: TestServer) {
    let modules = ["langgraph_sdk", "deepagents", "langchain_openai"];
    let Some(python) = python_with(&modules, "deepagents and langchain-openai") else {
        return;
    };
    // The comparison starts the server itself, on the same database.
    let storage = server.database_url();
    server.is_stopped().await;
    let mut command = Command::new(python);
    command
        .arg("-B")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/comparison/compare.py"))
        .args(["--program", env!("CARGO_BIN_EXE_adjutant")])
        .args(["--storage", &storage]);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        command.arg("--update");
    }
    let said = runs_to_its_end(command).await;
    assert!(said.contains("differences are listed"), "{said}");
}
