//! Runs without end: the length of the queue, delays, time limits, streams and labels by client.

use std::io::BufRead;

use serde_json::{Value, json};

use super::logs::start_with_a_pipe;
use crate::api::crons::all_are_due;
use crate::support::client::reply;
use crate::support::{Human, TestServer, call, eventually, on_both_engines, script};

/// Restarts the server with these lines in its section `[runtime]`.
async fn is_bounded(server: &TestServer, lines: &str) {
    server.configuration_changes("[runtime]\n", &format!("[runtime]\n{lines}\n"));
    server.is_stopped_and_started_again().await;
}

/// Creates a run that is delayed for a day. Returns the status of the response.
async fn put_off(server: &TestServer, who: &Human) -> u16 {
    let body = who.run_body(
        "later",
        json!({"after_seconds": 86400, "multitask_strategy": "enqueue"}),
    );
    server.client().post(&who.path("/runs"), body).await.status
}

/// Cancels all pending runs.
async fn is_emptied(server: &TestServer) {
    assert!(
        server
            .client()
            .post("/runs/cancel", json!({"status": "all"}))
            .await
            .status
            < 300
    );
}

on_both_engines! {
    a_run_cannot_be_delayed_for_more_than_a_year,
    a_hanging_model_call_ends_at_the_time_limit_of_the_run,
    a_full_queue_refuses_runs_until_there_is_room,
    a_cron_starts_its_run_when_a_full_queue_has_room,
    a_full_queue_repeats_the_response_of_a_key,
    the_queue_of_a_thread_is_bounded,
    names_chosen_by_clients_are_no_metric_labels,
    clients_cannot_write_to_the_files_of_definitions,
}

async fn a_run_cannot_be_delayed_for_more_than_a_year(server: TestServer) {
    let alice = server.human("agent").await;
    for after in [31_536_001.0, 1e18] {
        let body = alice.run_body("later", json!({"after_seconds": after}));
        let told = server.client().post(&alice.path("/runs"), body).await.refused(422);
        assert!(told.starts_with("after_seconds"), "{told}");
    }
    let body = alice.run_body("later", json!({"after_seconds": 31_536_000}));
    server.client().post(&alice.path("/runs"), body).await.ok();
    is_emptied(&server).await;
}

async fn a_hanging_model_call_ends_at_the_time_limit_of_the_run(server: TestServer) {
    is_bounded(&server, "max_run_s = 1.0").await;
    let alice = server.human("agent").await;
    let run = alice
        .asks(script().turn(json!({"text": "at last", "first_ms": 1_000_000_000_000_u64})))
        .await;
    run.finishes().await;
    assert_eq!(run.status().await, "error");
    let error = alice.record().await["error"].to_string();
    assert!(error.contains("wall_s"), "{error}");
    // The subagents of a run have no time of their own beyond it.
    let below = script().turn(json!({"text": "at last", "first_ms": 1_000_000_000_000_u64}));
    let order = json!({"description": below.to_string(), "subagent_type": "researcher"});
    let run = alice.asks(script().calls(call("t1", "task", order)).says("done")).await;
    run.finishes().await;
    assert_eq!(run.status().await, "error");
}

