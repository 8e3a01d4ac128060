//! Servers with roles on one Postgres, and servers that stop while others go on.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::postgres::PgListener;

use crate::support::actors::Human;
use crate::support::client::Client;
use crate::support::postgres_proxy::PostgresProxy;
use crate::support::sse::{Frame, put_together};
use crate::support::webhook_receiver::WebhookReceiver;
use crate::support::{TestServer, call, eventually, lookup, on_both_engines, on_postgres, script};

on_both_engines! {
    a_server_that_takes_requests_is_ready,
}

on_postgres! {
    an_api_server_admits_and_streams_what_a_worker_works_on,
    an_api_server_announces_the_jobs_that_it_leaves_to_workers,
    a_worker_answers_about_its_health_only,
    a_worker_that_is_terminated_gives_its_run_to_another_at_once,
    a_worker_that_waits_for_a_call_keeps_its_lease_and_is_not_ready,
    a_stream_of_a_server_that_stops_goes_on_at_another,
    a_run_that_ends_with_its_client_is_cancelled_when_the_server_of_its_client_is_killed_later,
    a_run_that_ends_with_its_client_is_cancelled_when_those_have_left_who_have_joined_it_elsewhere,
    a_server_without_its_database_is_not_ready,
}

async fn a_server_that_takes_requests_is_ready(server: TestServer) {
    assert_eq!(server.client().get("/ready").await.ok(), json!({"ready": true}));
}

async fn an_api_server_admits_and_streams_what_a_worker_works_on(api: TestServer) {
    api.takes_role("api");
    api.moves_into_a_process().await;
    let dictation = api.models.will_be_dictated();
    let alice = api.human("openai").await;
    let more = json!({"stream_mode": ["messages-tuple"], "stream_resumable": true});
    let mut stream = alice.streams("hello", more).await;
    let run = alice.runs().await[0].clone();
    assert_eq!(run["status"], "pending", "no server works on runs yet");
    let worker = api.starts_second_process_as("worker").await;
    dictation.says("one ");
    let is_said = |frame: &Frame| frame.data.to_string().contains("one ");
    let mut heard = stream.until(is_said).await;
    dictation.ends();
    heard.extend(stream.rest().await);
    let whole = alice.run(&run).is_joined(Some("-1")).await.rest().await;
    assert_eq!(put_together(&heard), put_together(&whole));
    let values = alice
        .client()
        .post(&alice.path("/runs/wait"), alice_says_nothing_special())
        .await
        .ok();
    assert_eq!(values["messages"].as_array().map(Vec::len), Some(4), "{values}");
    let stateless = api.client().post("/runs/wait", alice_says_nothing_special()).await.ok();
    assert_eq!(stateless["messages"].as_array().map(Vec::len), Some(2), "{stateless}");
    let metrics = api.client().get("/metrics?format=json").await.ok();
    assert_eq!(metrics["workers"]["max"], 0, "{}", metrics["workers"]);
    worker.is_stopped().await;
}

async fn an_api_server_announces_the_jobs_that_it_leaves_to_workers(api: TestServer) {
    api.takes_role("api");
    api.moves_into_a_process().await;
    let receiver = WebhookReceiver::start().await;
    let alice = api.human("plain").await;
    let more = json!({"after_seconds": 3600, "webhook": receiver.base});
    let run = alice.starts(alice.run_body("later", more)).await;
    let mut listener = PgListener::connect(&api.database_url()).await.expect("a connection");
    listener.listen("adjutant").await.expect("the channel");
    run.is_cancelled("interrupt").await.ok();
    let is_told = async { while listener.recv().await.expect("a notification").payload() != "jobs" {} };
    tokio::time::timeout(Duration::from_secs(60), is_told)
        .await
        .expect("it tells of the report");
    let worker = api.starts_second_process_as("worker").await;
    assert_eq!(receiver.receives(1).await[0].body()["run_id"], run.id);
    worker.is_stopped().await;
}

/// Returns the body of a run whose model needs no dictation.
fn alice_says_nothing_special() -> Value {
    json!({"assistant_id": "plain", "input": {"messages": [{"role": "user", "content": script().says("done").to_string()}]}})
}

