//! Background tasks: starting, checking, updating and cancelling them, and the notification of their end.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::actors::Run;
use crate::support::postgres_proxy::{Commits, play_behind_proxy};
use crate::support::{
    Human, TestServer, approval, call, eventually, lookup, mail, on_both_engines, script, transcript,
};

/// Returns an agent `boss` with these lines, and its background agents `writer` and `courier`.
pub(crate) fn boss(more: &str) -> String {
    format!(
        r#"
        [agents.boss]
        model = "scripted:lab"
        system_prompt = "You are the boss."
        tools = ["lookup"]
        {more}

        [[agents.boss.subagents]]
        name = "writer"
        description = "Writes long texts in the background."
        graph_id = "scribe"

        [[agents.boss.subagents]]
        name = "courier"
        description = "Delivers messages in the background."
        graph_id = "scribe"
        update_strategy = "enqueue"
        notify_parent = false

        [agents.scribe]
        model = "scripted:lab"
        system_prompt = "You are the scribe."
        tools = ["lookup", "send_email"]
        interrupt_on = {{ send_email = true }}
        "#
    )
}

/// Returns a call that starts a task; `description`, the agent's whole input, is its script.
pub(crate) fn start(id: &str, agent: &str, description: impl ToString) -> Value {
    call(
        id,
        "start_async_task",
        json!({"description": description.to_string(), "subagent_type": agent}),
    )
}

/// Returns a call about a task.
pub(crate) fn about(id: &str, tool: &str, task: &Value) -> Value {
    call(id, tool, json!({"task_id": task["task_id"]}))
}

/// Has an agent start a task.
async fn starts_a_task(human: &Human, agent: &str, work: impl ToString) {
    let call = start("a1", agent, work);
    human.says(script().calls(call).says("it is under way")).await;
}

/// Returns a call that sends a task a further message.
pub(crate) fn tell(id: &str, task: &Value, message: impl ToString) -> Value {
    call(
        id,
        "update_async_task",
        json!({"task_id": task["task_id"], "message": message.to_string()}),
    )
}

/// Has an agent send its task a further message.
async fn tells(human: &Human, task: &Value, message: impl ToString) {
    let call = tell("u1", task, message);
    human.says(script().calls(call).says("told")).await;
}

/// Returns the tasks in the state, in the order of their start.
pub(crate) async fn tasks(human: &Human) -> Vec<Value> {
    let values = human.state().await["values"].clone();
    let mut tasks: Vec<Value> = values["async_tasks"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, task)| task.clone())
        .collect();
    tasks.sort_by_key(|task| task["created_at"].to_string());
    tasks
}

pub(crate) async fn the_task(human: &Human) -> Value {
    let tasks = tasks(human).await;
    let [task] = tasks.as_slice() else {
        panic!("not one task: {tasks:#?}")
    };
    task.clone()
}

/// Returns the messages that report the outcomes of tasks.
pub(crate) async fn notifications(human: &Human) -> Vec<Value> {
    let values = human.state().await["values"].clone();
    let messages = values["messages"].as_array().expect("messages").clone();
    let mark = |message: &Value| message["additional_kwargs"]["deepagents_notification"].clone();
    messages.iter().map(mark).filter(|mark| !mark.is_null()).collect()
}

/// Waits until an agent has been notified of one outcome, in a running or a new run, and is idle.
pub(crate) async fn knows_an_outcome(human: &Human) {
    eventually(async || human.status().await == "idle" && notifications(human).await.len() == 1).await;
}

/// Waits until an agent has been notified of so many outcomes and is idle. Returns the status and the run of each.
pub(crate) async fn knows_outcomes(human: &Human, count: usize) -> Vec<(Value, Value)> {
    eventually(async || human.status().await == "idle" && notifications(human).await.len() == count).await;
    let told = notifications(human).await;
    told.iter()
        .map(|told| (told["status"].clone(), told["run_id"].clone()))
        .collect()
}

/// Returns outcomes as [`knows_outcomes`] does: each has a status and the place of its run in a list.
fn outcomes<const N: usize>(runs: &[Value], expected: [(&str, usize); N]) -> [(Value, Value); N] {
    expected.map(|(status, at)| (json!(status), runs[at]["run_id"].clone()))
}

/// Returns the results that an agent was told.
pub(crate) async fn results(human: &Human) -> Vec<String> {
    let said = human.transcript().await;
    let result = |line: &String| {
        line.split_once("\n\nIts result:\n")
            .map(|(_, result)| result.to_owned())
    };
    let told = said
        .iter()
        .filter(|line| line.starts_with("human: [Message of the server"));
    told.filter_map(result).collect()
}

/// Returns when the thread has so many runs and all are over.
pub(crate) async fn has_run(human: &Human, times: usize) -> Vec<Value> {
    let is_over = |run: &Value| run["status"] != "pending" && run["status"] != "running";
    eventually(async || {
        let runs = human.runs().await;
        assert!(runs.len() <= times, "more than {times}: {runs:#?}");
        runs.len() == times && runs.iter().all(is_over)
    })
    .await;
    human.runs().await
}

/// Returns a user of the thread of a task.
pub(crate) fn worker(human: &Human, task: &Value) -> Human {
    human.on(task["thread_id"].as_str().expect("an id"))
}

