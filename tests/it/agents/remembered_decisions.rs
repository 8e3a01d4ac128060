//! Decisions that are remembered for the rest of a thread.

use serde_json::{Value, json};

use crate::support::{Human, Keys, TestServer, call, eventually, lookup, mail, on_both_engines, script, task};

on_both_engines! {
    always_allow_applies_to_later_calls_of_the_agent_on_this_thread_only,
    always_deny_answers_later_calls_with_the_reason,
    a_remembered_decision_may_cover_certain_arguments,
    calls_that_are_not_covered_are_asked_about_without_the_others,
    a_decision_in_a_subagent_is_for_that_subagent,
    a_revoked_decision_is_not_applied_any_more,
    a_remembered_decision_survives_a_restart_and_ends_with_the_thread,
    per_call_a_decision_is_remembered_too,
    decisions_that_cannot_be_remembered_are_refused,
    a_rule_may_allow_single_decisions_only,
    an_undone_run_is_not_remembered,
    a_copy_of_the_thread_remembers_nothing,
    only_approvers_give_and_revoke_a_decision_and_the_audit_has_both,
    an_approver_neither_sees_nor_revokes_the_decisions_of_others,
}

const AGENTS: &str = r#"
[agents.single]
name = "single-agent"
model = "scripted:lab"
system_prompt = "x"
tools = ["lookup", "send_email"]
interrupt_mode = "per_call"
interrupt_on = { send_email = true }

[agents.strict]
model = "scripted:lab"
system_prompt = "x"
tools = ["send_email"]
interrupt_on = { send_email = { allowed_decisions = ["approve", "reject"], allowed_scopes = ["once"] } }

[agents.guarded]
model = "scripted:lab"
system_prompt = "x"
tools = ["send_email"]
interrupt_on = { send_email = { allowed_decisions = ["approve"], approvers = { users = ["bob"] } } }

[agents.shared]
model = "scripted:lab"
system_prompt = "x"
tools = ["lookup", "send_email"]

[agents.shared.interrupt_on]
lookup = true
send_email = { allowed_decisions = ["approve"], approvers = { users = ["bob"] } }
"#;

fn always(kind: &str) -> Value {
    json!([{"type": kind, "scope": "thread"}])
}

async fn approvals(who: &Human) -> Vec<Value> {
    let list = who.client().get(&who.path("/approvals")).await.ok();
    list["approvals"].as_array().expect("a list").clone()
}

async fn sends(who: &Human, id: &str, to: &str) {
    who.says(script().calls(mail(id, to)).says("sent")).await;
}

async fn always_allow_applies_to_later_calls_of_the_agent_on_this_thread_only(server: TestServer) {
    let alice = server.human("agent").await;
    let text = script().calls(mail("m1", "bob")).calls(mail("m2", "eve")).says("sent");
    alice.says(text).await;
    let question = alice.question().await;
    alice.decides(&question, always("approve")).await.finishes().await;
    assert_eq!(
        server.tools.recipients(),
        ["bob", "eve"],
        "also in the run that brings the decision"
    );
    sends(&alice, "m3", "ann").await;
    assert_eq!(server.tools.recipients().len(), 3);
    assert!(alice.questions().await.is_empty());
    let all = approvals(&alice).await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0]["agent_path"], json!(["main-agent"]));
    assert_eq!(all[0]["interrupt_id"], question.id());
    let shown = ["tool", "decision", "for", "decided_by"].map(|key| all[0][key].clone());
    assert_eq!(shown, [json!("send_email"), json!("approve"), Value::Null, Value::Null]);
    let other = server.human("agent").await;
    sends(&other, "m4", "kim").await;
    other.question().await;
    assert_eq!(approvals(&other).await, [Value::Null; 0]);
}

