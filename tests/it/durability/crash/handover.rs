//! Another process takes a run over: from a server that is stopped in good order, killed, or suspended for too long.

use super::super::random::Random;
use super::reviewer::Reviewer;
use super::{Measure, PATIENCE, measured, runs_in_a_process, scenario};
use crate::support::{TestServer, on_both_engines, on_postgres};

/// Returns a reviewer with a new thread, who always makes the same choices.
fn reviewer(server: &TestServer) -> Reviewer {
    Reviewer::of(server, Random::of(1, 1))
}

/// Checks that the outcome of a run is that of the undisturbed run.
async fn has_the_right_outcome(reviewer: &Reviewer, server: &TestServer, mark: &str, right: &Measure) {
    let calls = server.tools.calls();
    let differences = scenario::differences(reviewer, mark, &calls, &right.outcome).await;
    assert_eq!(
        differences.expect("the server runs"),
        [""; 0],
        "{mark}:\n{}",
        server.log().text()
    );
}

on_both_engines! {
    a_server_that_is_stopped_in_good_order_leaves_no_call_with_an_unknown_outcome,
}

async fn a_server_that_is_stopped_in_good_order_leaves_no_call_with_an_unknown_outcome(server: TestServer) {
    runs_in_a_process(&server).await;
    let right = measured(&server, Random::of(1, 0)).await;
    for calls in 1..=right.called {
        server.tools.forget();
        let mut reviewer = reviewer(&server);
        let mark = format!("m{calls}");
        let message = scenario::message(&mark);
        let stopped = server.clone();
        let stopping = tokio::spawn(async move {
            stopped.tools.any_called(calls).await;
            stopped.is_terminated_and_started_again().await;
        });
        tokio::time::timeout(PATIENCE, reviewer.completes(&message))
            .await
            .expect("the run comes to its end");
        stopping.await.expect("the server stops in good order");
        reviewer.completes(&message).await;
        has_the_right_outcome(&reviewer, &server, &mark, &right).await;
        assert_eq!(reviewer.decisions, [], "after {calls} calls:\n{}", server.log().text());
    }
}

on_postgres! {
    another_server_continues_the_runs_of_a_killed_one,
    a_server_that_was_suspended_too_long_writes_nothing_and_its_clients_read_on,
}

async fn another_server_continues_the_runs_of_a_killed_one(first: TestServer) {
    runs_in_a_process(&first).await;
    let second = first.starts_second_process().await;
    let right = measured(&first, Random::of(1, 0)).await;
    first.tools.forget();
    let mut reviewer = reviewer(&first);
    let message = scenario::message("m1");
    reviewer.creates_thread().await.expect("the server runs");
    reviewer.starts(&message).await.expect("the server runs");
    first.tools.any_called(3).await;
    first.is_killed().await;
    reviewer.moves_to(&second);
    tokio::time::timeout(PATIENCE, reviewer.completes(&message))
        .await
        .expect("the second server continues");
    has_the_right_outcome(&reviewer, &second, "m1", &right).await;
    second.finish().await;
}

async fn a_server_that_was_suspended_too_long_writes_nothing_and_its_clients_read_on(first: TestServer) {
    runs_in_a_process(&first).await;
    let second = first.starts_second_process().await;
    let right = measured(&first, Random::of(1, 0)).await;
    for calls in 1..=4 {
        first.tools.forget();
        first.log().clear();
        // However slow this machine is, the server has work left when it is suspended.
        first.tools.hold_from_call(calls);
        let mut reviewer = reviewer(&first);
        let mark = format!("m{calls}");
        let message = scenario::message(&mark);
        reviewer.creates_thread().await.expect("the server runs");
        // Both servers are notified of a new run; the first one has to claim it.
        second.is_suspended().await;
        let run = reviewer.starts(&message).await.expect("the server runs");
        let mut reader = Reviewer::on(&first, Random::of(1, 1), reviewer.thread.clone());
        let mut progress = reader.progress();
        let reading = tokio::spawn(async move { reader.follows(&run).await.is_ok() });
        // The reader has to be connected: a request to a suspended server may be refused.
        first.tools.any_called(calls).await;
        let is_connected = progress.wait_for(|progress| progress.events > 0).await;
        is_connected.expect("the reader reads");
        first.is_suspended().await;
        second.is_continued().await;
        first.tools.let_all_go();
        let before = first.tools.calls().len();
        reviewer.moves_to(&second);
        let continuing = tokio::spawn(async move {
            reviewer.completes(&message).await;
            reviewer
        });
        // Once the second server works, both believe that the run is theirs.
        let overlapping = async {
            second.tools.any_called(before + 1).await;
            first.is_continued().await;
        };
        let overlapped = tokio::time::timeout(PATIENCE, overlapping).await;
        assert!(
            overlapped.is_ok(),
            "no server takes the run over after {calls} calls:\n{}\n{}",
            first.log().text(),
            second.log().text()
        );
        let reviewer = tokio::time::timeout(PATIENCE, continuing)
            .await
            .expect("the run comes to its end")
            .expect("the reviewer completes it");
        // The second message: the server looked at its clock first. The third: Postgres may have closed the transaction
        // in which the server was suspended.
        let refusals = [
            "another process has taken the run over",
            "the lease of this process is over",
            "the database failed under a run",
        ];
        first.log().gets_one_of(&refusals).await;
        has_the_right_outcome(&reviewer, &second, &mark, &right).await;
        let has_read = tokio::time::timeout(PATIENCE, reading).await;
        let has_read = has_read.expect("the stream comes to its end").expect("no panic");
        assert!(has_read, "the stream broke:\n{}", first.log().text());
    }
    second.finish().await;
}