/// Returns a user of an agent that has started a task, and the task, which waits for its tool.
async fn with_a_task(server: &TestServer, agent: &str, more: &str) -> (Human, Value) {
    server.is_configured_with(&boss(more)).await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    let work = script().calls(lookup("l1", "x")).says("the long text");
    starts_a_task(&alice, agent, work).await;
    let task = the_task(&alice).await;
    server.tools.called("lookup", 1).await;
    (alice, task)
}

/// Returns the result of a call about a task, as the model reads it.
pub(crate) async fn answered(human: &Human, call: Value) -> String {
    let tool = call["name"].as_str().expect("a call has a name").to_owned();
    let said = transcript(&human.says(script().calls(call).says("so it is")).await);
    // Outcomes of other tasks may follow it.
    said.iter()
        .rfind(|line| line.starts_with(&tool))
        .unwrap_or_else(|| panic!("no answer of {tool} {said:#?}"))
        .clone()
}

/// Returns the refusal of a call about a task that the conversation does not have.
pub(crate) fn no_task(id: &str) -> String {
    format!(
        "There is no background task `{id}` here. Tasks that were under way when a conversation was copied belong to the \
         original only."
    )
}

on_both_engines! {
    a_task_starts_without_a_wait_and_its_end_starts_a_run_of_the_agent,
    a_running_agent_is_notified_before_its_next_model_call,
    an_outcome_that_the_agent_has_checked_is_not_reported_again,
    a_further_message_interrupts_the_task_and_is_answered,
    one_further_message_can_wait_for_the_end_of_the_task,
    messages_that_are_sent_together_all_reach_the_task,
    a_queued_run_of_a_client_keeps_its_message_whatever_its_metadata,
    a_queued_run_of_a_client_holds_no_message_of_the_agent_up_whatever_its_metadata,
    a_result_is_reported_although_a_message_follows_at_once,
    the_result_of_an_approved_run_is_reported_although_a_message_follows_at_once,
    a_question_is_reported_although_a_message_waits_behind_it,
    an_answer_that_comes_too_late_does_not_hide_the_result_of_the_message,
    only_an_unfinished_task_can_be_cancelled,
    a_task_shows_its_interrupt_and_continues_with_the_answer,
    cancelling_an_interrupted_task_cancels_its_interrupt,
    a_task_that_goes_on_with_an_answer_is_cancelled_with_its_other_interrupts,
    calls_that_cannot_be_executed_are_error_results,
    the_tools_for_tasks_exist_without_any_subagent,
    a_task_continues_when_the_run_that_started_it_is_cancelled,
    the_context_of_the_run_reaches_the_task,
    a_run_lists_the_background_tasks_that_it_started,
    a_copy_has_no_tasks_that_are_under_way_for_the_original,
    a_copy_that_waits_for_an_answer_has_no_tasks_that_are_under_way,
    tasks_beyond_a_limit_are_error_results,
    tasks_of_tasks_have_a_maximum_depth,
    the_tasks_of_a_tree_share_one_limit,
}

async fn a_task_starts_without_a_wait_and_its_end_starts_a_run_of_the_agent(server: TestServer) {
    let (alice, task) = with_a_task(&server, "writer", "").await;
    let id = task["task_id"].as_str().unwrap();
    let begun = format!(
        "start_async_task: Started the background task {id} with `writer`. Its result comes by itself; do not wait for it."
    );
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls start_async_task", &begun, "ai: it is under way"]
    );
    let expected = json!({"task_id": id, "agent_name": "writer", "thread_id": id, "run_id": task["run_id"],
            "status": "running", "created_at": task["created_at"], "last_checked_at": task["created_at"],
            "last_updated_at": task["created_at"]});
    assert_eq!(task, expected);
    assert!(task["created_at"].as_str().unwrap().ends_with('Z'), "{task}");
    let thread = worker(&alice, &task).record().await;
    assert_eq!(thread["status"], "busy");
    assert_eq!(thread["metadata"]["subagent_name"], "writer");
    assert_eq!(thread["metadata"]["parent_thread_id"], alice.thread);
    assert_eq!(
        thread["metadata"]["parent_assistant_id"],
        alice.record().await["metadata"]["assistant_id"]
    );
    server.tools.let_go("lookup");
    let woken = has_run(&alice, 2).await[0].clone();
    assert_eq!(woken["metadata"]["background_tasks"], json!([id]));
    let run = &task["run_id"];
    assert_eq!(
        notifications(&alice).await,
        [json!({"task_id": id, "agent_name": "writer", "status": "success", "run_id": run})]
    );
    let said = alice.transcript().await;
    let told = format!(
        "human: [Message of the server, not of the user] The background task {id} of `writer` is done (status: success).\n\nIts result:\nthe long text"
    );
    assert_eq!(said[4], told);
    assert!(said[5].starts_with("ai: echo: [Message of the server"), "{said:#?}");
    assert_eq!(said.len(), 6);
    assert_eq!(the_task(&alice).await["status"].clone(), json!("success"));
}

