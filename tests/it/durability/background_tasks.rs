//! The server may die at any instant: a background task is begun once, and what becomes of it is told once.

use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::background_tasks::{boss, notifications, start, the_task};
use crate::support::{Human, TestServer, eventually, lookup, on_both_engines, on_postgres, script};

/// The instants at which a server dies, in microseconds after the first sign of what matters.
pub(crate) const INSTANTS: [u64; 7] = [0, 3_000, 8_000, 15_000, 30_000, 70_000, 150_000];

/// What a server answers that may be dead or beginning at this moment; nothing then.
async fn seen(human: &Human, path: &str) -> Option<Value> {
    let reply = human
        .client()
        .request(reqwest::Method::GET, &human.path(path))
        .send()
        .await
        .ok()?;
    reply.error_for_status().ok()?.json().await.ok()
}

/// Everything has come to its end: one task, one thread of it on the server that works, one run there, one message about it.
pub(crate) async fn all_is_told_once(works: &TestServer, alice: &Human) {
    let is_over = async || {
        let runs = seen(alice, "/runs?limit=100").await;
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

/// A message that has a task begun whose agent calls a tool.
fn wish(id: &str) -> String {
    let work = script().calls(lookup("l1", id)).says("the long text");
    script()
        .calls(start("a1", "writer", work))
        .says("it is under way")
        .to_string()
}

on_both_engines! {
    a_task_is_begun_once_however_the_server_dies_while_it_is_begun,
    an_outcome_is_told_once_however_the_server_dies_around_the_end_of_the_task,
    a_task_that_was_at_work_goes_on_in_the_next_process,
}

async fn a_task_is_begun_once_however_the_server_dies_while_it_is_begun(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    server.moves_into_a_process().await;
    for (round, instant) in INSTANTS.into_iter().enumerate() {
        let alice = server.human("boss").await;
        alice.asks(wish(&format!("r{round}"))).await;
        tokio::time::sleep(Duration::from_micros(instant)).await;
        server.is_killed_and_started_again().await;
        all_is_told_once(&server, &alice).await;
    }
}

async fn an_outcome_is_told_once_however_the_server_dies_around_the_end_of_the_task(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    server.moves_into_a_process().await;
    for (round, instant) in INSTANTS.into_iter().enumerate() {
        let alice = server.human("boss").await;
        let before = server.tools.calls_of("lookup").len();
        server.tools.hold("lookup");
        alice.says(wish(&format!("r{round}"))).await;
        server.tools.called("lookup", before + 1).await;
        server.tools.let_go("lookup");
        tokio::time::sleep(Duration::from_micros(instant)).await;
        server.is_killed_and_started_again().await;
        all_is_told_once(&server, &alice).await;
    }
}

async fn a_task_that_was_at_work_goes_on_in_the_next_process(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    server.moves_into_a_process().await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    alice.says(wish("x")).await;
    server.tools.called("lookup", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.called("lookup", 2).await;
    server.tools.let_go("lookup");
    all_is_told_once(&server, &alice).await;
}

on_postgres! {
    two_servers_on_one_database_tell_an_outcome_once,
}

async fn two_servers_on_one_database_tell_an_outcome_once(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let twin = server.gets_a_twin().await;
    let mut people = vec![];
    for _ in 0..8 {
        let alice = server.human("boss").await;
        server.tools.hold("lookup");
        alice.says(wish("x")).await;
        people.push(alice);
    }
    server.tools.called("lookup", people.len()).await;
    server.tools.let_go("lookup");
    for alice in &people {
        all_is_told_once(&server, alice).await;
        assert_eq!(
            alice.runs().await.len(),
            2,
            "one run was asked for, and one told the news"
        );
    }
    twin.leaves().await;
}
