//! Interrupts of branches: a question waits where it was asked, also after the thread was continued from elsewhere.

use serde_json::{Value, json};

use crate::support::client::Reply;
use crate::support::viewer::{Viewer, data, is_terminal};
use crate::support::{Human, TestServer, approval, call, eventually, lookup, mail, on_both_engines, script, task};

on_both_engines! {
    an_approval_continues_the_branch_on_which_it_was_asked,
    an_answer_by_id_continues_its_branch,
    an_answer_without_an_id_is_not_for_a_left_branch,
    a_subagent_of_a_left_branch_is_answered,
    two_questions_of_a_left_branch_are_answered_one_after_the_other,
    two_questions_of_a_left_branch_are_answered_together,
    a_question_that_was_withdrawn_is_not_answered_on_its_branch,
    new_input_on_one_branch_leaves_the_question_of_another,
    an_answer_on_a_branch_can_be_undone,
    an_answer_on_a_branch_survives_a_kill,
    a_question_of_a_left_branch_refuses_no_message,
    a_question_of_a_left_branch_holds_up_no_queued_message,
    a_message_waits_for_what_is_asked_when_a_left_branch_goes_on,
    the_thread_lists_what_can_be_answered_on_its_newest_branch,
    the_tasks_of_a_step_on_another_branch_have_one_id_in_streams_and_states,
    a_run_that_finds_nothing_to_do_at_an_older_checkpoint_leaves_the_status_of_the_thread,
}

/// An agent that asks about each call by itself.
pub(super) const APART: &str = "[agents.apart]\nmodel = \"scripted:lab\"\nsystem_prompt = \"x\"\n\
    tools = [\"send_email\", \"lookup\"]\ninterrupt_on = { send_email = true }\ninterrupt_mode = \"per_call\"";

/// An agent that takes no message while it asks.
const STRICT: &str = "[agents.strict]\nmodel = \"scripted:lab\"\nsystem_prompt = \"x\"\n\
    tools = [\"lookup\", \"slow\", \"send_email\"]\ninterrupt_on = { send_email = true }\non_pending_interrupt = \"reject\"";

/// Has a run wait for an answer, and then edits the first message, so that the thread leaves the branch of that run. Returns
/// the checkpoint at which the run waits.
pub(super) async fn leaves_a_branch(alice: &Human, text: impl ToString) -> Value {
    alice.says(text).await;
    let place = alice.state().await["checkpoint"].clone();
    let first = alice.history().await.pop().expect("a checkpoint");
    let edited = alice.run_body("edited", json!({"checkpoint": first["checkpoint"]}));
    alice.starts(edited).await.finishes().await;
    assert_eq!(alice.transcript().await, ["human: edited", "ai: echo: edited"]);
    assert_eq!(alice.status().await, "idle");
    place
}

/// Answers at a checkpoint, as user interfaces do that show its branch.
async fn answers_at(alice: &Human, place: &Value, answer: Value) -> Reply {
    let body = alice.run_body(
        "",
        json!({"input": null, "checkpoint": place, "command": {"resume": answer}}),
    );
    alice.client().post(&alice.path("/runs/wait"), body).await
}

async fn state_at(alice: &Human, place: &Value) -> Value {
    let id = place["checkpoint_id"].as_str().expect("an id");
    alice.client().get(&alice.path(&format!("/state/{id}"))).await.ok()
}

async fn an_approval_continues_the_branch_on_which_it_was_asked(server: TestServer) {
    let alice = server.human("agent").await;
    let place = leaves_a_branch(&alice, script().calls(mail("m1", "bob")).says("sent")).await;
    let other = alice.state().await["checkpoint"].clone();
    assert_eq!(
        state_at(&alice, &place).await["interrupts"].as_array().unwrap().len(),
        1
    );
    answers_at(&alice, &place, approval()).await.ok();
    assert_eq!(server.tools.recipients(), ["bob"]);
    assert_eq!(alice.status().await, "idle");
    assert!(alice.questions().await.is_empty());
    let said = [
        "human: …",
        "ai calls send_email",
        "send_email: sent to bob: hi",
        "ai: sent",
    ];
    assert_eq!(alice.transcript().await, said);
    let history = alice.history().await;
    let branch = history
        .iter()
        .find(|state| state["parent_checkpoint_id"] == place["checkpoint_id"])
        .expect("a branch");
    assert_eq!(branch["metadata"]["source"], "fork");
    assert_eq!(state_at(&alice, &place).await["interrupts"], json!([]));
    let left = state_at(&alice, &other).await["values"]["messages"].clone();
    assert_eq!(left.as_array().unwrap().len(), 2, "the other branch is as it was");
    answers_at(&alice, &place, approval()).await.refused(409);
    assert_eq!(server.tools.recipients(), ["bob"], "nothing is done twice");
}

