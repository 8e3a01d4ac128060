//! Background tasks on another server: starting, checking, updating and cancelling them, and the notification of their
//! end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adjutant::shutdown::Shutdown;
use axum::extract::{Path, RawQuery};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::agents::background_tasks::{
    about, answered, copied, has_run, knows_outcomes, no_task, notifications, results, start, tasks, tell, the_task,
};
use crate::remote::awaited::{Peer, create_thread};
use crate::support::actors::Question;
use crate::support::command::{command, said};
use crate::support::postgres_proxy::{Commits, play_behind_proxy};
use crate::support::proxy::ProxyState;
use crate::support::{
    Human, TestServer, approval, call, eventually, lookup, mail, on_both_engines, script, starts_service, transcript,
};

/// Returns an agent `away` whose background agents `far` and `calm` are the agent `agent` of the server at `base`.
pub(crate) fn chief(base: &str, more: &str) -> String {
    let subagent = |name: &str, graph_id: &str, more: &str| {
        format!(
            "[[agents.away.subagents]]\nname = \"{name}\"\ndescription = \"Works on another server as {name}.\"\n\
             graph_id = \"{graph_id}\"\nurl = \"{base}\"\nheaders = {{ x-key = \"hush-hush\" }}\n{more}\n"
        )
    };
    let parts = [
        "[peers]\nfirst_look_s = 0.05\nlongest_look_s = 0.4\npatience_s = 1.0\n".to_owned(),
        format!("[agents.away]\nmodel = \"scripted:lab\"\ntools = [\"lookup\"]\n{more}\n"),
        subagent("far", "agent", ""),
        subagent("calm", "agent", "update_strategy = \"enqueue\"\nnotify_parent = false"),
        subagent("nobody", "unheard-of", ""),
    ];
    parts.join("\n")
}

async fn peer_of(server: &TestServer, more: &str) -> Peer {
    Peer::named_by(server, |base| chief(base, more)).await
}

/// Returns the runs of a task on the other server, newest first.
pub(crate) async fn runs_there(peer: &Peer, task: &Value) -> Vec<Value> {
    there(peer, task).runs().await
}

/// Returns a user of an agent that has started a task on the other server, and the task, which waits for its tool.
async fn with_a_task(server: &TestServer, peer: &Peer, agent: &str) -> (Human, Value) {
    let alice = server.human("away").await;
    peer.server.tools.hold("lookup");
    let before = peer.server.tools.calls_of("lookup").len();
    let work = script().calls(lookup("l1", "x")).says("the long text");
    alice
        .says(script().calls(start("a1", agent, work)).says("it is under way"))
        .await;
    peer.server.tools.called("lookup", before + 1).await;
    (alice.clone(), the_task(&alice).await)
}

/// Returns a user of the task's thread on the other server.
fn there(peer: &Peer, task: &Value) -> Human {
    Human::at(
        peer.server.client(),
        "agent",
        task["thread_id"].as_str().expect("an id"),
    )
}

