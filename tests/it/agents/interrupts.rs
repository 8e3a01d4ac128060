//! Interrupts of the main agent, answered by `command.resume`.

use serde_json::{Value, json};

use crate::support::actors::Run;
use crate::support::{Human, TestServer, call, lookup, mail, on_both_engines, script, transcript};

on_both_engines! {
    nothing_runs_before_a_human_has_decided,
    an_interrupted_thread_shows_its_interrupt_everywhere,
    the_stream_shows_the_interrupt_and_the_continuation,
    an_edited_call_runs_as_edited,
    an_edit_may_choose_another_tool_of_the_agent,
    a_rejected_call_is_answered_but_not_run,
    a_human_may_respond_instead_of_the_tool,
    several_calls_are_one_interrupt_with_a_decision_each,
    an_invalid_answer_is_refused_and_the_interrupt_stays,
    a_refusal_of_an_answer_names_the_field_that_was_sent,
    a_repeated_call_needs_a_new_approval,
    a_new_message_cancels_the_interrupt,
    an_agent_may_require_an_answer,
    a_message_that_was_queued_before_a_required_answer_waits_for_it,
    a_message_that_waits_for_an_answer_can_be_cancelled,
    an_answer_without_an_interrupt_is_refused,
    an_answer_with_an_assistant_that_cannot_go_on_says_so,
    a_run_continues_from_a_breakpoint_without_an_answer,
    a_run_that_answers_nothing_reports_the_interrupt_again,
    a_call_that_needs_no_approval_raises_no_interrupt,
}

async fn nothing_runs_before_a_human_has_decided(server: TestServer) {
    let alice = server.human("agent").await;
    let text = script()
        .calls_all([mail("m1", "bob"), lookup("c1", "x")])
        .says("both done");
    let values = alice.says(text).await;
    assert!(server.tools.calls_of("send_email").is_empty());
    assert!(server.tools.calls_of("lookup").is_empty());
    let question = alice.question().await;
    let request = json!({
        "name": "send_email",
        "args": {"to": "bob", "body": "hi"},
        "description": "Tool execution requires approval\n\nTool: send_email\nArgs: {'to': 'bob', 'body': 'hi'}",
        "tool_call_id": "m1",
    });
    assert_eq!(question.requests(), [request]);
    assert_eq!(values["__interrupt__"][0]["id"], question.id());
    alice.approves(&question).await.finishes().await;
    let said = [
        "human: …",
        "ai calls send_email, lookup",
        "send_email: sent to bob: hi",
        "lookup: found x",
        "ai: both done",
    ];
    assert_eq!(alice.transcript().await, said);
    assert_eq!(server.tools.keys_of("send_email").len(), 1);
    assert_eq!(server.tools.keys_of("lookup").len(), 1);
}

async fn an_interrupted_thread_shows_its_interrupt_everywhere(server: TestServer) {
    let alice = server.human("agent").await;
    let run = alice.asks(script().calls(mail("m1", "bob")).says("sent")).await;
    let joined = run.finishes().await;
    assert_eq!(run.status().await.as_str(), "success");
    assert_eq!(alice.status().await.as_str(), "interrupted");
    let state = alice.state().await;
    let thread = alice.record().await;
    let question = alice.question().await;
    assert_eq!(state["next"], json!(["HumanInTheLoopMiddleware.after_model"]));
    assert_eq!(state["interrupts"], state["tasks"][0]["interrupts"]);
    assert_eq!(state["interrupts"][0]["id"], question.id());
    assert_eq!(question.id().len(), 32);
    let task = state["tasks"][0]["id"].as_str().unwrap();
    assert_eq!(thread["interrupts"], json!({task: state["interrupts"]}));
    assert_eq!(joined["__interrupt__"][0]["value"], state["interrupts"][0]["value"]);
    let review = &state["interrupts"][0]["value"]["review_configs"];
    assert_eq!(
        *review,
        json!([{"action_name": "send_email", "allowed_decisions": ["approve", "edit", "reject"]}])
    );
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.status().await.as_str(), "idle");
    assert_eq!(alice.state().await["interrupts"].clone(), json!([]));
}

