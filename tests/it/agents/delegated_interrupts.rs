//! Interrupts of subagents, several of which may be pending at the same time.

use serde_json::{Map, Value, json};

use crate::support::actors::Question;
use crate::support::sse::Frame;
use crate::support::{Human, TestServer, approval, call, lookup, mail, mailer, on_both_engines, script, task};

/// An agent whose subagents ask, delegate, and have a tool that fails them.
pub(crate) const BRITTLE: &str = r#"
[agents.brittle]
name = "brittle-agent"
model = "scripted:lab"
system_prompt = "You are brittle."
tools = ["send_email", "fail_hard"]
max_subagent_depth = 3
interrupt_on = { send_email = true }

[[agents.brittle.subagents]]
name = "worker"
description = "Works until a tool fails."
system_prompt = "You are the worker."
tools = ["send_email", "fail_hard"]
ask_user = true
"#;

/// Returns the calls of an agent with two subagents: that of `t1` fails while one below it, that of `t3`, waits for a human,
/// and that of `t2` waits, too.
pub(crate) fn one_fails_above_a_question() -> [Value; 2] {
    let mailer = |id: &str, to: &str| script().calls(mail(id, to)).says(&format!("{to} knows"));
    let fails = script().calls_all([task("t3", "worker", mailer("m1", "ann")), fail_hard()]);
    [task("t1", "worker", fails), task("t2", "worker", mailer("m2", "bob"))]
}

fn fail_hard() -> Value {
    call("f1", "fail_hard", json!({"why": "on purpose"}))
}

/// Returns the script of an agent that runs two mailers and a researcher in parallel.
fn two_mailers_and_a_researcher() -> String {
    let research = script().calls(lookup("c1", "x")).says("it is x");
    script()
        .calls_all([
            mailer("t1", "m1", "ann"),
            task("t2", "researcher", research),
            mailer("t3", "m2", "bob"),
        ])
        .says("all done")
        .to_string()
}

/// Returns the two interrupts, the one about ann first.
pub(super) async fn both(human: &Human) -> [Question; 2] {
    let mut questions = human.questions().await;
    questions.sort_by_key(|question| question.0["task_call_id"].to_string());
    questions.try_into().expect("two questions")
}

/// Returns the answer to this interrupt alone.
fn approval_of(question: &Question) -> Value {
    Value::Object(Map::from_iter([(question.id().to_owned(), approval())]))
}

/// Returns the ids of the interrupts that are reported in a mode, for an agent at this depth.
fn reported<'a>(frames: &'a [Frame], mode: &str, depth: usize) -> Vec<&'a str> {
    let frames = frames
        .iter()
        .filter(|frame| frame.mode() == mode && frame.depth() == depth);
    frames.flat_map(|frame| ids(&frame.data)).collect()
}

/// Returns the ids of the interrupts in values, updates, or the end of a task.
fn ids(data: &Value) -> Vec<&str> {
    let lists = [&data["__interrupt__"], &data["interrupts"]];
    let all = lists.into_iter().filter_map(Value::as_array).flatten();
    all.filter_map(|asked| asked["id"].as_str()).collect()
}

const DONE: [&str; 6] = [
    "human: …",
    "ai calls task, task, task",
    "task: ann knows",
    "task: it is x",
    "task: bob knows",
    "ai: all done",
];