/// Starts a server that records its requests and answers as a server without agents. If it `loses_first`, it never answers
/// the first request for a thread.
async fn listening_server(around: &Shutdown, loses_first: bool) -> (String, Arc<Mutex<Vec<(HeaderMap, Value)>>>) {
    let heard: Arc<Mutex<Vec<(HeaderMap, Value)>>> = Arc::default();
    let ear = Arc::clone(&heard);
    let id = "01a20234-fe65-74ae-ae65-82a968c820e5";
    let begin = async move |headers: HeaderMap, Json(body): Json<Value>| {
        ear.lock().unwrap().push((headers, body));
        Json(json!({"run_id": id, "status": "running"}))
    };
    let begun = Arc::clone(&heard);
    let list = async move || match begun.lock().unwrap().is_empty() {
        true => Json(json!([])),
        false => Json(json!([{"run_id": id, "status": "success"}])),
    };
    let messages = json!([{"type": "ai", "content": "all is well"}]);
    let loses_next = Arc::new(AtomicBool::new(loses_first));
    let create = async move |body: Json<Value>| {
        if loses_next.swap(false, Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        create_thread(body).await
    };
    let router = Router::new()
        .route("/threads", post(create))
        .route("/threads/{thread}/runs", get(list).post(begin))
        .route(
            "/threads/{thread}/state",
            get(async move || Json(json!({"values": {"messages": messages}}))),
        );
    let base = starts_service("listening server", router, around).await;
    (base, heard)
}

/// The work of a server that is slow to start it.
#[derive(Clone, Default)]
struct SlowWork {
    /// The number of runs that were ordered.
    ordered: usize,
    /// True if the second run has started.
    has_second: bool,
    /// The runs that were to be cancelled.
    cancelled: Vec<String>,
}

impl SlowWork {
    /// Returns the runs, newest first. Those that are cancelled stop, unless the server `refuses` that.
    fn runs(&self, refuses: bool) -> Value {
        let shown = match self.has_second {
            true => 2,
            false => self.ordered.min(1),
        };
        let run = |id: &&str| match !refuses && self.cancelled.iter().any(|cancelled| cancelled == id) {
            true => json!({"run_id": id, "status": "interrupted"}),
            false => json!({"run_id": id, "status": "running"}),
        };
        SLOW_RUNS[..shown].iter().rev().map(run).collect()
    }
}

const SLOW_RUNS: [&str; 2] = [
    "01a20234-fe65-74ae-ae65-82a968c820e5",
    "01a20234-fe65-74ae-ae65-82a968c820e6",
];

/// Starts a server whose runs last until they are cancelled, for ever if it `refuses` that. A second run starts only once the
/// first one is to be cancelled, and polls of a running task are answered once the second run is to start.
async fn slow_server(around: &Shutdown, refuses: bool) -> (String, Arc<watch::Sender<SlowWork>>) {
    let work = Arc::new(watch::Sender::new(SlowWork::default()));
    let begun = Arc::clone(&work);
    let begin = async move || {
        begun.send_modify(|work| work.ordered += 1);
        let is_second = begun.borrow().ordered > 1;
        if is_second {
            drop(begun.subscribe().wait_for(|work| !work.cancelled.is_empty()).await);
            begun.send_modify(|work| work.has_second = true);
        }
        Json(json!({"run_id": SLOW_RUNS[usize::from(is_second)], "status": "running"}))
    };
    let seen = Arc::clone(&work);
    let list = async move |RawQuery(query): RawQuery| {
        if query.as_deref() == Some("limit=2") {
            drop(seen.subscribe().wait_for(|work| work.ordered > 1).await);
        }
        let runs = seen.borrow().runs(refuses);
        Json(runs)
    };
    let stopped = Arc::clone(&work);
    let cancel = async move |Path((_, run)): Path<(String, String)>| {
        stopped.send_modify(|work| work.cancelled.push(run));
        match refuses {
            true => StatusCode::FORBIDDEN,
            false => StatusCode::OK,
        }
    };
    let router = Router::new()
        .route("/threads", post(create_thread))
        .route("/threads/{thread}/runs", get(list).post(begin))
        .route("/threads/{thread}/runs/{run}/cancel", post(cancel));
    (starts_service("slow server", router, around).await, work)
}

/// The work of a server that answers each request for a run with an error.
#[derive(Clone, Default)]
struct LateWork {
    /// True once the run has started all the same.
    has_begun: bool,
    /// The number of times that its runs were listed.
    polls: usize,
    is_cancelled: bool,
}

impl LateWork {
    fn runs(&self) -> Value {
        let status = if self.is_cancelled { "interrupted" } else { "running" };
        match self.has_begun {
            true => json!([{"run_id": SLOW_RUNS[0], "status": status}]),
            false => json!([]),
        }
    }
}

/// Starts a server that answers each request for a run with an error, and starts the run when the test says so.
async fn late_server(around: &Shutdown) -> (String, Arc<watch::Sender<LateWork>>) {
    let work = Arc::new(watch::Sender::new(LateWork::default()));
    let listed = Arc::clone(&work);
    let list = async move || {
        listed.send_modify(|work| work.polls += 1);
        let runs = listed.borrow().runs();
        Json(runs)
    };
    let stopped = Arc::clone(&work);
    let cancel = async move || {
        stopped.send_modify(|work| work.is_cancelled = true);
        StatusCode::OK
    };
    let router = Router::new()
        .route("/threads", post(create_thread))
        .route(
            "/threads/{thread}/runs",
            get(list).post(async || StatusCode::SERVICE_UNAVAILABLE),
        )
        .route("/threads/{thread}/runs/{run}/cancel", post(cancel));
    (starts_service("late server", router, around).await, work)
}

/// Starts a server that is out of reach in the first poll, and does not know the task in the second one, which makes two
/// requests, as when something before it answers in its place.
async fn server_that_is_replaced(around: &Shutdown) -> String {
    let work = Arc::new(watch::Sender::new(LateWork::default()));
    let begun = Arc::clone(&work);
    let begin = async move || {
        begun.send_modify(|work| work.has_begun = true);
        Json(json!({"run_id": SLOW_RUNS[0], "status": "running"}))
    };
    let list = async move || {
        work.send_modify(|work| work.polls += usize::from(work.has_begun));
        let polls = work.borrow().polls;
        match polls {
            0 => Ok(Json(json!([]))),
            1 => Err(StatusCode::SERVICE_UNAVAILABLE),
            2 | 3 => Err(StatusCode::NOT_FOUND),
            _ => Ok(Json(json!([{"run_id": SLOW_RUNS[0], "status": "success"}]))),
        }
    };
    let messages = json!([{"type": "ai", "content": "all is well"}]);
    let router = Router::new()
        .route("/threads", post(create_thread))
        .route("/threads/{thread}/runs", get(list).post(begin))
        .route(
            "/threads/{thread}/state",
            get(async move || Json(json!({"values": {"messages": messages}}))),
        );
    starts_service("replaced server", router, around).await
}

/// Starts a server that does not know its running task when the task is first to be cancelled, which makes two requests.
async fn server_that_is_replaced_later(around: &Shutdown) -> (String, Arc<watch::Sender<LateWork>>) {
    let work = Arc::new(watch::Sender::new(LateWork::default()));
    let begun = Arc::clone(&work);
    let begin = async move || {
        begun.send_modify(|work| work.has_begun = true);
        Json(json!({"run_id": SLOW_RUNS[0], "status": "running"}))
    };
    let listed = Arc::clone(&work);
    let list = async move |RawQuery(query): RawQuery| {
        let is_poll = query.as_deref() == Some("limit=2");
        listed.send_modify(|work| work.polls += usize::from(work.has_begun && !is_poll));
        let work = listed.borrow();
        match work.polls {
            1 | 2 if !is_poll => Err(StatusCode::NOT_FOUND),
            _ => Ok(Json(work.runs())),
        }
    };
    let stopped = Arc::clone(&work);
    let cancel = async move || {
        stopped.send_modify(|work| work.is_cancelled = true);
        StatusCode::OK
    };
    let router = Router::new()
        .route("/threads", post(create_thread))
        .route("/threads/{thread}/runs", get(list).post(begin))
        .route("/threads/{thread}/runs/{run}/cancel", post(cancel));
    (starts_service("replaced server", router, around).await, work)
}

on_both_engines! {
    the_end_of_a_remote_task_starts_a_run_of_the_agent,
    a_running_agent_is_notified_of_a_remote_outcome,
    a_check_of_a_task_reads_the_remote_server_or_the_last_known_status,
    a_copy_has_no_remote_tasks_that_are_under_way_for_the_original,
    a_further_message_interrupts_a_remote_task,
    one_further_message_can_wait_for_the_end_of_a_remote_task,
    a_queued_run_of_a_client_holds_no_message_to_a_remote_task_up_whatever_its_metadata,
    a_result_of_a_remote_task_is_reported_although_a_message_follows_at_once,
    a_question_of_a_remote_task_is_reported_although_a_message_waits_behind_it,
    an_answer_that_comes_too_late_does_not_hide_the_result_of_a_remote_task,
    an_answer_that_comes_too_late_does_not_hide_the_failure_of_a_remote_task,
    an_answer_that_comes_too_late_does_not_hide_that_the_answer_before_it_failed,
    a_finished_remote_task_continues_with_a_further_message,
    a_task_on_an_unreachable_server_is_cancelled,
    a_remote_task_that_an_undone_run_started_is_cancelled_on_its_server,
    a_remote_task_that_is_undone_while_it_is_cancelled_leaves_no_record,
    a_finished_remote_task_cannot_be_cancelled,
    a_remote_task_continues_with_an_answer_on_its_server,
    an_interrupt_of_a_remote_task_is_answered_locally,
    an_approval_of_one_call_of_a_remote_task_takes_a_list_of_one_decision,
    the_decisions_about_a_remote_task_are_in_the_audit,
    an_interrupted_remote_task_can_be_cancelled_or_get_a_message,
    errors_of_the_remote_server_are_reported,
    a_task_that_cannot_start_leaves_no_remote_run,
    remote_tasks_count_until_they_end,
    a_message_that_arrives_late_does_not_go_on_with_a_remote_task_that_is_cancelled,
    a_message_that_arrives_late_does_not_go_on_with_a_remote_task_that_is_to_be_cancelled,
    a_task_fails_when_its_server_stays_unreachable,
    a_request_without_an_answer_does_not_use_up_the_time_to_start_a_remote_task,
    a_remote_task_that_starts_after_it_was_given_up_is_cancelled,
    a_remote_task_that_is_not_found_once_goes_on,
    a_remote_task_is_cancelled_when_its_conversation_is_deleted,
    a_remote_task_is_cancelled_when_a_command_deletes_its_tenant,
    a_remote_task_that_is_not_found_once_is_cancelled,
    a_remote_task_of_a_stateless_run_goes_on,
    a_remote_task_of_a_stateless_run_that_is_to_be_cancelled_is_cancelled,
    headers_and_metadata_reach_the_remote_server_only,
    a_background_agent_of_a_client_cannot_use_private_addresses,
}

async fn the_end_of_a_remote_task_starts_a_run_of_the_agent(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let (alice, task) = with_a_task(&server, &peer, "far").await;
    let id = task["task_id"].as_str().unwrap();
    let begun = format!(
        "start_async_task: Started the background task {id} with `far`. Its result comes by itself; do not wait for it."
    );
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls start_async_task", &begun, "ai: it is under way"]
    );
    let work = there(&peer, &task);
    let thread = work.record().await;
    let run = runs_there(&peer, &task).await[0].clone();
    assert_eq!(&thread["status"], &json!("busy"));
    assert_eq!(&thread["metadata"]["subagent_name"], &json!("far"));
    for notes in [&thread["metadata"], &run["metadata"]] {
        assert_eq!(notes["parent_thread_id"], alice.thread);
        assert_eq!(&notes["tool_call_id"], &json!("a1"));
        assert_eq!(&notes["parent_run_id"], &alice.runs().await[0]["run_id"]);
    }
    assert_eq!(&task["run_id"], &run["run_id"]);
    assert_eq!(&task["thread_id"], &json!(id));
    let path = alice.path(&format!(
        "/runs/{}/tree",
        alice.runs().await[0]["run_id"].as_str().unwrap()
    ));
    let shown = server.client().get(&path).await.ok()["background_tasks"][0].clone();
    assert_eq!(&shown["agent_name"], &json!("far"));
    assert_eq!(&shown["run_id"], &run["run_id"]);
    peer.server.tools.let_go("lookup");
    let woken = has_run(&alice, 2).await[0].clone();
    assert_eq!(woken["metadata"]["background_tasks"], json!([id]));
    let mark = json!({"task_id": id, "agent_name": "far", "status": "success", "run_id": run["run_id"]});
    assert_eq!(notifications(&alice).await, [mark]);
    let said = alice.transcript().await;
    assert!(
        said[4].ends_with("of `far` is done (status: success).\n\nIts result:\nthe long text"),
        "{said:#?}"
    );
    assert_eq!(said.len(), 6);
    assert_eq!(the_task(&alice).await["status"].clone(), json!("success"));
    assert_eq!(runs_there(&peer, &task).await.len(), 1);
    peer.finish().await;
}

