//! A rollback leaves nothing of what the run has started: subagents below those that waited, and background tasks.

use serde_json::{Value, json};

use crate::agents::background_tasks::{boss, knows_an_outcome, notifications, start, the_task, worker};
use crate::support::actors::Run;
use crate::support::{Human, TestServer, eventually, lookup, mail, on_both_engines, script, task};

/// Returns the runs of a tree, parents first, each with its status and its usage.
fn flat(node: &Value) -> Vec<Value> {
    let own = json!([node["run_id"], node["status"], node["usage"]]);
    let below = node["children"].as_array().expect("a list").iter().flat_map(flat);
    std::iter::once(own).chain(below).collect()
}

async fn tree(human: &Human, run: &Run) -> Vec<Value> {
    flat(&human.client().get(&format!("{}/tree", run.path)).await.ok())
}

/// Returns the number of threads on which the tasks of a conversation work.
async fn task_threads(human: &Human) -> Value {
    let wanted = json!({"metadata": {"parent_thread_id": human.thread}});
    human.client().post("/threads/count", wanted).await.ok()
}

/// Returns the script of a background task that waits for its tool.
fn held_work() -> String {
    script().calls(lookup("l1", "x")).says("the long text").to_string()
}

/// Starts a run that starts a task and waits, with it, for a tool that is held.
async fn starts_a_task(server: &TestServer, alice: &Human, agent: &str) -> Run {
    server.tools.hold("lookup");
    let calls = server.tools.calls_of("lookup").len();
    let text = script()
        .calls(start("b1", agent, held_work()))
        .calls(lookup("l2", "y"))
        .says("unused");
    let run = alice.asks(text).await;
    server.tools.called("lookup", calls + 2).await;
    run
}

on_both_engines! {
    subagents_that_an_undone_answer_started_below_are_gone,
    undone_work_does_not_count_against_the_limits_of_a_tree,
    tasks_that_an_undone_run_started_stop_and_are_gone,
    the_strategy_rollback_undoes_tasks_too,
    tasks_of_earlier_runs_survive_a_rollback,
    tasks_of_an_undone_task_are_gone_with_it,
    an_undone_task_does_not_count_against_the_limits_of_a_tree,
    an_undone_task_starts_anew_when_its_call_is_approved_again,
}

async fn subagents_that_an_undone_answer_started_below_are_gone(server: TestServer) {
    let alice = server.human("deep").await;
    let looks = |id: &str| script().calls(lookup(id, "x")).says("found");
    let work = script()
        .calls(mail("m1", "bob"))
        .calls_all([
            task("k1", "researcher", looks("l1")),
            task("k2", "researcher", looks("l2")),
        ])
        .says("worked");
    let first = alice
        .asks(script().calls(task("t1", "researcher", work)).says("done"))
        .await;
    first.finishes().await;
    let question = alice.question().await;
    let before = tree(&alice, &first).await;
    assert_eq!(before.len(), 2, "{before:#?}");
    for _ in 0..2 {
        server.tools.hold("lookup");
        let calls = server.tools.calls_of("lookup").len();
        let run = alice.approves(&question).await;
        server.tools.called("lookup", calls + 2).await;
        assert_eq!(tree(&alice, &first).await.len(), 4);
        run.is_cancelled("rollback").await.ok();
        server.tools.let_go("lookup");
        assert_eq!(alice.question().await, question);
        assert_eq!(tree(&alice, &first).await, before);
    }
    alice.approves(&question).await.finishes().await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", "task: worked", "ai: done"]
    );
    let after = tree(&alice, &first).await;
    assert_eq!(after.len(), 4, "{after:#?}");
    assert!(after.iter().all(|run| run[1] == "success"), "{after:#?}");
}

async fn undone_work_does_not_count_against_the_limits_of_a_tree(server: TestServer) {
    server
        .is_configured_with(
            r#"
            [agents.bounded]
            model = "scripted:lab"
            tools = ["lookup", "send_email"]
            max_subagent_depth = 3
            interrupt_on = { send_email = true }
            limits = { tree = { children_total = 2, model_calls = 7 } }

            [[agents.bounded.subagents]]
            name = "researcher"
            description = "Researches one question in depth."
            system_prompt = "You are the researcher."
            tools = ["lookup", "send_email"]
            "#,
        )
        .await;
    let alice = server.human("bounded").await;
    let below = script().calls(lookup("l1", "x")).says("found");
    let work = script()
        .calls(mail("m1", "bob"))
        .calls(task("k1", "researcher", below))
        .says("worked");
    alice
        .says(script().calls(task("t1", "researcher", work)).says("done"))
        .await;
    let question = alice.question().await;
    for _ in 0..2 {
        server.tools.hold("lookup");
        let calls = server.tools.calls_of("lookup").len();
        let run = alice.approves(&question).await;
        server.tools.called("lookup", calls + 1).await;
        run.is_cancelled("rollback").await.ok();
        server.tools.let_go("lookup");
    }
    // It needs all that the limits allow.
    alice.approves(&question).await.finishes().await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", "task: worked", "ai: done"]
    );
}

async fn tasks_that_an_undone_run_started_stop_and_are_gone(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let alice = server.human("boss").await;
    alice.says("before").await;
    let before = alice.state().await["values"].clone();
    let run = starts_a_task(&server, &alice, "writer").await;
    let task = the_task(&alice).await;
    run.is_cancelled("rollback").await.ok();
    assert_eq!(alice.state().await["values"], before);
    assert_eq!(alice.status().await, "idle");
    let place = worker(&alice, &task).path("");
    assert_eq!(alice.client().get(&place).await.status, 404);
    // The calls of both end while their tool is still held.
    eventually(async || server.tools.hung_up("lookup") == 2).await;
    server.tools.let_go("lookup");
    alice.says("after").await;
    assert_eq!(notifications(&alice).await, Vec::<Value>::new());
    assert_eq!(alice.runs().await.len(), 2);
    assert_eq!(server.tools.calls_of("lookup").len(), 2);
}

