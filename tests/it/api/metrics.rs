//! Metrics, which can be read while the server runs.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::postgres_proxy::{Commits, play_behind_proxy};
use crate::support::{TestServer, call, eventually, lookup, on_both_engines, script, task};

/// Returns the sample with this name and these labels, from the JSON form.
fn number(metrics: &Value, name: &str, labels: Value) -> Option<f64> {
    let has = |sample: &&Value| {
        let wanted = labels.as_object().expect("labels");
        sample["name"] == name && wanted.iter().all(|(label, value)| sample["labels"][label] == *value)
    };
    metrics["metrics"].as_array().expect("a list").iter().find(has)?["value"].as_f64()
}

async fn metrics(server: &TestServer) -> Value {
    server.client().get("/metrics?format=json").await.ok()
}

on_both_engines! {
    the_work_of_each_agent_is_counted,
    requests_are_counted_by_the_template_of_their_route,
    gauges_show_running_runs_and_open_streams,
    the_jobs_of_the_queue_are_counted_by_kind,
    metrics_are_text_for_prometheus_unless_json_is_asked_for,
}

async fn the_work_of_each_agent_is_counted(server: TestServer) {
    let alice = server.human("agent").await;
    let below = script().calls(lookup("l1", "x")).says("found");
    alice
        .says(
            script()
                .calls(task("t1", "researcher", below))
                .calls(call("n1", "nosuch", json!({})))
                .says("done"),
        )
        .await;
    alice.says(script().fails(400)).await;
    let metrics = metrics(&server).await;
    let count = |name, labels| number(&metrics, name, labels);
    for (agent, kind, status) in [
        ("main-agent", "run", "success"),
        ("researcher", "subagent", "success"),
        ("main-agent", "run", "error"),
    ] {
        let labels = json!({"agent": agent, "kind": kind, "status": status});
        assert_eq!(count("adjutant_runs_total", labels), Some(1.0), "{agent} {status}");
    }
    for (agent, tool, outcome) in [
        ("researcher", "lookup", "success"),
        ("main-agent", "task", "success"),
        ("main-agent", "other", "error"),
    ] {
        let labels = json!({"agent": agent, "tool": tool, "outcome": outcome});
        assert_eq!(count("adjutant_tool_calls_total", labels), Some(1.0), "{tool}");
    }
    let model = json!({"agent": "main-agent", "model": "scripted:lab", "outcome": "success"});
    assert_eq!(count("adjutant_model_calls_total", model), Some(3.0));
    let failed = json!({"agent": "main-agent", "outcome": "error"});
    assert_eq!(count("adjutant_model_calls_total", failed), Some(1.0));
    let tokens = json!({"agent": "researcher", "direction": "output"});
    assert!(count("adjutant_model_tokens_total", tokens).is_some_and(|tokens| tokens > 0.0));
    let wait = json!({"agent": "main-agent"});
    assert_eq!(count("adjutant_run_queue_wait_seconds_count", wait), Some(2.0));
    assert!(count("adjutant_commit_duration_seconds_count", json!({})).is_some_and(|commits| commits >= 4.0));
}

async fn requests_are_counted_by_the_template_of_their_route(server: TestServer) {
    let thread = server.client().thread().await;
    server.client().get(&format!("/threads/{thread}")).await.ok();
    server.client().get("/no/such/path").await.refused(404);
    let found = json!({"method": "GET", "route": "/threads/{thread_id}", "status": "200"});
    let lost = json!({"method": "GET", "route": "none", "status": "404"});
    // An answer is counted when its last byte is sent, which its reader may be ahead of.
    eventually(async || {
        let metrics = metrics(&server).await;
        number(&metrics, "adjutant_http_requests_total", found.clone()) == Some(1.0)
            && number(&metrics, "adjutant_http_requests_total", lost.clone()) == Some(1.0)
    })
    .await;
    let metrics = metrics(&server).await.to_string();
    assert!(!metrics.contains(&thread), "a label was chosen by a client");
    assert!(!metrics.contains("/no/such/path"), "a label was chosen by a client");
}