on_both_engines! {
    a_subagent_asks_through_the_thread_of_its_parent,
    a_rejection_inside_a_subagent_is_a_result_for_the_subagent_only,
    parallel_subagents_are_answered_together,
    one_of_two_questions_can_be_answered_alone,
    the_run_that_answers_one_of_two_questions_reports_the_other,
    waiting_for_a_run_returns_the_questions_that_stay_open,
    a_question_that_is_answered_meanwhile_is_not_reported,
    a_list_answers_the_questions_in_the_order_in_which_they_were_asked,
    an_ambiguous_answer_is_refused_with_the_ids_of_the_interrupts,
    an_invalid_answer_stores_neither_of_two_answers,
    interrupts_can_be_resolved_one_after_the_other,
    an_interrupt_three_levels_down_is_answered,
    a_new_message_cancels_the_interrupts_of_all_subagents,
    an_interrupt_of_a_subagent_survives_a_kill,
    an_interrupt_of_a_subagent_survives_a_restart,
    a_subagent_that_the_answering_assistant_does_not_have_is_an_error_result,
    a_subagent_that_fails_takes_the_questions_below_it_along,
    a_subagent_that_fails_takes_its_own_questions_along,
}

async fn a_subagent_asks_through_the_thread_of_its_parent(server: TestServer) {
    let alice = server.human("agent").await;
    let text = script()
        .calls(task("t1", "mailer", script().calls(mail("m1", "bob")).says("sent")))
        .says("done");
    let values = alice.says(text).await;
    let state = alice.state().await;
    let question = alice.question().await;
    assert_eq!(values["__interrupt__"][0]["id"], question.id());
    assert_eq!(&state["next"], &json!(["tools"]));
    assert_eq!(&state["interrupts"][0]["id"], &json!(question.id()));
    assert_eq!(question.agent(), "mailer");
    assert_eq!(alice.status().await.as_str(), "interrupted");
    alice.approves(&question).await.finishes().await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", "task: sent", "ai: done"]
    );
}

async fn a_rejection_inside_a_subagent_is_a_result_for_the_subagent_only(server: TestServer) {
    let alice = server.human("agent").await;
    let text = script()
        .calls(task("t1", "mailer", script().calls(mail("m1", "bob")).says("not sent")))
        .says("done");
    alice.says(text).await;
    alice.rejects(&alice.question().await, "no").await.finishes().await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", "task: not sent", "ai: done"]
    );
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
}

async fn parallel_subagents_are_answered_together(server: TestServer) {
    let alice = server.human("agent").await;
    let values = alice.says(two_mailers_and_a_researcher()).await;
    assert_eq!(values["__interrupt__"].as_array().map(Vec::len), Some(2), "{values}");
    let state = alice.state().await;
    assert_eq!(state["next"], json!(["tools", "tools"]));
    assert_eq!(state["interrupts"].as_array().map(Vec::len), Some(2));
    let questions = both(&alice).await;
    assert_ne!(questions[0].id(), questions[1].id());
    let answers: Map<String, Value> = questions.iter().map(|q| (q.id().to_owned(), approval())).collect();
    alice.resumes(Value::Object(answers)).await.finishes().await;
    assert_eq!(alice.transcript().await, DONE);
    assert_eq!(server.tools.keys_of("send_email").len(), 2);
    assert_eq!(server.tools.keys_of("lookup").len(), 1);
}

async fn one_of_two_questions_can_be_answered_alone(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(two_mailers_and_a_researcher()).await;
    let [ann, bob] = both(&alice).await;
    alice.approves(&bob).await.finishes().await;
    assert_eq!(alice.status().await.as_str(), "interrupted");
    assert_eq!(alice.question().await.id(), ann.id());
    assert_eq!(alice.question().await, ann);
    assert_eq!(server.tools.calls_of("send_email")[0]["args"]["to"], "bob");
    alice.resumes(approval()).await.finishes().await;
    assert_eq!(alice.transcript().await, DONE);
    assert_eq!(server.tools.keys_of("send_email").len(), 2);
    assert_eq!(server.tools.keys_of("lookup").len(), 1);
}

