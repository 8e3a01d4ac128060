//! Attempts to bypass approvals: `command.goto`, state updates, and others.

use serde_json::{Value, json};

use crate::support::{Human, TestServer, call, eventually, lookup, mail, on_both_engines, script, task};

/// Sends a run for the main agent and waits for the values afterwards.
async fn runs(server: &TestServer, who: &Human, mut body: Value) -> Value {
    body["assistant_id"] = json!("agent");
    server.client().post(&who.path("/runs/wait"), body).await.ok()
}

async fn writes(server: &TestServer, who: &Human, body: Value) -> Value {
    server.client().post(&who.path("/state"), body).await.ok()
}

/// Returns an answer with these calls, as if the model had given it.
fn answer(id: &str, calls: Value) -> Value {
    json!({"messages": [{"role": "assistant", "content": "", "id": id, "tool_calls": calls}]})
}

/// Returns the mails that were sent.
fn mails(server: &TestServer) -> Vec<Value> {
    server
        .tools
        .calls_of("send_email")
        .into_iter()
        .map(|call| call["args"].clone())
        .collect()
}

/// Checks that the only call to approve is a mail to `to`, and that nothing is sent before the approval, and one mail
/// after it.
async fn is_asked_about_a_mail(server: &TestServer, who: &Human, to: &str, already: usize) {
    assert_eq!(mails(server).len(), already, "nobody has approved it");
    let question = who.question().await;
    assert_eq!(question.0["kind"].as_str(), Some("tool_approval"));
    assert_eq!(question.requests().len(), 1);
    assert_eq!(question.requests()[0]["args"]["to"], to);
    who.approves(&question).await.finishes().await;
    assert_eq!(mails(server).len(), already + 1);
    assert_eq!(mails(server)[already]["to"], to);
    assert!(who.questions().await.is_empty());
}

on_both_engines! {
    calls_that_a_command_sends_need_approval,
    a_call_that_a_command_sends_can_be_rejected_and_edited,
    a_goto_to_the_tools_is_refused_while_an_interrupt_is_pending,
    a_state_update_as_the_review_node_is_no_approval,
    a_history_of_a_client_is_no_approval,
    calls_in_an_update_or_in_the_input_are_not_made_without_approval,
    an_approval_applies_to_the_shown_call_only,
    a_call_that_changes_after_its_approval_needs_another_one,
    breakpoints_do_not_change_approvals,
    a_replayed_call_needs_a_new_approval,
    an_edit_to_a_call_that_needs_approval_needs_approval,
    calls_of_a_subagent_that_a_client_calls_need_approval,
    an_answer_to_a_tool_is_no_approval,
    calls_in_initial_messages_are_not_made_without_approval,
    a_copy_of_a_thread_has_no_approval_of_the_original,
    the_approval_of_a_sent_call_survives_a_crash,
}

async fn calls_that_a_command_sends_need_approval(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("hello").await;
    let input = json!([mail("m1", "bob"), lookup("l1", "x")]);
    runs(
        &server,
        &alice,
        json!({"command": {"goto": {"node": "tools", "input": input}}}),
    )
    .await;
    assert_eq!(
        server.tools.calls_of("lookup").len(),
        1,
        "what needs no approval runs at once"
    );
    is_asked_about_a_mail(&server, &alice, "bob", 0).await;
    let input = json!({"messages": [answer("a1", json!([mail("m2", "eve")]))["messages"][0]]});
    runs(
        &server,
        &alice,
        json!({"command": {"goto": [{"node": "tools", "input": input}]}}),
    )
    .await;
    is_asked_about_a_mail(&server, &alice, "eve", 1).await;
}

