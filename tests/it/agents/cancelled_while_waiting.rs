//! A subagent that waits for a human can be cancelled alone: its question is gone, and everybody else goes on or keeps
//! waiting.

use serde_json::{Value, json};

use crate::support::actors::Run;
use crate::support::{
    Human, TestServer, eventually, lookup, mail, mailer, on_both_engines, on_postgres, script, task, transcript,
    two_mailers,
};

/// Starts a run of which two mailers wait for a human.
async fn two_wait(server: &TestServer) -> (Human, Run) {
    let alice = server.human("agent").await;
    let run = alice.asks(script().calls_all(two_mailers()).says("done")).await;
    run.finishes().await;
    assert_eq!(alice.questions().await.len(), 2);
    (alice, run)
}

/// The run of the subagent on this call.
async fn child_of(human: &Human, run: &Run, call: &str) -> Run {
    let children = run.children().await;
    human.run(
        children
            .iter()
            .find(|child| child["task_call_id"] == call)
            .expect("a child"),
    )
}

/// Starts a run with two subagents: that of the call `t1` waits for a human, while the other one works with a tool.
async fn one_waits_and_one_works(server: &TestServer, agent: &str, waits: Value) -> (Human, Run, Run) {
    let alice = server.human(agent).await;
    server.tools.hold("lookup");
    let research = task("t9", "researcher", script().calls(lookup("c1", "x")).says("it is x"));
    let run = alice.asks(script().calls_all([waits, research]).says("done")).await;
    server.tools.called("lookup", 1).await;
    eventually(async || !alice.questions().await.is_empty()).await;
    let child = child_of(&alice, &run, "t1").await;
    eventually(async || child.status().await == "interrupted").await;
    (alice, run, child)
}

/// Returns when nothing is at work on the thread.
async fn rests(human: &Human) {
    let at_work = |run: &Value| run["status"] == "pending" || run["status"] == "running";
    eventually(async || !human.runs().await.iter().any(at_work)).await;
}

const CANCELLED: &str =
    "task failed: The subagent `mailer` was cancelled by request before it was done: it has no result.";

on_both_engines! {
    the_only_one_that_waits_is_cancelled_and_its_caller_goes_on,
    a_sibling_that_waits_keeps_waiting,
    all_that_wait_can_be_cancelled_at_the_same_time,
    one_that_waits_while_its_sibling_is_at_work_is_cancelled_at_once,
    one_deep_below_is_cancelled_alone_or_with_all_below_it,
    one_deep_below_is_cancelled_while_one_above_is_at_work,
    one_that_waits_stays_cancelled_when_the_process_dies,
    one_that_waits_beside_work_stays_cancelled_when_the_process_dies,
}

on_postgres! {
    one_that_waits_is_cancelled_at_another_server,
}

async fn the_only_one_that_waits_is_cancelled_and_its_caller_goes_on(server: TestServer) {
    let alice = server.human("agent").await;
    let run = alice.asks(script().calls(mailer("t1", "m1", "ann")).says("done")).await;
    run.finishes().await;
    let question = alice.question().await;
    let child = child_of(&alice, &run, "t1").await;
    assert_eq!(
        child.is_cancelled("rollback").await.body["code"],
        "no_rollback_of_subagent"
    );
    assert_eq!(child.is_cancelled("interrupt").await.status, 200);
    let record = child.record().await;
    assert_eq!(&record["status"], &json!("interrupted"));
    assert_eq!(&record["error"]["error"], &json!("UserInterrupt"));
    assert!(alice.questions().await.is_empty(), "nobody is asked any more");
    rests(&alice).await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", CANCELLED, "ai: done"]
    );
    assert_eq!(alice.status().await.as_str(), "idle");
    assert_eq!(server.tools.calls_of("send_email").len(), 0);
    assert_eq!(alice.runs().await.len(), 2, "one run asked, one went on");
    let told = server
        .client()
        .get(&alice.path(&format!("/interrupts/{}", question.id())))
        .await
        .ok();
    assert_eq!(told["status"], "dropped");
    let late = alice
        .resolves(&question, json!({"decisions": [{"type": "approve"}]}))
        .await;
    assert_eq!(late.status, 409, "{late:?}");
    let again = child.is_cancelled("interrupt").await;
    assert_eq!(again.status, 404);
    assert_eq!(&again.body["code"], &json!("run_over"));
    assert_eq!(
        transcript(&alice.says("hello").await).last().unwrap(),
        "ai: echo: hello"
    );
}

async fn a_sibling_that_waits_keeps_waiting(server: TestServer) {
    let (alice, run) = two_wait(&server).await;
    child_of(&alice, &run, "t1").await.is_cancelled("interrupt").await;
    let left = alice.question().await;
    assert_eq!(left.0["task_call_id"], "t2");
    rests(&alice).await;
    let state = alice.state().await;
    assert_eq!(alice.status().await.as_str(), "interrupted");
    assert_eq!(state["interrupts"].as_array().map(Vec::len), Some(1));
    alice.approves(&left).await.finishes().await;
    assert_eq!(
        alice.transcript().await,
        [
            "human: …",
            "ai calls task, task",
            CANCELLED,
            "task: bob knows",
            "ai: done"
        ]
    );
    assert_eq!(alice.status().await.as_str(), "idle");
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn all_that_wait_can_be_cancelled_at_the_same_time(server: TestServer) {
    let (alice, run) = two_wait(&server).await;
    let both = [child_of(&alice, &run, "t1").await, child_of(&alice, &run, "t2").await];
    let [first, second] = &both;
    let (first, second) = tokio::join!(first.is_cancelled("interrupt"), second.is_cancelled("interrupt"));
    assert_eq!(first.status, 200);
    assert_eq!(second.status, 200);
    eventually(async || alice.status().await == "idle").await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task, task", CANCELLED, CANCELLED, "ai: done"]
    );
}