async fn a_worker_answers_about_its_health_only(server: TestServer) {
    let worker = server.starts_second_process_as("worker").await;
    let client = worker.client();
    client.get("/ok?check_db=1").await.ok();
    assert_eq!(client.get("/ready").await.ok(), json!({"ready": true}));
    client.get("/metrics").await.ok();
    for path in [
        "/",
        "/info",
        "/threads/search",
        "/openapi.json",
        "/console",
        "/nonsense",
    ] {
        let refused = client.get(path).await.refused(404);
        assert!(refused.contains("role `worker`"), "{path}: {refused}");
    }
    worker.is_stopped().await;
}

async fn a_worker_that_is_terminated_gives_its_run_to_another_at_once(api: TestServer) {
    api.is_reconfigured("lease_s = 2.0\nheartbeat_s = 0.5", "lease_s = 600.0\nheartbeat_s = 0.5")
        .await;
    api.takes_role("api");
    api.moves_into_a_process().await;
    let first = api.starts_second_process_as("worker").await;
    api.tools.hold("lookup");
    let alice = api.human("plain").await;
    let text = script().calls(lookup("l1", "x")).says("done");
    let more = json!({"stream_mode": ["updates"], "stream_resumable": true});
    let stream = alice.streams(text, more).await;
    api.tools.called("lookup", 1).await;
    let second = api.starts_second_process_as("worker").await;
    // The call may be repeated, so the first worker does not wait for it.
    first.is_stopped().await;
    api.tools.called("lookup", 2).await;
    api.tools.let_go("lookup");
    let frames = stream.rest().await;
    let run = alice.runs().await[0].clone();
    assert_eq!(run["status"], "success");
    let replayed = alice.run(&run).is_joined(Some("-1")).await.rest().await;
    assert_eq!(
        put_together(&frames),
        put_together(&replayed),
        "each step is there once"
    );
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls lookup", "lookup: found x", "ai: done"]
    );
    second.is_stopped().await;
}

async fn a_worker_that_waits_for_a_call_keeps_its_lease_and_is_not_ready(api: TestServer) {
    api.takes_role("api");
    api.moves_into_a_process().await;
    let first = api.starts_second_process_as("worker").await;
    api.tools.hold("slow");
    let alice = api.human("plain").await;
    let run = alice
        .asks(script().calls(call("s1", "slow", json!({}))).says("done"))
        .await;
    api.tools.called("slow", 1).await;
    let second = api.starts_second_process_as("worker").await;
    let client: Client = first.client();
    first.gets_signal("TERM").await;
    eventually(async || client.get("/ready").await.status == 503).await;
    client.get("/ok").await.ok();
    // The lease is of two seconds, and all leases go on for longer than that.
    let now = api.number_in_database("select max(alive_until) from workers").await;
    let later = now + 3_000_000;
    let renewed = format!("select count(*) from workers where alive_until > {later}");
    eventually(async || api.number_in_database(&renewed).await == 3).await;
    api.tools.let_go("slow");
    first.ends_well().await;
    run.finishes().await;
    assert_eq!(run.status().await, "success");
    assert_eq!(api.tools.calls_of("slow").len(), 1);
    second.is_stopped().await;
}