async fn an_answer_by_id_continues_its_branch(server: TestServer) {
    let text = || script().calls(mail("m1", "bob")).says("sent");
    let alice = server.human("agent").await;
    let place = leaves_a_branch(&alice, text()).await;
    let by_id = json!({alice.question().await.id(): approval()});
    answers_at(&alice, &place, by_id.clone()).await.ok();
    assert_eq!(server.tools.recipients().len(), 1);
    assert!(answers_at(&alice, &place, by_id).await.status >= 400);
    let alice = server.human("agent").await;
    leaves_a_branch(&alice, text()).await;
    alice.approves(&alice.question().await).await.finishes().await;
    assert_eq!(server.tools.recipients().len(), 2);
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
    let alice = server.human("agent").await;
    leaves_a_branch(&alice, text()).await;
    let resolved = alice.resolves(&alice.question().await, approval()).await.ok();
    alice.run(&resolved).finishes().await;
    assert_eq!(server.tools.recipients().len(), 3);
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}

async fn an_answer_without_an_id_is_not_for_a_left_branch(server: TestServer) {
    let alice = server.human("agent").await;
    leaves_a_branch(&alice, script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    alice.tries_to_resume(approval()).await.refused(409);
    assert_eq!(alice.question().await, question);
    // A question on the newest branch is not confused with that of the other.
    alice.says(script().calls(mail("m2", "eve")).says("done")).await;
    alice.resumes(approval()).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["eve"]);
    assert_eq!(alice.question().await, question);
}

async fn a_subagent_of_a_left_branch_is_answered(server: TestServer) {
    let alice = server.human("agent").await;
    let inner = script()
        .calls(mail("m1", "bob"))
        .calls(mail("m2", "eve"))
        .says("sent by child");
    let place = leaves_a_branch(&alice, script().calls(task("t1", "mailer", inner)).says("done")).await;
    let question = alice.question().await;
    assert_eq!(question.agent(), "mailer");
    answers_at(&alice, &place, approval()).await.ok();
    assert_eq!(server.tools.recipients(), ["bob"]);
    // The next question waits at the newest checkpoint, and is shown there.
    let next = alice.question().await;
    assert_ne!(next.id(), question.id());
    let state = alice.state().await;
    assert_eq!(state["interrupts"][0]["id"], next.id());
    assert_eq!(alice.status().await, "interrupted");
    answers_at(&alice, &place, approval()).await.refused(409);
    alice.resumes(approval()).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["bob", "eve"]);
    let said = ["human: …", "ai calls task", "task: sent by child", "ai: done"];
    assert_eq!(alice.transcript().await, said);
}

async fn two_questions_of_a_left_branch_are_answered_one_after_the_other(server: TestServer) {
    server.is_configured_with(APART).await;
    let alice = server.human("apart").await;
    let text = script().calls_all([mail("m1", "ann"), mail("m2", "bob")]).says("both");
    let place = leaves_a_branch(&alice, text).await;
    let questions = alice.questions().await;
    let [first, second] = questions.as_slice() else {
        panic!("not two questions: {questions:#?}")
    };
    let answer = |id: &str| json!({id: {"type": "approve"}});
    answers_at(&alice, &place, answer(first.id())).await.ok();
    assert_eq!(server.tools.recipients(), ["ann"]);
    assert_eq!(alice.status().await, "interrupted");
    assert_eq!(alice.question().await.id(), second.id());
    assert_eq!(alice.state().await["interrupts"][0]["id"], second.id());
    // It waits where the step was carried on, and no more where it was asked.
    assert!(answers_at(&alice, &place, answer(second.id())).await.status >= 400);
    let newest = alice.state().await["checkpoint"].clone();
    answers_at(&alice, &newest, answer(second.id())).await.ok();
    assert_eq!(server.tools.recipients(), ["ann", "bob"]);
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: both");
    assert_eq!(alice.status().await, "idle");
}

