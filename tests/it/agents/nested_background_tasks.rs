//! Background tasks of subagents belong to the conversation: the subagent is notified while it runs, and the main agent
//! after that.

use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::background_tasks::{boss, has_run, notifications, start, the_task, worker};
use crate::durability::background_tasks::completes_and_reports_once;
use crate::support::{Human, TestServer, call, eventually, lookup, on_both_engines, script, task, transcript};

/// Returns an agent `dispatcher` with these lines, whose subagent `deputy` is the boss with its background agents.
fn office(more: &str) -> String {
    format!(
        r#"
        {}

        [agents.dispatcher]
        model = "scripted:lab"
        system_prompt = "You dispatch."
        max_subagent_depth = 2

        [[agents.dispatcher.subagents]]
        name = "deputy"
        description = "Sees to everything."
        graph_id = "boss"
        async = false

        {more}
        "#,
        boss("")
    )
}

/// Returns a message that lets the deputy start a task whose agent calls a tool.
fn message(query: &str) -> String {
    let work = script().calls(lookup("l1", query)).says("the long text");
    let deputy = script().calls(start("a1", "writer", work)).says("it is seen to");
    script()
        .calls(task("t1", "deputy", deputy))
        .says("delegated")
        .to_string()
}

/// Returns the threads of the tasks of a conversation.
async fn threads(server: &TestServer, human: &Human) -> Vec<Value> {
    let wanted = json!({"metadata": {"parent_thread_id": human.thread}});
    server
        .client()
        .post("/threads/search", wanted)
        .await
        .ok()
        .as_array()
        .unwrap()
        .clone()
}

on_both_engines! {
    the_main_agent_is_notified_of_tasks_of_a_finished_subagent,
    a_running_subagent_is_notified_of_its_task_once,
    a_main_agent_can_cancel_the_tasks_of_its_subagents,
    a_task_of_a_subagent_starts_and_reports_once_over_kills,
    limits_of_the_tree_count_tasks_of_subagents,
}

async fn the_main_agent_is_notified_of_tasks_of_a_finished_subagent(server: TestServer) {
    server.is_configured_with(&office("")).await;
    let alice = server.human("dispatcher").await;
    server.tools.hold("lookup");
    let said = transcript(&alice.says(message("x")).await);
    assert_eq!(said[2..], ["task: it is seen to", "ai: delegated"]);
    server.tools.called("lookup", 1).await;
    let first = alice.run(&alice.runs().await[0]);
    let begun = server.client().get(&format!("{}/tree", first.path)).await.ok()["background_tasks"].clone();
    assert_eq!(begun.as_array().map(Vec::len), Some(1));
    assert_eq!(begun[0]["begun_by"], json!(["dispatcher", "deputy"]));
    let notes = threads(&server, &alice).await[0]["metadata"].clone();
    assert_eq!(notes["parent_agent_path"], json!(["dispatcher", "deputy"]));
    let deputy = alice.run(&first.children().await[0]);
    let state = server.client().get(&format!("{}/state", deputy.path)).await.ok();
    let told = state["values"]["messages"][2]["content"].as_str().unwrap();
    assert!(told.ends_with("the main agent of this conversation gets it."), "{told}");

    server.tools.let_go("lookup");
    has_run(&alice, 2).await;
    let told = notifications(&alice).await;
    assert_eq!(told.len(), 1);
    assert_eq!(&told[0]["task_id"], &begun[0]["task_id"]);
    assert_eq!(&told[0]["status"], &json!("success"));
    let said = alice.transcript().await;
    assert!(said[4].ends_with("Its result:\nthe long text"), "{said:#?}");
    assert_eq!(the_task(&alice).await["status"], "success");
}