async fn a_running_agent_is_notified_of_a_remote_outcome(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let alice = server.human("away").await;
    server.tools.hold("lookup");
    let run = alice
        .asks(
            script()
                .calls_all([start("a1", "far", "say it"), lookup("l1", "x")])
                .says("unused"),
        )
        .await;
    server.tools.called("lookup", 1).await;
    let found = json!({"metadata": {"parent_thread_id": alice.thread}});
    eventually(async || {
        let found = peer.server.client().post("/threads/search", found.clone()).await.ok();
        found[0]["values"]["messages"]
            .as_array()
            .is_some_and(|said| said.len() == 2)
            && found[0]["status"] == "idle"
    })
    .await;
    server.tools.let_go("lookup");
    run.finishes().await;
    let said = alice.transcript().await;
    assert!(said[4].ends_with("Its result:\necho: say it"), "{said:#?}");
    // No outcome is left to report: another task is reported, and this one is not.
    let bob = server.human("away").await;
    bob.says(script().calls(start("a2", "far", "quick")).says("yes")).await;
    eventually(async || notifications(&bob).await.len() == 1).await;
    assert_eq!(alice.runs().await.len(), 1);
    assert_eq!(notifications(&alice).await.len(), 1);
    peer.finish().await;
}

async fn a_check_of_a_task_reads_the_remote_server_or_the_last_known_status(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let (alice, task) = with_a_task(&server, &peer, "calm").await;
    let seen = answered(&alice, about("k1", "check_async_task", &task)).await;
    assert!(seen.starts_with("check_async_task: {\"status\":\"running\""), "{seen}");
    for way in [ProxyState::Shut, ProxyState::Mute] {
        peer.door.is(way);
        let seen = answered(&alice, about("k2", "check_async_task", &task)).await;
        assert!(seen.contains("\"status\":\"running\""), "{seen}");
        assert!(
            seen.contains("Its server cannot be asked now (The agent `agent` at http://"),
            "{seen}"
        );
        let listed = answered(&alice, call("k3", "list_async_tasks", json!({}))).await;
        assert_eq!(
            listed,
            format!(
                "list_async_tasks: - {} (calm): running",
                task["task_id"].as_str().unwrap()
            )
        );
    }
    peer.door.is(ProxyState::Open);
    peer.server.tools.let_go("lookup");
    eventually(async || there(&peer, &task).status().await == "idle").await;
    // The agent is not to be woken, so it finds the news when it is asked for something.
    alice.says("is there any news?").await;
    assert_eq!(alice.runs().await.len(), 7);
    assert_eq!(notifications(&alice).await.len(), 1);
    let result = json!({"status": "success", "thread_id": task["thread_id"], "result": "the long text"});
    assert_eq!(
        answered(&alice, about("k4", "check_async_task", &task)).await,
        format!("check_async_task: {result}")
    );
    peer.finish().await;
}

async fn a_copy_has_no_remote_tasks_that_are_under_way_for_the_original(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let (alice, task) = with_a_task(&server, &peer, "calm").await;
    let bob = copied(&alice).await;
    assert!(tasks(&bob).await.is_empty());
    let said = answered(&bob, about("k1", "cancel_async_task", &task)).await;
    let refusal = no_task(task["task_id"].as_str().unwrap());
    assert_eq!(said, format!("cancel_async_task failed: {refusal}"));
    assert_eq!(the_task(&alice).await, task);
    peer.server.tools.let_go("lookup");
    eventually(async || there(&peer, &task).status().await == "idle").await;
    peer.finish().await;
}

async fn a_further_message_interrupts_a_remote_task(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let (alice, task) = with_a_task(&server, &peer, "far").await;
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
    eventually(async || notifications(&alice).await.len() == 1 && alice.status().await == "idle").await;
    let newer = the_task(&alice).await;
    assert_eq!(&newer["superseded_run_ids"], &json!([task["run_id"]]));
    assert_eq!(&newer["status"], &json!("success"));
    let runs = runs_there(&peer, &task).await;
    assert_eq!(&runs[0]["run_id"], &newer["run_id"]);
    assert_eq!(&runs[1]["status"], &json!("interrupted"));
    let told = notifications(&alice).await;
    assert_eq!(told.len(), 1);
    assert_eq!(&told[0]["run_id"], &newer["run_id"]);
    assert_eq!(runs.len(), 2);
    peer.server.tools.let_go("lookup");
    peer.finish().await;
}

async fn one_further_message_can_wait_for_the_end_of_a_remote_task(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let (alice, task) = with_a_task(&server, &peer, "calm").await;
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
    peer.server.tools.let_go("lookup");
    let work = there(&peer, &task);
    has_run(&work, 2).await;
    assert_eq!(work.transcript().await.last().unwrap(), "ai: echo: and then");
    peer.finish().await;
}

async fn a_queued_run_of_a_client_holds_no_message_to_a_remote_task_up_whatever_its_metadata(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let (alice, task) = with_a_task(&server, &peer, "calm").await;
    server.tools.hold("lookup");
    let run = alice
        .asks(
            script()
                .calls(lookup("l1", "x"))
                .calls(tell("u1", &task, "and then"))
                .says("well"),
        )
        .await;
    server.tools.called("lookup", 1).await;
    let work = there(&peer, &task);
    let more = json!({"multitask_strategy": "enqueue", "metadata": {"parent_run_id": run.id}});
    work.starts(work.run_body("by hand", more)).await;
    server.tools.let_go("lookup");
    run.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[said.len() - 2].starts_with("update_async_task: The background task"),
        "{said:#?}"
    );
    peer.server.tools.let_go("lookup");
    has_run(&work, 3).await;
    let said = work.transcript().await;
    for answer in ["ai: echo: by hand", "ai: echo: and then"] {
        assert!(said.iter().any(|line| line == answer), "{said:#?}");
    }
    peer.finish().await;
}

/// Returns a second server with a background agent `calm` that takes messages after its work, and whose outcomes are
/// notified.
async fn notifying_peer(server: &TestServer) -> Peer {
    Peer::named_by(server, |base| chief(base, "").replace("notify_parent = false", "")).await
}

async fn a_result_of_a_remote_task_is_reported_although_a_message_follows_at_once(server: TestServer) {
    let peer = notifying_peer(&server).await;
    let (alice, task) = with_a_task(&server, &peer, "calm").await;
    alice
        .says(script().calls(tell("u1", &task, "and then")).says("told"))
        .await;
    peer.server.tools.let_go("lookup");
    let told = knows_outcomes(&alice, 2).await;
    let runs = runs_there(&peer, &task).await;
    let expected = [1, 0].map(|at| (json!("success"), runs[at]["run_id"].clone()));
    assert_eq!(told, expected);
    assert_eq!(results(&alice).await, ["the long text", "echo: and then"]);
    let known = the_task(&alice).await;
    assert_eq!(known["status"], "success");
    assert_eq!(known["reported_run_id"], runs[0]["run_id"]);
    // A reported outcome is not reported again.
    alice
        .says(script().calls(tell("u2", &task, "and at last")).says("told"))
        .await;
    knows_outcomes(&alice, 3).await;
    let said = ["the long text", "echo: and then", "echo: and at last"];
    assert_eq!(results(&alice).await, said);
    peer.finish().await;
}

