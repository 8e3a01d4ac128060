//! Interrupts that expire, and the list of what happened to an interrupt.

use std::time::Duration;

use adjutant::domain::time::{Clock, ManualClock, SystemClock};
use serde_json::{Value, json};

use crate::support::{Human, TestServer, eventually, lookup, mail, on_both_engines, script, task};

on_both_engines! {
    an_interrupt_that_nobody_answers_is_rejected_in_time,
    the_rule_says_what_happens_on_expiry,
    calls_with_another_time_are_asked_about_apart,
    an_interrupt_of_a_subagent_expires_in_place,
    an_interrupt_of_a_left_branch_expires_and_nothing_continues,
    an_answer_in_time_precedes,
    a_required_answer_expires_while_a_message_waits_for_it,
    an_expired_interrupt_is_answered_after_a_restart,
    the_events_of_an_interrupt_name_who_did_what,
    a_subagent_is_named_in_the_state_of_the_thread,
    terms_without_sense_are_refused,
}

const AGENTS: &str = r#"
[agents.urgent]
name = "main-agent"
model = "scripted:lab"
system_prompt = "x"
tools = ["lookup", "send_email", "note"]

[agents.urgent.interrupt_on]
send_email = { allowed_decisions = ["approve"], expires_after_s = 3600 }
lookup = { allowed_decisions = ["approve"], expires_after_s = 3600, on_expiry = { type = "respond", message = "no result" } }
note = { allowed_decisions = ["approve"], expires_after_s = 60, on_expiry = "approve" }

[[agents.urgent.subagents]]
name = "mailer"
description = "Sends mails to whoever should get one."
system_prompt = "x"

[agents.strict]
model = "scripted:lab"
system_prompt = "x"
tools = ["lookup", "send_email"]
interrupt_on = { send_email = { allowed_decisions = ["approve"], expires_after_s = 3600 } }
on_pending_interrupt = "reject"

[agents.guarded]
model = "scripted:lab"
system_prompt = "x"
tools = ["send_email"]
interrupt_on = { send_email = { allowed_decisions = ["approve", "reject"], approvers = { users = ["bob"] } } }
"#;

async fn clocked(server: &TestServer) -> ManualClock {
    let clock = ManualClock::starting_at(SystemClock.now());
    server.uses_clock(&clock).await;
    server.is_configured_with(AGENTS).await;
    clock
}

/// Waits until the thread waits for nothing.
async fn is_idle(who: &Human) {
    eventually(async || who.status().await == "idle").await;
}

async fn listed(who: &Human) -> Vec<Value> {
    let list = who.client().get(&who.path("/interrupts?include=audit")).await.ok();
    list["interrupts"].as_array().expect("a list").clone()
}

async fn an_interrupt_that_nobody_answers_is_rejected_in_time(server: TestServer) {
    let clock = clocked(&server).await;
    let alice = server.human("urgent").await;
    alice.says(script().calls(mail("m1", "bob")).says("understood")).await;
    let question = alice.question().await;
    let at = |key: &str| question.0[key].as_str().expect("a time").to_owned();
    assert!(at("expires_at") > at("created_at"), "{:?}", question.0);
    clock.advance(Duration::from_secs(3_599));
    assert_eq!(alice.question().await, question);
    clock.advance(Duration::from_secs(2));
    is_idle(&alice).await;
    let said = alice.transcript().await;
    assert!(said[2].ends_with("with reason: Nobody decided in time."), "{said:#?}");
    assert_eq!(said.last().unwrap(), "ai: understood");
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
    let late = alice
        .resolves(&question, json!({"decisions": [{"type": "approve"}]}))
        .await;
    late.refused(409);
    let ended = listed(&alice).await[0].clone();
    assert_eq!(ended["status"], "expired");
    assert_eq!(ended["resolution"]["answer"]["decisions"][0]["type"], "reject");
}