async fn a_running_agent_is_notified_before_its_next_model_call(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    let run = alice
        .asks(
            script()
                .calls_all([start("a1", "writer", "say it"), lookup("l1", "x")])
                .says("unused"),
        )
        .await;
    server.tools.called("lookup", 1).await;
    let found = json!({"metadata": {"parent_thread_id": alice.thread}, "status": "idle"});
    eventually(async || server.client().post("/threads/count", found.clone()).await.ok() == 1).await;
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(notifications(&alice).await.len(), 1);
    let said = alice.transcript().await;
    assert!(
        said[4].starts_with("human: [Message of the server, not of the user]"),
        "{said:#?}"
    );
    assert!(said[4].ends_with("Its result:\necho: say it"), "{said:#?}");
    // No outcome is left to report.
    let again = server.human("boss").await;
    again
        .says(script().calls(start("a2", "writer", "quick")).says("yes"))
        .await;
    eventually(async || notifications(&again).await.len() == 1).await;
    assert_eq!(alice.runs().await.len(), 1);
    assert_eq!(notifications(&alice).await.len(), 1);
}

async fn an_outcome_that_the_agent_has_checked_is_not_reported_again(server: TestServer) {
    let (alice, task) = with_a_task(&server, "courier", "").await;
    let seen = answered(&alice, about("k1", "check_async_task", &task)).await;
    let note = "The result comes by itself when the task is done.";
    assert_eq!(
        seen,
        format!(
            "check_async_task: {}",
            json!({"status": "running", "thread_id": task["thread_id"], "note": note})
        )
    );
    server.tools.let_go("lookup");
    eventually(async || worker(&alice, &task).status().await == "idle").await;
    // The agent is not to be woken, so it finds the news when it is asked for something.
    let seen = transcript(
        &alice
            .says(script().calls(about("k2", "check_async_task", &task)).says("so"))
            .await,
    );
    assert!(
        seen.iter().any(|line| line.contains("Its result:\nthe long text")),
        "{seen:#?}"
    );
    assert_eq!(notifications(&alice).await.len(), 1);
    let result = json!({"status": "success", "thread_id": task["thread_id"], "result": "the long text"});
    assert_eq!(
        answered(&alice, about("k3", "check_async_task", &task)).await,
        format!("check_async_task: {result}")
    );
    let listed = answered(
        &alice,
        call("k4", "list_async_tasks", json!({"status_filter": "success"})),
    )
    .await;
    assert_eq!(
        listed,
        format!(
            "list_async_tasks: - {} (courier): success",
            task["task_id"].as_str().unwrap()
        )
    );
    let none = answered(
        &alice,
        call("k5", "list_async_tasks", json!({"status_filter": "running"})),
    )
    .await;
    assert_eq!(none, "list_async_tasks: There are no such background tasks.");
    assert_eq!(notifications(&alice).await.len(), 1);
}

async fn a_further_message_interrupts_the_task_and_is_answered(server: TestServer) {
    let (alice, task) = with_a_task(&server, "writer", "").await;
    let more = call(
        "u1",
        "update_async_task",
        json!({"task_id": task["task_id"], "message": "something else"}),
    );
    let text = answered(&alice, more).await;
    assert_eq!(
        text,
        format!(
            "update_async_task: The background task {} was given the message.",
            task["task_id"].as_str().unwrap()
        )
    );
    // The outcome is reported in the current run, if that still runs, or in a run of its own.
    eventually(async || notifications(&alice).await.len() == 1 && alice.status().await == "idle").await;
    let newer = the_task(&alice).await;
    assert_eq!(&newer["superseded_run_ids"], &json!([task["run_id"]]));
    assert_eq!(&newer["status"], &json!("success"));
    let runs = worker(&alice, &task).runs().await;
    assert_eq!(&runs[0]["run_id"], &newer["run_id"]);
    assert_eq!(&runs[1]["status"], &json!("interrupted"));
    let told = notifications(&alice).await;
    assert_eq!(told.len(), 1);
    assert_eq!(&told[0]["run_id"], &newer["run_id"]);
    server.tools.let_go("lookup");
}

async fn one_further_message_can_wait_for_the_end_of_the_task(server: TestServer) {
    let (alice, task) = with_a_task(&server, "courier", "").await;
    let more = |id: &str| {
        call(
            id,
            "update_async_task",
            json!({"task_id": task["task_id"], "message": "and then"}),
        )
    };
    let said = transcript(
        &alice
            .says(script().calls(more("u1")).calls(more("u2")).says("well"))
            .await,
    );
    assert!(
        said[said.len() - 4].starts_with("update_async_task: The background task"),
        "{said:#?}"
    );
    assert!(
        said[said.len() - 2].starts_with("update_async_task failed: A message to this task waits already"),
        "{said:#?}"
    );
    server.tools.let_go("lookup");
    let work = worker(&alice, &task);
    has_run(&work, 2).await;
    assert_eq!(work.transcript().await.last().unwrap(), "ai: echo: and then");
}

async fn messages_that_are_sent_together_all_reach_the_task(server: TestServer) {
    let (alice, task) = with_a_task(&server, "writer", "").await;
    let words = ["first", "second", "third"];
    let message = |word: &str| {
        call(
            word,
            "update_async_task",
            json!({"task_id": task["task_id"], "message": word}),
        )
    };
    let said = transcript(&alice.says(script().calls_all(words.map(message)).says("told")).await);
    let given = format!(
        "update_async_task: The background task {} was given the message.",
        task["task_id"].as_str().unwrap()
    );
    assert_eq!(said.iter().filter(|line| **line == given).count(), 3, "{said:#?}");
    let work = worker(&alice, &task);
    eventually(async || work.status().await == "idle").await;
    let said = work.transcript().await;
    for word in words {
        let line = format!("human: {word}");
        assert_eq!(said.iter().filter(|other| **other == line).count(), 1, "{said:#?}");
    }
    server.tools.let_go("lookup");
}