async fn one_that_waits_while_its_sibling_is_at_work_is_cancelled_at_once(server: TestServer) {
    let (alice, run, child) = one_waits_and_one_works(&server, "agent", mailer("t1", "m1", "ann")).await;
    assert_eq!(child.is_cancelled("interrupt").await.status, 200);
    assert!(alice.questions().await.is_empty());
    assert_eq!(run.status().await, "running", "its sibling is at work");
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(
        alice.transcript().await,
        [
            "human: …",
            "ai calls task, task",
            CANCELLED,
            "task: it is x",
            "ai: done"
        ]
    );
    assert_eq!(alice.runs().await.len(), 1);
    assert_eq!(alice.status().await.as_str(), "idle");
}

async fn one_deep_below_is_cancelled_alone_or_with_all_below_it(server: TestServer) {
    let alice = server.human("deep").await;
    let asks = |id: &str, to: &str| script().calls(mail(id, to)).says(&format!("{to} knows"));
    let below = script().calls_all([
        task("t2", "researcher", asks("m1", "ann")),
        task("t3", "researcher", asks("m2", "bob")),
    ]);
    let above = script()
        .calls(task("t1", "researcher", below.turn(json!({"echo_last_tool": true}))))
        .turn(json!({"echo_last_tool": true}));
    let run = alice.asks(above.clone()).await;
    run.finishes().await;
    let middle = child_of(&alice, &run, "t1").await;
    child_of(&alice, &middle, "t2").await.is_cancelled("interrupt").await;
    rests(&alice).await;
    let left = alice.question().await;
    assert_eq!(left.0["task_call_id"].as_str(), Some("t3"));
    assert_eq!(alice.status().await.as_str(), "interrupted");
    middle.is_cancelled("interrupt").await;
    rests(&alice).await;
    assert!(alice.questions().await.is_empty() && alice.status().await == "idle");
    assert!(
        alice
            .transcript()
            .await
            .last()
            .unwrap()
            .contains("was cancelled by request")
    );
    let below: Vec<Value> = middle
        .children()
        .await
        .iter()
        .map(|child| child["status"].clone())
        .collect();
    assert_eq!(below, ["interrupted", "interrupted"]);
}

async fn one_deep_below_is_cancelled_while_one_above_is_at_work(server: TestServer) {
    let asks = script().calls(mail("m1", "ann")).says("ann knows");
    let middle = script()
        .calls(task("t2", "researcher", asks))
        .turn(json!({"echo_last_tool": true}));
    let (alice, run, middle) = one_waits_and_one_works(&server, "deep", task("t1", "researcher", middle)).await;
    child_of(&alice, &middle, "t2").await.is_cancelled("interrupt").await;
    eventually(async || middle.status().await == "success").await;
    server.tools.let_go("lookup");
    run.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[2].contains("was cancelled by request") && said[3] == "task: it is x",
        "{said:#?}"
    );
    assert_eq!(alice.runs().await.len(), 1);
    assert_eq!(alice.status().await.as_str(), "idle");
}

async fn one_that_waits_stays_cancelled_when_the_process_dies(server: TestServer) {
    server.moves_into_a_process().await;
    let (alice, run) = two_wait(&server).await;
    let child = child_of(&alice, &run, "t1").await;
    let told = server.client().post(&format!("{}/cancel", child.path), json!({})).await;
    assert_eq!(told.status, 202);
    server.is_killed_and_started_again().await;
    rests(&alice).await;
    let left = alice.question().await;
    assert_eq!(left.0["task_call_id"].as_str(), Some("t2"));
    assert_eq!(alice.status().await.as_str(), "interrupted");
    alice.approves(&left).await.finishes().await;
    assert_eq!(
        alice.transcript().await,
        [
            "human: …",
            "ai calls task, task",
            CANCELLED,
            "task: bob knows",
            "ai: done"
        ]
    );
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn one_that_waits_beside_work_stays_cancelled_when_the_process_dies(server: TestServer) {
    server.moves_into_a_process().await;
    let (alice, run, child) = one_waits_and_one_works(&server, "agent", mailer("t1", "m1", "ann")).await;
    child.is_cancelled("interrupt").await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(
        alice.transcript().await,
        [
            "human: …",
            "ai calls task, task",
            CANCELLED,
            "task: it is x",
            "ai: done"
        ]
    );
    assert_eq!(alice.status().await, "idle");
}

async fn one_that_waits_is_cancelled_at_another_server(server: TestServer) {
    const UNHEARD: &str = "select count(*) from runs where cancel is not null";
    let other = server.starts_twin().await;
    let (alice, run, child) = one_waits_and_one_works(&server, "agent", mailer("t1", "m1", "ann")).await;
    let told = other.client.post(&format!("{}/cancel", child.path), json!({})).await;
    assert_eq!(told.status, 202);
    // The run at work hears of it by a notification. Without this wait its sibling may end before, and then the run ends
    // waiting, and another one goes on.
    eventually(async || server.number_in_database(UNHEARD).await == 0).await;
    assert_eq!(run.status().await, "running", "its sibling is at work");
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(
        alice.transcript().await,
        [
            "human: …",
            "ai calls task, task",
            CANCELLED,
            "task: it is x",
            "ai: done"
        ]
    );
    assert_eq!(alice.runs().await.len(), 1, "no other run has to go on");
    other.stops().await;
}