async fn an_interrupt_of_a_left_branch_expires_and_nothing_continues(server: TestServer) {
    let clock = clocked(&server).await;
    let alice = server.human("urgent").await;
    alice.says(script().calls(mail("m1", "bob")).says("understood")).await;
    let place = alice.state().await["checkpoint"].clone();
    let first = alice.history().await.pop().expect("a checkpoint");
    let edited = alice.run_body("edited", json!({"checkpoint": first["checkpoint"]}));
    alice.starts(edited).await.finishes().await;
    let before = alice.state().await;
    clock.advance(Duration::from_secs(3_601));
    eventually(async || listed(&alice).await[0]["status"] == "expired").await;
    assert_eq!(alice.state().await, before);
    assert_eq!(alice.runs().await.len(), 2);
    let approval = json!({"resume": {"decisions": [{"type": "approve"}]}});
    let body = json!({"assistant_id": "urgent", "command": approval, "checkpoint": place});
    let late = alice.client().post(&alice.path("/runs/wait"), body).await;
    late.refused(409);
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
}

async fn the_rule_says_what_happens_on_expiry(server: TestServer) {
    let clock = clocked(&server).await;
    let alice = server.human("urgent").await;
    alice
        .says(script().calls_all([mail("m1", "bob"), lookup("l1", "x")]).says("done"))
        .await;
    assert_eq!(alice.question().await.requests().len(), 2, "they have the same time");
    clock.advance(Duration::from_secs(3_601));
    is_idle(&alice).await;
    let said = alice.transcript().await;
    assert!(said.contains(&"lookup: no result".to_owned()), "{said:#?}");
    assert_eq!(server.tools.calls().len(), 0);
}

