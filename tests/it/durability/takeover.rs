//! Processes that end while others share their Postgres. The leases of these tests last longer than the tests.

use crate::support::actors::{Human, Run};
use crate::support::{TestServer, eventually, lookup, on_postgres, script};

on_postgres! {
    a_killed_process_is_replaced_before_its_lease_is_over,
    a_process_that_is_started_again_takes_up_its_own_work_at_once,
    a_process_that_loses_the_connection_with_its_lock_keeps_its_runs,
    a_process_that_was_suspended_stores_nothing_for_a_run_that_was_deleted_meanwhile,
}

/// Runs the server as a process with a lease of ten minutes, and starts a run, which waits for its tool.
async fn works_in_a_process(server: &TestServer) -> (Human, Run) {
    server
        .is_reconfigured("lease_s = 2.0\nheartbeat_s = 0.5", "lease_s = 600.0\nheartbeat_s = 0.5")
        .await;
    server.moves_into_a_process().await;
    server.tools.hold("lookup");
    let alice = server.human("plain").await;
    let run = alice.asks(script().calls(lookup("l1", "x")).says("done")).await;
    server.tools.called("lookup", 1).await;
    (alice, run)
}

/// Waits until so many processes hold their locks and have said so.
async fn holds_locks(server: &TestServer, processes: i64) {
    eventually(async || {
        let sql = "select count(*) from workers join pg_locks on locktype = 'advisory' and granted \
            and (classid::bigint << 32) | objid::bigint = session_lock";
        server.number_in_database(sql).await == processes
    })
    .await;
}

pub(super) async fn a_killed_process_is_replaced_before_its_lease_is_over(server: TestServer) {
    let (alice, _) = works_in_a_process(&server).await;
    holds_locks(&server, 1).await;
    let second = server.starts_second_process().await;
    server.is_killed().await;
    // The call is known to be safe to repeat.
    server.tools.called("lookup", 2).await;
    server.tools.let_go("lookup");
    let alice = Human::at(second.client(), "plain", &alice.thread);
    let runs = alice.runs().await;
    let run = alice.run(&runs[0]);
    run.finishes().await;
    assert_eq!(run.status().await, "success");
    second.is_stopped().await;
}

async fn a_process_that_is_started_again_takes_up_its_own_work_at_once(server: TestServer) {
    let (_, run) = works_in_a_process(&server).await;
    holds_locks(&server, 1).await;
    server.is_killed_and_started_again().await;
    server.tools.called("lookup", 2).await;
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(run.status().await, "success");
}

async fn a_process_that_loses_the_connection_with_its_lock_keeps_its_runs(server: TestServer) {
    let (_, run) = works_in_a_process(&server).await;
    let second = server.starts_second_process().await;
    holds_locks(&server, 2).await;
    let cut = "select count(pg_terminate_backend(pid)) from pg_locks where locktype = 'advisory' \
        and database = (select oid from pg_database where datname = current_database())";
    assert_eq!(server.number_in_database(cut).await, 2);
    holds_locks(&server, 2).await;
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(run.status().await, "success");
    assert_eq!(
        server.tools.calls_of("lookup").len(),
        1,
        "no process has taken the run over"
    );
    second.is_stopped().await;
}

async fn a_process_that_was_suspended_stores_nothing_for_a_run_that_was_deleted_meanwhile(server: TestServer) {
    let (alice, run) = works_in_a_process(&server).await;
    let second = server.starts_second_process().await;
    holds_locks(&server, 2).await;
    server.is_suspended().await;
    assert_eq!(second.client().delete(&run.path).await.status, 204);
    let there = Human::at(second.client(), "plain", &alice.thread);
    assert_eq!(there.status().await, "interrupted");
    server.tools.let_go("lookup");
    let before = there.says("hello").await;
    server.is_continued().await;
    server
        .log()
        .gets_one_of(&["another process has taken the run over, or has deleted it"])
        .await;
    assert_eq!(there.state().await["values"], before);
    assert_eq!(there.runs().await.len(), 1);
    second.is_stopped().await;
}
