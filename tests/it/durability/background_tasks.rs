//! A server may be killed at any instant: a background task starts once, and its outcome is reported once.

use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::background_tasks::{boss, notifications, start, the_task};
use crate::support::{Human, TestServer, eventually, lookup, on_both_engines, on_postgres, script};

/// The instants at which a server dies, in microseconds after the first sign of what matters.
pub(crate) const INSTANTS: [u64; 7] = [0, 3_000, 8_000, 15_000, 30_000, 70_000, 150_000];

/// Waits for the end, and checks that there is one task, one thread and run of it on the server that executes it, and
/// one message about its outcome.
pub(crate) async fn completes_and_reports_once(works: &TestServer, alice: &Human) {
    let is_over = async || {
        let runs = alice.try_get("/runs?limit=100").await;
        let all = runs.as_ref().and_then(Value::as_array);
        all.is_some_and(|runs| !runs.is_empty() && runs.iter().all(|run| run["status"] == "success"))
    };
    eventually(async || is_over().await && notifications(alice).await.len() == 1).await;
    let task = the_task(alice).await;
    assert_eq!(task["status"], "success");
    let wanted = json!({"metadata": {"parent_thread_id": alice.thread}});
    assert_eq!(works.client().post("/threads/count", wanted).await.ok(), 1);
    let runs = Human::at(works.client(), "", task["thread_id"].as_str().expect("an id"))
        .runs()
        .await;
    assert_eq!(runs.len(), 1);
    assert_eq!(&runs[0]["run_id"], &task["run_id"]);
    assert_eq!(&runs[0]["status"], &json!("success"));
    let told = notifications(alice).await;
    assert_eq!(told.len(), 1);
    assert_eq!(&told[0]["task_id"], &task["task_id"]);
    assert_eq!(&told[0]["status"], &json!("success"));
    let messages = alice.state().await["values"]["messages"].clone();
    let is_news = |message: &&Value| message["additional_kwargs"]["deepagents_notification"].is_object();
    let news = messages
        .as_array()
        .and_then(|all| all.iter().find(is_news))
        .expect("the message");
    assert!(
        news["content"]
            .as_str()
            .is_some_and(|text| text.contains("the long text")),
        "{news:#}"
    );
}

/// Returns a message that starts a task whose agent calls a tool.
fn message(id: &str) -> String {
    let work = script().calls(lookup("l1", id)).says("the long text");
    script()
        .calls(start("a1", "writer", work))
        .says("it is under way")
        .to_string()
}

on_both_engines! {
    a_task_starts_once_when_the_server_is_killed_at_its_start,
    an_outcome_is_reported_once_when_the_server_is_killed_at_the_end,
    a_running_task_continues_in_the_next_process,
}

async fn a_task_starts_once_when_the_server_is_killed_at_its_start(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    server.moves_into_a_process().await;
    for (round, instant) in INSTANTS.into_iter().enumerate() {
        let alice = server.human("boss").await;
        alice.asks(message(&format!("r{round}"))).await;
        tokio::time::sleep(Duration::from_micros(instant)).await;
        server.is_killed_and_started_again().await;
        completes_and_reports_once(&server, &alice).await;
    }
}

async fn an_outcome_is_reported_once_when_the_server_is_killed_at_the_end(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    server.moves_into_a_process().await;
    for (round, instant) in INSTANTS.into_iter().enumerate() {
        let alice = server.human("boss").await;
        let before = server.tools.calls_of("lookup").len();
        server.tools.hold("lookup");
        alice.says(message(&format!("r{round}"))).await;
        server.tools.called("lookup", before + 1).await;
        server.tools.let_go("lookup");
        tokio::time::sleep(Duration::from_micros(instant)).await;
        server.is_killed_and_started_again().await;
        completes_and_reports_once(&server, &alice).await;
    }
}

async fn a_running_task_continues_in_the_next_process(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    server.moves_into_a_process().await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    alice.says(message("x")).await;
    server.tools.called("lookup", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.called("lookup", 2).await;
    server.tools.let_go("lookup");
    completes_and_reports_once(&server, &alice).await;
}

on_postgres! {
    two_servers_on_one_database_report_an_outcome_once,
}

async fn two_servers_on_one_database_report_an_outcome_once(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let twin = server.starts_twin().await;
    let mut people = vec![];
    for _ in 0..8 {
        let alice = server.human("boss").await;
        server.tools.hold("lookup");
        alice.says(message("x")).await;
        people.push(alice);
    }
    server.tools.called("lookup", people.len()).await;
    server.tools.let_go("lookup");
    for alice in &people {
        completes_and_reports_once(&server, alice).await;
        assert_eq!(
            alice.runs().await.len(),
            2,
            "one run was asked for, and one told the news"
        );
    }
    twin.stops().await;
}