async fn calls_with_another_time_are_asked_about_apart(server: TestServer) {
    let clock = clocked(&server).await;
    let alice = server.human("urgent").await;
    let note = crate::support::call("n1", "note", json!({"update": {}}));
    alice
        .says(script().calls_all([note, mail("m1", "bob")]).says("done"))
        .await;
    let questions = alice.questions().await;
    assert_eq!(questions.len(), 2);
    clock.advance(Duration::from_secs(61));
    eventually(async || alice.questions().await.len() == 1).await;
    let left = alice.question().await;
    assert_eq!(left.id(), questions[1].id());
    alice.approves(&left).await.finishes().await;
    assert_eq!(server.tools.calls_of("note").len(), 1, "approved by its expiry");
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn an_interrupt_of_a_subagent_expires_in_place(server: TestServer) {
    let clock = clocked(&server).await;
    let alice = server.human("urgent").await;
    let child = script().calls(mail("m1", "bob")).says("not sent");
    alice
        .says(script().calls(task("t1", "mailer", child)).says("done"))
        .await;
    clock.advance(Duration::from_secs(3_601));
    is_idle(&alice).await;
    let said = alice.transcript().await;
    assert_eq!(said[2..], ["task: not sent", "ai: done"], "{said:#?}");
}

async fn a_required_answer_expires_while_a_message_waits_for_it(server: TestServer) {
    let clock = clocked(&server).await;
    let alice = server.human("strict").await;
    server.tools.hold("lookup");
    let first = alice
        .asks(
            script()
                .calls(lookup("l1", "x"))
                .calls(mail("m1", "bob"))
                .says("understood"),
        )
        .await;
    server.tools.called("lookup", 1).await;
    let message = alice.asks("thanks").await;
    server.tools.let_go("lookup");
    first.finishes().await;
    assert_eq!(message.status().await, "pending");
    clock.advance(Duration::from_secs(3_601));
    message.finishes().await;
    let said = alice.transcript().await;
    assert_eq!(
        said[5..],
        ["ai: understood", "human: thanks", "ai: echo: thanks"],
        "{said:#?}"
    );
    assert_eq!(listed(&alice).await[0]["status"], "expired");
}

async fn an_answer_in_time_precedes(server: TestServer) {
    let clock = clocked(&server).await;
    let alice = server.human("urgent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    alice.approves(&alice.question().await).await.finishes().await;
    clock.advance(Duration::from_secs(4_000));
    alice.says(script().calls(mail("m2", "eve")).says("sent")).await;
    assert_eq!(listed(&alice).await[0]["status"], "resolved");
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
    assert_eq!(alice.runs().await.len(), 3);
}

async fn an_expired_interrupt_is_answered_after_a_restart(server: TestServer) {
    let clock = clocked(&server).await;
    let alice = server.human("urgent").await;
    alice.says(script().calls(mail("m1", "bob")).says("understood")).await;
    server.is_stopped().await;
    clock.advance(Duration::from_secs(86_400));
    server.is_stopped_and_started_again().await;
    is_idle(&alice).await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: understood");
}

async fn the_events_of_an_interrupt_name_who_did_what(server: TestServer) {
    let keys = server.is_protected_with("", AGENTS).await;
    let ann = Human::on_new_thread(keys.client("ann"), "guarded").await;
    ann.says(script().calls(mail("m1", "mia")).says("sent")).await;
    let question = ann.question().await;
    let answer = json!({"decisions": [{"type": "reject", "message": "never"}]});
    assert_eq!(ann.resolves(&question, answer.clone()).await.status, 403);
    let bob = Human::at(keys.client("bob"), "guarded", &ann.thread);
    let answered = bob.resolves(&question, answer).await.ok();
    ann.run(&answered).finishes().await;
    let brief = async || -> Vec<[Value; 3]> {
        let audit = listed(&ann).await[0]["audit"].clone();
        let all = audit.as_array().expect("a list").clone();
        all.iter()
            .map(|one| ["event", "user", "decisions"].map(|key| one[key].clone()))
            .collect()
    };
    let wanted = [
        [json!("raised"), Value::Null, Value::Null],
        [json!("refused"), json!("ann"), Value::Null],
        [json!("answered"), json!("bob"), json!(["reject"])],
    ];
    eventually(async || brief().await == wanted).await;
    let plain = ann.client().get(&ann.path("/interrupts")).await.ok();
    assert_eq!(plain["interrupts"][0].get("audit"), None);
    assert_eq!(ann.client().get(&ann.path("/interrupts?include=all")).await.status, 422);
}

async fn a_subagent_is_named_in_the_state_of_the_thread(server: TestServer) {
    let alice = server.human("agent").await;
    let child = script().calls(mail("m1", "bob")).says("sent");
    alice
        .says(script().calls(task("t1", "mailer", child)).says("done"))
        .await;
    let state = alice.state().await;
    let thread = alice.record().await;
    let in_thread = thread["interrupts"]
        .as_object()
        .expect("an object")
        .values()
        .next()
        .expect("one")[0]
        .clone();
    for shown in [&state["interrupts"][0], &state["tasks"][0]["interrupts"][0], &in_thread] {
        assert_eq!(shown["agent_name"], "mailer", "{shown}");
        assert_eq!(shown["agent_path"], json!(["main-agent", "mailer"]));
    }
    let other = server.human("agent").await;
    other.says(script().calls(mail("m1", "bob")).says("sent")).await;
    assert_eq!(other.state().await["interrupts"][0].get("agent_name"), None);
}

async fn terms_without_sense_are_refused(server: TestServer) {
    let problem = async |rule: Value| {
        let definition = json!({"model": "scripted:lab", "system_prompt": "x", "tools": ["lookup"],
            "interrupt_on": {"lookup": rule}});
        let checked = server
            .client()
            .post("/agents/validate", json!({"definition": definition}))
            .await
            .body;
        assert_eq!(checked["valid"], false, "{checked}");
        checked.to_string()
    };
    let all = json!(["approve"]);
    let text = problem(json!({"allowed_decisions": all, "on_expiry": "reject"})).await;
    assert!(text.contains("needs `expires_after_s`"), "{text}");
    let text = problem(json!({"allowed_decisions": all, "expires_after_s": 0})).await;
    assert!(text.contains("must be a whole number from 1"), "{text}");
    let text = problem(json!({"allowed_decisions": all, "expires_after_s": 5, "on_expiry": "ignore"})).await;
    assert!(text.contains("must be `approve`, `reject`"), "{text}");
}