async fn gauges_show_running_runs_and_open_streams(server: TestServer) {
    let bob = server.human("plain").await;
    server.tools.hold("slow");
    let stream = bob
        .streams(script().calls(call("s1", "slow", json!({}))).says("done"), json!({}))
        .await;
    server.tools.called("slow", 1).await;
    bob.asks("next").await;
    let now = metrics(&server).await;
    assert_eq!(number(&now, "adjutant_streams_open", json!({})), Some(1.0));
    assert_eq!(number(&now, "adjutant_runs_at_work", json!({})), Some(1.0));
    assert_eq!(number(&now, "adjutant_queue_depth", json!({})), Some(1.0));
    // The run waits for the one before it, and not for a server.
    assert_eq!(number(&now, "adjutant_queue_oldest_age_seconds", json!({})), Some(0.0));
    assert_eq!(
        [
            &now["queue"]["n_pending"],
            &now["queue"]["n_running"],
            &now["workers"]["active"]
        ],
        [1, 1, 1]
    );
    server.tools.let_go("slow");
    stream.rest().await;
    eventually(async || {
        let now = metrics(&server).await;
        number(&now, "adjutant_streams_open", json!({})) == Some(0.0)
            && number(&now, "adjutant_runs_at_work", json!({})) == Some(0.0)
            && number(&now, "adjutant_queue_depth", json!({})) == Some(0.0)
    })
    .await;
}

async fn the_jobs_of_the_queue_are_counted_by_kind(server: TestServer) {
    let run_body = json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", "input": {"messages": ["hello"]}});
    let cron = server.client().post("/runs/crons", run_body).await.ok();
    let crons = async || number(&metrics(&server).await, "adjutant_jobs", json!({"kind": "cron"}));
    assert_eq!(crons().await, Some(1.0));
    let path = format!("/runs/crons/{}", cron["cron_id"].as_str().expect("an id"));
    assert_eq!(server.client().delete(&path).await.status, 204);
    assert_eq!(crons().await, Some(0.0));
    for kind in ["sweep", "sweep_deliveries", "sweep_items"] {
        let sweeps = number(&metrics(&server).await, "adjutant_jobs", json!({"kind": kind}));
        assert_eq!(sweeps, Some(1.0), "{kind}");
    }
}

async fn metrics_are_text_for_prometheus_unless_json_is_asked_for(server: TestServer) {
    let reply = server.client().get("/metrics").await;
    assert_eq!(
        reply.header("content-type"),
        Some("text/plain; version=1.0.0; charset=utf-8")
    );
    let text = reply.ok();
    let text = text.as_str().expect("a text");
    for line in ["# TYPE adjutant_queue_depth gauge", "adjutant_queue_depth 0.0", "# EOF"] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    let version = format!("adjutant_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    assert!(text.contains(&version), "{text}");
    assert!(text.contains("process_start_time_seconds"), "{text}");
    let request = server.client().request(Method::GET, "/metrics");
    let kinds = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    let response = request.header("accept", kinds).send().await.expect("an answer");
    let kind = response.headers()["content-type"].to_str().expect("a text");
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    server.client().get("/metrics?format=xml").await.refused(422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollback_whose_commit_is_not_acknowledged_is_counted_once() {
    play_behind_proxy("\"undone\"", async |server, door| {
        server.tools.hold("slow");
        let alice = server.human("plain").await;
        let run = alice
            .asks(script().calls(call("s1", "slow", json!({}))).says("done"))
            .await;
        server.tools.called("slow", 1).await;
        door.commits(Commits::OfMarkedAreNotAcknowledged);
        run.is_cancelled("rollback").await;
        eventually(async || number(&metrics(&server).await, "adjutant_runs_at_work", json!({})) == Some(0.0)).await;
        assert!(door.broken() > 0, "the rollback was not acknowledged");
        door.commits(Commits::Arrive);
        assert_eq!(alice.runs().await, Vec::<Value>::new());
        let labels = json!({"kind": "run", "status": "rolled_back"});
        let counted = number(&metrics(&server).await, "adjutant_runs_total", labels);
        assert_eq!(counted, Some(1.0));
        server.tools.let_go("slow");
    })
    .await;
}