async fn the_strategy_rollback_undoes_tasks_too(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let alice = server.human("boss").await;
    starts_a_task(&server, &alice, "writer").await;
    let second = alice
        .starts(alice.run_body("second", json!({"multitask_strategy": "rollback"})))
        .await;
    second.finishes().await;
    assert_eq!(alice.transcript().await, ["human: second", "ai: echo: second"]);
    assert_eq!(task_threads(&alice).await, 0);
    eventually(async || server.tools.hung_up("lookup") == 2).await;
    server.tools.let_go("lookup");
}

async fn tasks_of_earlier_runs_survive_a_rollback(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    alice
        .says(
            script()
                .calls(start("a1", "writer", held_work()))
                .says("it is under way"),
        )
        .await;
    server.tools.called("lookup", 1).await;
    let task = the_task(&alice).await;
    let run = starts_a_task(&server, &alice, "courier").await;
    assert_eq!(task_threads(&alice).await, 2);
    run.is_cancelled("rollback").await.ok();
    assert_eq!(task_threads(&alice).await, 1);
    assert_eq!(the_task(&alice).await, task);
    server.tools.let_go("lookup");
    knows_an_outcome(&alice).await;
    assert_eq!(notifications(&alice).await[0]["task_id"], task["task_id"]);
}

async fn tasks_of_an_undone_task_are_gone_with_it(server: TestServer) {
    server
        .is_configured_with(
            r#"
            [agents.again]
            model = "scripted:lab"
            tools = ["lookup"]

            [[agents.again.subagents]]
            name = "below"
            description = "Does the same again, one level down."
            graph_id = "again"
            notify_parent = false
            "#,
        )
        .await;
    let alice = server.human("again").await;
    let count = async || alice.client().post("/threads/count", json!({})).await.ok();
    let before = count().await;
    server.tools.hold("lookup");
    let middle = script()
        .calls(start("a2", "below", held_work()))
        .calls(lookup("l2", "y"))
        .says("so");
    let text = script()
        .calls(start("a1", "below", middle))
        .calls(lookup("l3", "z"))
        .says("unused");
    let run = alice.asks(text).await;
    server.tools.called("lookup", 3).await;
    run.is_cancelled("rollback").await.ok();
    assert_eq!(count().await, before);
    eventually(async || server.tools.hung_up("lookup") == 3).await;
    server.tools.let_go("lookup");
}

/// Returns an agent that needs approval for these tools, with a background agent and these limits.
fn careful(approval: &str, limits: &str) -> String {
    format!(
        r#"
        [agents.careful]
        model = "scripted:lab"
        tools = ["lookup", "send_email"]
        interrupt_on = {{ {approval} = true }}
        limits = {{ {limits} }}

        [[agents.careful.subagents]]
        name = "writer"
        description = "Writes long texts in the background."
        graph_id = "scribe"

        [agents.scribe]
        model = "scripted:lab"
        tools = ["lookup"]
        "#
    )
}

async fn an_undone_task_does_not_count_against_the_limits_of_a_tree(server: TestServer) {
    server
        .is_configured_with(&careful("send_email", "tree = { children_total = 1, tool_calls = 4 }"))
        .await;
    let alice = server.human("careful").await;
    let text = script()
        .calls(mail("m1", "bob"))
        .calls(start("a1", "writer", held_work()))
        .calls(lookup("l2", "y"))
        .says("it is under way");
    alice.says(text).await;
    let question = alice.question().await;
    let mut answer = None;
    for round in 0..3 {
        server.tools.hold("lookup");
        let calls = server.tools.calls_of("lookup").len();
        let run = alice.approves(&question).await;
        server.tools.called("lookup", calls + 2).await;
        if round < 2 {
            run.is_cancelled("rollback").await.ok();
        }
        server.tools.let_go("lookup");
        answer = Some(run);
    }
    // It needs all that the limits allow.
    answer.expect("three rounds").finishes().await;
    knows_an_outcome(&alice).await;
    assert_eq!(notifications(&alice).await[0]["status"], "success");
    let said = alice.transcript().await;
    assert!(!said.iter().any(|line| line.contains(" failed: ")), "{said:#?}");
}

async fn an_undone_task_starts_anew_when_its_call_is_approved_again(server: TestServer) {
    server
        .is_configured_with(&careful("start_async_task", "depth = 2"))
        .await;
    let alice = server.human("careful").await;
    server.tools.hold("lookup");
    let text = script()
        .calls(start("a1", "writer", held_work()))
        .calls(lookup("l2", "y"))
        .says("it is under way");
    alice.says(text).await;
    let question = alice.question().await;
    let run = alice.approves(&question).await;
    server.tools.called("lookup", 2).await;
    let before = the_task(&alice).await;
    run.is_cancelled("rollback").await.ok();
    eventually(async || server.tools.hung_up("lookup") == 2).await;
    let run = alice.approves(&question).await;
    server.tools.called("lookup", 4).await;
    assert_ne!(the_task(&alice).await["task_id"], before["task_id"]);
    server.tools.let_go("lookup");
    run.finishes().await;
    knows_an_outcome(&alice).await;
    assert_eq!(notifications(&alice).await[0]["status"], "success");
}