async fn a_question_of_a_remote_task_is_reported_although_a_message_waits_behind_it(server: TestServer) {
    let peer = notifying_peer(&server).await;
    peer.server
        .is_reconfigured(
            "name = \"main-agent\"\n",
            "name = \"main-agent\"\non_pending_interrupt = \"reject\"\n",
        )
        .await;
    let alice = server.human("away").await;
    peer.server.tools.hold("lookup");
    let work = script()
        .calls(lookup("l1", "x"))
        .calls(mail("m1", "a@b.c"))
        .says("it is sent");
    alice
        .says(script().calls(start("a1", "calm", work)).says("it is under way"))
        .await;
    let task = the_task(&alice).await;
    peer.server.tools.called("lookup", 1).await;
    alice
        .says(script().calls(tell("u1", &task, "and then")).says("told"))
        .await;
    peer.server.tools.let_go("lookup");
    let told = knows_outcomes(&alice, 1).await;
    assert_eq!(told, [(json!("waiting"), task["run_id"].clone())]);
    let here = Human::at(server.client(), "away", task["thread_id"].as_str().unwrap());
    let approval = json!({"decisions": [{"type": "approve"}]});
    here.resolves(&here.question().await, approval).await.ok();
    let told = knows_outcomes(&alice, 3).await;
    // The answer was sent last, and went first.
    let runs = runs_there(&peer, &task).await;
    let expected = [("waiting", 2), ("success", 0), ("success", 1)];
    assert_eq!(
        told,
        expected.map(|(status, at)| (json!(status), runs[at]["run_id"].clone()))
    );
    assert_eq!(results(&alice).await, ["it is sent", "echo: and then"]);
    peer.finish().await;
}

/// Returns a user of an agent whose task waits for an answer on the other server, and a user of the task's thread there.
async fn with_a_waiting_task(server: &TestServer, peer: &Peer) -> (Human, Human) {
    let alice = server.human("away").await;
    let work = script().calls(mail("m1", "a@b.c"));
    alice
        .says(script().calls(start("a1", "far", work)).says("it is under way"))
        .await;
    knows_outcomes(&alice, 1).await;
    let work = there(peer, &the_task(&alice).await);
    (alice, work)
}

/// Changes the row of a question on the other server to that of one without an answer.
async fn becomes(peer: &Peer, question: &Question, status: &str) {
    let id = question.id();
    let sql = format!(
        "update interrupts set status = '{status}', resolution = null, resolved_at = null, resumed_by = null, \
         touched_by = null, before = null where interrupt_id = '{id}'"
    );
    peer.server.executes_sql(&sql).await;
}

/// Has a question answered in the moment in which a message drops it: it is still open, and is dropped then.
async fn is_answered_too_late(peer: &Peer, work: &Human, question: &Question) {
    becomes(peer, question, "pending").await;
    work.resolves(question, approval()).await.ok();
    becomes(peer, question, "dropped").await;
}

async fn an_answer_that_comes_too_late_does_not_hide_the_result_of_a_remote_task(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let (alice, work) = with_a_waiting_task(&server, &peer).await;
    let question = work.question().await;
    peer.server.tools.hold("lookup");
    let message = script().calls(lookup("l1", "x")).says("the long text");
    let task = the_task(&alice).await;
    alice
        .says(script().calls(tell("u1", &task, message)).says("told"))
        .await;
    peer.server.tools.called("lookup", 1).await;
    is_answered_too_late(&peer, &work, &question).await;
    peer.server.tools.let_go("lookup");
    let runs = has_run(&work, 3).await;
    assert_eq!(runs[0]["status"], "error");
    let told = knows_outcomes(&alice, 2).await;
    let expected = [("waiting", 2), ("success", 1)];
    assert_eq!(
        told,
        expected.map(|(status, at)| (json!(status), runs[at]["run_id"].clone()))
    );
    assert_eq!(results(&alice).await, ["the long text"]);
    peer.finish().await;
}

/// Checks that the last of these outcomes is the failure of the run before the late answer, with its reason.
async fn knows_the_failure(alice: &Human, work: &Human, expected: &[(&str, usize)]) {
    let runs = has_run(work, expected.len() + 1).await;
    assert_eq!(runs[0]["status"], "error");
    assert_eq!(runs[1]["status"], "error");
    assert_eq!(work.record().await["error"]["error"], "AnswerTooLateError");
    let told = knows_outcomes(alice, expected.len()).await;
    let expected: Vec<(Value, Value)> = expected
        .iter()
        .map(|(status, at)| (json!(status), runs[*at]["run_id"].clone()))
        .collect();
    assert_eq!(told, expected);
    let said = alice.transcript().await;
    let told = said.iter().find(|line| line.contains("has failed"));
    assert!(told.is_some_and(|told| told.contains("ModelRefusedError")), "{said:#?}");
}

async fn an_answer_that_comes_too_late_does_not_hide_the_failure_of_a_remote_task(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let (alice, work) = with_a_waiting_task(&server, &peer).await;
    let question = work.question().await;
    peer.server.tools.hold("lookup");
    let message = script().calls(lookup("l1", "x")).fails(400);
    let task = the_task(&alice).await;
    alice
        .says(script().calls(tell("u1", &task, message)).says("told"))
        .await;
    peer.server.tools.called("lookup", 1).await;
    is_answered_too_late(&peer, &work, &question).await;
    peer.server.tools.let_go("lookup");
    knows_the_failure(&alice, &work, &[("waiting", 2), ("error", 1)]).await;
    peer.finish().await;
}

async fn an_answer_that_comes_too_late_does_not_hide_that_the_answer_before_it_failed(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let (alice, work) = with_a_waiting_task(&server, &peer).await;
    let dropped = work.question().await;
    let message = script().calls(mail("m2", "a@b.c")).calls(lookup("l1", "x")).fails(400);
    let task = the_task(&alice).await;
    alice
        .says(script().calls(tell("u1", &task, message)).says("told"))
        .await;
    knows_outcomes(&alice, 2).await;
    // The answer to the question of the message is at work when that to the question before comes.
    peer.server.tools.hold("lookup");
    work.resolves(&work.question().await, approval()).await.ok();
    peer.server.tools.called("lookup", 1).await;
    is_answered_too_late(&peer, &work, &dropped).await;
    peer.server.tools.let_go("lookup");
    knows_the_failure(&alice, &work, &[("waiting", 3), ("waiting", 2), ("error", 1)]).await;
    peer.finish().await;
}

async fn a_finished_remote_task_continues_with_a_further_message(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let alice = server.human("away").await;
    alice
        .says(script().calls(start("a1", "far", "quick")).says("yes"))
        .await;
    eventually(async || notifications(&alice).await.len() == 1 && alice.status().await == "idle").await;
    let task = the_task(&alice).await;
    let more = call(
        "u1",
        "update_async_task",
        json!({"task_id": task["task_id"], "message": "and then"}),
    );
    alice.says(script().calls(more).says("so it is")).await;
    eventually(async || notifications(&alice).await.len() == 2 && alice.status().await == "idle").await;
    assert_eq!(runs_there(&peer, &task).await.len(), 2);
    assert_eq!(the_task(&alice).await["status"].clone(), json!("success"));
    peer.finish().await;
}

