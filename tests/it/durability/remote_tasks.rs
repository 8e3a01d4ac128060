//! Either server may die at any instant: a task on another server is begun once, and what becomes of it is told once.

use std::time::Duration;

use serde_json::json;

use crate::agents::background_tasks::{about, notifications, start, the_task};
use crate::durability::background_tasks::{INSTANTS, all_is_told_once};
use crate::remote::awaited::Peer;
use crate::remote::background_tasks::{chief, runs_there};
use crate::support::proxy::ProxyState;
use crate::support::{TestServer, eventually, lookup, on_both_engines, on_postgres, script};

/// A message that has a task begun whose agent calls a tool on the other server.
fn wish(id: &str) -> String {
    let work = script().calls(lookup("l1", id)).says("the long text");
    script()
        .calls(start("a1", "far", work))
        .says("it is under way")
        .to_string()
}

async fn pair(server: &TestServer) -> Peer {
    // A server that begins anew is waited for.
    Peer::named_by(server, |base| {
        chief(base, "").replace("patience_s = 1.0", "patience_s = 60.0")
    })
    .await
}

on_both_engines! {
    a_task_is_begun_once_on_another_server_however_this_one_dies_meanwhile,
    what_another_server_did_is_told_once_however_this_one_dies_around_its_end,
    the_server_that_does_the_task_may_die_while_it_is_begun_or_done,
    an_outcome_that_came_while_this_server_was_dead_is_told_by_the_next_one,
    a_task_that_was_cancelled_is_stopped_there_by_the_next_process,
}

async fn a_task_is_begun_once_on_another_server_however_this_one_dies_meanwhile(server: TestServer) {
    let peer = pair(&server).await;
    server.moves_into_a_process().await;
    for (round, instant) in INSTANTS.into_iter().enumerate() {
        let alice = server.human("away").await;
        alice.asks(wish(&format!("r{round}"))).await;
        // The one kind of sleep that is the point of these tests.
        tokio::time::sleep(Duration::from_micros(instant)).await;
        server.is_killed_and_started_again().await;
        all_is_told_once(&peer.server, &alice).await;
    }
    peer.finish().await;
}

async fn what_another_server_did_is_told_once_however_this_one_dies_around_its_end(server: TestServer) {
    let peer = pair(&server).await;
    server.moves_into_a_process().await;
    for (round, instant) in INSTANTS.into_iter().enumerate() {
        let alice = server.human("away").await;
        let before = peer.server.tools.calls_of("lookup").len();
        peer.server.tools.hold("lookup");
        alice.says(wish(&format!("r{round}"))).await;
        peer.server.tools.called("lookup", before + 1).await;
        peer.server.tools.let_go("lookup");
        tokio::time::sleep(Duration::from_micros(instant)).await;
        server.is_killed_and_started_again().await;
        all_is_told_once(&peer.server, &alice).await;
    }
    peer.finish().await;
}

async fn the_server_that_does_the_task_may_die_while_it_is_begun_or_done(server: TestServer) {
    let peer = pair(&server).await;
    peer.server.moves_into_a_process().await;
    for (round, instant) in INSTANTS.into_iter().enumerate() {
        let alice = server.human("away").await;
        alice.asks(wish(&format!("r{round}"))).await;
        tokio::time::sleep(Duration::from_micros(instant)).await;
        peer.server.is_killed_and_started_again().await;
        all_is_told_once(&peer.server, &alice).await;
    }
    peer.finish().await;
}

async fn an_outcome_that_came_while_this_server_was_dead_is_told_by_the_next_one(server: TestServer) {
    let peer = pair(&server).await;
    server.moves_into_a_process().await;
    let alice = server.human("away").await;
    peer.server.tools.hold("lookup");
    alice.says(wish("x")).await;
    peer.server.tools.called("lookup", 1).await;
    // From here it hears nothing of the end.
    peer.door.is(ProxyState::Shut);
    peer.server.tools.let_go("lookup");
    let task = the_task(&alice).await;
    eventually(async || runs_there(&peer, &task).await[0]["status"] == "success").await;
    server.is_killed_and_started_again().await;
    peer.door.is(ProxyState::Open);
    all_is_told_once(&peer.server, &alice).await;
    peer.finish().await;
}

async fn a_task_that_was_cancelled_is_stopped_there_by_the_next_process(server: TestServer) {
    let peer = pair(&server).await;
    server.moves_into_a_process().await;
    let alice = server.human("away").await;
    peer.server.tools.hold("lookup");
    alice.says(wish("x")).await;
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
    two_servers_on_one_database_tell_what_a_third_one_did_once,
}

async fn two_servers_on_one_database_tell_what_a_third_one_did_once(server: TestServer) {
    let peer = pair(&server).await;
    let twin = server.gets_a_twin().await;
    let mut people = vec![];
    peer.server.tools.hold("lookup");
    for _ in 0..8 {
        let alice = server.human("away").await;
        alice.says(wish("x")).await;
        people.push(alice);
    }
    peer.server.tools.called("lookup", people.len()).await;
    peer.server.tools.let_go("lookup");
    for alice in &people {
        all_is_told_once(&peer.server, alice).await;
        assert_eq!(
            alice.runs().await.len(),
            2,
            "one run was asked for, and one told the news"
        );
    }
    twin.leaves().await;
    peer.finish().await;
}
