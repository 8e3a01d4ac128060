//! JSON Schemas whose evaluation would take all memory.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::misbehaving_server::MisbehavingServer;
use crate::support::schemas::doubling;
use crate::support::{TestServer, call, on_both_engines, script, transcript};

/// Returns a definition with these additional fields.
fn definition(more: Value) -> Value {
    let mut definition = json!({"model": "scripted:lab", "system_prompt": "Work."});
    definition
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    definition
}

on_both_engines! {
    an_expensive_schema_in_a_definition_is_refused_by_field,
    the_largest_allowed_schema_validates_fast,
    an_mcp_tool_with_an_expensive_schema_is_left_out,
    an_expensive_response_format_is_an_error_result,
    an_expensive_schema_in_a_configuration_is_an_error,
}

async fn an_expensive_schema_in_a_definition_is_refused_by_field(server: TestServer) {
    server.moves_into_a_process().await;
    let client = server.client();
    let before = server.peak_memory().await;
    let begun = Instant::now();
    for (field, more) in [
        ("context_schema", json!({"context_schema": doubling(24)})),
        (
            "state.notes.schema",
            json!({"state": {"notes": {"schema": doubling(24)}}}),
        ),
        ("response_format", json!({"response_format": doubling(24)})),
    ] {
        let refusal = client.put("/agents/trap", definition(more)).await.refused(422);
        assert!(refusal.contains(field), "{field}: {refusal}");
        assert!(refusal.contains("too large"), "{field}: {refusal}");
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let grown = server.peak_memory().await - before;
    assert!(grown < 64, "it grew by {grown} MiB");
}

async fn the_largest_allowed_schema_validates_fast(server: TestServer) {
    server.moves_into_a_process().await;
    let client = server.client();
    let before = server.peak_memory().await;
    client
        .put("/agents/many", definition(json!({"context_schema": doubling(7)})))
        .await
        .ok();
    let begun = Instant::now();
    let many: Vec<u32> = vec![7; 20_000];
    for context in [json!({"a": 1}), json!({"a": many})] {
        let run = json!({"assistant_id": "many", "input": {"messages": []}, "context": context});
        let refusal = client.post("/runs/wait", run).await.refused(422);
        assert!(refusal.contains("context"), "{refusal}");
    }
    let run = json!({"assistant_id": "many", "input": {"messages": [{"role": "user", "content": "x"}]},
            "context": {"a": "fits", "b": many}});
    client.post("/runs/wait", run).await.ok();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let grown = server.peak_memory().await - before;
    assert!(grown < 128, "it grew by {grown} MiB");
}

async fn an_mcp_tool_with_an_expensive_schema_is_left_out(server: TestServer) {
    let wild = MisbehavingServer::start().await;
    let section = format!(
        "[mcp_servers.wild]\nurl = \"{}/mcp\"\n[agents.reader]\nmodel = \"scripted:lab\"\nsystem_prompt = \"Read.\"\n\
             tools = [\"wild/*\"]\n",
        wild.base
    );
    server.is_configured_with(&section).await;
    let alice = server.human("reader").await;
    let plan = script()
        .calls(call("c1", "wild__good", json!({})))
        .calls(call("c2", "wild__trap", json!({"a": 1})));
    let said = transcript(&alice.says(plan.says("done")).await);
    assert_eq!(said[2], "wild__good: called");
    assert!(said[4].contains("wild__trap is not a valid tool"), "{}", said[4]);
}

async fn an_expensive_response_format_is_an_error_result(server: TestServer) {
    let wild = MisbehavingServer::start().await;
    let section = format!(
        "[tools.delegate]\nkind = \"http\"\ndescription = \"Delegates.\"\nurl = \"{}/delegate\"\n\
             parameters = {{ type = \"object\" }}\n\
             [agents.boss]\nmodel = \"scripted:lab\"\nsystem_prompt = \"Lead.\"\ntools = [\"delegate\"]\n\
             [[agents.boss.subagents]]\nname = \"helper\"\ndescription = \"Helps.\"\nsystem_prompt = \"Help.\"\n",
        wild.base
    );
    server.is_configured_with(&section).await;
    let alice = server.human("boss").await;
    let said = transcript(
        &alice
            .says(script().calls(call("c1", "delegate", json!({}))).says("done"))
            .await,
    );
    assert!(said[2].contains("too large"), "{said:#?}");
    assert_eq!(said[3], "ai: done");
}

async fn an_expensive_schema_in_a_configuration_is_an_error(server: TestServer) {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("adjutant.toml");
    let schema = doubling(24).to_string();
    std::fs::write(
        &place,
        format!(
            "[storage]\nurl = {:?}\n[tools.trap]\nkind = \"http\"\ndescription = \"x\"\n\
            url = \"http://127.0.0.1:1/\"\nparameters = {}\n",
            server.database_url(),
            toml_of(&schema)
        ),
    )
    .expect("written");
    let problems = adjutant::Adjutant::builder()
        .config_file(&place)
        .load()
        .err()
        .expect("it is refused")
        .to_string();
    assert!(problems.contains("tools.trap.parameters"), "{problems}");
    assert!(problems.contains("too large"), "{problems}");
}

/// Returns JSON as an inline table of TOML.
fn toml_of(json: &str) -> String {
    let value: Value = serde_json::from_str(json).expect("JSON");
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(key, value)| format!("{key:?} = {}", toml_of(&value.to_string())))
                .collect();
            format!("{{ {} }}", fields.join(", "))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| toml_of(&item.to_string())).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}
