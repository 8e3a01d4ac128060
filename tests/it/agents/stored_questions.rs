//! The storage of questions: the row of its interrupt has a question, and everything else refers to that row.

use serde_json::{Value, json};

use crate::support::{Human, TestServer, approval, lookup, mail, on_both_engines, script, task};

on_both_engines! {
    a_question_of_the_main_agent_is_stored_once,
    a_question_three_levels_down_is_stored_once,
    a_stream_that_is_joined_after_a_restart_shows_the_question,
    a_question_is_shown_by_history_and_interrupts_after_a_restart,
    a_question_that_is_asked_in_a_copy_is_stored_once_more,
    an_answer_that_is_undone_leaves_the_question,
    an_approval_whose_question_is_gone_lets_no_call_run,
    the_schema_of_approvals_is_stored_once_and_checks_the_answers_to_all_of_them,
    an_approval_whose_schema_is_gone_cannot_be_answered,
}

/// An agent that asks two questions about two calls, since only one of them expires.
const ASKS_TWICE: &str = r#"
[agents.twice]
name = "twice-agent"
model = "scripted:lab"
system_prompt = "x"
tools = ["lookup", "send_email"]

[agents.twice.interrupt_on]
lookup = true
send_email = { allowed_decisions = ["approve", "reject"], expires_after_s = 3600 }
"#;

/// The beginning of the questions about calls. Nothing else that is stored has it.
pub(crate) const ASKED: &str = "Tool execution requires approval";

/// Returns the questions of the tasks in a history, the newest first.
fn questions_of(history: &[Value]) -> Vec<&Value> {
    let tasks = history.iter().filter_map(|state| state["tasks"].as_array()).flatten();
    let interrupts = tasks.filter_map(|task| task["interrupts"].as_array()).flatten();
    interrupts.map(|asked| &asked["value"]).collect()
}

/// Starts a run with an approval, and waits until it asks.
async fn asks(alice: &Human) -> Value {
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    alice.question().await.0["value"].clone()
}

async fn a_question_of_the_main_agent_is_stored_once(server: TestServer) {
    let alice = server.human("agent").await;
    asks(&alice).await;
    assert_eq!(server.occurrences_in_database(ASKED).await, 1);
    // Also a server that has nothing in memory goes on with it.
    server.is_stopped_and_started_again().await;
    alice.approves(&alice.question().await).await.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
    assert_eq!(server.occurrences_in_database(ASKED).await, 1);
}

async fn a_question_three_levels_down_is_stored_once(server: TestServer) {
    let alice = server.human("deep").await;
    let bottom = script().calls(mail("m1", "bob")).says("sent");
    let middle = script().calls(task("t2", "researcher", bottom)).says("they sent it");
    alice
        .says(script().calls(task("t1", "researcher", middle)).says("done"))
        .await;
    let question = alice.question().await;
    assert_eq!(server.occurrences_in_database(ASKED).await, 1);
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
    assert_eq!(server.occurrences_in_database(ASKED).await, 1);
}

async fn a_stream_that_is_joined_after_a_restart_shows_the_question(server: TestServer) {
    let alice = server.human("agent").await;
    let more = json!({"stream_mode": ["values"], "stream_resumable": true});
    let body = alice.run_body(script().calls(mail("m1", "bob")).says("sent"), more);
    let run = alice.starts(body).await;
    run.finishes().await;
    let asked = alice.question().await.0["value"].clone();
    server.is_stopped_and_started_again().await;
    let frames = run.is_joined(Some("-1")).await.rest().await;
    let told: Vec<&Value> = frames
        .iter()
        .filter_map(|frame| frame.data.get("__interrupt__"))
        .map(|told| &told[0]["value"])
        .collect();
    assert!(!told.is_empty(), "{frames:#?}");
    assert!(told.iter().all(|told| **told == asked), "{told:#?}");
}

async fn a_question_is_shown_by_history_and_interrupts_after_a_restart(server: TestServer) {
    let alice = server.human("agent").await;
    let asked = asks(&alice).await;
    server.is_stopped_and_started_again().await;
    assert_eq!(questions_of(&alice.history().await), [&asked]);
    alice.resumes(approval()).await.finishes().await;
    server.is_stopped_and_started_again().await;
    let path = alice.path("/interrupts");
    let list = alice.client().get(&path).await.ok();
    assert_eq!(list["interrupts"][0]["status"], "resolved");
    assert_eq!(list["interrupts"][0]["value"], asked);
}