async fn a_task_on_an_unreachable_server_is_cancelled(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let (alice, task) = with_a_task(&server, &peer, "far").await;
    let id = task["task_id"].as_str().unwrap();
    let text = answered(&alice, about("k1", "cancel_async_task", &task)).await;
    assert_eq!(
        text,
        format!("cancel_async_task: The background task {id} is cancelled.")
    );
    assert_eq!(runs_there(&peer, &task).await[0]["status"], "interrupted");
    let (bob, other) = with_a_task(&server, &peer, "far").await;
    peer.door.is(ProxyState::Shut);
    let text = answered(&bob, about("k1", "cancel_async_task", &other)).await;
    assert!(
        text.contains("is cancelled. Its server is told as soon as it can be reached"),
        "{text}"
    );
    assert_eq!(runs_there(&peer, &other).await[0]["status"], "running");
    server.is_stopped_and_started_again().await;
    peer.door.is(ProxyState::Open);
    eventually(async || runs_there(&peer, &other).await[0]["status"] == "interrupted").await;
    for human in [&alice, &bob] {
        assert_eq!(&the_task(human).await["status"], &json!("cancelled"));
        assert_eq!(notifications(human).await.len(), 0);
    }
    peer.server.tools.let_go("lookup");
    peer.finish().await;
}

async fn a_remote_task_that_an_undone_run_started_is_cancelled_on_its_server(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let alice = server.human("away").await;
    alice.says("before").await;
    peer.server.tools.hold("lookup");
    server.tools.hold("lookup");
    let work = script().calls(lookup("l1", "x")).says("the long text");
    let text = script()
        .calls(start("a1", "far", work))
        .calls(lookup("l2", "y"))
        .says("unused");
    let run = alice.asks(text).await;
    server.tools.called("lookup", 1).await;
    peer.server.tools.called("lookup", 1).await;
    let task = the_task(&alice).await;
    run.is_cancelled("rollback").await.ok();
    assert_eq!(alice.transcript().await, ["human: before", "ai: echo: before"]);
    eventually(async || runs_there(&peer, &task).await[0]["status"] == "interrupted").await;
    alice.says("after").await;
    assert_eq!(notifications(&alice).await.len(), 0);
    assert_eq!(alice.runs().await.len(), 2);
    server.tools.let_go("lookup");
    peer.server.tools.let_go("lookup");
    peer.finish().await;
}

async fn a_remote_task_that_is_undone_while_it_is_cancelled_leaves_no_record(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let (alice, task) = with_a_task(&server, &peer, "far").await;
    // Another server that undoes the run in the meantime stores this.
    server.executes_sql("update remote_runs set parent_graph_id = ''").await;
    let text = answered(&alice, about("k1", "cancel_async_task", &task)).await;
    assert!(text.ends_with("is cancelled."), "{text}");
    for table in ["background_tasks", "remote_runs"] {
        let sql = format!("select count(*) from {table}");
        eventually(async || server.number_in_database(&sql).await == 0).await;
    }
    peer.server.tools.let_go("lookup");
    peer.finish().await;
}

async fn a_finished_remote_task_cannot_be_cancelled(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let alice = server.human("away").await;
    alice
        .says(script().calls(start("a1", "calm", "quick")).says("yes"))
        .await;
    let task = the_task(&alice).await;
    eventually(async || there(&peer, &task).status().await == "idle").await;
    alice.says("is there any news?").await;
    let text = answered(&alice, about("k1", "cancel_async_task", &task)).await;
    let over = format!(
        "The background task {} was over before: success. Nothing was cancelled.",
        task["task_id"].as_str().unwrap()
    );
    assert_eq!(text, format!("cancel_async_task: {over}"));
    peer.finish().await;
}

async fn a_remote_task_continues_with_an_answer_on_its_server(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let alice = server.human("away").await;
    let work = script().calls(mail("m1", "a@b.c")).says("it is sent");
    alice
        .says(script().calls(start("a1", "far", work)).says("it is under way"))
        .await;
    eventually(async || notifications(&alice).await.len() == 1 && alice.status().await == "idle").await;
    let task = the_task(&alice).await;
    assert_eq!(task["status"], "waiting");
    let work = there(&peer, &task);
    let question = work.question().await;
    let text = answered(&alice, about("k1", "check_async_task", &task)).await;
    let seen: Value = serde_json::from_str(text.strip_prefix("check_async_task: ").unwrap()).unwrap();
    assert_eq!(&seen["status"], &json!("waiting"));
    assert_eq!(&seen["interrupts"][0]["id"], &json!(question.id()));
    assert_eq!(
        seen["interrupts"][0]["value"]["action_requests"][0]["name"],
        "send_email"
    );
    work.approves(&question).await.finishes().await;
    eventually(async || notifications(&alice).await.len() == 2 && alice.status().await == "idle").await;
    let told: Vec<Value> = notifications(&alice)
        .await
        .iter()
        .map(|told| told["status"].clone())
        .collect();
    assert_eq!(told, vec![json!("waiting"), json!("success")]);
    assert_eq!(the_task(&alice).await["status"].clone(), json!("success"));
    assert_eq!(peer.server.tools.keys_of("send_email").len(), 1);
    peer.finish().await;
}

async fn an_interrupt_of_a_remote_task_is_answered_locally(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let alice = server.human("away").await;
    let work = script().calls(mail("m1", "a@b.c")).says("it is sent");
    alice
        .says(script().calls(start("a1", "far", work)).says("it is under way"))
        .await;
    eventually(async || notifications(&alice).await.len() == 1 && alice.status().await == "idle").await;
    let task = the_task(&alice).await;
    let here = Human::at(server.client(), "away", task["thread_id"].as_str().unwrap());
    let question = here.question().await;
    let theirs = there(&peer, &task).question().await;
    assert_eq!(question.id(), theirs.id());
    assert_eq!(&question.0["run_id"], &task["run_id"]);
    assert_eq!(question.agent(), "far");
    assert_eq!(&question.0["task_call_id"], &json!("a1"));
    assert_eq!(&question.0["kind"], &json!("tool_approval"));
    let all = server.client().get("/interrupts").await.ok();
    assert_eq!(all["interrupts"].as_array().map(Vec::len), Some(1));
    assert_eq!(all["interrupts"][0]["id"], question.id());
    here.resolves(&question, json!({"decisions": []})).await.refused(422);
    peer.door.is(ProxyState::Shut);
    let lost = here
        .resolves(&question, json!({"decisions": [{"type": "approve"}]}))
        .await;
    assert_eq!(lost.status, 502, "{lost:?}");
    assert_eq!(&lost.body["code"], &json!("peer_unavailable"), "{lost:?}");
    peer.door.is(ProxyState::Open);
    let gone_on = here
        .resolves(&question, json!({"decisions": [{"type": "approve"}]}))
        .await
        .ok();
    assert_eq!(gone_on["interrupt"]["status"], "resolved");
    let again = here
        .resolves(&question, json!({"decisions": [{"type": "approve"}]}))
        .await
        .ok();
    assert_eq!(again["run_id"], gone_on["run_id"]);
    here.resolves(&question, json!({"decisions": [{"type": "reject"}]}))
        .await
        .refused(409);
    eventually(async || notifications(&alice).await.len() == 2 && alice.status().await == "idle").await;
    let told = notifications(&alice).await[1].clone();
    assert_eq!(&told["status"], &json!("success"));
    assert_eq!(&told["run_id"], &gone_on["run_id"]);
    assert_eq!(peer.server.tools.keys_of("send_email").len(), 1);
    assert_eq!(runs_there(&peer, &task).await.len(), 2);
    assert_eq!(server.client().get("/interrupts").await.ok()["interrupts"], json!([]));
    peer.finish().await;
}