async fn a_full_queue_refuses_runs_until_there_is_room(server: TestServer) {
    is_bounded(&server, "max_queued_runs = 3").await;
    let alice = server.human("agent").await;
    for _ in 0..3 {
        assert_eq!(put_off(&server, &server.human("agent").await).await, 200);
    }
    let refusal = server
        .client()
        .post(&alice.path("/runs"), alice.run_body("hello", json!({})))
        .await;
    assert_eq!(refusal.status, 429, "{refusal:?}");
    assert_eq!(&refusal.body["code"], &json!("queue_full"), "{refusal:?}");
    assert_eq!(&refusal.body["limit"], &json!("max_queued_runs"), "{refusal:?}");
    assert!(refusal.headers.contains_key("retry-after"));
    let run_body = || json!({"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "hello"}]}});
    assert_eq!(
        server
            .client()
            .post("/runs/batch", json!([run_body(), run_body()]))
            .await
            .status,
        429
    );
    is_emptied(&server).await;
    eventually(async || {
        let body = alice.run_body("hello", json!({}));
        server.client().post(&alice.path("/runs/wait"), body).await.status == 200
    })
    .await;
}

async fn a_cron_starts_its_run_when_a_full_queue_has_room(server: TestServer) {
    let limits = [
        ("max_queued_runs", "waits for room in the queue"),
        ("max_queued_runs_per_thread", "but its run was refused"),
    ];
    for (limit, refusal) in limits {
        is_bounded(&server, &format!("{limit} = 1")).await;
        server.is_stopped().await;
        let (process, mut log) = start_with_a_pipe(&server, "info");
        let client = server.client();
        let alice = server.human("agent").await;
        assert_eq!(put_off(&server, &alice).await, 200);
        let cron = json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", "multitask_strategy": "enqueue",
                "input": {"messages": [{"role": "user", "content": "by the clock"}]}});
        let cron = client.post(&alice.path("/runs/crons"), cron).await.ok();
        all_are_due(&server).await;
        // The server tries, and tries again.
        for _ in 0..2 {
            let mut line = String::new();
            while !line.contains(refusal) {
                line.clear();
                assert_ne!(log.read_line(&mut line).expect("text"), 0, "it goes on");
            }
        }
        drop(log);
        assert_eq!(alice.runs().await.len(), 1, "{limit}");
        is_emptied(&server).await;
        eventually(async || alice.runs().await.len() == 2).await;
        eventually(async || alice.runs().await[0]["status"] == "success").await;
        assert_eq!(
            alice.transcript().await,
            ["human: by the clock", "ai: echo: by the clock"]
        );
        let path = format!("/runs/crons/{}", cron["cron_id"].as_str().unwrap());
        let next = client.get(&path).await.ok()["next_run_date"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(!next.starts_with("1970"), "it is due the next time: {next}");
        assert_eq!(alice.runs().await.len(), 2, "one run for one due time");
        client.delete(&path).await.ok();
        process.signal("TERM");
        assert!(process.ends().await.success());
        server.is_reconfigured(&format!("{limit} = 1\n"), "").await;
    }
}

async fn a_full_queue_repeats_the_response_of_a_key(server: TestServer) {
    is_bounded(&server, "max_queued_runs = 1").await;
    let client = server.client();
    let alice = server.human("agent").await;
    let keyed = async |path: &str, key: &str, body: &Value| {
        let request = client
            .request(reqwest::Method::POST, path)
            .header("Idempotency-Key", key);
        reply(request.json(body)).await
    };
    let body = alice.run_body("later", json!({"after_seconds": 86400}));
    let first = keyed(&alice.path("/runs"), "k1", &body).await.ok();
    assert_eq!(put_off(&server, &alice).await, 429);
    assert_eq!(keyed(&alice.path("/runs"), "k1", &body).await.ok(), first);
    assert_eq!(keyed(&alice.path("/runs"), "k2", &body).await.status, 429);
    let other = alice.run_body("other", json!({}));
    assert_eq!(
        keyed(&alice.path("/runs"), "k1", &other).await.body["code"],
        "idempotency_key_reused"
    );
    is_emptied(&server).await;
}

async fn the_queue_of_a_thread_is_bounded(server: TestServer) {
    is_bounded(&server, "max_queued_runs_per_thread = 2").await;
    let alice = server.human("agent").await;
    let bob = server.human("agent").await;
    assert_eq!(put_off(&server, &alice).await, 200);
    assert_eq!(put_off(&server, &alice).await, 200);
    assert_eq!(put_off(&server, &alice).await, 429);
    assert_eq!(put_off(&server, &bob).await, 200);
    for strategy in ["interrupt", "rollback"] {
        let displacing = alice.run_body("now", json!({"multitask_strategy": strategy}));
        let refused = server.client().post(&alice.path("/runs"), displacing).await;
        assert_eq!(refused.status, 429, "queued runs stay");
    }
    is_emptied(&server).await;
}

async fn names_chosen_by_clients_are_no_metric_labels(server: TestServer) {
    let client = server.client();
    for number in 0..5 {
        let definition = json!({"name": format!("made-up-{number}"), "model": format!("scripted:made-up-{number}")});
        client.put(&format!("/agents/made-up-{number}"), definition).await.ok();
        server.human(&format!("made-up-{number}")).await.says("hello").await;
        assert_eq!(client.delete(&format!("/agents/made-up-{number}")).await.status, 204);
    }
    server.human("agent").await.says("hello").await;
    let metrics = client.get("/metrics").await;
    let text = metrics
        .body
        .as_str()
        .map_or_else(|| metrics.body.to_string(), str::to_owned);
    assert!(text.contains("main-agent"), "{text}");
    assert!(text.contains("client"), "{text}");
    assert!(!text.contains("made-up"), "{text}");
}

async fn clients_cannot_write_to_the_files_of_definitions(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("hello").await;
    for path in [
        "/.agent/AGENTS.md",
        ".agent/x",
        "/a/../.agent/x",
        "/../../etc/passwd",
        "",
        "/",
        "~/x",
    ] {
        let files = json!({"files": {path: "mine"}});
        let mut input = alice.run_body("hello", json!({}));
        input["input"]["files"] = files["files"].clone();
        let command = json!({"assistant_id": "agent", "command": {"update": files}});
        for (place, body) in [
            ("/runs", input),
            ("/runs", command),
            ("/state", json!({"values": files})),
        ] {
            let told = client.post(&alice.path(place), body).await.refused(422);
            assert!(told.contains("files["), "{path} {place}: {told}");
        }
    }
    let written = json!({"values": {"files": {"a//./b.txt": "text"}}});
    client.post(&alice.path("/state"), written).await.ok();
    let files = alice.state().await["values"]["files"].clone();
    assert_eq!(
        files.as_object().map(|files| files.keys().collect::<Vec<_>>()),
        Some(vec![&"/a/b.txt".to_owned()])
    );
}
