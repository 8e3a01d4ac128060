//! Every response to any request is one that the served OpenAPI document describes.
//!
//! `ADJUTANT_TEST_SCHEMATHESIS` names the program that asks; how it asks stands in `tests/contract`. Without it this is
//! skipped, loudly, unless `ADJUTANT_TEST_REQUIRE_ALL` is 1.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::compat::sdk::runs_to_its_end;
use crate::support::client::Client;
use crate::support::server::skipped;
use crate::support::{Engine, TestServer, eventually, on_both_engines, without_postgres};

/// Returns the command that tests this server with schemathesis, in these phases.
fn schemathesis(server: &TestServer, place: &Path, phases: &str) -> Option<Command> {
    let named = std::env::var_os("ADJUTANT_TEST_SCHEMATHESIS").filter(|name| !name.is_empty());
    let named = named.or_else(|| skipped("schemathesis (ADJUTANT_TEST_SCHEMATHESIS)"))?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contract");
    let mut command = Command::new(named);
    // Files that it writes beside its findings go away with the test.
    command
        .current_dir(place)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SCHEMATHESIS_HOOKS", folder.join("hooks.py"));
    command
        .arg("--config-file")
        .arg(folder.join("schemathesis.toml"))
        .arg("run");
    command
        .arg(format!("{}/openapi.json", server.client().base()))
        .args(["--no-color", "--max-examples", "20"]);
    command.args(["--phases", phases]);
    Some(command)
}

/// Lets the address of the test send as many wrong keys as it likes.
const WRONG_KEYS: &str = "[quotas]\nfailed_authentications_per_minute = 0\n";

/// Returns the phases of an engine. What does not depend on the database is asked once.
fn phases(engine: Engine) -> &'static str {
    match engine {
        Engine::Sqlite => "examples,coverage",
        Engine::Postgres => "fuzzing,stateful",
    }
}

/// Cancels all runs and deletes all crons.
async fn tidy(client: &Client) {
    let all = json!({"limit": 1000, "select": ["cron_id"]});
    let crons = client.post("/runs/crons/search", all).await.ok();
    for id in crons
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|cron| cron["cron_id"].as_str())
    {
        client.delete(&format!("/runs/crons/{id}")).await.ok();
    }
    eventually(async || {
        client.post("/runs/cancel", json!({"status": "all"})).await;
        client.post("/threads/count", json!({"status": "busy"})).await.ok() == 0
    })
    .await;
}

on_both_engines! {
    every_response_is_documented,
    every_response_to_a_caller_with_a_key_is_documented,
}

without_postgres! {
    a_caller_without_a_key_learns_nothing,
}

async fn every_response_is_documented(server: TestServer) {
    let place = tempfile::tempdir().expect("a directory");
    let Some(command) = schemathesis(&server, place.path(), phases(server.engine)) else {
        return;
    };
    runs_to_its_end(command).await;
    tidy(&server.client()).await;
}

async fn every_response_to_a_caller_with_a_key_is_documented(server: TestServer) {
    let place = tempfile::tempdir().expect("a directory");
    let keys = server.is_protected_with("", WRONG_KEYS).await;
    let Some(mut command) = schemathesis(&server, place.path(), phases(server.engine)) else {
        return;
    };
    command.args(["--header", &format!("x-api-key: {}", keys.text("root"))]);
    command.args(["--max-examples", "5"]);
    runs_to_its_end(command).await;
    tidy(&keys.client("root")).await;
}

async fn a_caller_without_a_key_learns_nothing(server: TestServer) {
    let place = tempfile::tempdir().expect("a directory");
    server.is_protected_with("", WRONG_KEYS).await;
    let Some(mut command) = schemathesis(&server, place.path(), "coverage") else {
        return;
    };
    command.env("ADJUTANT_CONTRACT_WITHOUT_KEY", "1");
    runs_to_its_end(command).await;
}
