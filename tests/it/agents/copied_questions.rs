//! Copies of threads that wait: what was asked can be answered in the copy, too, for the copy alone.

use std::time::Duration;

use adjutant::domain::time::{Clock, ManualClock, SystemClock};
use serde_json::{Value, json};

use super::branches::{APART, leaves_a_branch};
use crate::support::viewer::Viewer;
use crate::support::{
    Human, TestServer, approval, eventually, lookup, mail, on_both_engines, script, task, two_mailers,
};

on_both_engines! {
    a_question_can_be_answered_in_a_copy_at_once,
    an_answer_by_id_is_for_one_thread,
    a_subagent_goes_on_in_a_copy,
    a_subagent_below_another_one_goes_on_in_a_copy,
    the_tree_of_agents_of_a_copy_shows_who_waits_there,
    what_has_been_answered_is_not_done_again_in_a_copy,
    questions_about_single_calls_are_asked_in_a_copy,
    a_copy_of_a_copy_waits,
    a_question_of_a_left_branch_is_not_asked_in_a_copy,
    a_new_message_withdraws_the_question_in_the_copy_only,
    an_answer_in_a_copy_can_be_undone,
    an_answer_in_a_copy_keeps_the_context,
    a_question_in_a_copy_that_is_written_to_and_left_is_answered_there,
    a_question_in_a_copy_expires_after_its_own_time,
    a_question_in_a_copy_survives_a_kill_and_the_original,
}

/// An agent whose questions expire after two minutes.
const HASTY: &str = "[agents.hasty]\nmodel = \"scripted:lab\"\nsystem_prompt = \"x\"\ntools = [\"send_email\"]\n\
    [agents.hasty.interrupt_on]\nsend_email = { allowed_decisions = [\"approve\", \"reject\"], expires_after_s = 120 }";

/// Returns to whom mails were sent, and on which threads.
fn mails(server: &TestServer) -> Vec<(String, String)> {
    let calls = server.tools.calls_of("send_email").into_iter();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    calls
        .map(|call| (text(&call["args"]["to"]), text(&call["thread_id"])))
        .collect()
}

fn mail_on(to: &str, on: &Human) -> (String, String) {
    (to.to_owned(), on.thread.clone())
}