async fn always_deny_answers_later_calls_with_the_reason(server: TestServer) {
    let alice = server.human("agent").await;
    sends(&alice, "m1", "bob").await;
    let decision = json!([{"type": "reject", "message": "no mails", "scope": "thread"}]);
    alice.decides(&alice.question().await, decision).await.finishes().await;
    sends(&alice, "m2", "eve").await;
    assert!(alice.questions().await.is_empty());
    let said = alice.transcript().await;
    let refusals = said
        .iter()
        .filter(|line| line.contains("with reason: no mails"))
        .count();
    assert_eq!(refusals, 2, "{said:#?}");
    assert_eq!(server.tools.recipients(), [""; 0]);
}

async fn a_remembered_decision_may_cover_certain_arguments(server: TestServer) {
    let alice = server.human("agent").await;
    sends(&alice, "m1", "bob@example.org").await;
    let inside = json!({"to": {"regex": "@example\\.org$"}});
    let decision = json!([{"type": "approve", "scope": "thread", "for": inside}]);
    alice.decides(&alice.question().await, decision).await.finishes().await;
    sends(&alice, "m2", "ann@example.org").await;
    sends(&alice, "m3", "eve@elsewhere.net").await;
    assert_eq!(server.tools.recipients(), ["bob@example.org", "ann@example.org"]);
    let same = json!([{"type": "approve", "scope": "thread", "for": "same_arguments"}]);
    alice.decides(&alice.question().await, same).await.finishes().await;
    sends(&alice, "m4", "eve@elsewhere.net").await;
    assert_eq!(server.tools.recipients().len(), 4);
    let copied = json!({"to": "eve@elsewhere.net", "body": "hi", "cc": "kim@elsewhere.net"});
    let more = script().calls(call("m6", "send_email", copied.clone()));
    alice.says(more.says("sent")).await;
    let question = alice.question().await;
    assert_eq!(
        question.requests()[0]["args"],
        copied,
        "a further argument is not the same"
    );
    alice.approves(&question).await.finishes().await;
    sends(&alice, "m5", "kim@elsewhere.net").await;
    assert_eq!(alice.question().await.requests()[0]["args"]["to"], "kim@elsewhere.net");
    assert_eq!(approvals(&alice).await[0]["for"], inside);
}

async fn calls_that_are_not_covered_are_asked_about_without_the_others(server: TestServer) {
    let alice = server.human("agent").await;
    alice
        .says(script().calls_all([mail("m1", "bob"), mail("m2", "eve")]).says("sent"))
        .await;
    let for_bob = json!({"to": {"equals": "bob"}});
    let decisions = json!([{"type": "approve", "scope": "thread", "for": for_bob}, {"type": "approve"}]);
    alice.decides(&alice.question().await, decisions).await.finishes().await;
    assert_eq!(server.tools.recipients().len(), 2, "both were decided");
    alice
        .says(script().calls_all([mail("m3", "bob"), mail("m4", "eve")]).says("sent"))
        .await;
    let question = alice.question().await;
    assert_eq!(question.requests().len(), 1);
    assert_eq!(question.requests()[0]["tool_call_id"], "m4");
    assert_eq!(
        server.tools.recipients().len(),
        2,
        "the covered call waits as all of its answer do"
    );
    alice.approves(&question).await.finishes().await;
    assert_eq!(server.tools.recipients().len(), 4);
}

async fn a_decision_in_a_subagent_is_for_that_subagent(server: TestServer) {
    let alice = server.human("agent").await;
    let child = |id: &str| script().calls(mail(id, "bob")).says("sent");
    alice
        .says(script().calls(task("t1", "mailer", child("m1"))).says("done"))
        .await;
    alice
        .decides(&alice.question().await, always("approve"))
        .await
        .finishes()
        .await;
    alice
        .says(script().calls(task("t2", "mailer", child("m2"))).says("done"))
        .await;
    assert_eq!(
        server.tools.recipients(),
        ["bob", "bob"],
        "another run of the same subagent"
    );
    assert_eq!(
        approvals(&alice).await[0]["agent_path"],
        json!(["main-agent", "mailer"])
    );
    sends(&alice, "m3", "bob").await;
    assert_eq!(alice.question().await.agent(), "main-agent");
}

