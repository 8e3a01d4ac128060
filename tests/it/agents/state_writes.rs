//! Writes into the state of a thread that waits for an answer: what was asked can still be answered, and nothing is done twice.

use serde_json::{Value, json};

use super::branches::{APART, leaves_a_branch};
use crate::support::actors::{Question, Run};
use crate::support::client::Reply;
use crate::support::{Human, TestServer, approval, lookup, mail, on_both_engines, script, task, two_mailers};

on_both_engines! {
    a_question_can_be_answered_after_a_write_into_the_state,
    a_write_that_changes_the_calls_withdraws_the_question,
    a_write_of_a_result_withdraws_the_question_about_the_call,
    a_write_as_another_node_withdraws_the_question,
    a_subagent_that_waits_is_answered_after_a_write,
    a_subagent_that_has_answered_does_not_run_again_after_a_write,
    questions_about_single_calls_outlive_a_write,
    a_question_of_a_left_branch_can_be_answered_after_a_write_there,
    a_write_at_an_older_checkpoint_leaves_the_question_on_its_branch,
    an_answer_goes_on_after_the_write_that_it_names,
    an_answer_at_the_checkpoint_of_the_question_goes_on_after_the_write,
    an_update_by_a_command_keeps_the_question_where_it_is_shown,
    a_call_that_a_command_puts_in_the_place_of_another_is_asked_about_and_made,
    a_subagent_whose_call_a_command_takes_away_is_cancelled_by_its_answer,
    what_waits_below_a_subagent_whose_call_is_taken_away_is_dropped,
    what_waits_below_a_subagent_whose_call_and_definition_are_gone_is_dropped,
    an_answer_after_a_write_can_be_undone,
    a_question_outlives_a_write_and_a_kill,
}

async fn writes(alice: &Human, body: Value) -> Reply {
    alice.client().post(&alice.path("/state"), body).await
}

/// Checks that the state and the thread show just this question, and that the thread waits.
async fn is_shown(alice: &Human, question: &Question) {
    assert_eq!(alice.question().await.id(), question.id());
    let state = alice.state().await;
    assert_eq!(state["interrupts"].as_array().unwrap().len(), 1, "{state:#}");
    assert_eq!(state["interrupts"][0]["id"], question.id());
    let tasks = state["tasks"].as_array().unwrap().iter();
    let shown: Vec<&Value> = tasks.flat_map(|task| task["interrupts"].as_array().unwrap()).collect();
    assert_eq!(shown, [&state["interrupts"][0]]);
    let record = alice.record().await;
    assert_eq!(record["status"], "interrupted");
    let lists: Vec<&Value> = record["interrupts"].as_object().unwrap().values().collect();
    assert_eq!(lists, [&state["interrupts"]]);
}

/// Checks that nothing waits for an answer, and that none is accepted.
async fn is_withdrawn(alice: &Human) {
    assert!(alice.questions().await.is_empty());
    assert_eq!(alice.state().await["interrupts"], json!([]));
    assert_eq!(alice.record().await["interrupts"], json!({}));
    alice.tries_to_resume(approval()).await.refused(409);
}

/// Returns the message with the calls about which `alice` is asked, with these calls instead.
async fn answer_with(alice: &Human, calls: Value) -> Value {
    let state = alice.state().await;
    let messages = state["values"]["messages"].as_array().unwrap();
    let said = messages.last().unwrap()["id"].clone();
    json!({"messages": [{"role": "assistant", "content": "", "id": said, "tool_calls": calls}]})
}

