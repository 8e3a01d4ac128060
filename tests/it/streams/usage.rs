//! The usage of a run at the end of its stream, live and in replays.

use serde_json::{Value, json};

use crate::agents::background_tasks::{boss, start, the_task, worker};
use crate::remote::awaited::Peer;
use crate::remote::background_tasks::chief;
use crate::support::viewer::{Viewer, data, depth, is_terminal};
use crate::support::{Human, TestServer, call, eventually, lookup, on_both_engines, script, task};

/// Returns a script of four model calls, three tool calls, and a subagent.
fn research() -> String {
    let below = script().calls(lookup("c1", "x")).says("found");
    script().calls(task("t1", "researcher", below)).says("done").to_string()
}

/// Returns the counts of a usage, without times.
fn counts(usage: &Value) -> Vec<u64> {
    let names = ["model_calls", "tool_calls", "input_tokens", "output_tokens", "children"];
    names
        .iter()
        .map(|name| usage[name].as_u64().unwrap_or_else(|| panic!("no {name}: {usage}")))
        .collect()
}

on_both_engines! {
    v1_reports_usage_at_the_end_on_request,
    an_error_at_the_end_of_a_stream_contains_the_usage,
    v2_reports_usage_of_each_agent_at_the_end,
    a_cancelled_run_reports_its_usage,
    usage_of_a_remote_task_counts_once,
    usage_of_a_remote_task_counts_in_the_tree,
    usage_of_running_background_tasks_counts_in_the_tree,
}

async fn v1_reports_usage_at_the_end_on_request(server: TestServer) {
    let alice = server.human("agent").await;
    let modes = json!({"stream_mode": ["values", "usage"], "stream_resumable": true});
    let stream = alice.streams(research(), modes).await;
    let run = alice.run_of_id(&stream.run_id());
    let frames = stream.rest().await;
    let last = frames.last().unwrap();
    let record = run.record().await;
    assert_eq!(last.event.as_str(), "usage");
    assert_eq!(&last.data["run_id"], &json!(run.id));
    assert_eq!(last.data["usage"], record["usage"]);
    assert_eq!(counts(&last.data["tree_usage"]), counts(&record["tree_usage"]));
    assert_eq!(counts(&last.data["tree_usage"])[..2], [4, 2]);
    assert!(last.data["tree_usage"]["seconds"].as_f64().unwrap() > 0.0, "{last:?}");
    let others = frames.iter().filter(|frame| frame.event == "usage").count();
    assert_eq!(others, 1, "of the main agent alone");
    server.is_stopped_and_started_again().await;
    assert_eq!(
        run.is_joined(Some("-1")).await.rest().await.last(),
        Some(last),
        "replays show the same"
    );
    let plain = alice.streams("hello", json!({})).await.rest().await;
    assert_eq!(
        plain.last().unwrap().event,
        "values",
        "who did not ask for it is not told"
    );
}

async fn an_error_at_the_end_of_a_stream_contains_the_usage(server: TestServer) {
    let alice = server.human("agent").await;
    let stream = alice
        .streams(
            script().calls(lookup("c1", "x")).fails(400),
            json!({"stream_mode": ["updates", "usage"]}),
        )
        .await;
    let run = alice.run_of_id(&stream.run_id());
    let frames = stream.rest().await;
    let [.., told, error] = frames.as_slice() else {
        panic!("{frames:?}")
    };
    assert_eq!(told.event.as_str(), "usage", "an error is the last event");
    assert_eq!(error.event.as_str(), "error", "an error is the last event");
    assert_eq!(&error.data["error"], &json!("ModelRefusedError"));
    assert_eq!(counts(&error.data["usage"])[1], 1);
    assert_eq!(&error.data["usage"], &told.data["usage"]);
    assert_eq!(&told.data["usage"], &run.record().await["usage"]);
}

async fn v2_reports_usage_of_each_agent_at_the_end(server: TestServer) {
    let alice = server.human("agent").await;
    let run = alice.asks(research()).await;
    run.finishes().await;
    let record = run.record().await;
    let child = run.children().await.remove(0);
    let frames = Viewer::of(&server, &alice.thread).replays(1).await;
    let end = data(frames.last().unwrap());
    assert_eq!(&end["event"], &json!("completed"));
    assert_eq!(&end["usage"], &record["usage"]);
    assert_eq!(counts(&end["tree_usage"]), counts(&record["tree_usage"]));
    let below = frames
        .iter()
        .find(|frame| depth(frame) == 1 && data(frame)["event"] == "completed")
        .unwrap();
    assert_eq!(&data(below)["usage"], &child["usage"]);
    assert_eq!(&data(below)["tree_usage"], &Value::Null);
    server.is_stopped_and_started_again().await;
    let again = Viewer::of(&server, &alice.thread).replays(1).await;
    assert_eq!(data(again.last().unwrap()), end, "replays show the same");
}

