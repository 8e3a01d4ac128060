//! Runs of subagents are resources: they are read, followed, waited for and stopped like any other.

use serde_json::{Value, json};

use crate::support::actors::{Human, Run};
use crate::support::{TestServer, call, lookup, mail, on_both_engines, on_postgres, script, task, transcript};

/// Starts two researchers whose lookups are held back.
async fn two_researchers(server: &TestServer) -> (Human, Run, [Run; 2]) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let research = |id: &str| script().calls(lookup(id, id)).says(id);
    let calls = [
        task("t1", "researcher", research("c1")),
        task("t2", "researcher", research("c2")),
    ];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    server.tools.called("lookup", 2).await;
    let children = run.children().await;
    let of = |call: &str| {
        children
            .iter()
            .find(|child| child["task_call_id"] == call)
            .expect("a child")
    };
    let children = [alice.run(of("t1")), alice.run(of("t2"))];
    (alice, run, children)
}

/// The transcript after the first of two researchers was cancelled.
const ONE_CANCELLED: [&str; 5] = [
    "human: …",
    "ai calls task, task",
    "task failed: The subagent `researcher` was cancelled by request before it was done: it has no result.",
    "task: c2",
    "ai: done",
];

on_both_engines! {
    a_run_lists_its_child_runs,
    a_child_run_is_read_like_any_other_run,
    joining_a_child_run_returns_its_outcome,
    a_cancelled_subagent_is_an_error_result_and_its_sibling_goes_on,
    cancelling_a_subagent_cancels_its_child_runs,
    a_child_run_cannot_be_rolled_back_alone,
    a_cancelled_subagent_stays_cancelled_after_a_kill,
    the_stream_of_a_child_run_ends_with_it,
}

on_postgres! {
    a_subagent_of_another_server_can_be_cancelled,
}

async fn a_run_lists_its_child_runs(server: TestServer) {
    let alice = server.human("deep").await;
    let below = script().calls(task("t2", "researcher", "echo")).says("second");
    let args = json!({"description": script().says("spawned").to_string(), "subagent_type": "researcher"});
    let calls = [
        task("t1", "researcher", below),
        call("s1", "spawn", args),
        task("t3", "researcher", script().fails(400)),
    ];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    run.finishes().await;
    let tree = server.client().get(&format!("{}/tree", run.path)).await.ok();
    assert_eq!(&tree["run_id"], &json!(run.id));
    assert_eq!(&tree["depth"], &json!(0));
    assert_eq!(&tree["checkpoint_ns"], &json!(""));
    assert_eq!(&tree["agent_name"], &json!("deep-agent"));
    assert_eq!(&tree["truncated"], &json!(false));
    let children = tree["children"].as_array().unwrap();
    let mut told: Vec<Value> = children
        .iter()
        .map(|node| json!([node["task_call_id"], node["status"], node["depth"]]))
        .collect();
    told.sort_by_key(Value::to_string);
    assert_eq!(
        told,
        [
            json!(["s1", "success", 1]),
            json!(["t1", "success", 1]),
            json!(["t3", "error", 1])
        ]
    );
    let first = children.iter().find(|node| node["task_call_id"] == "t1").unwrap();
    let second = &first["children"][0];
    assert_eq!(&second["task_call_id"], &json!("t2"));
    assert_eq!(&second["depth"], &json!(2));
    assert_eq!(&second["children"], &json!([]));
    assert_eq!(second["agent_path"], json!(["deep-agent", "researcher", "researcher"]));
    let failed = children.iter().find(|node| node["task_call_id"] == "t3").unwrap();
    assert_eq!(failed["error"]["error"], "ModelRefusedError");
    let part = server
        .client()
        .get(&format!("{}/tree", alice.run(first).path))
        .await
        .ok();
    assert_eq!(&part["run_id"], &first["run_id"]);
    assert_eq!(&part["children"], &first["children"]);
    let missing = format!("{}/tree", alice.run_of_id("00000000-0000-0000-0000-000000000000").path);
    assert_eq!(server.client().get(&missing).await.status, 404);
}

async fn a_child_run_is_read_like_any_other_run(server: TestServer) {
    let alice = server.human("agent").await;
    let research = script().calls(lookup("c1", "x")).says("found it");
    let run = alice
        .asks(script().calls(task("t1", "researcher", research)).says("done"))
        .await;
    run.finishes().await;
    let child = alice.run(&run.children().await[0]);
    let record = child.record().await;
    assert_eq!(&record["run_id"], &json!(child.id));
    assert_eq!(&record["parent_run_id"], &json!(run.id));
    assert_eq!(&record["agent_name"], &json!("researcher"));
    assert_eq!(&record["status"], &json!("success"));
    assert_eq!(alice.runs().await.len(), 1, "they stay out of the list");
    let state = server.client().get(&format!("{}/state", child.path)).await.ok();
    assert_eq!(transcript(&state["values"]).last().unwrap(), "ai: found it");
    assert_eq!(state["checkpoint"]["checkpoint_ns"], record["checkpoint_ns"]);
    assert_eq!(transcript(&child.finishes().await).last().unwrap(), "ai: found it");
    let body = json!({"checkpoint": {"checkpoint_ns": record["checkpoint_ns"]}});
    let history = server.client().post(&alice.path("/history"), body).await.ok();
    assert_eq!(history[0]["checkpoint"], state["checkpoint"]);
    let state = server.client().get(&format!("{}/state", run.path)).await.ok();
    assert_eq!(transcript(&state["values"]).last().unwrap(), "ai: done");
    assert_eq!(
        server.client().delete(&child.path).await.status,
        404,
        "it goes with the run at the top"
    );
    assert_eq!(run.children().await.len(), 1);
}

