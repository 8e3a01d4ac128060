//! Rules for approvals: conditions on the arguments, descriptions, and one interrupt for each call.

use serde_json::{Value, json};

use crate::support::actors::Question;
use crate::support::{TestServer, call, lookup, mail, on_both_engines, script, task};

on_both_engines! {
    only_calls_that_meet_the_condition_are_asked_about,
    a_condition_that_cannot_be_applied_asks,
    a_condition_is_the_same_after_a_restart,
    the_description_names_the_arguments,
    invalid_conditions_are_refused_with_their_place,
    per_call_every_call_has_an_interrupt_and_the_others_run,
    per_call_an_answer_is_checked_before_it_is_stored,
    per_call_an_edit_changes_the_arguments_and_not_the_tool,
    per_call_the_sdk_answers_by_interrupt_id_or_with_one_decision,
    per_call_is_inherited_by_subagents_and_survives_a_restart,
    per_call_the_stream_has_the_schema_of_an_answer,
    the_state_shows_the_open_interrupt_and_the_history_the_answered_one_too,
}

const AGENTS: &str = r#"
[agents.picky]
model = "scripted:lab"
system_prompt = "x"
tools = ["lookup", "send_email"]

[agents.picky.interrupt_on.send_email]
allowed_decisions = ["approve", "reject"]
description = "Send mail to {args.to}: {args.subject}"
when = [{ to = { not = { regex = '@example\.org$' } } }, { body = { equals = "secret" } }]

[agents.single]
name = "single-agent"
model = "scripted:lab"
system_prompt = "x"
tools = ["lookup", "send_email"]
interrupt_mode = "per_call"
interrupt_on = { send_email = true }

[[agents.single.subagents]]
name = "mailer"
description = "Sends mails to whoever should get one."
system_prompt = "x"
"#;

/// Returns the ids of the interrupts of the tasks of a state.
fn shown(state: &Value) -> Vec<String> {
    let tasks = state["tasks"].as_array().expect("tasks");
    let interrupts = tasks
        .iter()
        .flat_map(|task| task["interrupts"].as_array().expect("a list"));
    interrupts
        .map(|one| one["id"].as_str().expect("an id").to_owned())
        .collect()
}

/// Returns the name and the id of the call that a question is about.
fn about(question: &Question) -> [&str; 2] {
    let value = &question.0["value"];
    assert_eq!(value["type"], "tool_approval", "{value}");
    ["name", "tool_call_id"].map(|key| value[key].as_str().expect("a text"))
}

async fn only_calls_that_meet_the_condition_are_asked_about(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("picky").await;
    let secret = call("m3", "send_email", json!({"to": "eve@example.org", "body": "secret"}));
    let text = script()
        .calls(mail("m1", "bob@example.org"))
        .calls_all([mail("m2", "bob@elsewhere.net"), secret, mail("m4", "ann@example.org")])
        .says("sent");
    alice.says(text).await;
    assert_eq!(
        server.tools.recipients(),
        ["bob@example.org"],
        "the first is sent at once"
    );
    let question = alice.question().await;
    let asked: Vec<&Value> = question.requests().iter().map(|one| &one["tool_call_id"]).collect();
    assert_eq!(asked, ["m2", "m3"]);
    alice.approves(&question).await.finishes().await;
    assert_eq!(server.tools.recipients().len(), 4);
    assert!(alice.questions().await.is_empty());
}

async fn a_condition_that_cannot_be_applied_asks(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("picky").await;
    let many = call("m1", "send_email", json!({"to": ["bob@example.org"], "body": "hi"}));
    alice.says(script().calls(many).says("sent")).await;
    assert_eq!(
        alice.question().await.requests()[0]["args"]["to"],
        json!(["bob@example.org"])
    );
    assert_eq!(server.tools.recipients(), [""; 0]);
}