async fn a_question_can_be_answered_after_a_write_into_the_state(server: TestServer) {
    let note = json!({"messages": [{"role": "user", "content": "one more thing"}]});
    let bodies = [
        json!({"values": null}),
        json!({"values": {"topic": "fish"}}),
        json!({"values": {"topic": "fish"}, "as_node": "model"}),
        json!({"values": note}),
    ];
    for (sent, body) in bodies.into_iter().enumerate() {
        let alice = server.human("agent").await;
        alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
        let question = alice.question().await;
        let before = alice.state().await;
        writes(&alice, body.clone()).await.ok();
        let state = alice.state().await;
        assert_eq!(state["next"], json!(["HumanInTheLoopMiddleware.after_model"]), "{body}");
        assert_eq!(state["parent_checkpoint_id"], before["checkpoint_id"]);
        assert_eq!(state["tasks"][0]["id"], before["tasks"][0]["id"], "the same task");
        is_shown(&alice, &question).await;
        // Another write changes nothing about that.
        writes(&alice, json!({"values": {"colour": "red"}})).await.ok();
        is_shown(&alice, &question).await;
        assert_eq!(server.tools.recipients().len(), sent);
        alice.resumes(approval()).await.finishes().await;
        assert_eq!(server.tools.recipients().len(), sent + 1, "{body}");
        let state = alice.state().await;
        assert_eq!(state["next"], json!([]));
        assert_eq!(state["values"]["colour"], "red");
        assert!(alice.questions().await.is_empty());
        assert_eq!(alice.status().await, "idle");
        alice.tries_to_resume(approval()).await.refused(409);
    }
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "eve")).says("sent")).await;
    let question = alice.question().await;
    writes(&alice, json!({"values": {"topic": "fish"}})).await.ok();
    let resolved = alice.resolves(&question, approval()).await.ok();
    alice.run(&resolved).finishes().await;
    assert_eq!(server.tools.recipients().last().unwrap(), "eve");
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}

async fn a_write_that_changes_the_calls_withdraws_the_question(server: TestServer) {
    for (sent, calls) in [
        json!([mail("m1", "eve")]),
        json!([mail("m1", "bob"), mail("m2", "eve")]),
    ]
    .into_iter()
    .enumerate()
    {
        let alice = server.human("agent").await;
        alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
        let question = alice.question().await;
        let values = answer_with(&alice, calls.clone()).await;
        writes(&alice, json!({"values": values})).await.ok();
        is_withdrawn(&alice).await;
        assert!(alice.resolves(&question, approval()).await.status >= 400);
        assert_eq!(
            alice.state().await["next"],
            json!(["HumanInTheLoopMiddleware.after_model"])
        );
        alice.starts(json!({"input": null})).await.finishes().await;
        let asked = alice.question().await;
        let requests = asked.requests().len();
        assert_eq!(requests, calls.as_array().unwrap().len());
        assert_eq!(asked.requests()[requests - 1]["args"]["to"], "eve");
        assert_eq!(server.tools.recipients().len(), sent, "nobody has approved it");
        alice.rejects(&asked, "no").await.finishes().await;
        alice
            .says(script().calls(mail(&format!("m{sent}"), "ann")).says("sent"))
            .await;
        alice.approves(&alice.question().await).await.finishes().await;
    }
    assert_eq!(server.tools.recipients(), ["ann", "ann"]);
}

async fn a_write_of_a_result_withdraws_the_question_about_the_call(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("all right")).await;
    let result = json!({"role": "tool", "tool_call_id": "m1", "name": "send_email", "content": "by hand"});
    writes(&alice, json!({"values": {"messages": [result]}})).await.ok();
    is_withdrawn(&alice).await;
    alice.starts(json!({"input": null})).await.finishes().await;
    let said = [
        "human: …",
        "ai calls send_email",
        "send_email: by hand",
        "ai: all right",
    ];
    assert_eq!(alice.transcript().await, said);
    assert!(server.tools.recipients().is_empty());
}

async fn a_write_as_another_node_withdraws_the_question(server: TestServer) {
    let nodes = [
        ("HumanInTheLoopMiddleware.after_model", "tools"),
        ("tools", "model"),
        ("__start__", "model"),
    ];
    for (node, next) in nodes {
        let alice = server.human("agent").await;
        alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
        writes(&alice, json!({"values": null, "as_node": node})).await.ok();
        is_withdrawn(&alice).await;
        assert_eq!(alice.state().await["next"], json!([next]), "{node}");
    }
    assert!(server.tools.recipients().is_empty());
}

/// Has a subagent write a mail, and waits until it asks about it.
async fn delegates_mail(alice: &Human) -> Run {
    let inner = script().calls(mail("m1", "bob")).says("sent by child");
    let run = alice
        .asks(script().calls(task("t1", "mailer", inner)).says("done"))
        .await;
    run.finishes().await;
    run
}

