//! Two servers behind the HAProxy of `deploy/haproxy.cfg`.

use reqwest::Method;
use serde_json::json;
use tokio::sync::watch;

use super::failover::reads_on;
use crate::support::actors::Human;
use crate::support::client::{Client, reply};
use crate::support::load_balancer::LoadBalancer;
use crate::support::sse::put_together;
use crate::support::{TestServer, call, eventually, lookup, on_postgres, script};

on_postgres! {
    clients_behind_the_load_balancer_notice_no_stop_of_one_server,
}

/// Sends requests of all kinds until the other server has stopped. Each has to succeed.
async fn asks_again_and_again(client: Client, mut over: watch::Receiver<bool>) -> usize {
    let mut asked = 0;
    while !*over.borrow_and_update() {
        let thread = client.thread().await;
        client.get(&format!("/threads/{thread}")).await.ok();
        let keyed = client
            .request(Method::POST, "/threads")
            .header("Idempotency-Key", &thread);
        reply(keyed.json(&json!({}))).await.ok();
        asked += 1;
    }
    asked
}

async fn clients_behind_the_load_balancer_notice_no_stop_of_one_server(first: TestServer) {
    first.configuration_changes("[server]\n", "[server]\ndrain_s = 4.0\n");
    first.moves_into_a_process().await;
    let second = first.starts_second_process().await;
    let Some(balancer) = LoadBalancer::before([&first.client(), &second.client()]) else {
        return;
    };
    let client = balancer.client.clone();
    let answers = async || {
        let asked = client.tries(Method::GET, "/ready", None).await;
        asked.is_ok_and(|reply| reply.status == 200)
    };
    eventually(answers).await;
    assert_eq!(client.get("/metrics").await.status, 404);
    first.tools.hold("slow");
    let alice = Human::on_new_thread(client.clone(), "plain").await;
    let long = script()
        .calls(lookup("l1", "x"))
        .calls(call("s1", "slow", json!({})))
        .says("done");
    let body = alice.run_body(long, json!({"stream_mode": ["updates"], "stream_resumable": true}));
    let run = alice.starts(body).await;
    first.tools.called("slow", 1).await;
    // One stream at each server.
    let breaks = [watch::Sender::new(0), watch::Sender::new(0)];
    let open = async |server: &TestServer| {
        let metrics = server.client().get("/metrics").await.body;
        let metrics = metrics.as_str().unwrap_or_default().to_owned();
        metrics.lines().any(|line| line == "adjutant_streams_open 1")
    };
    let mut reading = vec![];
    for breaks in &breaks {
        let human = Human::at(client.clone(), "plain", &alice.thread);
        reading.push(tokio::spawn(reads_on(human, run.id.clone(), breaks.clone())));
        // The load balancer gives the next stream to the server without one.
        eventually(async || open(&first).await || open(&second).await).await;
    }
    eventually(async || open(&first).await && open(&second).await).await;
    let over = watch::Sender::new(false);
    let asking = tokio::spawn(asks_again_and_again(client.clone(), over.subscribe()));
    first.gets_signal("TERM").await;
    // Its call may not be repeated, so the server waits for it.
    eventually(async || first.client().get("/ready").await.status == 503).await;
    first.tools.let_go("slow");
    first.ends_well().await;
    over.send_replace(true);
    assert!(asking.await.expect("each request succeeds") > 0);
    let replayed = run.is_joined(Some("-1")).await.rest().await;
    for heard in reading {
        let heard = heard.await.expect("the reader does not panic");
        assert_eq!(put_together(&heard), put_together(&replayed));
    }
    let broken: usize = breaks.iter().map(|breaks| *breaks.borrow()).sum();
    assert!(broken >= 1, "the stream of the first server breaks");
    assert_eq!(run.status().await, "success");
    assert_eq!(first.tools.calls_of("slow").len(), 1);
    second.is_stopped().await;
}