async fn an_approval_of_one_call_of_a_remote_task_takes_a_list_of_one_decision(server: TestServer) {
    let single = |base: &str| {
        format!(
            "[[agents.away.subagents]]\nname = \"single\"\ndescription = \"Asks about each call.\"\n\
             graph_id = \"single\"\nurl = \"{base}\""
        )
    };
    let peer = Peer::named_by(&server, |base| chief(base, &single(base))).await;
    let asks = "[agents.single]\nmodel = \"scripted:lab\"\ntools = [\"send_email\"]\ninterrupt_mode = \"per_call\"\n\
                interrupt_on = { send_email = true }\n";
    peer.server.is_configured_with(asks).await;
    let alice = server.human("away").await;
    let work = script().calls(mail("m1", "a@b.c")).says("it is sent");
    alice
        .says(script().calls(start("a1", "single", work)).says("it is under way"))
        .await;
    eventually(async || notifications(&alice).await.len() == 1 && alice.status().await == "idle").await;
    let task = the_task(&alice).await;
    let here = Human::at(server.client(), "away", task["thread_id"].as_str().unwrap());
    let question = here.question().await;
    assert_eq!(question.0["kind"], "tool_approval");
    assert_eq!(question.0["value"]["type"], "tool_approval");
    let unknown = json!({"decisions": [{"type": "later"}]});
    let refusal = here.resolves(&question, unknown).await.refused(422);
    assert!(refusal.starts_with("decisions[0].type: "), "{refusal}");
    let listed = json!({"decisions": [{"type": "approve"}]});
    let gone_on = here.resolves(&question, listed).await.ok();
    let alone = json!({"response": {"type": "approve"}});
    let again = here.resolves(&question, alone).await.ok();
    assert_eq!(again["run_id"], gone_on["run_id"]);
    eventually(async || there(&peer, &task).status().await == "idle").await;
    assert_eq!(peer.server.tools.keys_of("send_email").len(), 1);
    eventually(async || notifications(&alice).await.len() == 2 && alice.status().await == "idle").await;
    peer.finish().await;
}

async fn the_decisions_about_a_remote_task_are_in_the_audit(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let keys = server.is_protected().await;
    let ann = Human::on_new_thread(keys.client("ann"), "away").await;
    let work = script().calls(mail("m1", "a@b.c")).says("it is not sent");
    ann.says(script().calls(start("a1", "far", work)).says("it is under way"))
        .await;
    eventually(async || notifications(&ann).await.len() == 1 && ann.status().await == "idle").await;
    let task = the_task(&ann).await;
    let here = Human::at(keys.client("ann"), "away", task["thread_id"].as_str().unwrap());
    let question = here.question().await;
    here.resolves(
        &question,
        json!({"decisions": [{"type": "reject", "message": "private"}]}),
    )
    .await
    .ok();
    let query = format!(
        "/audit?action=interrupts:resolve&resource=thread:{}/interrupt:{}",
        here.thread,
        question.id()
    );
    let found = keys.client("root").get(&query).await.ok();
    let decided: Vec<&Value> = found
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| &entry["detail"])
        .collect();
    assert!(decided.contains(&&json!({"decisions": ["reject"]})), "{found:#}");
    assert!(!found.to_string().contains("private"), "{found:#}");
    eventually(async || notifications(&ann).await.len() == 2 && ann.status().await == "idle").await;
    peer.finish().await;
}

async fn an_interrupted_remote_task_can_be_cancelled_or_get_a_message(server: TestServer) {
    let peer = peer_of(&server, "").await;
    for (call, note) in [
        ("cancel_async_task", "is cancelled."),
        ("update_async_task", "The question that it waited for was dropped."),
    ] {
        let alice = server.human("away").await;
        let work = script().calls(mail("m1", "a@b.c"));
        alice.says(script().calls(start("a1", "far", work)).says("yes")).await;
        eventually(async || notifications(&alice).await.len() == 1 && alice.status().await == "idle").await;
        let task = the_task(&alice).await;
        let args = json!({"task_id": task["task_id"], "message": "never mind"});
        let args = if call == "cancel_async_task" {
            json!({"task_id": task["task_id"]})
        } else {
            args
        };
        let text = answered(&alice, crate::support::call("k1", call, args)).await;
        assert!(text.ends_with(note), "{text}");
        let work = there(&peer, &task);
        eventually(async || work.questions().await.is_empty() && work.status().await == "idle").await;
        eventually(async || alice.status().await == "idle" && the_task(&alice).await["status"] != "running").await;
    }
    assert_eq!(peer.server.tools.calls_of("send_email").len(), 0);
    peer.finish().await;
}

async fn errors_of_the_remote_server_are_reported(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let alice = server.human("away").await;
    let said = answered(&alice, start("a1", "nobody", "x")).await;
    assert!(
        said.starts_with("start_async_task failed: The task was not started. The agent `unheard-of` at http://"),
        "{said}"
    );
    assert_eq!(
        alice.state().await["values"]
            .get("async_tasks")
            .cloned()
            .unwrap_or_default(),
        Value::Null
    );
    alice
        .says(script().calls(start("a2", "far", script().fails(400))).says("yes"))
        .await;
    eventually(async || notifications(&alice).await.len() == 1 && alice.status().await == "idle").await;
    assert_eq!(the_task(&alice).await["status"], "error");
    let told = alice
        .transcript()
        .await
        .into_iter()
        .find(|line| line.contains("has failed"))
        .expect("it is told");
    assert!(told.contains("ModelRefusedError"), "{told}");
    // The thread is deleted on the other server.
    let (bob, task) = with_a_task(&server, &peer, "far").await;
    peer.door.is(ProxyState::Shut);
    peer.server
        .client()
        .delete(&format!("/threads/{}", task["thread_id"].as_str().unwrap()))
        .await;
    peer.door.is(ProxyState::Open);
    eventually(async || notifications(&bob).await.len() == 1 && bob.status().await == "idle").await;
    assert_eq!(the_task(&bob).await["status"], "error");
    peer.server.tools.let_go("lookup");
    peer.finish().await;
}

async fn a_task_that_cannot_start_leaves_no_remote_run(server: TestServer) {
    let peer = peer_of(&server, "limits = { children_total = 1 }").await;
    let alice = server.human("away").await;
    peer.door.is(ProxyState::Shut);
    let said = answered(&alice, start("a1", "far", "x")).await;
    assert!(
        said.starts_with("start_async_task failed: The task was not started. The agent `agent` at http://"),
        "{said}"
    );
    // It was not counted, neither.
    peer.door.is(ProxyState::Forgetful);
    let said = transcript(
        &alice
            .says(script().calls(start("a2", "far", "quick")).says("yes"))
            .await,
    );
    assert!(
        said.iter().any(|line| line.starts_with("start_async_task: Started")),
        "{said:#?}"
    );
    eventually(async || notifications(&alice).await.len() == 1 && alice.status().await == "idle").await;
    let wanted = json!({"metadata": {"parent_thread_id": alice.thread}});
    assert_eq!(peer.server.client().post("/threads/count", wanted).await.ok(), 1);
    assert_eq!(
        runs_there(&peer, &the_task(&alice).await).await.len(),
        1,
        "what was not heard of is found again"
    );
    peer.finish().await;
}

async fn remote_tasks_count_until_they_end(server: TestServer) {
    let peer = peer_of(&server, "limits = { children_at_once = 1 }").await;
    let (alice, task) = with_a_task(&server, &peer, "calm").await;
    let said = answered(&alice, start("a2", "far", "x")).await;
    assert!(
        said.starts_with("start_async_task failed: The limit `children_at_once` = 1 of this run is reached."),
        "{said}"
    );
    peer.server.tools.let_go("lookup");
    eventually(async || there(&peer, &task).status().await == "idle").await;
    alice.says("is there any news?").await;
    let said = answered(&alice, start("a3", "calm", "x")).await;
    assert!(said.starts_with("start_async_task: Started"), "{said}");
    eventually(async || {
        peer.server
            .client()
            .post("/threads/count", json!({"status": "busy"}))
            .await
            .ok()
            == 0
    })
    .await;
    peer.finish().await;
}

