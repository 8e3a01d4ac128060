//! Batches, cancelling many runs, and delayed runs.

use serde_json::{Value, json};

use crate::support::{TestServer, eventually, lookup, on_both_engines, script};

fn run_body(text: impl ToString) -> Value {
    json!({"assistant_id": "agent", "on_completion": "keep",
        "input": {"messages": [{"role": "user", "content": text.to_string()}]}})
}

on_both_engines! {
    a_batch_starts_all_its_runs_on_threads_of_their_own,
    a_batch_with_an_invalid_run_starts_nothing,
    all_pending_and_running_runs_can_be_cancelled,
    a_delayed_run_waits_over_a_restart,
    a_refused_run_creates_no_thread,
}

async fn a_batch_starts_all_its_runs_on_threads_of_their_own(server: TestServer) {
    let client = server.client();
    let runs = client
        .post(
            "/runs/batch",
            json!([run_body("one"), run_body("two"), run_body("three")]),
        )
        .await
        .ok();
    let runs = runs.as_array().unwrap().clone();
    assert_eq!(
        runs.iter().map(|run| &run["status"]).collect::<Vec<_>>(),
        ["pending", "pending", "pending"]
    );
    for (run, said) in runs.iter().zip(["one", "two", "three"]) {
        let path = format!(
            "/threads/{}/runs/{}/join",
            run["thread_id"].as_str().unwrap(),
            run["run_id"].as_str().unwrap()
        );
        let values = client.get(&path).await.ok();
        assert_eq!(values["messages"][1]["content"], format!("echo: {said}"));
    }
}

async fn a_batch_with_an_invalid_run_starts_nothing(server: TestServer) {
    let client = server.client();
    let wrong = [
        (json!([]), 422, "body: must be a list of 1 to 500"),
        (json!({}), 422, "body: must be a JSON list"),
        (
            json!([run_body("one"), {"assistant_id": "nobody"}]),
            422,
            "[1]: Invalid assistant: 'nobody'",
        ),
        (
            json!([run_body("one"), {"assistant_id": "agent", "stream_mode": "odd"}]),
            422,
            "[1]: stream_mode[0]: ",
        ),
        (
            json!([run_body("one"), {"assistant_id": "agent", "command": {"resume": 1}}]),
            400,
            "[1]: You must provide",
        ),
    ];
    for (body, status, expected) in wrong {
        let detail = client.post("/runs/batch", body).await.refused(status);
        assert!(detail.starts_with(expected), "{detail}");
    }
    assert_eq!(client.post("/threads/search", json!({})).await.ok(), json!([]));
}

async fn all_pending_and_running_runs_can_be_cancelled(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let bob = server.human("agent").await;
    server.tools.hold("lookup");
    let text = script().calls(lookup("c1", "x")).says("done");
    let first = alice.asks(&text).await;
    let other = bob.asks(&text).await;
    server.tools.called("lookup", 2).await;
    let second = alice.asks("second").await;
    let stopped = client.post("/runs/cancel", json!({"status": "pending"})).await;
    assert_eq!(stopped.status, 204);
    assert_eq!(first.status().await.as_str(), "running");
    assert_eq!(second.status().await.as_str(), "interrupted");
    client
        .post("/runs/cancel", json!({"status": "pending"}))
        .await
        .refused(404);
    let stopped = client
        .post("/runs/cancel?action=interrupt", json!({"status": "all"}))
        .await;
    assert_eq!(stopped.status, 204);
    first.finishes().await;
    other.finishes().await;
    assert_eq!(first.status().await.as_str(), "interrupted");
    assert_eq!(other.status().await.as_str(), "interrupted");
    server.tools.let_go("lookup");
    let both = json!({"status": "all", "thread_id": alice.thread, "run_ids": []});
    assert!(
        client
            .post("/runs/cancel", both)
            .await
            .refused(422)
            .starts_with("status: ")
    );
    client.post("/runs/cancel", json!({"status": "odd"})).await.refused(422);
    client.post("/runs/cancel", json!({})).await.refused(422);
}

async fn a_delayed_run_waits_over_a_restart(server: TestServer) {
    let alice = server.human("agent").await;
    let later = alice
        .starts(alice.run_body("later", json!({"after_seconds": 8.0})))
        .await;
    assert_eq!(later.status().await.as_str(), "pending");
    assert_eq!(alice.status().await.as_str(), "busy");
    server.is_stopped_and_started_again().await;
    assert_eq!(alice.says("now").await["messages"][1]["content"], "echo: now");
    eventually(async || later.status().await == "success").await;
    assert_eq!(
        alice.transcript().await,
        ["human: now", "ai: echo: now", "human: later", "ai: echo: later"]
    );
}

async fn a_refused_run_creates_no_thread(server: TestServer) {
    let client = server.client();
    let thread = uuid::Uuid::new_v4();
    let mut body = run_body("hello");
    body["if_not_exists"] = json!("create");
    body["checkpoint_id"] = json!(uuid::Uuid::new_v4());
    client.post(&format!("/threads/{thread}/runs"), body).await.refused(404);
    assert_eq!(client.get(&format!("/threads/{thread}")).await.status, 404);
}
