//! Deleted runs: which may be deleted, what stays of them, and what happens to those that are at work.

use serde_json::{Value, json};

use crate::support::actors::{Human, Run};
use crate::support::client::Reply;
use crate::support::sse::Frame;
use crate::support::viewer::{Viewer, data};
use crate::support::{
    TestServer, approval, eventually, lookup, mail, on_both_engines, on_postgres, script, task, transcript,
};

/// Has a mailer ask whether it may send an email, after which it looks something up.
fn careful() -> Value {
    let below = script().calls(mail("m1", "bob")).calls(lookup("l1", "x")).says("sent");
    task("t1", "mailer", below)
}

/// Starts a run that delegates to a mailer, which waits for an answer.
async fn a_mailer_waits(server: &TestServer) -> (Human, Run) {
    let alice = server.human("agent").await;
    let run = alice.asks(script().calls(careful()).says("done")).await;
    run.finishes().await;
    (alice, run)
}

/// Starts a run with a researcher, which works with a tool that does not answer.
async fn a_researcher_works(server: &TestServer) -> (Human, Run) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let research = task("t1", "researcher", script().calls(lookup("l1", "x")).says("found"));
    let text = script().calls(research).says("done");
    let run = alice
        .starts(alice.run_body(text, json!({"stream_resumable": true})))
        .await;
    server.tools.called("lookup", 1).await;
    (alice, run)
}

/// Checks that the deletion of a run is refused, with a text that names this run or interrupt.
fn is_refused(reply: Reply, named: &str) {
    assert_eq!(&reply.body["code"], &json!("run_unfinished"), "{reply:?}");
    let detail = reply.refused(409);
    assert!(detail.contains(named), "{detail}");
}

on_both_engines! {
    a_run_whose_question_is_open_is_not_deleted,
    a_run_whose_subagent_waits_is_not_deleted,
    a_run_is_not_deleted_while_another_continues_its_subagent,
    a_run_at_work_whose_subagent_waits_is_not_stopped_by_its_deletion,
    a_run_whose_question_was_withdrawn_is_deleted,
    a_run_whose_work_is_over_is_deleted_with_its_subagents,
    a_thread_continues_from_the_subagent_of_a_deleted_run,
    streams_leave_out_the_work_of_a_subagent_whose_run_was_deleted,
    the_same_answer_after_the_run_that_asked_was_deleted_returns_the_same_run,
    a_waiting_run_is_deleted_while_another_is_at_work,
}

on_postgres! {
    the_thread_of_a_run_that_another_server_deletes_is_free,
    the_streams_of_a_run_that_another_server_deletes_end,
    the_next_run_begins_when_another_server_deletes_the_one_at_work,
    a_server_stops_its_work_on_a_run_that_another_one_deletes,
}

async fn a_run_whose_question_is_open_is_not_deleted(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let run = alice.run(&alice.runs().await[0]);
    let question = alice.question().await;
    is_refused(client.delete(&run.path).await, question.id());
    assert_eq!(run.status().await, "success");
    assert_eq!(alice.question().await, question);
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
    assert_eq!(client.delete(&run.path).await.status, 204);
}

async fn a_run_whose_subagent_waits_is_not_deleted(server: TestServer) {
    let client = server.client();
    let (alice, run) = a_mailer_waits(&server).await;
    let question = alice.question().await;
    is_refused(client.delete(&run.path).await, question.id());
    alice
        .resolves(&question, json!({"decisions": [{"type": "approve"}]}))
        .await
        .ok();
    eventually(async || alice.status().await == "idle").await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", "task: sent", "ai: done"]
    );
}

async fn a_run_is_not_deleted_while_another_continues_its_subagent(server: TestServer) {
    let client = server.client();
    let (alice, run) = a_mailer_waits(&server).await;
    server.tools.hold("lookup");
    let second = alice.approves(&alice.question().await).await;
    is_refused(client.delete(&run.path).await, &second.id);
    server.tools.called("lookup", 1).await;
    is_refused(client.delete(&run.path).await, &second.id);
    server.tools.let_go("lookup");
    second.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
    assert_eq!(client.delete(&run.path).await.status, 204);
}

async fn a_run_at_work_whose_subagent_waits_is_not_stopped_by_its_deletion(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let research = task("t2", "researcher", script().calls(lookup("l2", "y")).says("found"));
    let asks = task("t1", "mailer", script().calls(mail("m1", "bob")).says("sent"));
    let run = alice.asks(script().calls_all([asks, research]).says("done")).await;
    server.tools.called("lookup", 1).await;
    eventually(async || !alice.questions().await.is_empty()).await;
    let question = alice.question().await;
    is_refused(client.delete(&run.path).await, question.id());
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(run.status().await, "success");
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
}

async fn a_run_whose_question_was_withdrawn_is_deleted(server: TestServer) {
    let client = server.client();
    let (alice, run) = a_mailer_waits(&server).await;
    alice.says("never mind").await;
    assert_eq!(client.delete(&run.path).await.status, 204);
    assert_eq!(client.get(&run.path).await.status, 404);
    assert_eq!(
        transcript(&alice.says("hello").await).last().unwrap(),
        "ai: echo: hello"
    );
}

async fn a_run_whose_work_is_over_is_deleted_with_its_subagents(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let research = task("t1", "researcher", script().says("found"));
    let run = alice.asks(script().calls(research).says("done")).await;
    run.finishes().await;
    let child = alice.run(&run.children().await[0]);
    assert_eq!(client.delete(&run.path).await.status, 204);
    assert_eq!(client.get(&run.path).await.status, 404);
    assert_eq!(client.get(&child.path).await.status, 404);
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
}

