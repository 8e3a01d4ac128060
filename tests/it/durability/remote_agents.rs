//! Either of two servers that work together may die at any instant, and nothing is started twice.
//!
//! Each server is killed a fifth as often as [`random::kills`] says.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::random::{self, Random};
use crate::remote::awaited::{Peer, far};
use crate::support::actors::Human;
use crate::support::{TestServer, lookup, mail, on_both_engines, script};

/// Returns a message that delegates two tasks to the other server, one of which needs an approval there.
fn message(mark: &str) -> String {
    let research = script().calls(lookup("c1", mark)).says("it is known");
    let mailing = script().calls(mail("m1", mark)).says("it is sent");
    script()
        .calls_all([far("t1", research), far("t2", mailing)])
        .says("done")
        .to_string()
}

const TRANSCRIPT: [&str; 5] = [
    "human: …",
    "ai calls task, task",
    "task: it is known",
    "task: it is sent",
    "ai: done",
];

/// Approves all interrupts until the thread is idle.
async fn completes(human: &Human) {
    let completing = async {
        let mut pause = tokio::time::interval(Duration::from_millis(20));
        while !is_over(human).await {
            pause.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(90), completing)
        .await
        .expect("the run comes to its end");
}

/// Approves the pending interrupts. Returns whether the thread is idle.
async fn is_over(human: &Human) -> bool {
    let Some(thread) = human.try_get("").await else {
        return false;
    };
    if thread["status"] != "interrupted" {
        return thread["status"] == "idle" && thread["values"]["messages"].as_array().is_some_and(|all| all.len() > 1);
    }
    let Some(asked) = human.try_get("/interrupts").await else {
        return false;
    };
    let asked = asked["interrupts"].as_array().into_iter().flatten();
    for question in asked.filter(|asked| asked["status"] == "pending") {
        let path = human.path(&format!(
            "/interrupts/{}/resolve",
            question["id"].as_str().expect("an id")
        ));
        let answer = json!({"decisions": [{"type": "approve"}]});
        drop(
            human
                .client()
                .request(reqwest::Method::POST, &path)
                .json(&answer)
                .send()
                .await,
        );
    }
    false
}

/// Checks the number of runs on the threads of the other server, and that each tool was called under one key.
async fn nothing_happened_twice(peer: &Peer, human: &Human, mark: &str) {
    let id = human.record().await["thread_id"].clone();
    let client = peer.server.client();
    let threads = client
        .post("/threads/search", json!({"metadata": {"parent_thread_id": id}}))
        .await
        .ok();
    let mut counts = vec![];
    for thread in threads.as_array().expect("a list") {
        let path = format!(
            "/threads/{}/runs?limit=100",
            thread["thread_id"].as_str().expect("an id")
        );
        counts.push(client.get(&path).await.ok().as_array().expect("a list").len());
    }
    counts.sort_unstable();
    assert_eq!(counts, [1, 2], "{mark}: runs on the threads there");
    for (tool, field) in [("lookup", "query"), ("send_email", "to")] {
        let calls = peer.server.tools.calls_of(tool);
        let mut keys: Vec<&Value> = calls
            .iter()
            .filter(|call| call["args"][field] == mark)
            .map(|call| &call["key"])
            .collect();
        keys.dedup();
        assert_eq!(keys.len(), 1, "{mark}: calls of {tool}");
    }
}

on_both_engines! {
    a_remote_run_survives_kills_of_the_calling_server,
    a_remote_run_survives_kills_of_the_executing_server,
    the_next_process_cancels_a_remote_run,
}

async fn a_remote_run_survives_kills_of_the_calling_server(server: TestServer) {
    let peer = Peer::of(&server).await;
    let mut random = Random::seeded();
    server.moves_into_a_process().await;
    let mut took = Duration::from_millis(600);
    for number in 0..=random::kills().div_ceil(5) {
        let alice = server.human("caller").await;
        let mark = format!("kill-{number}");
        let began = Instant::now();
        alice.asks(message(&mark)).await;
        // The first run is not disturbed: it measures the duration.
        if number > 0 {
            let most = u64::try_from(took.as_micros()).expect("a short run");
            // A random instant is what these tests are about.
            tokio::time::sleep(Duration::from_micros(random.below(most))).await;
            server.is_killed_and_started_again().await;
        }
        completes(&alice).await;
        took = if number == 0 { began.elapsed() } else { took };
        assert_eq!(alice.transcript().await, TRANSCRIPT, "{mark}");
        nothing_happened_twice(&peer, &alice, &mark).await;
    }
    peer.finish().await;
}

async fn a_remote_run_survives_kills_of_the_executing_server(server: TestServer) {
    let peer = Peer::of(&server).await;
    let mut random = Random::seeded();
    peer.server.moves_into_a_process().await;
    for number in 1..=random::kills().div_ceil(5) {
        let alice = server.human("caller").await;
        let mark = format!("kill-{number}");
        let research = script().calls(lookup("c1", &mark)).says("it is known");
        alice.asks(script().calls(far("t1", research)).says("done")).await;
        tokio::time::sleep(Duration::from_micros(random.below(400_000))).await;
        peer.server.is_killed_and_started_again().await;
        completes(&alice).await;
        assert_eq!(
            alice.transcript().await,
            ["human: …", "ai calls task", "task: it is known", "ai: done"],
            "{mark}"
        );
        let id = alice.record().await["thread_id"].clone();
        let threads = peer
            .server
            .client()
            .post("/threads/search", json!({"metadata": {"parent_thread_id": id}}))
            .await
            .ok();
        let thread = threads[0]["thread_id"].as_str().expect("an id");
        let runs = peer.server.client().get(&format!("/threads/{thread}/runs")).await.ok();
        assert_eq!(threads.as_array().map(Vec::len), Some(1), "{mark}");
        assert_eq!(runs.as_array().map(Vec::len), Some(1), "{mark}");
    }
    peer.finish().await;
}

async fn the_next_process_cancels_a_remote_run(server: TestServer) {
    let peer = Peer::of(&server).await;
    server.moves_into_a_process().await;
    peer.server.tools.hold("lookup");
    let alice = server.human("caller").await;
    let research = script().calls(lookup("c1", "x")).says("it is known");
    let run = alice.asks(script().calls(far("t1", research)).says("done")).await;
    peer.server.tools.called("lookup", 1).await;
    peer.outlives_a_kill_during_the_cancellation(&server, &run).await;
}