async fn a_call_that_a_command_sends_can_be_rejected_and_edited(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("hello").await;
    let send = json!({"command": {"goto": {"node": "tools", "input": mail("m1", "bob")}}});
    runs(&server, &alice, send).await;
    alice.rejects(&alice.question().await, "never").await.finishes().await;
    assert!(
        alice
            .transcript()
            .await
            .iter()
            .any(|line| line.contains("reason: never"))
    );
    assert_eq!(mails(&server).len(), 0);
    let send = json!({"command": {"goto": {"node": "tools", "input": mail("m2", "bob")}}});
    runs(&server, &alice, send).await;
    let edited = json!({"name": "send_email", "args": {"to": "carol", "body": "edited"}});
    let decision = json!([{"type": "edit", "edited_action": edited}]);
    alice.decides(&alice.question().await, decision).await.finishes().await;
    assert_eq!(mails(&server), [json!({"to": "carol", "body": "edited"})]);
}

async fn a_goto_to_the_tools_is_refused_while_an_interrupt_is_pending(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let first = alice.question().await;
    runs(&server, &alice, json!({"command": {"goto": "tools"}})).await;
    assert_ne!(alice.question().await.id(), first.id());
    is_asked_about_a_mail(&server, &alice, "bob", 0).await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}

async fn a_state_update_as_the_review_node_is_no_approval(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("hello").await;
    for (number, node) in ["HumanInTheLoopMiddleware.after_model", "model"]
        .into_iter()
        .enumerate()
    {
        let calls = json!([mail(&format!("m{number}"), "bob")]);
        let said = answer(&format!("a{number}"), calls);
        writes(&server, &alice, json!({"values": said, "as_node": node})).await;
        runs(&server, &alice, json!({})).await;
        is_asked_about_a_mail(&server, &alice, "bob", number).await;
    }
}

async fn a_history_of_a_client_is_no_approval(server: TestServer) {
    let client = server.client();
    let node = "HumanInTheLoopMiddleware.after_model";
    let said = json!({"messages": [{"role": "user", "content": "go"}]});
    let steps = json!([
        {"updates": [{"values": said, "as_node": "__input__"}]},
        {"updates": [{"values": answer("a1", json!([mail("m1", "bob")])), "as_node": node}]},
    ]);
    let body = json!({"metadata": {"graph_id": "agent"}, "supersteps": steps});
    let thread = client.post("/threads", body).await.ok();
    let alice = server.human("agent").await.on(thread["thread_id"].as_str().unwrap());
    runs(&server, &alice, json!({})).await;
    is_asked_about_a_mail(&server, &alice, "bob", 0).await;
}

async fn calls_in_an_update_or_in_the_input_are_not_made_without_approval(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("hello").await;
    let update = answer("a1", json!([mail("m1", "bob")]));
    runs(&server, &alice, json!({"command": {"update": update, "goto": "tools"}})).await;
    is_asked_about_a_mail(&server, &alice, "bob", 0).await;
    let said = answer("a2", json!([mail("m2", "eve")]));
    runs(&server, &alice, json!({"input": said})).await;
    runs(&server, &alice, json!({})).await;
    assert_eq!(mails(&server).len(), 1);
}

async fn an_approval_applies_to_the_shown_call_only(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let said = alice.state().await["values"]["messages"][1]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let update = answer(&said, json!([mail("m1", "eve")]));
    let answers = json!({question.id(): {"decisions": [{"type": "approve"}]}});
    runs(
        &server,
        &alice,
        json!({"command": {"resume": answers, "update": update}}),
    )
    .await;
    is_asked_about_a_mail(&server, &alice, "eve", 0).await;
}

async fn a_call_that_changes_after_its_approval_needs_another_one(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let said = alice.state().await["values"]["messages"][1]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let approve = json!({question.id(): {"decisions": [{"type": "approve"}]}});
    runs(
        &server,
        &alice,
        json!({"command": {"resume": approve}, "interrupt_before": ["tools"]}),
    )
    .await;
    assert_eq!(alice.state().await["next"], json!(["tools"]));
    runs(
        &server,
        &alice,
        json!({"command": {"update": answer(&said, json!([mail("m1", "eve")]))}}),
    )
    .await;
    runs(&server, &alice, json!({})).await;
    is_asked_about_a_mail(&server, &alice, "eve", 0).await;
}

