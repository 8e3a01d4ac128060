//! Unknown keys of a request are refused, except for those that the SDKs send.

use serde_json::{Value, json};

use crate::support::{TestServer, on_both_engines};

fn run_body(more: Value) -> Value {
    let mut run_body = json!({"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "hello"}]}});
    for (name, value) in more.as_object().into_iter().flatten() {
        run_body[name] = value.clone();
    }
    run_body
}

on_both_engines! {
    a_run_with_an_unknown_key_is_refused,
    every_body_refuses_unknown_keys,
    extra_keys_of_the_sdks_are_ignored,
    a_wrong_type_is_described_in_terms_of_json,
}

async fn a_run_with_an_unknown_key_is_refused(server: TestServer) {
    let client = server.client();
    let thread = client.thread().await;
    let misspelt = json!({"assistant_id": "agent", "inputs": {"messages": []}});
    let expected = "inputs: unknown key; did you mean `input`? allowed are: assistant_id, input, command,";
    for door in ["runs", "runs/wait", "runs/stream"] {
        for path in [format!("/threads/{thread}/{door}"), format!("/{door}")] {
            let refused = client.post(&path, misspelt.clone()).await.refused(422);
            assert!(refused.starts_with(expected), "{path}: {refused}");
        }
    }
    let refused = client
        .post("/runs/batch", json!([run_body(json!({})), misspelt]))
        .await
        .refused(422);
    assert!(refused.starts_with(&format!("[1].{expected}")), "{refused}");
    assert_eq!(client.get(&format!("/threads/{thread}/runs")).await.ok(), json!([]));
}

async fn every_body_refuses_unknown_keys(server: TestServer) {
    let client = server.client();
    let thread = client.thread().await;
    for (path, body, expected) in [
        (
            "/threads",
            json!({"metdata": {}}),
            "metdata: unknown key; did you mean `metadata`?",
        ),
        (
            "/threads/search",
            json!({"limits": 1}),
            "limits: unknown key; did you mean `limit`?",
        ),
        (
            "/assistants/search",
            json!({"graph": "agent"}),
            "graph: unknown key; did you mean `graph_id`?",
        ),
        (
            "/assistants",
            json!({"graph_id": "agent", "title": "x"}),
            "title: unknown key;",
        ),
        (
            "/store/items/search",
            json!({"namespace": []}),
            "namespace: unknown key;",
        ),
        (
            "/runs/crons/search",
            json!({"assistant": "agent"}),
            "assistant: unknown key;",
        ),
        (
            "/runs/crons",
            run_body(json!({"schedules": "0 9 * * *"})),
            "schedules: unknown key; did you mean `schedule`?",
        ),
        (
            "/agents/validate",
            json!({"definition": {}, "graph": "x"}),
            "graph: unknown key;",
        ),
    ] {
        let refused = client.post(path, body).await.refused(422);
        assert!(refused.starts_with(expected), "{path}: {refused}");
    }
    let long = json!({"k".repeat(5000): 1});
    let refused = client
        .post(&format!("/threads/{thread}/state"), long)
        .await
        .refused(422);
    assert!(refused.len() < 500, "{refused}");
    assert!(refused.contains("unknown key"), "{refused}");
}

async fn extra_keys_of_the_sdks_are_ignored(server: TestServer) {
    let client = server.client();
    let tracer = json!({"langsmith_tracer": {"project_name": "p"}, "strict_resume": true, "raise_error": false, "feedback_keys": ["a"]});
    client.post("/runs/wait", run_body(tracer.clone())).await.ok();
    let options = json!({"assistantId": "agent", "streamMode": "values", "multitaskStrategy": "reject", "signal": {},
        "strictResume": true});
    let thread = client.thread().await;
    let on_thread = run_body(json!({"thread_id": thread}));
    let runs = client
        .post("/runs/batch", json!([run_body(options), run_body(tracer), on_thread]))
        .await
        .ok();
    assert_ne!(
        runs[2]["thread_id"],
        json!(thread),
        "the runs of a batch have threads of their own"
    );
}

async fn a_wrong_type_is_described_in_terms_of_json(server: TestServer) {
    let client = server.client();
    for (path, body, expected) in [
        (
            "/threads",
            json!({"metadata": []}),
            "metadata: must be an object, not a list",
        ),
        (
            "/threads/search",
            json!({"ids": {}}),
            "ids: must be a list, not an object",
        ),
        (
            "/threads/search",
            json!({"limit": "ten"}),
            "limit: must be a whole number, not a string",
        ),
        (
            "/threads/search",
            json!({"sort_by": "creatd_at"}),
            "sort_by: `creatd_at` is not allowed; did you mean `created_at`?",
        ),
        ("/threads/prune", json!({}), "body: `thread_ids` must be given"),
        (
            "/runs/wait",
            run_body(json!({"stream_subgraphs": "yes"})),
            "stream_subgraphs: must be true or false, not a string",
        ),
        (
            "/runs/wait",
            run_body(json!({"config": null, "context": [1]})),
            "context: must be an object, not a list",
        ),
    ] {
        let refused = client.post(path, body).await.refused(422);
        assert!(refused.starts_with(expected), "{path}: {refused}");
    }
}