async fn a_message_that_arrives_late_does_not_go_on_with_a_remote_task_that_is_cancelled(server: TestServer) {
    message_arrives_late(&server, false).await;
}

async fn a_message_that_arrives_late_does_not_go_on_with_a_remote_task_that_is_to_be_cancelled(server: TestServer) {
    message_arrives_late(&server, true).await;
}

/// Checks that a message whose run starts on the other server after the task was cancelled does not go on with the task. The
/// server may refuse to cancel runs.
async fn message_arrives_late(server: &TestServer, refuses: bool) {
    let around = Shutdown::default();
    let (base, work) = slow_server(&around, refuses).await;
    server.is_configured_with(&chief(&base, "")).await;
    let alice = server.human("away").await;
    alice.says(script().calls(start("a1", "far", "x")).says("yes")).await;
    let task = the_task(&alice).await;
    let both = [tell("u1", &task, "and more"), about("c1", "cancel_async_task", &task)];
    alice.says(script().calls_all(both).says("well")).await;
    let said = alice.transcript().await;
    let refused = "update_async_task failed: The task was cancelled meanwhile";
    assert!(said.iter().any(|line| line.starts_with(refused)), "{said:#?}");
    assert_eq!(the_task(&alice).await["status"], "cancelled");
    // The run that the message has started is to be cancelled, too.
    eventually(async || work.borrow().cancelled.iter().any(|run| run == SLOW_RUNS[1])).await;
    around.force();
}

async fn a_task_fails_when_its_server_stays_unreachable(server: TestServer) {
    let peer = Peer::named_by(&server, |base| {
        chief(base, "").replacen("[peers]\n", "[peers]\nbackground_patience_s = 1.0\n", 1)
    })
    .await;
    let (alice, task) = with_a_task(&server, &peer, "far").await;
    peer.door.is(ProxyState::Mute);
    has_run(&alice, 2).await;
    assert_eq!(the_task(&alice).await["status"], "error");
    let said = alice.transcript().await;
    assert!(said[4].contains("for 1 seconds; its outcome is unknown"), "{said:#?}");
    peer.door.is(ProxyState::Open);
    peer.server.tools.let_go("lookup");
    eventually(async || there(&peer, &task).status().await == "idle").await;
    peer.finish().await;
}

async fn a_request_without_an_answer_does_not_use_up_the_time_to_start_a_remote_task(server: TestServer) {
    let around = Shutdown::default();
    let (base, heard) = listening_server(&around, true).await;
    let patient = chief(&base, "").replace("patience_s = 1.0", "patience_s = 60.0");
    server.is_configured_with(&patient).await;
    let alice = server.human("away").await;
    alice
        .says(script().calls(start("a1", "far", "x")).says("it is under way"))
        .await;
    let said = alice.transcript().await;
    assert!(said[2].starts_with("start_async_task: Started"), "{said:#?}");
    eventually(async || notifications(&alice).await.len() == 1).await;
    assert_eq!(heard.lock().unwrap().len(), 1);
    around.force();
}

async fn a_remote_task_that_starts_after_it_was_given_up_is_cancelled(server: TestServer) {
    let around = Shutdown::default();
    let (base, work) = late_server(&around).await;
    server.is_configured_with(&chief(&base, "")).await;
    let alice = server.human("away").await;
    alice
        .says(script().calls(start("a1", "far", "x")).says("what a pity"))
        .await;
    let said = alice.transcript().await;
    assert!(said[2].contains("The task was not started."), "{said:#?}");
    let polls = work.borrow().polls;
    eventually(async || work.borrow().polls > polls).await;
    work.send_modify(|work| work.has_begun = true);
    eventually(async || work.borrow().is_cancelled).await;
    assert_eq!(notifications(&alice).await.len(), 0);
    around.force();
}

async fn a_remote_task_that_is_not_found_once_goes_on(server: TestServer) {
    let around = Shutdown::default();
    let base = server_that_is_replaced(&around).await;
    server.is_configured_with(&chief(&base, "")).await;
    let alice = server.human("away").await;
    alice
        .says(script().calls(start("a1", "far", "x")).says("it is under way"))
        .await;
    eventually(async || notifications(&alice).await.len() == 1 && alice.status().await == "idle").await;
    assert_eq!(the_task(&alice).await["status"], "success");
    around.force();
}

async fn a_remote_task_is_cancelled_when_its_conversation_is_deleted(server: TestServer) {
    let peer = peer_of(&server, "").await;
    let (alice, task) = with_a_task(&server, &peer, "far").await;
    peer.door.is(ProxyState::Shut);
    alice.client().delete(&alice.path("")).await;
    let records = "select count(*) from background_tasks";
    assert_eq!(server.number_in_database(records).await, 0);
    peer.door.is(ProxyState::Open);
    eventually(async || runs_there(&peer, &task).await[0]["status"] == "interrupted").await;
    eventually(async || server.number_in_database("select count(*) from remote_runs").await == 0).await;
    peer.server.tools.let_go("lookup");
    peer.finish().await;
}

async fn a_remote_task_is_cancelled_when_a_command_deletes_its_tenant(server: TestServer) {
    let peer = peer_of(&server, "").await;
    server.is_protected().await;
    let (_, task) = with_a_task(&server, &peer, "far").await;
    server.is_stopped().await;
    let deleted = said(&command(&server, &["delete-tenant", "default"]));
    assert!(!deleted.contains("threads deleted: 0"), "{deleted}");
    server.is_stopped_and_started_again().await;
    eventually(async || runs_there(&peer, &task).await[0]["status"] == "interrupted").await;
    peer.server.tools.let_go("lookup");
    peer.finish().await;
}

async fn a_remote_task_that_is_not_found_once_is_cancelled(server: TestServer) {
    let around = Shutdown::default();
    let (base, work) = server_that_is_replaced_later(&around).await;
    server.is_configured_with(&chief(&base, "")).await;
    let alice = server.human("away").await;
    alice
        .says(script().calls(start("a1", "far", "x")).says("it is under way"))
        .await;
    alice.client().delete(&alice.path("")).await;
    eventually(async || work.borrow().is_cancelled).await;
    eventually(async || server.number_in_database("select count(*) from remote_runs").await == 0).await;
    around.force();
}

async fn a_remote_task_of_a_stateless_run_goes_on(server: TestServer) {
    let peer = peer_of(&server, "").await;
    peer.server.tools.hold("lookup");
    let work = script().calls(lookup("l1", "x")).says("the long text");
    let text = script().calls(start("a1", "far", work)).says("it is under way");
    let input = json!({"messages": [{"role": "user", "content": text.to_string()}]});
    let body = json!({"assistant_id": "away", "input": input});
    server.client().post("/runs/wait", body).await.ok();
    peer.server.tools.called("lookup", 1).await;
    eventually(async || server.number_in_database("select count(*) from threads").await == 0).await;
    assert_eq!(server.number_in_database("select count(*) from remote_runs").await, 0);
    peer.server.tools.let_go("lookup");
    let there = peer.server.client();
    eventually(async || there.post("/threads/search", json!({})).await.ok()[0]["status"] == "idle").await;
    peer.finish().await;
}