/// Has a client start a run on the thread of a task, with the metadata of a run that the agent of the run `parent` starts.
async fn starts_by_hand(human: &Human, task: &Value, parent: &Value) -> Run {
    let work = worker(human, task);
    let more =
        json!({"assistant_id": "scribe", "multitask_strategy": "enqueue", "metadata": {"parent_run_id": parent}});
    let body = work.run_body("by hand", more);
    work.run(&work.client().post(&work.path("/runs"), body).await.ok())
}

async fn a_queued_run_of_a_client_keeps_its_message_whatever_its_metadata(server: TestServer) {
    let (alice, task) = with_a_task(&server, "writer", "").await;
    let by_hand = starts_by_hand(&alice, &task, &alice.runs().await[0]["run_id"]).await;
    tells(&alice, &task, "something else").await;
    let work = worker(&alice, &task);
    has_run(&work, 3).await;
    assert_eq!(by_hand.status().await, "success");
    let said = work.transcript().await;
    for answer in ["ai: echo: by hand", "ai: echo: something else"] {
        assert!(said.iter().any(|line| line == answer), "{said:#?}");
    }
    server.tools.let_go("lookup");
}

async fn a_queued_run_of_a_client_holds_no_message_of_the_agent_up_whatever_its_metadata(server: TestServer) {
    let configuration = boss("").replacen("tools = [\"lookup\"]", "tools = [\"lookup\", \"slow\"]", 1);
    server.is_configured_with(&configuration).await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    server.tools.hold("slow");
    let work = script().calls(lookup("l1", "x")).says("the long text");
    starts_a_task(&alice, "courier", work).await;
    let task = the_task(&alice).await;
    server.tools.called("lookup", 1).await;
    let run = alice
        .asks(
            script()
                .calls(call("s1", "slow", json!({})))
                .calls(tell("u1", &task, "and then"))
                .says("well"),
        )
        .await;
    server.tools.called("slow", 1).await;
    starts_by_hand(&alice, &task, &json!(run.id)).await;
    server.tools.let_go("slow");
    run.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[said.len() - 2].starts_with("update_async_task: The background task"),
        "{said:#?}"
    );
    server.tools.let_go("lookup");
    has_run(&worker(&alice, &task), 3).await;
}

/// Returns the configuration in which the agent is woken for the tasks of `courier`, too, and `scribe` has these lines.
fn woken_boss(more: &str) -> String {
    boss("")
        .replace("notify_parent = false", "")
        .replace("[agents.scribe]", &format!("[agents.scribe]\n{more}"))
}

async fn a_result_is_reported_although_a_message_follows_at_once(server: TestServer) {
    server.is_configured_with(&woken_boss("")).await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    let work = script().calls(lookup("l1", "x")).says("the long text");
    starts_a_task(&alice, "courier", work).await;
    let task = the_task(&alice).await;
    server.tools.called("lookup", 1).await;
    tells(&alice, &task, "and then").await;
    server.tools.let_go("lookup");
    let told = knows_outcomes(&alice, 2).await;
    let runs = worker(&alice, &task).runs().await;
    let expected = [("success", 1), ("success", 0)];
    assert_eq!(told, outcomes(&runs, expected));
    assert_eq!(results(&alice).await, ["the long text", "echo: and then"]);
    let known = the_task(&alice).await;
    assert_eq!(known["status"], "success");
    assert_eq!(known["run_id"], runs[0]["run_id"]);
    assert_eq!(known["reported_run_id"], runs[0]["run_id"]);
    assert_eq!(known["superseded_run_ids"], json!([runs[1]["run_id"]]));
}

async fn the_result_of_an_approved_run_is_reported_although_a_message_follows_at_once(server: TestServer) {
    server.is_configured_with(&woken_boss("")).await;
    let alice = server.human("boss").await;
    let work = script()
        .calls(mail("m1", "a@b.c"))
        .calls(lookup("l1", "x"))
        .says("it is sent");
    starts_a_task(&alice, "courier", work).await;
    knows_an_outcome(&alice).await;
    let task = the_task(&alice).await;
    let work = worker(&alice, &task);
    server.tools.hold("lookup");
    work.resolves(&work.question().await, approval()).await.ok();
    server.tools.called("lookup", 1).await;
    tells(&alice, &task, "and then").await;
    server.tools.let_go("lookup");
    let told = knows_outcomes(&alice, 3).await;
    let runs = work.runs().await;
    let expected = [("waiting", 2), ("success", 1), ("success", 0)];
    assert_eq!(told, outcomes(&runs, expected));
    assert_eq!(results(&alice).await, ["it is sent", "echo: and then"]);
    assert_eq!(the_task(&alice).await["status"], "success");
}