async fn a_subagent_that_waits_is_answered_after_a_write(server: TestServer) {
    let alice = server.human("agent").await;
    let run = delegates_mail(&alice).await;
    let question = alice.question().await;
    assert_eq!(question.agent(), "mailer");
    let before = alice.state().await;
    writes(&alice, json!({"values": {"topic": "fish"}})).await.ok();
    let state = alice.state().await;
    assert_eq!(state["next"], json!(["tools"]));
    assert_eq!(state["tasks"][0]["id"], before["tasks"][0]["id"]);
    is_shown(&alice, &question).await;
    let below = alice.client().get(&alice.path("/state?subgraphs=true")).await.ok();
    assert_eq!(below["tasks"][0]["state"]["interrupts"], state["interrupts"]);
    let answer = alice.resumes(approval()).await;
    answer.finishes().await;
    assert_eq!(server.tools.recipients(), ["bob"]);
    let said = ["human: …", "ai calls task", "task: sent by child", "ai: done"];
    assert_eq!(alice.transcript().await, said);
    // The subagent has continued; no other one was begun.
    assert_eq!(run.children().await.len(), 1);
    assert_eq!(run.children().await[0]["status"], "success");
    assert!(answer.children().await.is_empty());
}

async fn a_subagent_that_has_answered_does_not_run_again_after_a_write(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls_all(two_mailers()).says("done")).await;
    let questions = alice.questions().await;
    let first = questions
        .iter()
        .find(|question| question.requests()[0]["args"]["to"] == "ann")
        .expect("a question about ann");
    alice.approves(first).await.finishes().await;
    let second = alice.question().await;
    writes(&alice, json!({"values": {"topic": "fish"}})).await.ok();
    is_shown(&alice, &second).await;
    alice.resumes(approval()).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["ann", "bob"]);
    let said = [
        "human: …",
        "ai calls task, task",
        "task: ann knows",
        "task: bob knows",
        "ai: done",
    ];
    assert_eq!(alice.transcript().await, said);
}

async fn questions_about_single_calls_outlive_a_write(server: TestServer) {
    server.is_configured_with(APART).await;
    let alice = server.human("apart").await;
    let calls = [mail("m1", "ann"), mail("m2", "bob"), lookup("l1", "x")];
    alice.says(script().calls_all(calls).says("both")).await;
    assert_eq!(alice.questions().await.len(), 2);
    assert_eq!(
        server.tools.calls_of("lookup").len(),
        1,
        "what needs no approval has run"
    );
    writes(&alice, json!({"values": {"topic": "fish"}})).await.ok();
    assert_eq!(alice.state().await["next"], json!(["tools", "tools"]));
    assert_eq!(alice.state().await["interrupts"].as_array().unwrap().len(), 2);
    let decisions = json!([{"type": "reject", "message": "no"}, {"type": "approve"}]);
    alice.resumes(decisions).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["bob"]);
    assert_eq!(server.tools.calls_of("lookup").len(), 1, "nothing runs twice");
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: both");
}

async fn a_question_of_a_left_branch_can_be_answered_after_a_write_there(server: TestServer) {
    let alice = server.human("agent").await;
    let place = leaves_a_branch(&alice, script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    writes(&alice, json!({"values": {"topic": "fish"}, "checkpoint": place}))
        .await
        .ok();
    is_shown(&alice, &question).await;
    alice.resumes(approval()).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["bob"]);
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
    assert_eq!(alice.state().await["values"]["topic"], "fish");
    let body = alice.run_body(
        "",
        json!({"input": null, "checkpoint": place, "command": {"resume": approval()}}),
    );
    alice.client().post(&alice.path("/runs"), body).await.refused(409);
    assert_eq!(server.tools.recipients(), ["bob"], "nothing is done twice");
}

async fn a_write_at_an_older_checkpoint_leaves_the_question_on_its_branch(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let place = alice.state().await["checkpoint"].clone();
    let older = alice.history().await[1]["checkpoint"].clone();
    writes(&alice, json!({"values": {"topic": "fish"}, "checkpoint": older}))
        .await
        .ok();
    assert_eq!(alice.state().await["interrupts"], json!([]));
    assert_eq!(alice.record().await["interrupts"], json!({}));
    assert_eq!(alice.question().await, question, "it waits on the branch that was left");
    alice.tries_to_resume(approval()).await.refused(409);
    let body = json!({"command": {"resume": approval()}, "checkpoint": place});
    alice.starts(body).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["bob"]);
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}