async fn joining_a_child_run_returns_its_outcome(server: TestServer) {
    let alice = server.human("agent").await;
    let calls = [
        task("t1", "mailer", script().calls(mail("m1", "bob")).says("sent")),
        task("t2", "researcher", script().fails(400)),
    ];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    run.finishes().await;
    let children = run.children().await;
    let of = |call: &str| alice.run(children.iter().find(|child| child["task_call_id"] == call).unwrap());
    let question = alice.question().await;
    assert_eq!(of("t1").finishes().await["__interrupt__"][0]["id"], question.id());
    assert_eq!(of("t2").finishes().await["__error__"]["error"], "ModelRefusedError");
    alice.approves(&question).await.finishes().await;
    assert_eq!(transcript(&of("t1").finishes().await).last().unwrap(), "ai: sent");
}

async fn a_cancelled_subagent_is_an_error_result_and_its_sibling_goes_on(server: TestServer) {
    let (alice, run, [first, second]) = two_researchers(&server).await;
    let stopped = first.is_cancelled("interrupt").await;
    assert_eq!(stopped.status, 200);
    assert_eq!(stopped.body, json!({}));
    let record = first.record().await;
    assert_eq!(&record["status"], &json!("interrupted"));
    assert_eq!(&record["error"]["error"], &json!("UserInterrupt"));
    assert_eq!(run.status().await.as_str(), "running");
    assert_eq!(second.status().await.as_str(), "running");
    let values = first.finishes().await;
    assert_eq!(values.get("__error__"), None, "{values:#}");
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(alice.transcript().await, ONE_CANCELLED);
    assert_eq!(run.status().await.as_str(), "success");
    assert_eq!(second.status().await.as_str(), "success");
    let again = first.is_cancelled("interrupt").await;
    assert_eq!(again.status, 404);
    assert_eq!(&again.body["code"], &json!("run_over"));
}

async fn cancelling_a_subagent_cancels_its_child_runs(server: TestServer) {
    let alice = server.human("deep").await;
    server.tools.hold("lookup");
    let third = script().calls(lookup("c1", "x")).says("third");
    let asks = script().calls(mail("m1", "bob")).says("sent");
    let second = script()
        .calls_all([task("t2", "researcher", third), task("t3", "researcher", asks)])
        .says("second");
    let run = alice
        .asks(
            script()
                .calls(task("t1", "researcher", second))
                .turn(json!({"echo_last_tool": true})),
        )
        .await;
    server.tools.called("lookup", 1).await;
    crate::support::eventually(async || !alice.questions().await.is_empty()).await;
    let child = alice.run(&run.children().await[0]);
    assert_eq!(child.is_cancelled("interrupt").await.status, 200);
    run.finishes().await;
    server.tools.let_go("lookup");
    let below: Vec<Value> = child
        .children()
        .await
        .iter()
        .map(|child| child["status"].clone())
        .collect();
    assert_eq!(below, ["interrupted", "interrupted"]);
    assert!(
        alice.questions().await.is_empty(),
        "nobody waits for the answer any more"
    );
    assert!(
        alice
            .transcript()
            .await
            .last()
            .unwrap()
            .contains("was cancelled by request")
    );
    assert_eq!(run.status().await.as_str(), "success");
    assert_eq!(alice.status().await.as_str(), "idle");
}

async fn a_child_run_cannot_be_rolled_back_alone(server: TestServer) {
    let (_, run, [first, _]) = two_researchers(&server).await;
    let refused = first.is_cancelled("rollback").await;
    assert_eq!(refused.status, 422);
    assert_eq!(&refused.body["code"], &json!("no_rollback_of_subagent"));
    assert_eq!(first.status().await, "running");
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(first.status().await, "success");
}

async fn a_cancelled_subagent_stays_cancelled_after_a_kill(server: TestServer) {
    server.moves_into_a_process().await;
    let (alice, run, [first, _]) = two_researchers(&server).await;
    let told = server.client().post(&format!("{}/cancel", first.path), json!({})).await;
    assert_eq!(told.status, 202);
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(alice.transcript().await, ONE_CANCELLED);
}

async fn a_subagent_of_another_server_can_be_cancelled(server: TestServer) {
    let other = server.starts_twin().await;
    let (alice, run, [first, second]) = two_researchers(&server).await;
    let stopped = other
        .client
        .post(&format!("{}/cancel?wait=true", first.path), json!({}))
        .await;
    assert_eq!(stopped.status, 200);
    assert_eq!(second.status().await.as_str(), "running");
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(alice.transcript().await, ONE_CANCELLED);
    other.stops().await;
}

async fn the_stream_of_a_child_run_ends_with_it(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let research = |id: &str| script().calls(lookup(id, id)).says(id);
    let calls = [
        task("t1", "researcher", research("c1")),
        task("t2", "researcher", research("c2")),
    ];
    let more = json!({"stream_mode": ["updates"], "stream_resumable": true});
    let run = alice
        .starts(alice.run_body(script().calls_all(calls).says("done"), more))
        .await;
    server.tools.called("lookup", 2).await;
    let children = run.children().await;
    let first = children.iter().find(|child| child["task_call_id"] == "t1").unwrap();
    let name = format!("updates|{}", first["checkpoint_ns"].as_str().unwrap());
    let live = alice.run(first).is_joined(None).await;
    server.tools.let_go("lookup");
    let told = live.rest().await;
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(told.iter().all(|frame| frame.event == name), "{told:#?}");
    assert_eq!(told[1].data["model"]["messages"][0]["content"], "c1");
    run.finishes().await;
    let again = alice.run(first).is_joined(Some("-1")).await.rest().await;
    assert_eq!(again.len(), 3, "{again:#?}");
    assert!(again.iter().all(|frame| frame.event == name), "{again:#?}");
    assert!(again[1..] == told[..], "{again:#?}");
}