async fn breakpoints_do_not_change_approvals(server: TestServer) {
    let alice = server.human("agent").await;
    let stops = json!({"interrupt_before": ["tools"], "interrupt_after": ["model"]});
    let run_body = alice.run_body(script().calls(mail("m1", "bob")).says("sent"), stops.clone());
    alice.starts(run_body).await.finishes().await;
    runs(&server, &alice, json!({})).await;
    let approve = json!({alice.question().await.id(): {"decisions": [{"type": "approve"}]}});
    let mut resume = stops;
    resume["command"] = json!({"resume": approve});
    runs(&server, &alice, resume).await;
    assert_eq!(mails(&server).len(), 0);
    runs(&server, &alice, json!({})).await;
    assert_eq!(mails(&server).len(), 1);
    assert_eq!(alice.transcript().await.pop().unwrap(), "ai: sent".to_owned());
}

async fn a_replayed_call_needs_a_new_approval(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    alice.approves(&alice.question().await).await.finishes().await;
    let history = alice.history().await;
    let mut sent = 1;
    for place in history.iter().filter(|state| transcript_ends_with_a_call(state)) {
        runs(
            &server,
            &alice,
            json!({"input": null, "checkpoint_id": place["checkpoint_id"]}),
        )
        .await;
        is_asked_about_a_mail(&server, &alice, "bob", sent).await;
        sent += 1;
    }
    assert!(sent > 2, "there are checkpoints before and after the approval");
}

async fn an_edit_to_a_call_that_needs_approval_needs_approval(server: TestServer) {
    server
        .is_configured_with(
            "[agents.strict]\nmodel = \"scripted:lab\"\nsystem_prompt = \"x\"\ntools = [\"lookup\", \
            \"send_email\"]\ninterrupt_on = { lookup = true, send_email = true }",
        )
        .await;
    let alice = server.human("strict").await;
    alice.says(script().calls(lookup("c1", "x")).says("done")).await;
    let edited = json!({"name": "send_email", "args": {"to": "bob", "body": "hi"}});
    let decision = json!([{"type": "edit", "edited_action": edited}]);
    alice.decides(&alice.question().await, decision).await.finishes().await;
    is_asked_about_a_mail(&server, &alice, "bob", 0).await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
}

async fn calls_of_a_subagent_that_a_client_calls_need_approval(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("hello").await;
    let order = task("t1", "mailer", script().calls(mail("m1", "bob")).says("sent by child"));
    runs(
        &server,
        &alice,
        json!({"command": {"goto": {"node": "tools", "input": order}}}),
    )
    .await;
    assert_eq!(alice.question().await.agent(), "mailer");
    is_asked_about_a_mail(&server, &alice, "bob", 0).await;
}