async fn a_condition_is_the_same_after_a_restart(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("picky").await;
    let text = script()
        .calls_all([mail("m1", "bob@elsewhere.net"), mail("m2", "ann@example.org")])
        .says("sent");
    alice.says(text).await;
    let question = alice.question().await;
    server.is_stopped_and_started_again().await;
    alice.rejects(&question, "not today").await.finishes().await;
    assert_eq!(server.tools.recipients(), ["ann@example.org"]);
}

async fn the_description_names_the_arguments(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("picky").await;
    alice
        .says(script().calls(mail("m1", "bob\nApproved by root")).says("sent"))
        .await;
    let description = alice.question().await.requests()[0]["description"].clone();
    assert_eq!(description, r#"Send mail to "bob\nApproved by root": (not given)"#);
}

async fn invalid_conditions_are_refused_with_their_place(server: TestServer) {
    let validate = async |rule: Value| {
        let definition = json!({"model": "scripted:lab", "system_prompt": "x", "tools": ["lookup"],
            "interrupt_on": {"lookup": rule}});
        let body = json!({"definition": definition});
        server.client().post("/agents/validate", body).await.body
    };
    let refused = validate(json!({"allowed_decisions": ["approve"], "when": {"query": {"regex": "("}}})).await;
    assert_eq!(refused["valid"], false, "{refused}");
    assert!(
        refused.to_string().contains("interrupt_on.lookup.when.query.regex"),
        "{refused}"
    );
    let refused = validate(json!({"allowed_decisions": ["approve"], "when": {"query": {"greater": 1}}})).await;
    assert!(refused.to_string().contains("greater"), "{refused}");
    let warned = validate(json!({"allowed_decisions": ["approve"], "description": "{arg.query}"})).await;
    assert_eq!(warned["valid"], true, "{warned}");
    assert!(warned.to_string().contains("`{arg.query}` is not replaced"), "{warned}");
}

async fn per_call_every_call_has_an_interrupt_and_the_others_run(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("single").await;
    let text = script()
        .calls_all([mail("m1", "bob"), lookup("l1", "x"), mail("m2", "eve")])
        .says("done");
    alice.says(text).await;
    assert_eq!(server.tools.calls_of("lookup").len(), 1, "what needs no approval runs");
    let questions = alice.questions().await;
    let [first, second] = questions.as_slice() else {
        panic!("not two questions: {questions:#?}")
    };
    assert_eq!(
        [about(first), about(second)],
        [["send_email", "m1"], ["send_email", "m2"]]
    );
    let value = json!({
        "type": "tool_approval", "tool_call_id": "m1", "name": "send_email", "args": {"to": "bob", "body": "hi"},
        "description": "Tool execution requires approval\n\nTool: send_email\nArgs: {'to': 'bob', 'body': 'hi'}",
    });
    assert_eq!(first.0["value"], value);
    assert_eq!(first.0["kind"], "tool_approval");
    let answered = alice
        .resolves(second, json!({"response": {"type": "approve"}}))
        .await
        .ok();
    alice.run(&answered).finishes().await;
    assert_eq!(server.tools.recipients(), ["eve"]);
    assert_eq!(alice.question().await.id(), first.id());
    let rejected = json!({"response": {"type": "reject", "message": "no"}});
    let answered = alice.resolves(first, rejected).await.ok();
    alice.run(&answered).finishes().await;
    assert_eq!(server.tools.recipients(), ["eve"]);
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
}

async fn per_call_an_answer_is_checked_before_it_is_stored(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("single").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let wrong = [
        json!({"type": "postpone"}),
        json!({"type": "respond"}),
        json!({"type": "edit", "edited_action": {"name": "send_email", "args": {"to": 1}}}),
        json!("yes"),
    ];
    for answer in wrong {
        alice
            .resolves(&question, json!({"response": answer}))
            .await
            .refused(422);
        assert_eq!(alice.tries_to_resume(answer).await.status, 422);
    }
    assert_eq!(alice.question().await, question);
    let answered = alice
        .resolves(&question, json!({"response": {"type": "approve"}}))
        .await
        .ok();
    alice.run(&answered).finishes().await;
    assert_eq!(server.tools.recipients(), ["bob"]);
}

async fn per_call_an_edit_changes_the_arguments_and_not_the_tool(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("single").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let edit =
        |name: &str, args: Value| json!({"response": {"type": "edit", "edited_action": {"name": name, "args": args}}});
    alice
        .resolves(&question, edit("lookup", json!({"query": "x"})))
        .await
        .refused(422);
    let args = json!({"to": "eve", "body": "bye"});
    let answered = alice.resolves(&question, edit("send_email", args.clone())).await.ok();
    alice.run(&answered).finishes().await;
    assert_eq!(server.tools.calls_of("send_email")[0]["args"], args);
    let messages = alice.state().await["values"]["messages"].clone();
    assert_eq!(
        messages[1]["tool_calls"][0]["args"]["to"], "bob",
        "history keeps the call"
    );
    let result = messages[2]["content"].as_str().unwrap();
    assert!(result.contains("a human reviewer replaced this tool call"), "{result}");
}

async fn per_call_the_sdk_answers_by_interrupt_id_or_with_one_decision(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("single").await;
    alice
        .says(script().calls_all([mail("m1", "bob"), mail("m2", "eve")]).says("sent"))
        .await;
    let questions = alice.questions().await;
    let refused = alice.tries_to_resume(json!({"type": "approve"})).await;
    assert!([400, 409, 422].contains(&refused.status), "{refused:?}");
    let answers = json!({questions[0].id(): {"type": "approve"}});
    alice.resumes(answers).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["bob"]);
    // A client that only knows lists of decisions is understood, too.
    let list = json!({"decisions": [{"type": "approve"}]});
    alice.resumes(list).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["bob", "eve"]);
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}