async fn a_cancelled_run_reports_its_usage(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let below = script().calls(lookup("c1", "x")).says("found");
    let run = alice
        .asks(script().calls(task("t1", "researcher", below)).says("done"))
        .await;
    server.tools.called("lookup", 1).await;
    run.is_cancelled("interrupt").await;
    server.tools.let_go("lookup");
    let frames = Viewer::of(&server, &alice.thread)
        .opens_all()
        .await
        .until(is_terminal)
        .await;
    let end = data(frames.last().unwrap());
    let record = run.record().await;
    assert_eq!(&end["event"], &json!("interrupted"));
    assert_eq!(&end["usage"], &record["usage"]);
    assert_eq!(counts(&end["tree_usage"]), counts(&record["tree_usage"]));
    assert_eq!(counts(&end["tree_usage"])[0], 2, "{end}");
}

async fn usage_of_a_remote_task_counts_once(server: TestServer) {
    let peer = Peer::named_by(&server, |base| chief(base, "")).await;
    let alice = server.human("away").await;
    peer.server.tools.hold("lookup");
    let work = script().calls(lookup("l1", "x")).says("the long text");
    let run = alice
        .asks(script().calls(start("a1", "calm", work)).says("it is under way"))
        .await;
    run.finishes().await;
    peer.server.tools.let_go("lookup");
    let tree = async || counts(&run.record().await["tree_usage"]);
    eventually(async || tree().await[..2] == [4, 2]).await;
    let task = the_task(&alice).await;
    let there = Human::at(peer.server.client(), "agent", task["thread_id"].as_str().unwrap());
    let used = counts(&there.run(&there.runs().await[0]).record().await["usage"]);
    let own = counts(&run.record().await["usage"]);
    let all = tree().await;
    assert_eq!(all[2], own[2] + used[2], "tokens");
    assert_eq!(all[3], own[3] + used[3], "tokens");
    // Another check, also after a restart, reports the same usage and does not count it again.
    server.is_stopped_and_started_again().await;
    let check = call("a2", "check_async_task", json!({"task_id": task["task_id"]}));
    alice.says(script().calls(check).says("so it is")).await;
    assert_eq!(tree().await, all);
    // More is added by what it does after a further message.
    let more = json!({"task_id": task["task_id"], "message": script().says("longer").to_string()});
    alice
        .says(script().calls(call("a3", "update_async_task", more)).says("told"))
        .await;
    eventually(async || tree().await[..2] == [5, 2]).await;
    assert_eq!(counts(&run.record().await["usage"]), own);
    peer.finish().await;
}

async fn usage_of_a_remote_task_counts_in_the_tree(server: TestServer) {
    let limits = "limits = { tree = { model_calls = 4 } }";
    let peer = Peer::named_by(&server, |base| chief(base, limits)).await;
    let alice = server.human("away").await;
    server.tools.hold("lookup");
    peer.server.tools.hold("lookup");
    let work = script().calls(lookup("l1", "x")).says("the long text");
    let text = script()
        .calls(start("a1", "calm", work))
        .calls(lookup("l2", "y"))
        .says("it is under way");
    let run = alice.asks(text).await;
    server.tools.called("lookup", 1).await;
    peer.server.tools.let_go("lookup");
    eventually(async || counts(&run.record().await["tree_usage"])[0] == 4).await;
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(run.status().await, "error");
    assert_eq!(alice.record().await["error"]["error"], "LimitExceededError");
    peer.finish().await;
}

async fn usage_of_running_background_tasks_counts_in_the_tree(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    let work = script().calls(lookup("l1", "x")).says("the long text");
    let run = alice
        .asks(script().calls(start("a1", "courier", work)).says("it is under way"))
        .await;
    run.finishes().await;
    let task = the_task(&alice).await;
    server.tools.called("lookup", 1).await;
    let soon = counts(&run.record().await["tree_usage"])[0];
    assert!((2..=3).contains(&soon), "{soon}");
    server.tools.let_go("lookup");
    let courier = worker(&alice, &task);
    eventually(async || courier.status().await == "idle").await;
    let record = run.record().await;
    assert_eq!(counts(&record["usage"])[..2].to_vec(), vec![2, 1]);
    assert_eq!(counts(&record["tree_usage"])[..2].to_vec(), vec![4, 2]);
    let tree = server.client().get(&format!("{}/tree", run.path)).await.ok();
    assert_eq!(counts(&tree["tree_usage"]), counts(&record["tree_usage"]));
    // A later run of the conversation has a tree of its own.
    let next = alice.asks(script().says("next")).await;
    next.finishes().await;
    assert_eq!(counts(&next.record().await["tree_usage"])[0], 1);
}