async fn an_answer_goes_on_after_the_write_that_it_names(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let place = alice.state().await["checkpoint"].clone();
    writes(&alice, json!({"values": {"topic": "fish"}})).await.ok();
    let fish = alice.state().await["checkpoint"].clone();
    let beside = json!({"values": {"topic": "birds"}, "checkpoint": place});
    writes(&alice, beside).await.ok();
    assert_eq!(alice.state().await["values"]["topic"], "birds");
    let body = json!({"command": {"resume": approval()}, "checkpoint": fish});
    alice.starts(body).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["bob"]);
    assert_eq!(alice.state().await["values"]["topic"], "fish");
    assert!(alice.questions().await.is_empty());
}

async fn an_answer_at_the_checkpoint_of_the_question_goes_on_after_the_write(server: TestServer) {
    server.is_configured_with(APART).await;
    let alice = server.human("apart").await;
    let calls = [mail("m1", "ann"), mail("m2", "bob")];
    alice.says(script().calls_all(calls).says("both")).await;
    let place = alice.state().await["checkpoint"].clone();
    let questions = alice.questions().await;
    writes(&alice, json!({"values": {"topic": "fish"}})).await.ok();
    let approves = |question: &Question| json!({(question.id()): {"type": "approve"}});
    alice.resumes(approves(&questions[0])).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["ann"]);
    let body = json!({"command": {"resume": approves(&questions[1])}, "checkpoint": place});
    alice.starts(body).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["ann", "bob"]);
    assert_eq!(alice.state().await["values"]["topic"], "fish");
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: both");
    assert_eq!(alice.status().await, "idle");
}

async fn an_update_by_a_command_keeps_the_question_where_it_is_shown(server: TestServer) {
    let alice = server.human("agent").await;
    let inner = script().calls(mail("m1", "bob")).says("sent by child");
    for text in [
        script().calls(mail("m2", "eve")).says("done"),
        script().calls(task("t1", "mailer", inner)).says("done"),
    ] {
        alice.says(text).await;
        let question = alice.question().await;
        let before = alice.state().await;
        let update = json!({"command": {"update": {"topic": "fish"}}});
        alice.starts(update).await.finishes().await;
        let state = alice.state().await;
        assert_eq!(state["values"]["topic"], "fish");
        assert_eq!(state["tasks"][0]["id"], before["tasks"][0]["id"]);
        is_shown(&alice, &question).await;
        alice.resumes(approval()).await.finishes().await;
        assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
    }
    assert_eq!(server.tools.recipients(), ["eve", "bob"]);
}

async fn a_call_that_a_command_puts_in_the_place_of_another_is_asked_about_and_made(server: TestServer) {
    server.is_configured_with(APART).await;
    let alice = server.human("apart").await;
    let calls = [mail("m1", "bob"), lookup("l1", "fish")];
    alice.says(script().calls_all(calls).says("sent")).await;
    let update = answer_with(&alice, json!([mail("m2", "eve")])).await;
    let approves = json!({"type": "approve"});
    let command = json!({"resume": approves, "update": update});
    alice.starts(json!({"command": command})).await.finishes().await;
    assert_eq!(alice.question().await.0["value"]["args"]["to"], "eve");
    assert!(server.tools.recipients().is_empty(), "nobody has approved it");
    alice.resumes(approves).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["eve"]);
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
    let state = alice.state().await;
    let messages = state["values"]["messages"].as_array().unwrap();
    let results = messages.iter().filter(|message| message["type"] == "tool");
    let answered: Vec<&Value> = results.map(|result| &result["tool_call_id"]).collect();
    assert_eq!(answered, ["m2"], "a result without a call is refused by providers");
}

/// Checks that the last turn went on without the subagent of the call `t1`: nobody waits for it, and it has no result.
async fn goes_on_without_subagent(alice: &Human, run: &Run) {
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
    assert_eq!(alice.status().await, "idle");
    assert!(alice.questions().await.is_empty());
    let child = alice.run(&run.children().await[0]).record().await;
    assert_eq!(child["status"], "interrupted");
    assert_eq!(child["error"]["error"], "UserInterrupt");
    let state = alice.state().await;
    let messages = state["values"]["messages"].as_array().unwrap();
    assert!(messages.iter().all(|message| message["tool_call_id"] != "t1"));
}