async fn a_stream_of_a_server_that_stops_goes_on_at_another(api: TestServer) {
    api.takes_role("api");
    api.moves_into_a_process().await;
    let worker = api.starts_second_process_as("worker").await;
    let other = api.starts_second_process_as("api").await;
    let dictation = api.models.will_be_dictated();
    let alice = api.human("openai").await;
    let more = json!({"stream_mode": ["messages-tuple"], "stream_resumable": true});
    let run = alice.starts(alice.run_body("hello", more)).await;
    let mut stream = Human::at(other.client(), "openai", &alice.thread)
        .run_of_id(&run.id)
        .is_joined(Some("-1"))
        .await;
    dictation.says("one ");
    let mut heard = stream.until(|frame| frame.data.to_string().contains("one ")).await;
    let last = heard.last().and_then(|frame| frame.id.clone()).expect("an id");
    other.is_stopped().await;
    // The connection breaks, so that the client does not take it for the end.
    while let Ok(next) = stream.try_next().await {
        assert!(next.is_some(), "the stream does not end");
    }
    let mut rest = run.is_joined(Some(&last)).await;
    dictation.says("two");
    heard.extend(rest.until(|frame| frame.data.to_string().contains("two")).await);
    dictation.ends();
    heard.extend(rest.rest().await);
    let is_piece = |frame: &&Frame| frame.mode() == "messages" && frame.data[0]["type"] == "AIMessageChunk";
    let pieces = heard.iter().filter(is_piece);
    let text: String = pieces.filter_map(|frame| frame.data[0]["content"].as_str()).collect();
    assert_eq!(text, "one two");
    worker.is_stopped().await;
}

async fn a_run_that_ends_with_its_client_is_cancelled_when_the_server_of_its_client_is_killed_later(api: TestServer) {
    api.takes_role("api");
    api.moves_into_a_process().await;
    let worker = api.starts_second_process_as("worker").await;
    let filter = "info,adjutant::runtime::unfollowed_runs=debug";
    worker.moves_into_a_process_that_logs(filter).await;
    api.tools.hold("lookup");
    let alice = api.human("plain").await;
    let text = script().calls(lookup("l1", "x")).says("done");
    let stream = alice.streams(text, json!({"on_disconnect": "cancel"})).await;
    let run = alice.run_of_id(&stream.run_id());
    api.tools.called("lookup", 1).await;
    // The worker has found that the server of the client is alive.
    worker.log().gets_one_of(&["looked for the followers of a run"]).await;
    assert_eq!(run.status().await, "running");
    api.is_killed_and_started_again().await;
    eventually(async || run.status().await == "interrupted").await;
    api.tools.let_go("lookup");
    worker.is_stopped().await;
}

async fn a_run_that_ends_with_its_client_is_cancelled_when_those_have_left_who_have_joined_it_elsewhere(
    api: TestServer,
) {
    api.takes_role("api");
    api.moves_into_a_process().await;
    let worker = api.starts_second_process_as("worker").await;
    let others = [
        api.starts_second_process_as("api").await,
        api.starts_second_process_as("api").await,
    ];
    api.tools.hold("lookup");
    let alice = api.human("plain").await;
    let text = script().calls(lookup("l1", "x")).says("done");
    let stream = alice.streams(text, json!({"on_disconnect": "cancel"})).await;
    let run = stream.run_id();
    api.tools.called("lookup", 1).await;
    let joined = others
        .each_ref()
        .map(|other| Human::at(other.client(), "plain", &alice.thread).run_of_id(&run));
    let readers = [joined[0].is_joined(None).await, joined[1].is_joined(None).await];
    api.is_killed_and_started_again().await;
    assert_eq!(joined[0].status().await, "running");
    // Each of the two servers goes on, and has no client of the run any more.
    drop(readers);
    eventually(async || joined[0].status().await == "interrupted").await;
    api.tools.let_go("lookup");
    for server in others.into_iter().chain([worker]) {
        server.is_stopped().await;
    }
}

async fn a_server_without_its_database_is_not_ready(server: TestServer) {
    let straight = server.database_url();
    let Some(door) = PostgresProxy::before(&straight, "nothing") else {
        return;
    };
    server.configuration_changes("[storage]\n", "[storage]\nstatement_timeout_s = 4.0\n");
    server.configuration_changes("lease_s = 2.0", "lease_s = 120.0");
    server.configuration_changes(&straight, &door.url);
    server.is_stopped_and_started_again().await;
    let client = server.client();
    client.get("/ready").await.ok();
    door.stops_forwarding();
    eventually(async || client.get("/ready").await.status == 503).await;
    client.get("/ok").await.ok();
    door.forwards_again();
    eventually(async || client.get("/ready").await.status == 200).await;
    // The harness asks the server when the proxy is gone.
    server.configuration_changes(&door.url, &straight);
    server.is_stopped_and_started_again().await;
}