async fn an_answer_to_a_tool_is_no_approval(server: TestServer) {
    server.is_embedded().await;
    server
        .is_configured_with(
            "[agents.advised]\nmodel = \"scripted:lab\"\nsystem_prompt = \"x\"\n\
            tools = [\"consult\", \"send_email\"]\ninterrupt_on = { consult = true, send_email = true }",
        )
        .await;
    let alice = server.human("advised").await;
    let calls = [call("q1", "consult", json!({})), mail("m1", "bob")];
    alice.says(script().calls_all(calls).says("done")).await;
    let approval = alice.question().await;
    assert_eq!(approval.0["kind"].as_str(), Some("tool_approval"));
    assert_eq!(approval.requests().len(), 2);
    let decisions = json!([{"type": "approve"}, {"type": "reject", "message": "never"}]);
    alice.decides(&approval, decisions).await.finishes().await;
    let own = alice.question().await;
    assert_eq!(own.0["value"], "which?");
    assert_ne!(own.id(), approval.id());
    // Neither is the old approval an answer to it, nor decisions in the form of one.
    let decisions = json!({"decisions": [{"type": "approve"}]});
    assert_eq!(alice.resolves(&own, json!({"response": decisions})).await.status, 422);
    assert!(alice.resolves(&approval, decisions).await.status >= 400);
    assert_eq!(alice.question().await.id(), own.id());
    alice.resolves(&own, json!({"response": "that one"})).await.ok();
    eventually(async || alice.status().await == "idle").await;
    let said = alice.transcript().await;
    assert!(
        said.contains(&r#"consult: consulted: "that one""#.to_owned()),
        "{said:#?}"
    );
    assert!(said.iter().any(|line| line.contains("reason: never")), "{said:#?}");
    assert_eq!(mails(&server).len(), 0);
    // A call of it that a command sends meets the approval first, too.
    let send = json!({"assistant_id": "advised", "command": {"goto": {"node": "tools", "input": call("q2", "consult", json!({}))}}});
    server.client().post(&alice.path("/runs/wait"), send).await.ok();
    let approval = alice.question().await;
    assert_eq!(approval.0["kind"], "tool_approval");
    alice.rejects(&approval, "not again").await.finishes().await;
    assert!(alice.questions().await.is_empty());
}

async fn calls_in_initial_messages_are_not_made_without_approval(server: TestServer) {
    let client = server.client();
    let initial = json!([{"role": "user", "content": "go"}, answer("a1", json!([mail("m1", "bob")]))["messages"][0]]);
    let scholar = |name: &str, more: Value| {
        let mut scholar = json!({"name": name, "description": "Knows something already.", "system_prompt": "Know.",
                "tools": ["send_email", "lookup"], "interrupt_on": {"send_email": true}});
        scholar["initial_messages"] = more;
        scholar
    };
    let subagents = json!([scholar("scholar", initial.clone()), scholar("novice", json!([]))]);
    let agent = json!({"model": "scripted:lab", "tools": ["spawn"], "subagents": subagents});
    client.put("/agents/school", agent).await.ok();
    let alice = server.human("school").await;
    let order = json!({"description": script().says("nothing").to_string(), "subagent_type": "novice", "initial_messages": initial});
    let calls = [
        task("t1", "scholar", script().says("nothing")),
        call("s1", "spawn", order),
    ];
    alice.says(script().calls_all(calls).says("done")).await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
    assert_eq!(mails(&server).len(), 0, "nobody has approved it");
    assert!(alice.questions().await.is_empty(), "what was said before is over");
    // Calls of the subagent's own model are asked about all the same.
    let order = task("t2", "scholar", script().calls(mail("m2", "eve")).says("sent by child"));
    alice.says(script().calls(order).says("done")).await;
    is_asked_about_a_mail(&server, &alice, "eve", 0).await;
}

async fn a_copy_of_a_thread_has_no_approval_of_the_original(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let approve = json!({alice.question().await.id(): {"decisions": [{"type": "approve"}]}});
    runs(
        &server,
        &alice,
        json!({"command": {"resume": approve}, "interrupt_before": ["tools"]}),
    )
    .await;
    let copy = server.client().post(&alice.path("/copy"), json!({})).await.ok();
    let other = alice.on(copy["thread_id"].as_str().unwrap());
    runs(&server, &other, json!({})).await;
    is_asked_about_a_mail(&server, &other, "bob", 0).await;
    runs(&server, &alice, json!({})).await;
    assert_eq!(mails(&server).len(), 2, "the original has its own approval");
}

async fn the_approval_of_a_sent_call_survives_a_crash(server: TestServer) {
    server.moves_into_a_process().await;
    let alice = server.human("agent").await;
    alice.says("hello").await;
    let send = json!({"command": {"goto": {"node": "tools", "input": mail("m1", "bob")}}});
    runs(&server, &alice, send).await;
    server.is_killed_and_started_again().await;
    server.tools.hold("send_email");
    let run = alice.approves(&alice.question().await).await;
    server.tools.called("send_email", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("send_email");
    run.finishes().await;
    // The approval stands; what is asked is what became of the call.
    let question = alice.question().await;
    assert_eq!(question.0["kind"], "unknown_outcome");
    alice.approves(&question).await.finishes().await;
    assert!(alice.questions().await.is_empty());
    let keys = server.tools.keys_of("send_email");
    assert_eq!(keys.len(), 2, "the same call, with the same key");
    assert_eq!(&keys[0], &keys[1], "the same call, with the same key");
}

fn transcript_ends_with_a_call(state: &Value) -> bool {
    let last = state["values"]["messages"]
        .as_array()
        .and_then(|messages| messages.last());
    last.is_some_and(|message| message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty()))
}