async fn a_thread_continues_from_the_subagent_of_a_deleted_run(server: TestServer) {
    let client = server.client();
    let (alice, run) = a_researcher_works(&server).await;
    let child = alice.run(&run.children().await[0]);
    assert_eq!(client.delete(&run.path).await.status, 204);
    assert_eq!(client.get(&run.path).await.status, 404);
    assert_eq!(alice.status().await, "interrupted");
    assert_eq!(child.status().await, "interrupted");
    server.tools.let_go("lookup");
    alice.starts(json!({"input": null})).await.finishes().await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", "task: found", "ai: done"]
    );
}

async fn streams_leave_out_the_work_of_a_subagent_whose_run_was_deleted(server: TestServer) {
    let (alice, run) = a_mailer_waits(&server).await;
    let more = json!({"stream_mode": ["values"], "stream_resumable": true});
    alice.streams_resume(approval(), more).await.rest().await;
    let next = alice.run(&alice.runs().await[0]);
    assert_eq!(server.client().delete(&run.path).await.status, 204);
    let ids = |values: &Value| -> Vec<String> {
        let messages = values["messages"].as_array().expect("messages");
        messages.iter().map(|message| message["id"].to_string()).collect()
    };
    let newest = ids(&alice.state().await["values"]);

    let frames = next.is_joined(Some("-1")).await.rest().await;
    let last = frames.iter().rfind(|frame| frame.event == "values").expect("a state");
    assert_eq!(ids(&last.data), newest);
    let frames = Viewer::of(&server, &alice.thread).replays(1).await;
    let is_of_main_agent = |frame: &Frame| frame.data["params"]["agent_path"] == json!(["main-agent"]);
    assert!(frames.iter().all(is_of_main_agent), "{frames:#?}");
    let states: Vec<Vec<String>> = frames
        .iter()
        .filter(|frame| frame.event == "values")
        .map(|frame| ids(data(frame)))
        .collect();
    assert!(states.iter().all(|state| newest.starts_with(state)), "{states:?}");
    assert_eq!(states.last(), Some(&newest));
}

async fn the_same_answer_after_the_run_that_asked_was_deleted_returns_the_same_run(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let asked = alice.run(&alice.runs().await[0]);
    let question = alice.question().await;
    let approve = json!({"decisions": [{"type": "approve"}]});
    let first = alice.resolves(&question, approve.clone()).await.ok();
    alice.run(&first).finishes().await;
    assert_eq!(client.delete(&asked.path).await.status, 204);
    let again = alice.resolves(&question, approve).await.ok();
    assert_eq!(again["run_id"], first["run_id"]);
}

async fn a_waiting_run_is_deleted_while_another_is_at_work(server: TestServer) {
    let client = server.client();
    let (alice, first) = a_researcher_works(&server).await;
    let second = alice.asks("second").await;
    assert_eq!(client.delete(&second.path).await.status, 204);
    assert_eq!(first.status().await, "running");
    assert_eq!(alice.status().await, "busy");
    server.tools.let_go("lookup");
    first.finishes().await;
    assert_eq!(alice.status().await, "idle");
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
}

async fn the_thread_of_a_run_that_another_server_deletes_is_free(server: TestServer) {
    let other = server.starts_twin().await;
    let (alice, run) = a_researcher_works(&server).await;
    assert_eq!(other.client.delete(&run.path).await.status, 204);
    assert_eq!(alice.runs().await, Vec::<Value>::new());
    let thread = alice.record().await;
    assert_eq!(&thread["status"], &json!("interrupted"));
    assert_eq!(&thread["error"]["error"], &json!("UserInterrupt"));
    server.tools.let_go("lookup");
    assert_eq!(
        transcript(&alice.says("hello").await).last().unwrap(),
        "ai: echo: hello"
    );
    assert_eq!(alice.status().await, "idle");
    other.stops().await;
}

async fn the_streams_of_a_run_that_another_server_deletes_end(server: TestServer) {
    let other = server.starts_twin().await;
    let (_, run) = a_researcher_works(&server).await;
    let path = format!("{}/stream", run.path);
    let here = server.client().get_stream(&path, Some("-1")).await;
    let there = other.client.get_stream(&path, Some("-1")).await;
    assert_eq!(other.client.delete(&run.path).await.status, 204);
    for stream in [here, there] {
        let frames = stream.rest().await;
        assert!(!frames.is_empty(), "the stream has begun");
        assert!(frames.iter().all(|frame| frame.event != "error"), "{frames:#?}");
    }
    server.tools.let_go("lookup");
    other.stops().await;
}

async fn the_next_run_begins_when_another_server_deletes_the_one_at_work(server: TestServer) {
    let other = server.starts_twin().await;
    let (alice, run) = a_researcher_works(&server).await;
    let next = alice.asks("next").await;
    assert_eq!(other.client.delete(&run.path).await.status, 204);
    next.finishes().await;
    assert_eq!(next.status().await, "success");
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: echo: next");
    server.tools.let_go("lookup");
    other.stops().await;
}

async fn a_server_stops_its_work_on_a_run_that_another_one_deletes(server: TestServer) {
    let other = server.starts_twin().await;
    let (alice, run) = a_researcher_works(&server).await;
    assert_eq!(other.client.delete(&run.path).await.status, 204);
    eventually(async || server.tools.hung_up("lookup") == 1).await;
    server.tools.let_go("lookup");
    assert_eq!(alice.transcript().await, ["human: …", "ai calls task"]);
    other.stops().await;
}