async fn the_stream_shows_the_interrupt_and_the_continuation(server: TestServer) {
    let alice = server.human("agent").await;
    let more = json!({"stream_mode": ["updates", "values"]});
    let frames = alice
        .streams(script().calls(mail("m1", "bob")).says("sent"), more.clone())
        .await
        .rest()
        .await;
    let told: Vec<&Value> = frames
        .iter()
        .filter_map(|frame| frame.data.get("__interrupt__"))
        .collect();
    assert_eq!(told.len(), 2, "{frames:#?}");
    assert_eq!(told[0], told[1]);
    let answer = json!({"decisions": [{"type": "approve"}]});
    let frames = alice.streams_resume(answer, more).await.rest().await;
    assert_eq!(frames[0].event, "metadata");
    assert!(
        frames
            .iter()
            .any(|frame| frame.data["tools"]["messages"][0]["content"] == "sent to bob: hi")
    );
    assert_eq!(transcript(&frames.last().unwrap().data).last().unwrap(), "ai: sent");
}

async fn an_edited_call_runs_as_edited(server: TestServer) {
    let alice = server.human("agent").await;
    alice
        .says(script().calls(mail("m1", "bob")).says("as you run_body"))
        .await;
    let args = json!({"to": "eve", "body": "bye"});
    let edit = json!([{"type": "edit", "edited_action": {"name": "send_email", "args": args}}]);
    alice.decides(&alice.question().await, edit).await.finishes().await;
    assert_eq!(server.tools.calls_of("send_email")[0]["args"], args);
    let values = alice.state().await["values"].clone();
    assert_eq!(values["messages"][1]["tool_calls"][0]["args"]["to"], "bob");
    let result = values["messages"][2]["content"].as_str().unwrap();
    assert!(result.ends_with("Tool response:\nsent to eve: bye"), "{result}");
    assert!(result.contains("a human reviewer replaced this tool call"), "{result}");
}

async fn an_edit_may_choose_another_tool_of_the_agent(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("done")).await;
    let edit = |name: &str, args: Value| json!([{"type": "edit", "edited_action": {"name": name, "args": args}}]);
    let unknown = json!({"decisions": edit("nosuch", json!({}))});
    assert_eq!(alice.tries_to_resume(unknown).await.status, 422);
    alice
        .decides(&alice.question().await, edit("lookup", json!({"query": "y"})))
        .await
        .finishes()
        .await;
    assert!(alice.transcript().await[2].ends_with("found y"));
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
}

async fn a_rejected_call_is_answered_but_not_run(server: TestServer) {
    let alice = server.human("agent").await;
    alice
        .says(script().calls(mail("m1", "bob")).says("as you run_body"))
        .await;
    alice
        .rejects(&alice.question().await, "not today")
        .await
        .finishes()
        .await;
    let said = [
        "human: …",
        "ai calls send_email",
        "send_email failed: User rejected the tool call for `send_email` with reason: not today",
        "ai: as you run_body",
    ];
    assert_eq!(alice.transcript().await, said);
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
}

async fn a_human_may_respond_instead_of_the_tool(server: TestServer) {
    let alice = server.human("deep").await;
    alice.says(script().calls(mail("m1", "bob")).says("thanks")).await;
    let answer = json!([{"type": "respond", "message": "I told him myself"}]);
    alice.decides(&alice.question().await, answer).await.finishes().await;
    let said = [
        "human: …",
        "ai calls send_email",
        "send_email: I told him myself",
        "ai: thanks",
    ];
    assert_eq!(alice.transcript().await, said);
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
}

async fn several_calls_are_one_interrupt_with_a_decision_each(server: TestServer) {
    let alice = server.human("agent").await;
    alice
        .says(
            script()
                .calls_all([mail("m1", "ann"), mail("m2", "bob"), mail("m3", "cat")])
                .says("done"),
        )
        .await;
    let question = alice.question().await;
    assert_eq!(question.requests().len(), 3);
    let edited = json!({"name": "send_email", "args": {"to": "dan", "body": "hi"}});
    let mixed = json!([{"type": "approve"}, {"type": "reject"}, {"type": "edit", "edited_action": edited}]);
    alice.decides(&question, mixed).await.finishes().await;
    let mut sent: Vec<_> = server
        .tools
        .calls_of("send_email")
        .iter()
        .map(|call| call["args"]["to"].clone())
        .collect();
    sent.sort_by_key(ToString::to_string);
    assert_eq!(sent, ["ann", "dan"]);
    let results = alice.state().await["values"]["messages"].clone();
    let statuses: std::collections::BTreeMap<&str, &str> = results
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|m| Some((m["tool_call_id"].as_str()?, m["status"].as_str()?)))
        .collect();
    assert_eq!(statuses, [("m1", "success"), ("m2", "error"), ("m3", "success")].into());
}

