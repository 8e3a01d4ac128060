//! A server of the former release is at work beside one of this release: what it cannot read is not written.

use crate::support::actors::Human;
use crate::support::{TestServer, eventually, on_postgres};

on_postgres! {
    a_server_writes_short_texts_while_no_server_of_the_former_release_is_left,
}

/// Returns the number of runs whose requests are in the short form.
async fn short_requests(server: &TestServer) -> i64 {
    let sql = "select count(*) from runs where substr(request, 1, 1) = '\u{1}'";
    server.number_in_database(sql).await
}

/// Has a run, and returns whether its request is in the short form.
async fn is_short(server: &TestServer, alice: &Human) -> bool {
    let before = short_requests(server).await;
    alice.says("hello").await;
    short_requests(server).await > before
}

async fn a_server_writes_short_texts_while_no_server_of_the_former_release_is_left(server: TestServer) {
    let alice = server.human("agent").await;
    eventually(async || is_short(&server, &alice).await).await;
    // The lease of a server that does not say what it reads, and has no lock.
    let begins = "insert into workers (worker_id, alive_until) values (gen_random_uuid(), 9000000000000000000)";
    server.executes_sql(begins).await;
    eventually(async || !is_short(&server, &alice).await).await;
    assert!(!is_short(&server, &alice).await, "it stays so");
    server.executes_sql("delete from workers where reads = 0").await;
    eventually(async || is_short(&server, &alice).await).await;
    // What was written in either form is read.
    server.is_stopped_and_started_again().await;
    let runs = alice.runs().await;
    assert!(runs.iter().all(|run| run["status"] == "success"), "{runs:?}");
    assert_eq!(alice.transcript().await.len(), 2 * runs.len());
}