async fn the_run_that_answers_one_of_two_questions_reports_the_other(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(two_mailers_and_a_researcher()).await;
    let [ann, bob] = both(&alice).await;
    let modes = ["values", "updates", "tasks"];
    let more = json!({"stream_mode": modes, "stream_subgraphs": true, "stream_resumable": true});
    let stream = alice.streams_resume(approval_of(&bob), more).await;
    let run = alice.run_of_id(&stream.run_id());
    let live = stream.rest().await;
    let again = run.is_joined(Some("-1")).await.rest().await;
    server.is_stopped_and_started_again().await;
    let later = run.is_joined(Some("-1")).await.rest().await;
    for frames in [live, again, later] {
        for mode in modes {
            assert_eq!(reported(&frames, mode, 1), [ann.id()], "{mode}: {frames:#?}");
            assert_eq!(reported(&frames, mode, 0), [ann.id()], "{mode}: {frames:#?}");
        }
    }
    assert_eq!(alice.question().await, ann);
}

async fn waiting_for_a_run_returns_the_questions_that_stay_open(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(two_mailers_and_a_researcher()).await;
    let [ann, bob] = both(&alice).await;
    let waits = async |mut body: Value| {
        body["assistant_id"] = json!("agent");
        alice.client().post(&alice.path("/runs/wait"), body).await.ok()
    };
    for body in [json!({"input": null}), json!({"command": {"resume": {}}})] {
        let values = waits(body).await;
        let open = ids(&values);
        assert_eq!(open.len(), 2, "{values:#}");
        assert!(open.contains(&ann.id()) && open.contains(&bob.id()), "{values:#}");
    }
    let values = waits(json!({"command": {"resume": approval_of(&bob)}})).await;
    assert_eq!(ids(&values), [ann.id()], "{values:#}");
    let values = waits(json!({"command": {"update": {"files": {"/a.txt": "A"}}}})).await;
    assert_eq!(ids(&values), [ann.id()], "{values:#}");
    assert_eq!(values["files"]["/a.txt"]["content"], "A");
}

async fn a_question_that_is_answered_meanwhile_is_not_reported(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(two_mailers_and_a_researcher()).await;
    let [ann, bob] = both(&alice).await;
    server.tools.hold("send_email");
    let stream = alice
        .streams_resume(approval_of(&bob), json!({"stream_mode": "updates"}))
        .await;
    server.tools.called("send_email", 1).await;
    let second = alice.approves(&ann).await;
    server.tools.let_go("send_email");
    let frames = stream.rest().await;
    assert_eq!(reported(&frames, "updates", 0), [""; 0], "{frames:#?}");
    second.finishes().await;
    assert_eq!(alice.transcript().await, DONE);
}

async fn a_list_answers_the_questions_in_the_order_in_which_they_were_asked(server: TestServer) {
    let yes = json!({"type": "approve"});
    let no = json!({"type": "reject", "message": "no"});
    for list in [
        json!([no, yes]),
        json!([{"decisions": [no]}, {"decisions": [yes]}]),
        json!([[no], [yes]]),
    ] {
        let alice = server.human("agent").await;
        alice.says(two_mailers_and_a_researcher()).await;
        let [_, second] = both(&alice).await;
        let before = server.tools.calls_of("send_email").len();
        let wrong = alice.tries_to_resume(json!([yes])).await.refused(422);
        assert!(wrong.contains("a list of 2 decisions"), "{wrong}");
        assert!(wrong.contains("it has 1 entries"), "{wrong}");
        alice.resumes(list).await.finishes().await;
        let sent = server.tools.calls_of("send_email").split_off(before);
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0]["args"]["to"], second.requests()[0]["args"]["to"]);
    }
    // One question is answered by the decisions alone, too.
    let alice = server.human("agent").await;
    let text = script()
        .calls(task("t1", "mailer", script().calls(mail("m1", "bob")).says("sent")))
        .says("done");
    alice.says(text).await;
    alice.resumes(json!([yes])).await.finishes().await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", "task: sent", "ai: done"]
    );
}