async fn a_revoked_decision_is_not_applied_any_more(server: TestServer) {
    let alice = server.human("agent").await;
    sends(&alice, "m1", "bob").await;
    alice
        .decides(&alice.question().await, always("approve"))
        .await
        .finishes()
        .await;
    let id = approvals(&alice).await[0]["id"].as_str().expect("an id").to_owned();
    let path = alice.path(&format!("/approvals/{id}"));
    assert_eq!(alice.client().delete(&path).await.status, 204);
    assert_eq!(alice.client().delete(&path).await.status, 404);
    sends(&alice, "m2", "bob").await;
    alice.question().await;
    assert_eq!(server.tools.recipients(), ["bob"]);
}

async fn a_remembered_decision_survives_a_restart_and_ends_with_the_thread(server: TestServer) {
    let alice = server.human("agent").await;
    sends(&alice, "m1", "bob").await;
    alice
        .decides(&alice.question().await, always("approve"))
        .await
        .finishes()
        .await;
    server.is_stopped_and_started_again().await;
    sends(&alice, "m2", "eve").await;
    assert_eq!(server.tools.recipients(), ["bob", "eve"]);
    assert_eq!(alice.client().delete(&alice.path("")).await.status, 204);
    assert_eq!(alice.client().get(&alice.path("/approvals")).await.status, 404);
}

async fn per_call_a_decision_is_remembered_too(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("single").await;
    sends(&alice, "m1", "bob").await;
    let answer = json!({"response": {"type": "approve", "scope": "thread"}});
    let answered = alice.resolves(&alice.question().await, answer).await.ok();
    alice.run(&answered).finishes().await;
    sends(&alice, "m2", "eve").await;
    assert_eq!(server.tools.recipients(), ["bob", "eve"]);
}

async fn decisions_that_cannot_be_remembered_are_refused(server: TestServer) {
    let alice = server.human("agent").await;
    sends(&alice, "m1", "bob").await;
    let question = alice.question().await;
    let edited = json!({"name": "send_email", "args": {"to": "eve", "body": "x"}});
    let wrong = [
        json!({"type": "approve", "scope": "for ever"}),
        json!({"type": "edit", "edited_action": edited, "scope": "thread"}),
        json!({"type": "approve", "for": "same_arguments"}),
        json!({"type": "approve", "scope": "thread", "for": {"to": {"regex": "("}}}),
        json!({"type": "approve", "scope": "thread", "for": "all of them"}),
    ];
    for decision in wrong {
        let reply = alice.resolves(&question, json!({"decisions": [decision]})).await;
        assert_eq!(reply.status, 422, "{decision}: {reply:?}");
    }
    assert_eq!(alice.question().await, question);
    assert_eq!(approvals(&alice).await, [Value::Null; 0]);
}

async fn a_rule_may_allow_single_decisions_only(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("strict").await;
    sends(&alice, "m1", "bob").await;
    let question = alice.question().await;
    let refused = alice.resolves(&question, json!({"decisions": always("approve")})).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    let once = json!([{"type": "approve", "scope": "once"}]);
    alice.decides(&question, once).await.finishes().await;
    sends(&alice, "m2", "bob").await;
    alice.question().await;
}

async fn an_undone_run_is_not_remembered(server: TestServer) {
    let alice = server.human("agent").await;
    alice
        .says(script().calls_all([mail("m1", "bob"), lookup("l1", "x")]).says("done"))
        .await;
    let question = alice.question().await;
    server.tools.hold("lookup");
    let run = alice.decides(&question, always("approve")).await;
    server.tools.called("lookup", 1).await;
    assert_eq!(approvals(&alice).await.len(), 1);
    run.is_cancelled("rollback").await.ok();
    server.tools.let_go("lookup");
    assert_eq!(approvals(&alice).await, [Value::Null; 0]);
    assert_eq!(alice.question().await, question);
}