async fn an_invalid_answer_is_refused_and_the_interrupt_stays(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let before = alice.state().await;
    let action = json!({"name": "send_email", "args": {"to": 7, "body": "hi"}});
    let wrong = [
        json!("yes"),
        json!({"decisions": "yes"}),
        json!({"decisions": []}),
        json!({"decisions": [{"type": "approve"}, {"type": "approve"}]}),
        json!({"decisions": [{"type": "respond", "message": "not allowed here"}]}),
        json!({"decisions": [{"type": "shrug"}]}),
        json!({"decisions": [{"type": "edit"}]}),
        json!({"decisions": [{"type": "edit", "edited_action": action}]}),
        json!({"0123456789abcdef0123456789abcdef": {"decisions": [{"type": "approve"}]}}),
    ];
    for answer in wrong {
        let reply = alice.tries_to_resume(answer.clone()).await;
        assert_eq!(reply.status, 422, "{answer} -> {reply:?}");
    }
    assert_eq!(alice.state().await, before);
    assert_eq!(alice.runs().await.len(), 1);
    alice.approves(&alice.question().await).await.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}

async fn a_refusal_of_an_answer_names_the_field_that_was_sent(server: TestServer) {
    let alice = server.human("agent").await;
    let calls = [mail("m1", "bob"), mail("m2", "eve")];
    alice.says(script().calls_all(calls).says("sent")).await;
    let id = alice.question().await.id().to_owned();
    let decisions = json!([{"type": "approve"}, {"type": "shrug"}]);
    for (answer, field) in [
        (
            json!({"decisions": decisions}),
            "command.resume.decisions[1].type".to_owned(),
        ),
        (
            json!({&id: {"decisions": decisions}}),
            format!("command.resume.{id}.decisions[1].type"),
        ),
        (decisions.clone(), "command.resume[1].type".to_owned()),
        (json!([decisions]), "command.resume[0][1].type".to_owned()),
        (json!("yes"), "command.resume".to_owned()),
    ] {
        let refused = alice.tries_to_resume(answer.clone()).await.refused(422);
        assert!(refused.starts_with(&format!("{field}: ")), "{answer}: {refused}");
    }
}

async fn a_repeated_call_needs_a_new_approval(server: TestServer) {
    let alice = server.human("agent").await;
    alice
        .says(
            script()
                .calls(mail("m1", "bob"))
                .calls(mail("m2", "bob"))
                .says("sent twice"),
        )
        .await;
    let first = alice.question().await;
    alice.approves(&first).await.finishes().await;
    let second = alice.question().await;
    assert_ne!(first.id(), second.id());
    alice.approves(&second).await.finishes().await;
    assert_eq!(server.tools.keys_of("send_email").len(), 2);
    assert_eq!(alice.status().await, "idle");
}

async fn a_new_message_cancels_the_interrupt(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let said = transcript(&alice.says("forget it").await);
    assert!(
        said[2].starts_with("send_email failed: Tool call send_email with id m1 did not complete"),
        "{said:?}"
    );
    assert_eq!(said[3..], ["human: forget it", "ai: echo: forget it"]);
    assert_eq!(alice.questions().await, vec![]);
    let path = alice.path(&format!("/interrupts/{}", question.id()));
    assert_eq!(server.client().get(&path).await.ok()["status"], "dropped");
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
}

async fn an_agent_may_require_an_answer(server: TestServer) {
    let client = server.client();
    let alice = server.human("patient").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let refused = client
        .post(&alice.path("/runs/wait"), alice.run_body("forget it", json!({})))
        .await;
    refused.refused(409);
    alice.approves(&alice.question().await).await.finishes().await;
    assert_eq!(
        transcript(&alice.says("thanks").await).last().unwrap(),
        "ai: echo: thanks"
    );
}