async fn an_ambiguous_answer_is_refused_with_the_ids_of_the_interrupts(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(two_mailers_and_a_researcher()).await;
    let questions = both(&alice).await;
    let reply = alice.tries_to_resume(approval()).await;
    assert!(matches!(reply.status, 400..500), "{reply:?}");
    let told = reply.body.to_string();
    assert!(questions.iter().all(|question| told.contains(question.id())), "{told}");
    assert_eq!(both(&alice).await, questions);
    assert_eq!(alice.status().await, "interrupted");
}

async fn an_invalid_answer_stores_neither_of_two_answers(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(two_mailers_and_a_researcher()).await;
    let questions = both(&alice).await;
    let [ann, bob] = &questions;
    let answers = json!({ann.id(): approval(), bob.id(): {"decisions": []}});
    alice.tries_to_resume(answers).await.refused(422);
    assert_eq!(both(&alice).await, questions);
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
}

async fn interrupts_can_be_resolved_one_after_the_other(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(two_mailers_and_a_researcher()).await;
    let [ann, bob] = both(&alice).await;
    let first = alice.resolves(&ann, approval()).await.ok();
    let second = alice.resolves(&bob, approval()).await.ok();
    alice.run(&first).finishes().await;
    alice.run(&second).finishes().await;
    assert_eq!(alice.transcript().await, DONE);
    assert_eq!(server.tools.keys_of("send_email").len(), 2);
}

async fn an_interrupt_three_levels_down_is_answered(server: TestServer) {
    let alice = server.human("deep").await;
    let bottom = script().calls(mail("m1", "bob")).says("sent");
    let middle = script().calls(task("t2", "researcher", bottom)).says("they sent it");
    alice
        .says(script().calls(task("t1", "researcher", middle)).says("done"))
        .await;
    let question = alice.question().await;
    assert_eq!(
        question.0["agent_path"],
        json!(["deep-agent", "researcher", "researcher"])
    );
    assert_eq!(question.0["task_call_id"], "t2");
    alice.approves(&question).await.finishes().await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", "task: they sent it", "ai: done"]
    );
}

async fn a_new_message_cancels_the_interrupts_of_all_subagents(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(two_mailers_and_a_researcher()).await;
    let run = alice.run(&alice.runs().await[0]);
    alice.says("forget it").await;
    assert_eq!(alice.questions().await, vec![]);
    assert_eq!(alice.status().await.as_str(), "idle");
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
    let children = run.children().await;
    assert_eq!(children.len(), 3, "{children:#?}");
    for child in children {
        assert!(child["status"] != "running", "{child}");
        assert!(child["status"] != "pending", "{child}");
    }
    let said = alice.transcript().await;
    assert!(
        said.iter()
            .filter(|line| line.starts_with("task failed: Tool call task"))
            .count()
            >= 2,
        "{said:?}"
    );
    assert_eq!(said.last().unwrap(), "ai: echo: forget it");
}

async fn an_interrupt_of_a_subagent_survives_a_kill(server: TestServer) {
    server.moves_into_a_process().await;
    let alice = server.human("agent").await;
    alice.says(two_mailers_and_a_researcher()).await;
    let questions = both(&alice).await;
    server.is_killed_and_started_again().await;
    assert_eq!(both(&alice).await, questions);
    let [ann, bob] = &questions;
    alice.approves(ann).await.finishes().await;
    server.is_killed_and_started_again().await;
    alice.approves(bob).await.finishes().await;
    assert_eq!(alice.transcript().await, DONE);
    assert_eq!(server.tools.keys_of("send_email").len(), 2);
    assert_eq!(server.tools.keys_of("lookup").len(), 1);
}

async fn an_interrupt_of_a_subagent_survives_a_restart(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(two_mailers_and_a_researcher()).await;
    server.is_stopped_and_started_again().await;
    let answers = both(&alice)
        .await
        .map(|question| (question.id().to_owned(), approval()));
    alice
        .resumes(Value::Object(answers.into_iter().collect()))
        .await
        .finishes()
        .await;
    assert_eq!(alice.transcript().await, DONE);
}