/// Copies the thread. Checks that the state of the copy, its record and its list of interrupts show `count` questions.
async fn is_copied(alice: &Human, count: usize) -> Human {
    let copy = alice.client().post(&alice.path("/copy"), json!({})).await.ok();
    let bob = alice.on(copy["thread_id"].as_str().expect("an id"));
    let state = bob.state().await;
    let ids = |questions: &Value| -> Vec<String> {
        let questions = questions.as_array().unwrap().iter();
        questions
            .map(|question| question["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let mut own = ids(&state["interrupts"]);
    assert_eq!(own.len(), count, "{state:#}");
    let tasks = state["tasks"].as_array().unwrap().iter();
    let of_tasks: Vec<String> = tasks.flat_map(|task| ids(&task["interrupts"])).collect();
    assert_eq!(of_tasks, own);
    let mut questions: Vec<String> = bob
        .questions()
        .await
        .iter()
        .map(|asked| asked.id().to_owned())
        .collect();
    let record = bob.record().await;
    assert_eq!(record["interrupts"], copy["interrupts"]);
    assert_eq!(record["status"], "interrupted");
    let mut listed: Vec<String> = record["interrupts"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(ids)
        .collect();
    own.sort();
    listed.sort();
    questions.sort();
    assert_eq!(listed, own);
    assert_eq!(questions, own);
    let of_original = alice.questions().await;
    assert_eq!(of_original.is_empty(), own.is_empty());
    for asked in of_original {
        assert!(!own.contains(&asked.id().to_owned()), "the copy has ids of its own");
    }
    bob
}

async fn a_question_can_be_answered_in_a_copy_at_once(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let before = alice.state().await;
    let bob = is_copied(&alice, 1).await;
    let state = bob.state().await;
    assert_eq!(state["next"], before["next"]);
    assert_eq!(state["values"], before["values"]);
    assert_eq!(
        state["tasks"][0]["interrupts"][0]["value"],
        before["tasks"][0]["interrupts"][0]["value"]
    );
    assert_ne!(state["tasks"][0]["id"], before["tasks"][0]["id"]);
    bob.resumes(approval()).await.finishes().await;
    assert_eq!(mails(&server), [mail_on("bob", &bob)]);
    assert_eq!(bob.transcript().await.last().unwrap(), "ai: sent");
    assert_eq!(bob.status().await, "idle");
    bob.tries_to_resume(approval()).await.refused(409);
    // Nothing has changed in the original.
    assert_eq!(alice.state().await, before);
    alice.resumes(approval()).await.finishes().await;
    assert_eq!(mails(&server), [mail_on("bob", &bob), mail_on("bob", &alice)]);
    assert_eq!(alice.transcript().await, bob.transcript().await);
}

async fn an_answer_by_id_is_for_one_thread(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let bob = is_copied(&alice, 1).await;
    let here = alice.question().await;
    let there = bob.question().await;
    assert_eq!(here.requests(), there.requests());
    assert!(bob.resolves(&here, approval()).await.status >= 400);
    assert!(alice.resolves(&there, approval()).await.status >= 400);
    bob.approves(&there).await.finishes().await;
    let resolved = alice.resolves(&here, approval()).await.ok();
    alice.run(&resolved).finishes().await;
    assert_eq!(mails(&server), [mail_on("bob", &bob), mail_on("bob", &alice)]);
}

async fn a_subagent_goes_on_in_a_copy(server: TestServer) {
    let alice = server.human("agent").await;
    let inner = script()
        .calls(lookup("l1", "x"))
        .calls(mail("m1", "bob"))
        .says("sent by child");
    alice
        .says(script().calls(task("t1", "mailer", inner)).says("done"))
        .await;
    assert_eq!(server.tools.calls_of("lookup").len(), 1);
    let bob = is_copied(&alice, 1).await;
    assert_eq!(bob.question().await.agent(), "mailer");
    let [here, there] = [&alice, &bob].map(|who| who.path("/state?subgraphs=true"));
    let here = alice.client().get(&here).await.ok()["tasks"][0]["state"].clone();
    let there = bob.client().get(&there).await.ok()["tasks"][0]["state"].clone();
    assert_eq!(there["values"], here["values"]);
    assert_eq!(there["next"], here["next"]);
    bob.resumes(approval()).await.finishes().await;
    alice.resumes(approval()).await.finishes().await;
    assert_eq!(mails(&server), [mail_on("bob", &bob), mail_on("bob", &alice)]);
    assert_eq!(
        server.tools.calls_of("lookup").len(),
        1,
        "what the subagent has done is not done again"
    );
    let said = ["human: …", "ai calls task", "task: sent by child", "ai: done"];
    assert_eq!(bob.transcript().await, said);
    assert_eq!(alice.transcript().await, said);
}

async fn a_subagent_below_another_one_goes_on_in_a_copy(server: TestServer) {
    let alice = server.human("deep").await;
    let inner = script()
        .calls(lookup("l1", "x"))
        .calls(mail("m1", "bob"))
        .says("sent from below");
    let middle = script().calls(task("t2", "researcher", inner)).says("passed on");
    alice
        .says(script().calls(task("t1", "researcher", middle)).says("done"))
        .await;
    let bob = is_copied(&alice, 1).await;
    bob.resumes(approval()).await.finishes().await;
    assert_eq!(mails(&server), [mail_on("bob", &bob)]);
    assert_eq!(server.tools.calls_of("lookup").len(), 1);
    let said = ["human: …", "ai calls task", "task: passed on", "ai: done"];
    assert_eq!(bob.transcript().await, said);
    assert_eq!(alice.status().await, "interrupted");
    alice.resumes(approval()).await.finishes().await;
    assert_eq!(alice.transcript().await, said);
}

/// Returns the tree of the agents on a thread.
async fn tree_of(server: &TestServer, human: &Human) -> Value {
    let viewer = Viewer::of(server, &human.thread);
    viewer.succeeds("agent.getTree", json!({})).await["tree"].clone()
}

async fn the_tree_of_agents_of_a_copy_shows_who_waits_there(server: TestServer) {
    let alice = server.human("deep").await;
    let inner = script().calls(mail("m1", "bob")).says("sent from below");
    let middle = script().calls(task("t2", "researcher", inner)).says("passed on");
    alice
        .says(script().calls(task("t1", "researcher", middle)).says("done"))
        .await;
    let bob = is_copied(&alice, 1).await;
    let here = tree_of(&server, &alice).await;
    let there = tree_of(&server, &bob).await;
    let levels = |tree: &Value| -> Vec<Value> {
        let below = |node: &Value| node["children"][0].clone();
        let nodes = [tree.clone(), below(tree), below(&below(tree))];
        nodes
            .iter()
            .map(|node| json!([node["graph_name"], node["status"]]))
            .collect()
    };
    assert_eq!(there["status"], "interrupted", "{there}");
    assert_eq!(levels(&there), levels(&here));
    let task = bob.state().await["tasks"][0]["id"].clone();
    let namespace = &there["children"][0]["namespace"];
    assert_eq!(*namespace, json!([format!("tools:{}", task.as_str().expect("an id"))]));
    assert_eq!(there["children"][0]["children"][0]["namespace"][0], namespace[0]);
}

async fn what_has_been_answered_is_not_done_again_in_a_copy(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls_all(two_mailers()).says("done")).await;
    is_copied(&alice, 2).await;
    let questions = alice.questions().await;
    let first = questions
        .iter()
        .find(|question| question.requests()[0]["args"]["to"] == "ann")
        .expect("a question about ann");
    alice.approves(first).await.finishes().await;
    let bob = is_copied(&alice, 1).await;
    bob.resumes(approval()).await.finishes().await;
    assert_eq!(mails(&server), [mail_on("ann", &alice), mail_on("bob", &bob)]);
    let said = [
        "human: …",
        "ai calls task, task",
        "task: ann knows",
        "task: bob knows",
        "ai: done",
    ];
    assert_eq!(bob.transcript().await, said);
}

async fn questions_about_single_calls_are_asked_in_a_copy(server: TestServer) {
    server.is_configured_with(APART).await;
    let alice = server.human("apart").await;
    let calls = [mail("m1", "ann"), lookup("l1", "x"), mail("m2", "bob")];
    alice.says(script().calls_all(calls).says("both")).await;
    let bob = is_copied(&alice, 2).await;
    let decisions = json!([{"type": "approve"}, {"type": "reject", "message": "no"}]);
    bob.resumes(decisions).await.finishes().await;
    assert_eq!(mails(&server), [mail_on("ann", &bob)]);
    assert_eq!(server.tools.calls_of("lookup").len(), 1);
    assert_eq!(bob.transcript().await.last().unwrap(), "ai: both");
    assert_eq!(alice.questions().await.len(), 2);
}

async fn a_copy_of_a_copy_waits(server: TestServer) {
    let alice = server.human("agent").await;
    let inner = script().calls(mail("m1", "bob")).says("sent by child");
    alice
        .says(script().calls(task("t1", "mailer", inner)).says("done"))
        .await;
    let bob = is_copied(&alice, 1).await;
    let carol = is_copied(&bob, 1).await;
    assert_eq!(alice.client().delete(&alice.path("")).await.status, 204);
    for human in [&carol, &bob] {
        human.resumes(approval()).await.finishes().await;
        assert_eq!(human.transcript().await.last().unwrap(), "ai: done");
    }
    assert_eq!(mails(&server), [mail_on("bob", &carol), mail_on("bob", &bob)]);
}

async fn a_question_of_a_left_branch_is_not_asked_in_a_copy(server: TestServer) {
    let alice = server.human("agent").await;
    let place = leaves_a_branch(&alice, script().calls(mail("m1", "bob")).says("sent")).await;
    let place = &place["checkpoint_id"];
    let copy = alice.client().post(&alice.path("/copy"), json!({})).await.ok();
    assert_eq!(copy["status"], "idle");
    assert_eq!(copy["interrupts"], json!({}));
    let bob = alice.on(copy["thread_id"].as_str().expect("an id"));
    assert!(bob.questions().await.is_empty());
    let body = json!({"assistant_id": "agent", "command": {"resume": approval()}, "checkpoint_id": place});
    bob.client().post(&bob.path("/runs"), body).await.refused(409);
    // A run from there asks anew.
    bob.starts(json!({"input": null, "checkpoint_id": place}))
        .await
        .finishes()
        .await;
    bob.approves(&bob.question().await).await.finishes().await;
    assert_eq!(mails(&server), [mail_on("bob", &bob)]);
}

async fn a_new_message_withdraws_the_question_in_the_copy_only(server: TestServer) {
    let alice = server.human("agent").await;
    let inner = script().calls(mail("m1", "bob")).says("sent by child");
    alice
        .says(script().calls(task("t1", "mailer", inner)).says("done"))
        .await;
    let bob = is_copied(&alice, 1).await;
    bob.says("never mind").await;
    assert!(bob.questions().await.is_empty());
    assert_eq!(bob.transcript().await.last().unwrap(), "ai: echo: never mind");
    alice.resumes(approval()).await.finishes().await;
    assert_eq!(mails(&server), [mail_on("bob", &alice)]);
}

async fn an_answer_in_a_copy_can_be_undone(server: TestServer) {
    let alice = server.human("agent").await;
    let inner = script().calls(mail("m1", "bob")).says("sent by child");
    alice
        .says(script().calls(task("t1", "mailer", inner)).says("done"))
        .await;
    let bob = is_copied(&alice, 1).await;
    let question = bob.question().await;
    server.tools.hold("send_email");
    let run = bob.resumes(approval()).await;
    server.tools.called("send_email", 1).await;
    assert_eq!(run.is_cancelled("rollback").await.status, 200);
    server.tools.let_go("send_email");
    assert_eq!(bob.question().await.id(), question.id());
    assert_eq!(bob.state().await["interrupts"][0]["id"], question.id());
    bob.resumes(approval()).await.finishes().await;
    assert_eq!(bob.transcript().await.last().unwrap(), "ai: done");
}

async fn an_answer_in_a_copy_keeps_the_context(server: TestServer) {
    let alice = server.human("agent").await;
    let text = script().calls(mail("m1", "bob")).says("sent");
    let body = alice.run_body(text, json!({"context": {"who": "me"}}));
    alice.starts(body).await.finishes().await;
    let bob = is_copied(&alice, 1).await;
    bob.resumes(approval()).await.finishes().await;
    assert_eq!(server.tools.calls_of("send_email")[0]["context"], json!({"who": "me"}));
}

async fn a_question_in_a_copy_that_is_written_to_and_left_is_answered_there(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let bob = is_copied(&alice, 1).await;
    let question = bob.question().await;
    let written = json!({"values": {"topic": "fish"}});
    bob.client().post(&bob.path("/state"), written).await.ok();
    let first = bob.history().await.pop().expect("a checkpoint");
    let edited = bob.run_body("edited", json!({"checkpoint": first["checkpoint"]}));
    bob.starts(edited).await.finishes().await;
    assert_eq!(bob.state().await["interrupts"], json!([]));
    bob.approves(&question).await.finishes().await;
    assert_eq!(mails(&server), [mail_on("bob", &bob)]);
    assert_eq!(
        bob.state().await["values"]["topic"],
        "fish",
        "it goes on after the write"
    );
}

async fn a_question_in_a_copy_expires_after_its_own_time(server: TestServer) {
    let clock = ManualClock::starting_at(SystemClock.now());
    server.uses_clock(&clock).await;
    server.is_configured_with(HASTY).await;
    let alice = server.human("hasty").await;
    alice.says(script().calls(mail("m1", "bob")).says("all right")).await;
    clock.advance(Duration::from_secs(60));
    let bob = is_copied(&alice, 1).await;
    clock.advance(Duration::from_secs(61));
    eventually(async || alice.status().await == "idle").await;
    assert_eq!(bob.questions().await.len(), 1, "it was asked later");
    clock.advance(Duration::from_secs(60));
    eventually(async || bob.status().await == "idle").await;
    assert!(mails(&server).is_empty());
    assert_eq!(bob.transcript().await.last().unwrap(), "ai: all right");
}

async fn a_question_in_a_copy_survives_a_kill_and_the_original(server: TestServer) {
    server.moves_into_a_process().await;
    let alice = server.human("agent").await;
    let inner = script().calls(mail("m1", "bob")).says("sent by child");
    alice
        .says(script().calls(task("t1", "mailer", inner)).says("done"))
        .await;
    let bob = is_copied(&alice, 1).await;
    assert_eq!(alice.client().delete(&alice.path("")).await.status, 204);
    server.is_killed_and_started_again().await;
    bob.resumes(approval()).await.finishes().await;
    assert_eq!(mails(&server), [mail_on("bob", &bob)]);
    assert_eq!(bob.transcript().await.last().unwrap(), "ai: done");
}