async fn a_copy_of_the_thread_remembers_nothing(server: TestServer) {
    let alice = server.human("agent").await;
    sends(&alice, "m1", "bob").await;
    alice
        .decides(&alice.question().await, always("approve"))
        .await
        .finishes()
        .await;
    let copied = alice.client().post(&alice.path("/copy"), json!({})).await.ok();
    let copy = alice.on(copied["thread_id"].as_str().expect("an id"));
    sends(&copy, "m2", "eve").await;
    copy.question().await;
    assert_eq!(server.tools.recipients(), ["bob"]);
}

async fn only_approvers_give_and_revoke_a_decision_and_the_audit_has_both(server: TestServer) {
    let keys: Keys = server.is_protected_with("", AGENTS).await;
    let ann = Human::on_new_thread(keys.client("ann"), "guarded").await;
    sends(&ann, "m1", "mia").await;
    let question = ann.question().await;
    let answer = json!({"decisions": always("approve")});
    assert_eq!(ann.resolves(&question, answer.clone()).await.status, 403);
    assert_eq!(approvals(&ann).await, [Value::Null; 0]);
    let bob = Human::at(keys.client("bob"), "guarded", &ann.thread);
    let answered = bob.resolves(&question, answer).await.ok();
    ann.run(&answered).finishes().await;
    sends(&ann, "m2", "mia").await;
    assert_eq!(server.tools.recipients(), ["mia", "mia"]);
    let all = approvals(&ann).await;
    assert_eq!(all[0]["decided_by"], "bob");
    assert_eq!(all[0]["approvers"], json!({"users": ["bob"], "roles": []}));
    let path = ann.path(&format!("/approvals/{}", all[0]["id"].as_str().expect("an id")));
    assert_eq!(ann.client().delete(&path).await.status, 403);
    assert_eq!(keys.client("root").delete(&path).await.status, 204);
    let resource = format!("/audit?resource=thread:{}/interrupt:{}", ann.thread, question.id());
    let root = keys.client("root");
    eventually(async || {
        let entries = root.get(&resource).await.ok();
        let details: Vec<&Value> = entries
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| &one["detail"])
            .collect();
        let given = json!({"decisions": ["approve"], "scopes": ["thread"]});
        details.contains(&&given) && details.iter().any(|detail| detail["revoked"] == all[0]["id"])
    })
    .await;
    sends(&ann, "m3", "mia").await;
    ann.question().await;
}

async fn an_approver_neither_sees_nor_revokes_the_decisions_of_others(server: TestServer) {
    let keys: Keys = server.is_protected_with("", AGENTS).await;
    let ann = Human::on_new_thread(keys.client("ann"), "shared").await;
    ann.says(script().calls(lookup("l1", "x")).says("found")).await;
    let question = ann.question().await;
    ann.decides(&question, always("approve")).await.finishes().await;
    let own = approvals(&ann).await;
    assert_eq!(own.len(), 1, "{own:?}");
    sends(&ann, "m1", "mia").await;
    let question = ann.question().await;
    let bob = Human::at(keys.client("bob"), "shared", &ann.thread);
    assert_eq!(approvals(&bob).await, [Value::Null; 0]);
    let path = |decision: &Value| ann.path(&format!("/approvals/{}", decision["id"].as_str().expect("an id")));
    bob.client().delete(&path(&own[0])).await.refused(404);
    let answered = bob.resolves(&question, json!({"decisions": always("approve")})).await;
    ann.run(&answered.ok()).finishes().await;
    let of_bob = approvals(&bob).await;
    assert_eq!(of_bob.len(), 1, "{of_bob:?}");
    assert_eq!(of_bob[0]["tool"], "send_email");
    assert_eq!(approvals(&ann).await.len(), 2);
    assert_eq!(bob.client().delete(&path(&of_bob[0])).await.status, 204);
    assert_eq!(approvals(&ann).await, own);
}