async fn a_running_subagent_is_notified_of_its_task_once(server: TestServer) {
    server.is_configured_with(&office("")).await;
    let alice = server.human("dispatcher").await;
    server.tools.hold("lookup");
    let calls = [
        start("a1", "writer", script().says("the short text")),
        lookup("l1", "y"),
    ];
    let deputy = script().calls_all(calls).says("unused");
    let run = alice
        .asks(script().calls(task("t1", "deputy", deputy)).says("delegated"))
        .await;
    server.tools.called("lookup", 1).await;
    eventually(async || {
        threads(&server, &alice)
            .await
            .first()
            .is_some_and(|thread| thread["status"] == "idle")
    })
    .await;
    server.tools.let_go("lookup");
    run.finishes().await;
    let said = alice.transcript().await;
    assert!(said[2].starts_with("task: echo: [Message of the server"), "{said:#?}");
    assert!(said[2].ends_with("the short text"), "{said:#?}");

    // The search for outcomes finds the second task, and finds the first one reported.
    server.tools.hold("lookup");
    alice.says(message("x")).await;
    server.tools.called("lookup", 2).await;
    server.tools.let_go("lookup");
    has_run(&alice, 3).await;
    let told = notifications(&alice).await;
    let second = threads(&server, &alice).await;
    assert_eq!(told.len(), 1);
    assert_eq!(second.len(), 2);
    assert!(second.iter().any(|thread| thread["thread_id"] == told[0]["task_id"]));
}

async fn a_main_agent_can_cancel_the_tasks_of_its_subagents(server: TestServer) {
    let own =
        "[[agents.dispatcher.subagents]]\nname = \"runner\"\ndescription = \"Runs errands.\"\ngraph_id = \"scribe\"\n";
    server.is_configured_with(&office(own)).await;
    let alice = server.human("dispatcher").await;
    server.tools.hold("lookup");
    let work = script().calls(lookup("l1", "x")).says("the long text");
    let deputy = script().calls(start("a1", "writer", work)).says("it is seen to");
    let list = call("k1", "list_async_tasks", json!({}));
    let said = transcript(
        &alice
            .says(
                script()
                    .calls(task("t1", "deputy", deputy))
                    .calls(list)
                    .says("so it is"),
            )
            .await,
    );
    let known = the_task(&alice).await;
    assert_eq!(
        said[4],
        format!(
            "list_async_tasks: - {} (writer): running",
            known["task_id"].as_str().unwrap()
        )
    );
    let cancel = call("k2", "cancel_async_task", json!({"task_id": known["task_id"]}));
    let said = transcript(&alice.says(script().calls(cancel).says("stopped")).await);
    assert!(said[said.len() - 2].ends_with("is cancelled."), "{said:#?}");
    server.tools.let_go("lookup");
    eventually(async || worker(&alice, &known).status().await != "busy").await;
    assert_eq!(the_task(&alice).await["status"].clone(), json!("cancelled"));
    assert_eq!(notifications(&alice).await.len(), 0);
}

async fn a_task_of_a_subagent_starts_and_reports_once_over_kills(server: TestServer) {
    server.is_configured_with(&office("")).await;
    server.moves_into_a_process().await;
    for (round, instant) in [0, 5_000, 30_000, 90_000].into_iter().enumerate() {
        let alice = server.human("dispatcher").await;
        server.tools.hold("lookup");
        alice.asks(message(&format!("r{round}"))).await;
        tokio::time::sleep(Duration::from_micros(instant)).await;
        server.is_killed_and_started_again().await;
        // The subagent ends before the task.
        eventually(async || alice.status().await == "idle" && alice.runs().await.len() == 1).await;
        server.tools.let_go("lookup");
        completes_and_reports_once(&server, &alice).await;
    }
}

async fn limits_of_the_tree_count_tasks_of_subagents(server: TestServer) {
    let office = office("").replace(
        "max_subagent_depth = 2",
        "max_subagent_depth = 2\nlimits = { tree = { children_total = 2 } }",
    );
    server.is_configured_with(&office).await;
    let alice = server.human("dispatcher").await;
    let quick = |id: &str| start(id, "courier", "quick");
    let deputy = script()
        .calls_all([quick("a1"), quick("a2")])
        .turn(json!({"echo_last_tool": true}));
    let said = transcript(
        &alice
            .says(script().calls(task("t1", "deputy", deputy)).says("done"))
            .await,
    );
    assert_eq!(threads(&server, &alice).await.len(), 1, "{said:#?}");
    eventually(async || threads(&server, &alice).await[0]["status"] == "idle").await;
}