async fn a_question_is_reported_although_a_message_waits_behind_it(server: TestServer) {
    server
        .is_configured_with(&woken_boss("on_pending_interrupt = \"reject\""))
        .await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    let work = script()
        .calls(lookup("l1", "x"))
        .calls(mail("m1", "a@b.c"))
        .says("it is sent");
    starts_a_task(&alice, "courier", work).await;
    let task = the_task(&alice).await;
    server.tools.called("lookup", 1).await;
    tells(&alice, &task, "and then").await;
    server.tools.let_go("lookup");
    let told = knows_outcomes(&alice, 1).await;
    assert_eq!(told, [(json!("waiting"), task["run_id"].clone())]);
    let known = the_task(&alice).await;
    assert_eq!(known["status"], "waiting");
    assert_eq!(known["run_id"], task["run_id"]);
    let work = worker(&alice, &task);
    work.resolves(&work.question().await, approval()).await.ok();
    let told = knows_outcomes(&alice, 3).await;
    // The answer was sent last, and went first.
    let runs = work.runs().await;
    let expected = [("waiting", 2), ("success", 0), ("success", 1)];
    assert_eq!(told, outcomes(&runs, expected));
    assert_eq!(results(&alice).await, ["it is sent", "echo: and then"]);
}

async fn an_answer_that_comes_too_late_does_not_hide_the_result_of_the_message(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let alice = server.human("boss").await;
    let work = script().calls(mail("m1", "a@b.c"));
    starts_a_task(&alice, "courier", work).await;
    let task = the_task(&alice).await;
    let work = worker(&alice, &task);
    eventually(async || work.status().await == "interrupted").await;
    let question = work.question().await;
    alice.says("is there any news?").await;
    server.tools.hold("lookup");
    let message = script().calls(lookup("l1", "x")).says("the long text");
    tells(&alice, &task, message).await;
    server.tools.called("lookup", 1).await;
    // The answer comes in the moment in which the message begins: the question is still open, and is dropped then.
    server
        .executes_sql("update interrupts set status = 'pending', resolved_at = null, touched_by = null, before = null")
        .await;
    work.resolves(&question, approval()).await.ok();
    server
        .executes_sql(
            "update interrupts set status = 'dropped', resolution = null, resumed_by = null, touched_by = null, \
             before = null",
        )
        .await;
    server.tools.let_go("lookup");
    let runs = has_run(&work, 3).await;
    assert_eq!(runs[0]["status"], "error");
    assert_eq!(work.record().await["error"]["error"], "AnswerTooLateError");
    alice.says("and now?").await;
    let told = knows_outcomes(&alice, 2).await;
    let expected = [("waiting", 2), ("success", 1)];
    assert_eq!(told, outcomes(&runs, expected));
    assert_eq!(results(&alice).await, ["the long text"]);
    assert_eq!(server.tools.calls_of("send_email").len(), 0);
}

async fn only_an_unfinished_task_can_be_cancelled(server: TestServer) {
    let (alice, task) = with_a_task(&server, "writer", "").await;
    let id = task["task_id"].as_str().unwrap();
    let text = answered(&alice, about("k1", "cancel_async_task", &task)).await;
    assert_eq!(
        text,
        format!("cancel_async_task: The background task {id} is cancelled.")
    );
    assert_eq!(worker(&alice, &task).runs().await[0]["status"], "interrupted");
    assert_eq!(the_task(&alice).await["status"], "cancelled");
    server.tools.let_go("lookup");
    let bob = server.human("boss").await;
    bob.says(script().calls(start("a1", "courier", "quick")).says("yes"))
        .await;
    let quick = the_task(&bob).await;
    eventually(async || worker(&bob, &quick).status().await == "idle").await;
    bob.says("is there any news?").await;
    let said = answered(&bob, about("k1", "cancel_async_task", &quick)).await;
    let over = format!(
        "The background task {} was over before: success. Nothing was cancelled.",
        quick["task_id"].as_str().unwrap()
    );
    assert_eq!(said, format!("cancel_async_task: {over}"));
    assert_eq!(notifications(&alice).await.len(), 0);
    assert_eq!(notifications(&bob).await.len(), 1);
}

async fn a_task_shows_its_interrupt_and_continues_with_the_answer(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    let work = script()
        .calls(lookup("l1", "x"))
        .calls(mail("m1", "a@b.c"))
        .says("it is sent");
    starts_a_task(&alice, "writer", work).await;
    server.tools.let_go("lookup");
    has_run(&alice, 2).await;
    let task = the_task(&alice).await;
    assert_eq!(&task["status"], &json!("waiting"));
    assert_eq!(notifications(&alice).await.len(), 1);
    let work = worker(&alice, &task);
    let question = work.question().await;
    let text = answered(&alice, about("k1", "check_async_task", &task)).await;
    let seen: Value = serde_json::from_str(text.strip_prefix("check_async_task: ").unwrap()).unwrap();
    assert_eq!(&seen["status"], &json!("waiting"));
    assert_eq!(&seen["interrupts"][0]["id"], &json!(question.id()));
    assert_eq!(
        seen["interrupts"][0]["value"]["action_requests"][0]["name"],
        "send_email"
    );
    work.resolves(&question, approval()).await.ok();
    has_run(&alice, 4).await;
    let told: Vec<Value> = notifications(&alice)
        .await
        .iter()
        .map(|told| told["status"].clone())
        .collect();
    assert_eq!(told, ["waiting", "success"]);
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
    assert_eq!(the_task(&alice).await["status"], "success");
}

async fn cancelling_an_interrupted_task_cancels_its_interrupt(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    let work = script().calls(lookup("l1", "x")).calls(mail("m1", "a@b.c"));
    alice
        .says(script().calls(start("a1", "writer", work)).says("yes"))
        .await;
    server.tools.let_go("lookup");
    has_run(&alice, 2).await;
    let task = the_task(&alice).await;
    let text = answered(&alice, about("k1", "cancel_async_task", &task)).await;
    assert!(text.ends_with("is cancelled."), "{text}");
    let work = worker(&alice, &task);
    eventually(async || work.questions().await.is_empty() && work.status().await == "idle").await;
    assert_eq!(the_task(&alice).await["status"].clone(), json!("cancelled"));
    assert_eq!(server.tools.calls_of("send_email").len(), 0);
}

