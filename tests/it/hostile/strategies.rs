//! Clients that displace and cancel the runs of one thread, all at once.

use futures::future::join_all;
use serde_json::json;

use crate::support::actors::{Human, Run};
use crate::support::{Engine, TestServer, eventually, lookup, on_both_engines, script};

on_both_engines! {
    clients_that_displace_and_cancel_runs_of_one_thread_are_served_and_lose_nothing,
}

/// The number of times that all clients send a message.
const ROUNDS: usize = 12;
/// The strategies of the clients.
const STRATEGIES: [&str; 6] = ["enqueue", "interrupt", "rollback", "enqueue", "rollback", "interrupt"];

/// A run that was accepted, and what its agent says at its end.
struct Accepted {
    run: Run,
    answer: String,
}

/// Starts a run with this strategy. Every third one is cancelled at once, by either action.
async fn starts(alice: &Human, round: usize, number: usize) -> Accepted {
    let answer = format!("the answer of client {number} in round {round}");
    let text = script().calls(lookup("c1", &answer)).says(&answer);
    let body = alice.run_body(text, json!({"multitask_strategy": STRATEGIES[number]}));
    let run = alice.run(&alice.client().post(&alice.path("/runs"), body).await.ok());
    if (round + number).is_multiple_of(3) {
        let action = if round.is_multiple_of(2) {
            "interrupt"
        } else {
            "rollback"
        };
        let path = format!("{}/cancel?action={action}", run.path);
        let cancelled = alice.client().post(&path, json!({})).await;
        // It may have ended, or have been rolled back.
        assert!([200, 202, 404].contains(&cancelled.status), "{cancelled:?}");
    }
    Accepted { run, answer }
}

/// Checks that Postgres has ended no transaction because two waited for each other. It says so when all connections of the
/// server are closed.
pub(super) async fn had_no_deadlock(server: &TestServer) {
    server.is_stopped().await;
    let others = "select count(*) from pg_stat_activity where datname = current_database() \
        and backend_type = 'client backend' and pid <> pg_backend_pid()";
    eventually(async || server.number_in_database(others).await == 0).await;
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(server.number_in_database(deadlocks).await, 0, "deadlocks");
}

async fn clients_that_displace_and_cancel_runs_of_one_thread_are_served_and_lose_nothing(server: TestServer) {
    let alice = server.human("plain").await;
    let mut accepted = vec![];
    for round in 0..ROUNDS {
        let clients = (0..STRATEGIES.len()).map(|number| starts(&alice, round, number));
        accepted.extend(join_all(clients).await);
    }
    eventually(async || alice.status().await != "busy").await;
    let said = alice.transcript().await;
    for Accepted { run, answer } in accepted {
        let found = alice.client().get(&run.path).await;
        let status = match found.status {
            404 => "rolled back".to_owned(),
            _ => found.ok()["status"].as_str().expect("a status").to_owned(),
        };
        let times = said.iter().filter(|line| **line == format!("ai: {answer}")).count();
        match status.as_str() {
            "success" => assert_eq!(times, 1, "{answer}"),
            "rolled back" => assert_eq!(times, 0, "{answer}"),
            // It was stopped before its end, maybe after its answer.
            "interrupted" => assert!(times <= 1, "{answer}"),
            other => panic!("{answer}: {other}"),
        }
    }
    alice.says("and now?").await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: echo: and now?");
    if server.engine == Engine::Postgres {
        had_no_deadlock(&server).await;
    }
}
