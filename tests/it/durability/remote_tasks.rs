//! Either server may be killed at any instant: a task on another server starts once, and its outcome is reported once.

use std::time::Duration;

use serde_json::json;

use crate::agents::background_tasks::{about, notifications, start, the_task};
use crate::durability::background_tasks::{INSTANTS, completes_and_reports_once};
use crate::remote::awaited::Peer;
use crate::remote::background_tasks::{chief, runs_there};
use crate::support::proxy::ProxyState;
use crate::support::{TestServer, eventually, lookup, on_both_engines, on_postgres, script};

/// Returns a message that starts a task whose agent calls a tool on the other server.
fn message(id: &str) -> String {
    let work = script().calls(lookup("l1", id)).says("the long text");
    script()
        .calls(start("a1", "far", work))
        .says("it is under way")
        .to_string()
}

async fn pair(server: &TestServer) -> Peer {
    // Longer than a restart of the other server takes.
    Peer::named_by(server, |base| {
        chief(base, "").replace("patience_s = 1.0", "patience_s = 60.0")
    })
    .await
}

on_both_engines! {
    a_remote_task_starts_once_when_the_server_is_killed_at_its_start,
    a_remote_outcome_is_reported_once_when_the_server_is_killed_at_the_end,
    a_remote_task_survives_kills_of_the_executing_server,
    the_next_process_reports_a_remote_outcome,
    the_next_process_cancels_a_remote_task,
}

async fn a_remote_task_starts_once_when_the_server_is_killed_at_its_start(server: TestServer) {
    let peer = pair(&server).await;
    server.moves_into_a_process().await;
    for (round, instant) in INSTANTS.into_iter().enumerate() {
        let alice = server.human("away").await;
        alice.asks(message(&format!("r{round}"))).await;
        // The tests are about these instants.
        tokio::time::sleep(Duration::from_micros(instant)).await;
        server.is_killed_and_started_again().await;
        completes_and_reports_once(&peer.server, &alice).await;
    }
    peer.finish().await;
}

async fn a_remote_outcome_is_reported_once_when_the_server_is_killed_at_the_end(server: TestServer) {
    let peer = pair(&server).await;
    server.moves_into_a_process().await;
    for (round, instant) in INSTANTS.into_iter().enumerate() {
        let alice = server.human("away").await;
        let before = peer.server.tools.calls_of("lookup").len();
        peer.server.tools.hold("lookup");
        alice.says(message(&format!("r{round}"))).await;
        peer.server.tools.called("lookup", before + 1).await;
        peer.server.tools.let_go("lookup");
        tokio::time::sleep(Duration::from_micros(instant)).await;
        server.is_killed_and_started_again().await;
        completes_and_reports_once(&peer.server, &alice).await;
    }
    peer.finish().await;
}

async fn a_remote_task_survives_kills_of_the_executing_server(server: TestServer) {
    let peer = pair(&server).await;
    peer.server.moves_into_a_process().await;
    for (round, instant) in INSTANTS.into_iter().enumerate() {
        let alice = server.human("away").await;
        alice.asks(message(&format!("r{round}"))).await;
        tokio::time::sleep(Duration::from_micros(instant)).await;
        peer.server.is_killed_and_started_again().await;
        completes_and_reports_once(&peer.server, &alice).await;
    }
    peer.finish().await;
}

async fn the_next_process_reports_a_remote_outcome(server: TestServer) {
    let peer = pair(&server).await;
    server.moves_into_a_process().await;
    let alice = server.human("away").await;
    peer.server.tools.hold("lookup");
    alice.says(message("x")).await;
    peer.server.tools.called("lookup", 1).await;
    // From here on it cannot read the outcome.
    peer.door.is(ProxyState::Shut);
    peer.server.tools.let_go("lookup");
    let task = the_task(&alice).await;
    eventually(async || runs_there(&peer, &task).await[0]["status"] == "success").await;
    server.is_killed_and_started_again().await;
    peer.door.is(ProxyState::Open);
    completes_and_reports_once(&peer.server, &alice).await;
    peer.finish().await;
}

async fn the_next_process_cancels_a_remote_task(server: TestServer) {
    let peer = pair(&server).await;
    server.moves_into_a_process().await;
    let alice = server.human("away").await;
    peer.server.tools.hold("lookup");
    alice.says(message("x")).await;
    peer.server.tools.called("lookup", 1).await;
    let task = the_task(&alice).await;
    peer.door.is(ProxyState::Shut);
    alice
        .says(script().calls(about("k1", "cancel_async_task", &task)).says("so"))
        .await;
    server.is_killed_and_started_again().await;
    peer.door.is(ProxyState::Open);
    eventually(async || runs_there(&peer, &task).await[0]["status"] == "interrupted").await;
    assert_eq!(&the_task(&alice).await["status"], &json!("cancelled"));
    assert_eq!(notifications(&alice).await.len(), 0);
    peer.server.tools.let_go("lookup");
    peer.finish().await;
}

on_postgres! {
    two_servers_on_one_database_report_a_remote_outcome_once,
}

async fn two_servers_on_one_database_report_a_remote_outcome_once(server: TestServer) {
    let peer = pair(&server).await;
    let twin = server.starts_twin().await;
    let mut people = vec![];
    peer.server.tools.hold("lookup");
    for _ in 0..8 {
        let alice = server.human("away").await;
        alice.says(message("x")).await;
        people.push(alice);
    }
    peer.server.tools.called("lookup", people.len()).await;
    peer.server.tools.let_go("lookup");
    for alice in &people {
        completes_and_reports_once(&peer.server, alice).await;
        assert_eq!(
            alice.runs().await.len(),
            2,
            "one run was asked for, and one told the news"
        );
    }
    twin.stops().await;
    peer.finish().await;
}