async fn a_remote_task_of_a_stateless_run_that_is_to_be_cancelled_is_cancelled(server: TestServer) {
    let peer = peer_of(&server, "").await;
    peer.server.tools.hold("lookup");
    server.tools.hold("lookup");
    let work = script().calls(lookup("l1", "x")).says("the long text");
    let text = script()
        .calls(start("a1", "far", work))
        .calls(lookup("l2", "y"))
        .says("never mind");
    let input = json!({"messages": [{"role": "user", "content": text.to_string()}]});
    let client = server.client();
    let running = client.post("/runs/wait", json!({"assistant_id": "away", "input": input}));
    let cancelling = async {
        peer.server.tools.called("lookup", 1).await;
        server.tools.called("lookup", 1).await;
        peer.door.is(ProxyState::Shut);
        // An agent that cancels the task stores this while the server of the task is out of reach.
        server
            .executes_sql("update remote_runs set unwanted = true, version = version + 1")
            .await;
        server.tools.let_go("lookup");
    };
    let (ran, ()) = tokio::join!(running, cancelling);
    ran.ok();
    eventually(async || server.number_in_database("select count(*) from threads").await == 0).await;
    peer.door.is(ProxyState::Open);
    let there = peer.server.client();
    let threads = there.post("/threads/search", json!({})).await.ok();
    let runs = format!("/threads/{}/runs", threads[0]["thread_id"].as_str().expect("an id"));
    eventually(async || there.get(&runs).await.ok()[0]["status"] == "interrupted").await;
    eventually(async || server.number_in_database("select count(*) from remote_runs").await == 0).await;
    peer.server.tools.let_go("lookup");
    peer.finish().await;
}

async fn headers_and_metadata_reach_the_remote_server_only(server: TestServer) {
    let around = Shutdown::default();
    let (base, heard) = listening_server(&around, false).await;
    server.is_configured_with(&chief(&base, "")).await;
    let alice = server.human("away").await;
    let run_body = alice.run_body(
        script().calls(start("a1", "far", "x")).says("yes"),
        json!({"context": {"user": "alice"}}),
    );
    alice.starts(run_body).await.finishes().await;
    eventually(async || notifications(&alice).await.len() == 1 && alice.status().await == "idle").await;
    let (headers, body) = heard.lock().unwrap()[0].clone();
    assert_eq!(headers["x-key"].to_str().unwrap(), "hush-hush");
    assert_eq!(headers["x-auth-scheme"].to_str().unwrap(), "langsmith");
    let assistant = alice.record().await["metadata"]["assistant_id"].clone();
    let parent = json!({"thread_id": alice.thread, "assistant_id": assistant});
    assert_eq!(body["config"]["configurable"]["deepagents_parent"], parent);
    assert_eq!(&body["input"]["messages"][0]["content"], &json!("x"));
    assert_eq!(&body["context"], &Value::Null);
    assert!(headers.contains_key("idempotency-key"));
    assert_eq!(&body["metadata"]["adjutant_levels"], &json!(3));
    let said = alice.transcript().await;
    assert!(
        said.iter().any(|line| line.ends_with("Its result:\nall is well")),
        "{said:#?}"
    );
    // This task starts no run of the agent, so its server does not receive the thread of the agent.
    alice.says(script().calls(start("a2", "calm", "x")).says("yes")).await;
    assert_eq!(heard.lock().unwrap()[1].1.get("config"), None);
    let run = alice.runs().await[0]["run_id"].as_str().unwrap().to_owned();
    for path in [
        "/agents/away".to_owned(),
        alice.path("/state"),
        alice.path("/history"),
        alice.path(&format!("/runs/{run}/tree")),
    ] {
        assert!(
            !server.client().get(&path).await.body.to_string().contains("hush-hush"),
            "{path}"
        );
    }
    around.force();
}

async fn a_background_agent_of_a_client_cannot_use_private_addresses(server: TestServer) {
    let client = server.client();
    let subagent = json!({"name": "far", "description": "Far away.", "graph_id": "agent", "url": client.base()});
    let definition = json!({"model": "scripted:mock", "subagents": [subagent]});
    let refused = client.put("/agents/nosy", definition.clone()).await;
    assert!(refused.status == 422, "{refused:?}");
    assert!(refused.body.to_string().contains("subagents[0].url"), "{refused:?}");
    server
        .is_configured_with("[peers]\nprivate_hosts = [\"127.0.0.1\"]\nfirst_look_s = 0.05\n")
        .await;
    // Its own address is one as good as any other; it has changed meanwhile.
    let mut definition = definition;
    definition["subagents"][0]["url"] = client.base().into();
    client.put("/agents/nosy", definition).await.ok();
    let alice = server.human("nosy").await;
    alice
        .says(script().calls(start("a1", "far", "quick")).says("yes"))
        .await;
    eventually(async || notifications(&alice).await.len() == 1 && alice.status().await == "idle").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_task_whose_start_is_stored_without_an_acknowledgement_is_started_once() {
    // A snapshot of a task has such a field, and first when the task was started.
    play_behind_proxy("\"media\":[]", async |server, door| {
        let peer = peer_of(&server, "").await;
        let alice = server.human("away").await;
        let order = script().calls(start("a1", "far", "say it")).says("it is under way");
        door.breaks_a_commit_of(Commits::OfMarkedAreNotAcknowledged, &alice, order)
            .await;
        let task = the_task(&alice).await;
        let id = task["task_id"].as_str().unwrap();
        let begun = format!("start_async_task: Started the background task {id} with `far`.");
        let said = alice.transcript().await;
        assert!(said[2].starts_with(&begun), "{said:#?}");
        eventually(async || notifications(&alice).await.len() == 1).await;
        assert_eq!(runs_there(&peer, &task).await.len(), 1);
        peer.finish().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_task_whose_first_commits_are_lost_is_started() {
    // The ancestors of a task; no step has them.
    play_behind_proxy("\"nesting\":1", async |server, door| {
        let peer = peer_of(&server, "limits = { children_total = 1 }").await;
        let alice = server.human("away").await;
        let order = script().calls(start("a1", "far", "say it")).says("it is under way");
        door.breaks_a_commit_of(Commits::OfMarkedGetLost, &alice, order).await;
        let said = alice.transcript().await;
        assert!(said[2].starts_with("start_async_task: Started"), "{said:#?}");
        eventually(async || notifications(&alice).await.len() == 1).await;
        let task = the_task(&alice).await;
        assert_eq!(runs_there(&peer, &task).await.len(), 1);
        peer.finish().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_task_is_polled_again_soon_when_its_state_was_not_stored() {
    // The state of a task; no step has it.
    play_behind_proxy("\"media\":[]", async |server, door| {
        let peer = peer_of(&server, "").await;
        let (alice, _) = with_a_task(&server, &peer, "far").await;
        door.commits(Commits::OfMarkedGetLost);
        eventually(async || door.broken() > 0).await;
        door.commits(Commits::Arrive);
        peer.server.tools.let_go("lookup");
        // The lease of the claim on a poll is half a minute.
        let reported = eventually(async || notifications(&alice).await.len() == 1);
        let reported = tokio::time::timeout(Duration::from_secs(20), reported).await;
        reported.expect("it is polled soon");
        peer.finish().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_to_a_remote_task_is_sent_although_its_record_is_not_acknowledged() {
    // The state of a task to which a message is sent; a task that has ended counts anew for the limits then.
    play_behind_proxy("\"status\":\"pending\"", async |server, door| {
        let peer = peer_of(&server, "limits = { children_at_once = 1 }").await;
        let alice = server.human("away").await;
        alice
            .says(script().calls(start("a1", "far", "say it")).says("it is under way"))
            .await;
        eventually(async || notifications(&alice).await.len() == 1 && alice.status().await == "idle").await;
        let task = the_task(&alice).await;
        let order = script().calls(tell("u1", &task, "once more")).says("told");
        door.breaks_a_commit_of(Commits::OfMarkedAreNotAcknowledged, &alice, order)
            .await;
        let given = format!(
            "The background task {} was given the message.",
            task["task_id"].as_str().unwrap()
        );
        let said = alice.transcript().await;
        assert!(said.contains(&format!("update_async_task: {given}")), "{said:#?}");
        eventually(async || notifications(&alice).await.len() == 2).await;
        assert_eq!(runs_there(&peer, &task).await.len(), 2);
        peer.finish().await;
    })
    .await;
}