async fn a_question_that_is_asked_in_a_copy_is_stored_once_more(server: TestServer) {
    let alice = server.human("agent").await;
    let asked = asks(&alice).await;
    let copy = alice.client().post(&alice.path("/copy"), json!({})).await.ok();
    let bob = alice.on(copy["thread_id"].as_str().expect("an id"));
    assert_eq!(bob.question().await.0["value"], asked);
    assert_eq!(server.occurrences_in_database(ASKED).await, 2);
    assert_eq!(alice.client().delete(&alice.path("")).await.status, 204);
    assert_eq!(server.occurrences_in_database(ASKED).await, 1);
    bob.resumes(approval()).await.finishes().await;
    assert_eq!(bob.transcript().await.last().unwrap(), "ai: sent");
    assert_eq!(server.occurrences_in_database(ASKED).await, 1);
}

async fn an_answer_that_is_undone_leaves_the_question(server: TestServer) {
    let alice = server.human("agent").await;
    let asked = asks(&alice).await;
    server.tools.hold("send_email");
    let answering = alice.resumes(approval()).await;
    server.tools.called("send_email", 1).await;
    answering.is_cancelled("rollback").await.ok();
    server.tools.let_go("send_email");
    assert_eq!(alice.question().await.0["value"], asked);
    assert_eq!(server.occurrences_in_database(ASKED).await, 1);
    alice.resumes(approval()).await.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}

async fn an_approval_whose_question_is_gone_lets_no_call_run(server: TestServer) {
    server.is_configured_with(ASKS_TWICE).await;
    let alice = server.human("twice").await;
    let both = [lookup("l1", "x"), mail("m1", "bob")];
    alice.says(script().calls_all(both).says("sent")).await;
    let questions = alice.questions().await;
    let [first, second] = questions.as_slice() else {
        panic!("not two questions: {questions:#?}")
    };
    alice.approves(first).await.finishes().await;
    let sql = format!("delete from interrupts where interrupt_id = '{}'", first.id());
    server.executes_sql(&sql).await;
    alice.approves(second).await.finishes().await;
    assert!(
        server.tools.calls_of("lookup").is_empty(),
        "a call ran by an approval whose question is gone"
    );
    assert!(server.tools.recipients().is_empty());

    let again = alice.questions().await;
    assert_eq!(again.len(), 2, "{again:#?}");
    for question in &again {
        alice.approves(question).await.finishes().await;
    }
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
    assert_eq!(server.tools.recipients(), ["bob"]);
}

/// The number of stored schemas.
const SCHEMAS: &str = "select count(*) from answer_schemas";

async fn the_schema_of_approvals_is_stored_once_and_checks_the_answers_to_all_of_them(server: TestServer) {
    let humans = [server.human("agent").await, server.human("agent").await];
    for human in &humans {
        asks(human).await;
    }
    assert_eq!(server.number_in_database(SCHEMAS).await, 1);
    server.is_stopped_and_started_again().await;
    let edit = |args: Value| json!([{"type": "edit", "edited_action": {"name": "send_email", "args": args}}]);
    for human in &humans {
        let wrong = edit(json!({"to": 1, "body": "bye"}));
        assert_eq!(human.tries_to_resume(json!({"decisions": wrong})).await.status, 422);
        let right = edit(json!({"to": "eve", "body": "bye"}));
        human.decides(&human.question().await, right).await.finishes().await;
    }
    assert_eq!(server.tools.recipients(), ["eve", "eve"]);
}

async fn an_approval_whose_schema_is_gone_cannot_be_answered(server: TestServer) {
    let alice = server.human("agent").await;
    asks(&alice).await;
    // Another one, which nobody has read.
    let digest = "update interrupts set schema_digest = '00000000000000000000000000000000'";
    server.executes_sql(digest).await;
    server.is_stopped_and_started_again().await;
    let refused = alice.tries_to_resume(approval()).await;
    assert!((400..500).contains(&refused.status), "{refused:?}");
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
}