async fn a_subagent_that_the_answering_assistant_does_not_have_is_an_error_result(server: TestServer) {
    let alice = server.human("agent").await;
    let work = script().calls(mail("m1", "bob")).says("sent");
    let run = alice
        .asks(script().calls(task("t1", "mailer", work)).says("done"))
        .await;
    run.finishes().await;
    assert_eq!(alice.questions().await.len(), 1);
    let answer = json!({"assistant_id": "plain", "command": {"resume": approval()}});
    alice.client().post(&alice.path("/runs/wait"), answer).await.ok();
    let failed = "task failed: The subagent `mailer` failed (AgentNotFoundError): There is no subagent `mailer` here. Its \
        other work is kept; delegate again if the task is still needed.";
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", failed, "ai: done"]
    );
    assert_eq!(alice.status().await, "idle");
    let child = alice.run(&run.children().await[0]).record().await;
    assert_eq!(child["error"]["error"], "AgentNotFoundError");
    assert!(server.tools.recipients().is_empty());
}

/// Returns the interrupt of this call, with its events.
async fn asked_for(human: &Human, call: &str) -> Value {
    let list = human.client().get(&human.path("/interrupts?include=audit")).await.ok();
    let all = list["interrupts"].as_array().expect("a list");
    let of_call = |asked: &&Value| asked["task_call_id"] == call;
    all.iter().find(of_call).expect("it was raised").clone()
}

/// Checks that this interrupt was dropped, and cannot be answered.
async fn is_dropped(human: &Human, asked: Value) {
    assert_eq!(asked["status"], "dropped");
    let events: Vec<&Value> = asked["audit"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|event| &event["event"])
        .collect();
    assert_eq!(events, ["raised", "dropped"]);
    let late = human.resolves(&Question(asked), approval()).await;
    assert_eq!(late.status, 409, "{late:?}");
}

async fn a_subagent_that_fails_takes_the_questions_below_it_along(server: TestServer) {
    server.is_configured_with(BRITTLE).await;
    let alice = server.human("brittle").await;
    let text = script().calls_all(one_fails_above_a_question()).says("done");
    let run = alice.asks(text).await;
    run.finishes().await;
    let left = alice.question().await;
    assert_eq!(left.0["task_call_id"], "t2");
    let thread = alice.record().await;
    assert_eq!(thread["status"], "interrupted");
    assert_eq!(thread["interrupts"].as_object().map(Map::len), Some(1));
    assert_eq!(
        alice.state().await["interrupts"].as_array().map(Vec::len),
        Some(1),
        "that of its sibling"
    );
    is_dropped(&alice, asked_for(&alice, "t3").await).await;
    let children = run.children().await;
    let failed = children.iter().find(|child| child["task_call_id"] == "t1");
    let failed = alice.run(failed.expect("a child"));
    assert_eq!(failed.status().await, "error");
    assert_eq!(failed.children().await[0]["status"], "interrupted");
    alice.approves(&left).await.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[2].starts_with("task failed: The subagent `worker` failed"),
        "{said:#?}"
    );
    assert_eq!(said[3..], ["task: bob knows", "ai: done"]);
    assert_eq!(server.tools.recipients(), ["bob"]);
    assert_eq!(alice.status().await, "idle");
}

async fn a_subagent_that_fails_takes_its_own_questions_along(server: TestServer) {
    server.is_configured_with(BRITTLE).await;
    let alice = server.human("brittle").await;
    let question = json!({"questions": [{"question": "Why?", "type": "text"}]});
    let work = script().calls_all([call("q1", "ask_user", question), fail_hard()]);
    alice
        .says(script().calls(task("t1", "worker", work)).says("done"))
        .await;
    is_dropped(&alice, asked_for(&alice, "t1").await).await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
    assert_eq!(alice.status().await, "idle");
}