async fn a_subagent_whose_call_a_command_takes_away_is_cancelled_by_its_answer(server: TestServer) {
    for (is_one_request, put_in) in [(true, json!([lookup("l1", "fish")])), (false, json!([]))] {
        let alice = server.human("agent").await;
        let run = delegates_mail(&alice).await;
        let question = alice.question().await;
        let update = answer_with(&alice, put_in).await;
        if is_one_request {
            let command = json!({"resume": approval(), "update": update});
            alice.starts(json!({"command": command})).await.finishes().await;
        } else {
            alice
                .starts(json!({"command": {"update": update}}))
                .await
                .finishes()
                .await;
            assert_eq!(
                alice.question().await.id(),
                question.id(),
                "an update withdraws nothing"
            );
            alice.approves(&question).await.finishes().await;
        }
        goes_on_without_subagent(&alice, &run).await;
    }
    assert!(server.tools.recipients().is_empty());
    assert_eq!(server.tools.calls_of("lookup").len(), 1, "the call that was put in");
}

/// Has a run whose subagent delegates two mails, both of which wait for an approval. Returns the run, which has ended.
async fn waits_below_a_subagent(alice: &Human) -> Run {
    let asks = |id: &str, to: &str| script().calls(mail(id, to)).says(&format!("{to} knows"));
    let below = script()
        .calls_all([
            task("t2", "researcher", asks("m1", "ann")),
            task("t3", "researcher", asks("m2", "bob")),
        ])
        .says("both know");
    let run = alice
        .asks(script().calls(task("t1", "researcher", below)).says("done"))
        .await;
    run.finishes().await;
    run
}

async fn what_waits_below_a_subagent_whose_call_is_taken_away_is_dropped(server: TestServer) {
    let alice = server.human("deep").await;
    let run = waits_below_a_subagent(&alice).await;
    let questions = alice.questions().await;
    assert_eq!(questions.len(), 2);
    let update = answer_with(&alice, json!([])).await;
    alice
        .starts(json!({"command": {"update": update}}))
        .await
        .finishes()
        .await;
    alice.approves(&questions[0]).await.finishes().await;
    goes_on_without_subagent(&alice, &run).await;
    assert!(server.tools.recipients().is_empty());
    assert!(alice.resolves(&questions[1], approval()).await.status >= 400);
}

async fn what_waits_below_a_subagent_whose_call_and_definition_are_gone_is_dropped(server: TestServer) {
    let alice = server.human("deep").await;
    let run = waits_below_a_subagent(&alice).await;
    let questions = alice.questions().await;
    let update = answer_with(&alice, json!([])).await;
    // This assistant has no such subagent.
    let answer = json!({questions[0].id(): approval()});
    let body = json!({"assistant_id": "plain", "command": {"resume": answer, "update": update}});
    alice.client().post(&alice.path("/runs/wait"), body).await.ok();
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
    assert_eq!(alice.status().await, "idle");
    assert!(alice.questions().await.is_empty());
    let child = alice.run(&run.children().await[0]).record().await;
    assert_eq!(child["status"], "interrupted");
    assert_eq!(child["error"]["error"], "AgentNotFoundError");
    assert!(server.tools.recipients().is_empty());
}

async fn an_answer_after_a_write_can_be_undone(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    writes(&alice, json!({"values": {"topic": "fish"}})).await.ok();
    let before = alice.state().await;
    server.tools.hold("send_email");
    let run = alice.resumes(approval()).await;
    server.tools.called("send_email", 1).await;
    assert_eq!(run.is_cancelled("rollback").await.status, 200);
    server.tools.let_go("send_email");
    assert_eq!(alice.state().await["checkpoint_id"], before["checkpoint_id"]);
    is_shown(&alice, &question).await;
    alice.resumes(approval()).await.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}

async fn a_question_outlives_a_write_and_a_kill(server: TestServer) {
    server.moves_into_a_process().await;
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    writes(&alice, json!({"values": {"topic": "fish"}})).await.ok();
    server.is_killed_and_started_again().await;
    is_shown(&alice, &question).await;
    alice.resumes(approval()).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["bob"]);
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}