async fn two_questions_of_a_left_branch_are_answered_together(server: TestServer) {
    server.is_configured_with(APART).await;
    let alice = server.human("apart").await;
    let text = script().calls_all([mail("m1", "ann"), mail("m2", "bob")]).says("both");
    let place = leaves_a_branch(&alice, text).await;
    let decisions = json!([{"type": "reject", "message": "no"}, {"type": "approve"}]);
    answers_at(&alice, &place, decisions).await.ok();
    assert_eq!(server.tools.recipients(), ["bob"]);
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: both");
    assert!(alice.questions().await.is_empty());
}

async fn a_question_that_was_withdrawn_is_not_answered_on_its_branch(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let place = alice.state().await["checkpoint"].clone();
    alice.says("never mind").await;
    answers_at(&alice, &place, approval()).await.refused(409);
    assert!(server.tools.recipients().is_empty());
    // Without an answer the step is run again, and the call is asked about anew.
    alice
        .starts(json!({"input": null, "checkpoint": place}))
        .await
        .finishes()
        .await;
    alice.approves(&alice.question().await).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["bob"]);
}

async fn new_input_on_one_branch_leaves_the_question_of_another(server: TestServer) {
    let alice = server.human("agent").await;
    let place = leaves_a_branch(&alice, script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    alice.says(script().calls(mail("m2", "eve")).says("sent")).await;
    assert_eq!(alice.questions().await.len(), 2);
    alice.says("never mind").await;
    assert_eq!(alice.question().await, question);
    answers_at(&alice, &place, approval()).await.ok();
    assert_eq!(server.tools.recipients(), ["bob"]);
}

async fn an_answer_on_a_branch_can_be_undone(server: TestServer) {
    let alice = server.human("agent").await;
    let place = leaves_a_branch(&alice, script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let before = alice.state().await;
    server.tools.hold("send_email");
    let body = json!({"command": {"resume": approval()}, "checkpoint": place});
    let run = alice.starts(body).await;
    server.tools.called("send_email", 1).await;
    assert_eq!(run.is_cancelled("rollback").await.status, 200);
    server.tools.let_go("send_email");
    assert_eq!(alice.state().await["checkpoint_id"], before["checkpoint_id"]);
    assert_eq!(alice.question().await.id(), question.id());
    assert_eq!(state_at(&alice, &place).await["interrupts"][0]["id"], question.id());
    answers_at(&alice, &place, approval()).await.ok();
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}

async fn an_answer_on_a_branch_survives_a_kill(server: TestServer) {
    server.moves_into_a_process().await;
    let alice = server.human("agent").await;
    let place = leaves_a_branch(&alice, script().calls(mail("m1", "bob")).says("sent")).await;
    server.is_killed_and_started_again().await;
    server.tools.hold("send_email");
    let body = json!({"command": {"resume": approval()}, "checkpoint": place});
    let run = alice.starts(body).await;
    server.tools.called("send_email", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("send_email");
    run.finishes().await;
    // The approval stands; what is asked is what became of the call.
    let question = alice.question().await;
    assert_eq!(question.0["kind"], "unknown_outcome");
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
    let keys = server.tools.keys_of("send_email");
    assert_eq!(keys.len(), 2);
    assert_eq!(&keys[0], &keys[1], "the same call, with the same key");
}

/// Has a question wait on a branch that its thread has left. Returns the user who has asked, and one of the strict agent
/// on the same thread.
async fn leaves_a_question(server: &TestServer, text: impl ToString) -> (Human, Human) {
    server.is_configured_with(STRICT).await;
    let alice = server.human("agent").await;
    leaves_a_branch(&alice, text).await;
    let strict = Human::at(server.client(), "strict", &alice.thread);
    (alice, strict)
}

async fn a_question_of_a_left_branch_refuses_no_message(server: TestServer) {
    let text = script().calls(mail("m1", "bob")).says("sent");
    let (alice, strict) = leaves_a_question(&server, text).await;
    let question = alice.question().await;
    strict.says("hello").await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: echo: hello");
    assert_eq!(alice.status().await, "idle");
    // On the newest branch a question refuses messages.
    strict.says(script().calls(mail("m2", "eve")).says("sent")).await;
    let refused = strict.run_body("forget it", json!({"multitask_strategy": "reject"}));
    strict.client().post(&strict.path("/runs"), refused).await.refused(409);
    assert_eq!(alice.questions().await.len(), 2);
    strict.resumes(approval()).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["eve"]);
    assert_eq!(alice.question().await, question);
}

async fn a_question_of_a_left_branch_holds_up_no_queued_message(server: TestServer) {
    let text = script().calls(mail("m1", "bob")).says("sent");
    let (alice, strict) = leaves_a_question(&server, text).await;
    let question = alice.question().await;
    server.tools.hold("lookup");
    let first = strict.asks(script().calls(lookup("c1", "x")).says("first")).await;
    server.tools.called("lookup", 1).await;
    let second = strict.asks("second").await;
    let third = strict.asks("third").await;
    server.tools.let_go("lookup");
    first.finishes().await;
    for message in [second, third] {
        eventually(async || message.status().await == "success").await;
    }
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: echo: third");
    assert_eq!(alice.status().await, "idle");
    assert_eq!(alice.question().await, question);
    // Nothing is queued, so the thread is not busy.
    let body = strict.run_body("fourth", json!({"multitask_strategy": "reject"}));
    strict.starts(body).await.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: echo: fourth");
}

async fn a_message_waits_for_what_is_asked_when_a_left_branch_goes_on(server: TestServer) {
    let text = script()
        .calls(mail("m1", "bob"))
        .calls(mail("m2", "eve"))
        .says("both are sent");
    let (alice, strict) = leaves_a_question(&server, text).await;
    let question = alice.question().await;
    for tool in ["lookup", "slow"] {
        server.tools.hold(tool);
    }
    strict.asks(script().calls(lookup("c1", "x")).says("first")).await;
    server.tools.called("lookup", 1).await;
    strict
        .asks(script().calls(call("s1", "slow", json!({}))).says("second"))
        .await;
    let message = strict.asks("third").await;
    server.tools.let_go("lookup");
    // The second message has begun: the question on the left branch is in nobody's way.
    server.tools.called("slow", 1).await;
    let answer = alice.approves(&question).await;
    server.tools.let_go("slow");
    answer.finishes().await;
    let next = alice.question().await;
    assert_ne!(next, question);
    assert_eq!(message.status().await, "pending");
    assert_eq!(alice.status().await, "interrupted");
    alice.approves(&next).await.finishes().await;
    message.finishes().await;
    assert_eq!(server.tools.recipients(), ["bob", "eve"]);
    let said = alice.transcript().await;
    assert_eq!(said[said.len() - 2..], ["human: third", "ai: echo: third"], "{said:#?}");
}

async fn the_thread_lists_what_can_be_answered_on_its_newest_branch(server: TestServer) {
    let alice = server.human("agent").await;
    let inner = script()
        .calls(mail("m1", "bob"))
        .calls(mail("m2", "eve"))
        .says("sent by child");
    let place = leaves_a_branch(&alice, script().calls(task("t1", "mailer", inner)).says("done")).await;
    let question = alice.question().await;
    let listed = async || {
        let found = json!({"ids": [alice.thread], "select": ["interrupts"]});
        let found = alice.client().post("/threads/search", found).await.ok();
        let record = alice.record().await;
        assert_eq!(record["interrupts"], found[0]["interrupts"]);
        record["interrupts"].clone()
    };
    assert_eq!(listed().await, json!({}), "nothing waits on the newest branch");
    assert_eq!(alice.state().await["interrupts"], json!([]));
    let newest = alice.runs().await[0].clone();
    let joined = alice.run(&newest).finishes().await;
    assert_eq!(
        joined["__interrupt__"],
        Value::Null,
        "the run does not wait: {joined:#}"
    );
    alice.says(script().calls(mail("m3", "ann")).says("sent")).await;
    let state = alice.state().await;
    let [task] = state["tasks"].as_array().unwrap().as_slice() else {
        panic!("not one task: {state:#}")
    };
    assert_eq!(
        listed().await,
        json!({task["id"].as_str().unwrap(): state["interrupts"]})
    );
    assert_eq!(alice.questions().await.len(), 2, "the other question is pending, too");
    answers_at(&alice, &place, approval()).await.ok();
    let next = alice.state().await["interrupts"].clone();
    assert_ne!(next[0]["id"], question.id());
    let lists: Vec<Value> = listed().await.as_object().unwrap().values().cloned().collect();
    assert_eq!(lists, [next]);
}

async fn the_tasks_of_a_step_on_another_branch_have_one_id_in_streams_and_states(server: TestServer) {
    server.is_configured_with(APART).await;
    let alice = server.human("apart").await;
    let text = script().calls_all([mail("m1", "ann"), mail("m2", "bob")]).says("both");
    let place = leaves_a_branch(&alice, text).await;
    let ids_of = |tasks: &Value| -> Vec<Value> {
        let tasks = tasks.as_array().unwrap().iter();
        tasks.map(|task| task["id"].clone()).collect()
    };
    let tasks = ids_of(&state_at(&alice, &place).await["tasks"]);
    assert_eq!(tasks.len(), 2);
    let answer = json!([{"type": "approve"}, {"type": "approve"}]);
    let more = json!({"checkpoint": place, "stream_mode": ["tasks", "debug"]});
    let frames = alice.streams_resume(answer, more).await.rest().await;
    let mut in_tasks = vec![];
    let mut in_debug = vec![];
    for frame in &frames {
        let (record, seen) = match frame.event.as_str() {
            "tasks" => (&frame.data, &mut in_tasks),
            "debug" if frame.data["type"] != "checkpoint" => (&frame.data["payload"], &mut in_debug),
            _ => continue,
        };
        if record["name"] == "tools" && !seen.contains(&record["id"]) {
            seen.push(record["id"].clone());
        }
    }
    assert_eq!(in_tasks, tasks);
    assert_eq!(in_debug, tasks);
    let history = alice.history().await;
    let branch = history
        .iter()
        .find(|state| state["parent_checkpoint_id"] == place["checkpoint_id"])
        .expect("a branch");
    assert_eq!(ids_of(&branch["tasks"]), tasks);
    let shown = frames.iter().find(|frame| {
        frame.event == "debug" && frame.data["payload"]["checkpoint"]["checkpoint_id"] == branch["checkpoint_id"]
    });
    assert_eq!(ids_of(&shown.expect("its checkpoint").data["payload"]["tasks"]), tasks);
    // The stream of the thread has the same.
    let frames = Viewer::of(&server, &alice.thread).replays(3).await;
    let ends: Vec<usize> = (0..frames.len()).filter(|at| is_terminal(&frames[*at])).collect();
    let of_answer = frames[ends[1]..]
        .iter()
        .filter(|frame| frame.event == "tasks")
        .map(data);
    let mut in_thread = vec![];
    for record in of_answer.filter(|record| record["name"] == "tools") {
        if !in_thread.contains(&record["id"]) {
            in_thread.push(record["id"].clone());
        }
    }
    assert_eq!(in_thread, tasks);
}

async fn a_run_that_finds_nothing_to_do_at_an_older_checkpoint_leaves_the_status_of_the_thread(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("one").await;
    let ended = alice.state().await["checkpoint"].clone();
    let goes_on_there = || alice.run_body("", json!({"input": null, "checkpoint": ended}));
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    alice.starts(goes_on_there()).await.finishes().await;
    assert_eq!(alice.state().await["interrupts"][0]["id"], question.id());
    assert_eq!(alice.status().await, "interrupted");
    alice.approves(&question).await.finishes().await;
    assert_eq!(server.tools.recipients(), ["bob"]);
    assert_eq!(alice.status().await, "idle");
    alice.says(script().fails(400)).await;
    let failed = alice.record().await;
    assert_eq!(failed["status"], "error");
    alice.starts(goes_on_there()).await.finishes().await;
    let left = alice.record().await;
    assert_eq!((&left["status"], &left["error"]), (&failed["status"], &failed["error"]));
}