async fn a_task_that_goes_on_with_an_answer_is_cancelled_with_its_other_interrupts(server: TestServer) {
    let lines = boss("")
        .replace("[agents.scribe]", "[agents.unused]")
        .replace("graph_id = \"scribe\"", "graph_id = \"agent\"");
    server.is_configured_with(&lines).await;
    let alice = server.human("boss").await;
    let slow = script().calls(mail("m1", "ann")).calls(lookup("l1", "x"));
    let quick = script().calls(mail("m2", "bob"));
    let work = script().calls_all([
        crate::support::task("t1", "mailer", slow),
        crate::support::task("t2", "mailer", quick),
    ]);
    alice
        .says(script().calls(start("a1", "courier", work)).says("yes"))
        .await;
    let task = the_task(&alice).await;
    let work = worker(&alice, &task);
    eventually(async || work.questions().await.len() == 2 && work.status().await == "interrupted").await;
    let questions = work.questions().await;
    let slow = questions
        .iter()
        .find(|question| question.0["task_call_id"] == "t1")
        .expect("it asks");
    let other = questions
        .iter()
        .find(|question| question.0["task_call_id"] == "t2")
        .expect("it asks");
    server.tools.hold("lookup");
    work.resolves(slow, approval()).await.ok();
    server.tools.called("lookup", 1).await;
    let text = answered(&alice, about("k1", "cancel_async_task", &task)).await;
    assert!(text.ends_with("is cancelled."), "{text}");
    server.tools.let_go("lookup");
    work.resolves(other, approval()).await.refused(409);
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn calls_that_cannot_be_executed_are_error_results(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let alice = server.human("boss").await;
    let said = answered(&alice, start("a1", "painter", "x")).await;
    assert_eq!(
        said,
        "start_async_task failed: There is no background agent `painter`; there are `writer`, `courier`. Nothing was started."
    );
    for tool in ["check_async_task", "cancel_async_task"] {
        let said = answered(&alice, call("k1", tool, json!({"task_id": "nobody's"}))).await;
        assert_eq!(said, format!("{tool} failed: {}", no_task("nobody's")));
    }
    // A task of another conversation is out of reach, whatever a client writes into the state.
    let bob = server.human("boss").await;
    bob.says(script().calls(start("a1", "courier", "quick")).says("yes"))
        .await;
    let mut task = the_task(&bob).await;
    task["status"] = json!("running");
    let id = task["task_id"].as_str().unwrap().to_owned();
    let tasks = json!({"async_tasks": {id.clone(): task.clone()}});
    server
        .client()
        .post(&alice.path("/state"), json!({"values": tasks}))
        .await
        .ok();
    let said = answered(&alice, about("k2", "check_async_task", &task)).await;
    assert_eq!(
        said,
        "check_async_task failed: This task was not begun in this conversation."
    );
    let said = answered(&alice, call("k3", "list_async_tasks", json!({}))).await;
    assert_eq!(
        said,
        format!(
            "list_async_tasks: - {id} (courier): running when it was last seen. This task was not begun in this conversation."
        )
    );
}

async fn the_tools_for_tasks_exist_without_any_subagent(server: TestServer) {
    server
        .is_configured_with(&boss("general_purpose_subagent = { enabled = false }"))
        .await;
    let alice = server.human("boss").await;
    let said = transcript(&alice.says(script().turn(json!({"echo_tools": true}))).await);
    let tools = "cancel_async_task,check_async_task,delete,edit_file,glob,grep,list_async_tasks,lookup,ls,read_file,start_async_task,update_async_task,write_file";
    assert_eq!(said.last().unwrap(), &format!("ai: TOOLS<<{tools}>>"));
    let said = transcript(&alice.says(script().turn(json!({"echo_system": true}))).await);
    assert!(
        said.last()
            .unwrap()
            .contains("- writer: Writes long texts in the background."),
        "{said:#?}"
    );
}

async fn a_task_continues_when_the_run_that_started_it_is_cancelled(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    let work = script().calls(lookup("l1", "x")).says("the long text");
    let run = alice
        .asks(
            script()
                .calls(start("a1", "writer", work))
                .calls(lookup("l2", "y"))
                .says("unused"),
        )
        .await;
    server.tools.called("lookup", 2).await;
    run.is_cancelled("interrupt").await;
    let task = the_task(&alice).await;
    assert_eq!(worker(&alice, &task).status().await, "busy");
    server.tools.let_go("lookup");
    eventually(async || worker(&alice, &task).status().await == "idle").await;
    // A cancelled conversation gets no run by itself; the outcome is reported with the next message.
    assert_eq!(alice.runs().await.len(), 1);
    alice.says("what now?").await;
    assert_eq!(notifications(&alice).await.len(), 1);
}

async fn the_context_of_the_run_reaches_the_task(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let alice = server.human("boss").await;
    let work = script().calls(lookup("l1", "x")).says("done");
    let text = script().calls(start("a1", "courier", work)).says("yes");
    alice
        .starts(alice.run_body(text, json!({"context": {"user": "alice"}})))
        .await
        .finishes()
        .await;
    server.tools.called("lookup", 1).await;
    assert_eq!(server.tools.calls_of("lookup")[0]["context"], json!({"user": "alice"}));
    eventually(async || {
        let task = the_task(&alice).await;
        worker(&alice, &task).status().await == "idle"
    })
    .await;
}

/// Returns a user of a copy of the thread.
pub(crate) async fn copied(human: &Human) -> Human {
    let copy = human.client().post(&human.path("/copy"), json!({})).await.ok();
    human.on(copy["thread_id"].as_str().expect("an id"))
}

async fn a_copy_has_no_tasks_that_are_under_way_for_the_original(server: TestServer) {
    let (alice, task) = with_a_task(&server, "courier", "").await;
    let id = task["task_id"].as_str().unwrap();
    let bob = copied(&alice).await;
    assert!(tasks(&bob).await.is_empty());
    assert_eq!(bob.status().await, "idle");
    assert_eq!(the_task(&alice).await, task);
    let said = answered(&bob, about("k1", "check_async_task", &task)).await;
    assert_eq!(said, format!("check_async_task failed: {}", no_task(id)));
    let said = answered(&bob, call("k2", "list_async_tasks", json!({}))).await;
    assert_eq!(said, "list_async_tasks: There are no such background tasks.");

    // A task that is over stays in the copy, as a part of what has happened.
    server.tools.let_go("lookup");
    eventually(async || worker(&alice, &task).status().await == "idle").await;
    alice.says("is there any news?").await;
    assert_eq!(the_task(&alice).await["status"], "success");
    let carol = copied(&alice).await;
    assert_eq!(the_task(&carol).await, the_task(&alice).await);
    assert!(notifications(&bob).await.is_empty());
}

async fn a_copy_that_waits_for_an_answer_has_no_tasks_that_are_under_way(server: TestServer) {
    server
        .is_configured_with(&boss("interrupt_on = { lookup = true }"))
        .await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    let work = script().calls(lookup("l1", "x")).says("the long text");
    let asks = script()
        .calls(start("a1", "courier", work))
        .calls(lookup("l2", "y"))
        .says("looked up");
    alice.asks(asks).await.finishes().await;
    let bob = copied(&alice).await;
    assert!(tasks(&bob).await.is_empty());
    assert_eq!(tasks(&alice).await.len(), 1);
    assert_eq!(bob.status().await, "interrupted");
    server.tools.let_go("lookup");
    bob.approves(&bob.question().await).await.finishes().await;
    assert_eq!(bob.transcript().await.last().unwrap(), "ai: looked up");
    assert!(tasks(&bob).await.is_empty());
    assert_eq!(alice.questions().await.len(), 1);
}

async fn a_run_lists_the_background_tasks_that_it_started(server: TestServer) {
    let (alice, task) = with_a_task(&server, "courier", "").await;
    let run = alice.runs().await[0]["run_id"].as_str().unwrap().to_owned();
    let tree = async || {
        server
            .client()
            .get(&alice.path(&format!("/runs/{run}/tree")))
            .await
            .ok()["background_tasks"]
            .clone()
    };
    let shown = tree().await;
    let expected = json!([{"task_id": task["task_id"], "thread_id": task["thread_id"], "agent_name": "courier",
            "graph_id": "scribe", "task_call_id": "a1", "begun_by": null, "run_id": task["run_id"],
            "status": "running", "created_at": shown[0]["created_at"]}]);
    assert_eq!(shown, expected);
    server.tools.let_go("lookup");
    eventually(async || tree().await[0]["status"] == "success").await;
}

async fn tasks_beyond_a_limit_are_error_results(server: TestServer) {
    let (alice, _) = with_a_task(
        &server,
        "courier",
        "limits = { children_total = 2, children_at_once = 2 }",
    )
    .await;
    let quick = |id: &str| start(id, "courier", "quick");
    let held = |id: &str| start(id, "courier", script().calls(lookup("l1", id)).says("done"));
    let said = transcript(
        &alice
            .says(script().calls_all([held("b1"), held("b2")]).says("so"))
            .await,
    );
    let refused = |limit: &str, line: &&String| {
        line.starts_with(&format!(
            "start_async_task failed: The limit `{limit}` = 2 of this run is reached."
        ))
    };
    assert_eq!(
        said.iter().filter(|line| refused("children_at_once", line)).count(),
        1,
        "the task of the turn before counts: {said:#?}"
    );
    server.tools.called("lookup", 2).await;
    server.tools.let_go("lookup");
    let wanted = json!({"metadata": {"parent_thread_id": alice.thread}, "status": "idle"});
    eventually(async || server.client().post("/threads/count", wanted.clone()).await.ok() == 2).await;
    alice.says("what is new?").await;
    let said = transcript(
        &alice
            .says(script().calls_all([quick("c1"), quick("c2"), quick("c3")]).says("so"))
            .await,
    );
    assert_eq!(
        said.iter()
            .filter(|line| refused("children_total", line) || refused("children_at_once", line))
            .count(),
        2,
        "{said:#?}"
    );
    eventually(async || {
        server
            .client()
            .post("/threads/count", json!({"status": "busy"}))
            .await
            .ok()
            == 0
    })
    .await;
    assert_eq!(server.client().post("/threads/count", wanted).await.ok(), 4);
    assert_eq!(alice.run(&alice.runs().await[0]).record().await["usage"]["children"], 2);
}

async fn tasks_of_tasks_have_a_maximum_depth(server: TestServer) {
    let looped = |name: &str, more: &str| {
        format!(
            "[agents.{name}]\nmodel = \"scripted:lab\"\n{more}\n[[agents.{name}.subagents]]\nname = \"again\"\n\
                 description = \"Does the same again, one level down.\"\ngraph_id = \"{name}\"\nnotify_parent = false\n"
        )
    };
    server
        .is_configured_with(&format!(
            "{}{}",
            looped("echoer", ""),
            looped("shallow", "limits = { depth = 2 }")
        ))
        .await;
    let below = |levels: usize| {
        (0..levels).fold("the bottom".to_owned(), |below, n| {
            script()
                .calls(start(&format!("a{n}"), "again", below))
                .says("so")
                .to_string()
        })
    };
    for (agent, deepest) in [("echoer", 4), ("shallow", 2)] {
        let before = server
            .client()
            .post("/threads/count", json!({}))
            .await
            .ok()
            .as_u64()
            .unwrap();
        let alice = server.human(agent).await;
        alice.says(below(7)).await;
        eventually(async || server.client().post("/threads/count", json!({})).await.ok() == before + 1 + deepest).await;
        eventually(async || {
            server
                .client()
                .post("/threads/count", json!({"status": "busy"}))
                .await
                .ok()
                == 0
        })
        .await;
        assert_eq!(
            server.client().post("/threads/count", json!({})).await.ok(),
            before + 1 + deepest
        );
    }
}

async fn the_tasks_of_a_tree_share_one_limit(server: TestServer) {
    server
        .is_configured_with(
            "[agents.root]\nmodel = \"scripted:lab\"\nlimits = { tree = { children_total = 3 } }\n\
             [[agents.root.subagents]]\nname = \"branch\"\ndescription = \"Begins more of its kind.\"\n\
             graph_id = \"branch\"\nnotify_parent = false\n\
             [agents.branch]\nmodel = \"scripted:lab\"\n[[agents.branch.subagents]]\nname = \"branch\"\n\
             description = \"Begins more of its kind.\"\ngraph_id = \"branch\"\nnotify_parent = false\n",
        )
        .await;
    let alice = server.human("root").await;
    let two = |below: &str| {
        script()
            .calls_all([start("a1", "branch", below), start("a2", "branch", below)])
            .says("so")
            .to_string()
    };
    alice.says(two(&two("leaf"))).await;
    let wanted = json!({"metadata": {"subagent_name": "branch"}});
    eventually(async || {
        server
            .client()
            .post("/threads/count", json!({"status": "busy"}))
            .await
            .ok()
            == 0
    })
    .await;
    assert_eq!(server.client().post("/threads/count", wanted).await.ok(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_start_is_not_acknowledged_is_started_once() {
    // The metadata of a task's run; no step has it.
    play_behind_proxy("parent_assistant_id", async |server, door| {
        server.is_configured_with(&boss("")).await;
        let alice = server.human("boss").await;
        door.commits(Commits::OfMarkedAreNotAcknowledged);
        starts_a_task(&alice, "writer", "say it").await;
        assert!(door.broken() > 0, "the start was not acknowledged");
        door.commits(Commits::Arrive);
        let task = the_task(&alice).await;
        let id = task["task_id"].as_str().unwrap();
        let begun = format!("start_async_task: Started the background task {id} with `writer`.");
        let said = alice.transcript().await;
        assert!(said[2].starts_with(&begun), "{said:#?}");
        knows_an_outcome(&alice).await;
        assert_eq!(worker(&alice, &task).runs().await.len(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_is_reported_soon_although_the_claim_on_its_job_is_not_acknowledged() {
    // The kind of the job, which is in the transactions that schedule and claim it.
    play_behind_proxy("notify_parent", async |server, door| {
        server.is_configured_with(&boss("")).await;
        let alice = server.human("boss").await;
        server.tools.hold("lookup");
        let work = script().calls(lookup("l1", "x")).says("the long text");
        alice
            .says(script().calls(start("a1", "writer", work)).says("it is under way"))
            .await;
        server.tools.called("lookup", 1).await;
        door.commits(Commits::OfMarkedAreNotAcknowledged);
        server.tools.let_go("lookup");
        let claimed = "select count(*) from jobs where kind = 'notify_parent' and worker is not null";
        eventually(async || server.number_in_database(claimed).await == 1).await;
        door.commits(Commits::Arrive);
        // The lease of the claim is a minute.
        let reported = tokio::time::timeout(Duration::from_secs(20), knows_an_outcome(&alice)).await;
        reported.expect("it is reported soon");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_first_commits_are_lost_counts_once() {
    // The metadata of a task's run; no step has it.
    play_behind_proxy("parent_assistant_id", async |server, door| {
        server
            .is_configured_with(&boss("limits = { children_total = 1 }"))
            .await;
        let alice = server.human("boss").await;
        let order = script().calls(start("a1", "writer", "say it")).says("it is under way");
        let run = door.breaks_a_commit_of(Commits::OfMarkedGetLost, &alice, order).await;
        let said = alice.transcript().await;
        assert!(said[2].starts_with("start_async_task: Started"), "{said:#?}");
        assert_eq!(run.record().await["usage"]["children"], 1);
        knows_an_outcome(&alice).await;
    })
    .await;
}