/// Lets an agent that requires answers ask while a message is queued. Returns the run of the message.
async fn asks_before_a_message(server: &TestServer) -> (Human, Run) {
    let lines = "
        [agents.strict]
        model = \"scripted:lab\"
        system_prompt = \"You wait.\"
        tools = [\"lookup\", \"send_email\"]
        interrupt_on = { send_email = true }
        on_pending_interrupt = \"reject\"
        ";
    server.is_configured_with(lines).await;
    let alice = server.human("strict").await;
    server.tools.hold("lookup");
    let first = alice
        .asks(script().calls(lookup("c1", "x")).calls(mail("m1", "bob")).says("sent"))
        .await;
    server.tools.called("lookup", 1).await;
    let message = alice.asks("thanks").await;
    server.tools.let_go("lookup");
    first.finishes().await;
    (alice, message)
}

async fn a_message_that_was_queued_before_a_required_answer_waits_for_it(server: TestServer) {
    let (alice, message) = asks_before_a_message(&server).await;
    let question = alice.question().await;
    assert_eq!(alice.status().await, "interrupted");
    assert_eq!(message.status().await, "pending");
    let another = alice.run_body("hello?", json!({}));
    server.client().post(&alice.path("/runs"), another).await.refused(409);
    alice.approves(&question).await.finishes().await;
    message.finishes().await;
    let said = alice.transcript().await;
    assert_eq!(
        said[4..],
        [
            "send_email: sent to bob: hi",
            "ai: sent",
            "human: thanks",
            "ai: echo: thanks"
        ],
        "{said:#?}"
    );
}

async fn a_message_that_waits_for_an_answer_can_be_cancelled(server: TestServer) {
    let (alice, message) = asks_before_a_message(&server).await;
    let question = alice.question().await;
    message.is_cancelled("interrupt").await.ok();
    assert_eq!(message.status().await, "interrupted");
    assert_eq!(alice.status().await, "interrupted");
    assert_eq!(alice.question().await, question);
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}

async fn an_answer_without_an_interrupt_is_refused(server: TestServer) {
    let alice = server.human("agent").await;
    let approve = json!({"decisions": [{"type": "approve"}]});
    let refused = alice.tries_to_resume(approve.clone()).await.refused(409);
    assert!(refused.contains("has no open interrupt"), "{refused}");
    assert!(refused.contains("Send `input`"), "{refused}");
    let before = alice.says("hello").await;
    for answer in [approve.clone(), json!("yes")] {
        alice.tries_to_resume(answer).await.refused(409);
    }
    assert_eq!(alice.runs().await.len(), 1);
    assert_eq!(alice.status().await.as_str(), "idle");
    assert_eq!(alice.state().await["values"], before);

    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    alice.resumes(approve.clone()).await.finishes().await;
    alice.tries_to_resume(approve).await.refused(409);
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn an_answer_with_an_assistant_that_cannot_go_on_says_so(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    // This assistant asks for no approvals, so it has nothing that could take the answer.
    let answer = json!({"assistant_id": "plain", "command": {"resume": {"decisions": [{"type": "approve"}]}}});
    let failed = alice.client().post(&alice.path("/runs/wait"), answer).await.ok();
    assert_eq!(failed["__error__"]["error"], "DefinitionChangedError", "{failed}");
    let text = failed["__error__"]["message"].as_str().expect("a text");
    assert!(text.contains("with the assistant"), "{text}");
    assert!(server.tools.calls_of("send_email").is_empty());
}

async fn a_run_continues_from_a_breakpoint_without_an_answer(server: TestServer) {
    let alice = server.human("agent").await;
    let stops = alice.run_body(
        script().calls(lookup("c1", "x")).says("found"),
        json!({"interrupt_before": ["tools"]}),
    );
    alice.starts(stops).await.finishes().await;
    assert_eq!(alice.status().await.as_str(), "interrupted");
    assert_eq!(alice.questions().await, vec![]);
    let refused = alice.tries_to_resume(json!("go on")).await.refused(409);
    assert!(refused.contains("null to continue"), "{refused}");
    alice.starts(json!({"input": null})).await.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: found");
}

async fn a_run_that_answers_nothing_reports_the_interrupt_again(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    for mut body in [json!({"input": null}), json!({"command": {"resume": {}}})] {
        body["assistant_id"] = json!("agent");
        body["stream_mode"] = json!("updates");
        let stream = alice.client().post_stream(&alice.path("/runs/stream"), body).await;
        let frames = stream.rest().await;
        let mut asked = frames.iter().filter_map(|frame| frame.data.get("__interrupt__"));
        assert_eq!(asked.next().expect("the interrupt")[0]["id"], question.id());
        assert_eq!(asked.next(), None);
        assert_eq!(alice.question().await, question);
    }
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}

async fn a_call_that_needs_no_approval_raises_no_interrupt(server: TestServer) {
    let alice = server.human("agent").await;
    let failing = call("f1", "fail", json!({"why": "on purpose"}));
    alice
        .says(script().calls_all([lookup("c1", "x"), failing]).says("done"))
        .await;
    assert_eq!(alice.questions().await, vec![]);
    assert_eq!(alice.status().await.as_str(), "idle");
}