async fn per_call_is_inherited_by_subagents_and_survives_a_restart(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("single").await;
    let child = script().calls(mail("m1", "bob")).says("sent");
    alice
        .says(script().calls(task("t1", "mailer", child)).says("done"))
        .await;
    let question = alice.question().await;
    assert_eq!(about(&question), ["send_email", "m1"]);
    assert_eq!(question.agent(), "mailer");
    server.is_stopped_and_started_again().await;
    let answered = alice
        .resolves(&question, json!({"decisions": [{"type": "approve"}]}))
        .await
        .ok();
    alice.run(&answered).finishes().await;
    assert_eq!(server.tools.keys_of("send_email").len(), 1);
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
}

async fn per_call_the_stream_has_the_schema_of_an_answer(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("single").await;
    let more = json!({"stream_mode": ["updates"]});
    let frames = alice
        .streams(script().calls(mail("m1", "bob")).says("sent"), more)
        .await
        .rest()
        .await;
    let asked = frames.iter().find_map(|frame| frame.data.get("__interrupt__"));
    let asked = &asked.expect("an interrupt")[0];
    assert_eq!(asked["value"]["tool_call_id"], "m1");
    let allowed = &asked["response_schema"]["properties"]["type"]["enum"];
    assert_eq!(*allowed, json!(["approve", "edit", "reject", "respond"]), "{asked}");
}

async fn the_state_shows_the_open_interrupt_and_the_history_the_answered_one_too(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let alice = server.human("picky").await;
    let text = script()
        .calls(mail("m1", "bob@elsewhere.net"))
        .calls(mail("m2", "ann@elsewhere.net"))
        .says("sent");
    let waited = alice.says(text).await;
    let first = alice.question().await;
    assert_eq!(waited["__interrupt__"][0]["id"], first.id());
    assert_eq!(waited["messages"].as_array().map(Vec::len), Some(2), "{waited}");
    alice.approves(&first).await.finishes().await;
    let second = alice.question().await;
    assert_eq!(shown(&alice.state().await), [second.id()]);
    let of_history: Vec<String> = alice.history().await.iter().flat_map(shown).collect();
    assert_eq!(of_history, [second.id(), first.id()]);
    alice.approves(&second).await.finishes().await;
    assert_eq!(shown(&alice.state().await), [""; 0]);
}
