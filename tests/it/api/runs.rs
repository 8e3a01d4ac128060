//! Runs: started, waited for, joined, cancelled, listed, deleted.

use std::time::Duration;

use adjutant::domain::time::{Clock, ManualClock, SystemClock};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::actors::Question;
use crate::support::{Human, TestServer, lookup, mail, on_both_engines, on_postgres, script, task, transcript};

on_both_engines! {
    a_background_run_goes_from_pending_to_success,
    a_wait_returns_the_values_and_the_location_of_the_run,
    the_turns_of_a_conversation_follow_each_other,
    enqueued_runs_wait_for_their_turn,
    a_delayed_run_begins_when_its_time_has_come,
    a_busy_thread_rejects_a_run_with_the_strategy_reject,
    a_cancelled_run_is_interrupted_and_its_work_stays,
    the_readers_of_a_cancelled_run_get_what_it_wrote_and_no_error,
    whoever_waits_for_a_run_that_is_cancelled_gets_what_it_wrote,
    joining_a_cancelled_run_later_returns_the_values_of_the_thread,
    a_displaced_run_ends_its_stream_without_an_error,
    a_rollback_removes_the_run_and_its_changes,
    a_rolled_back_answer_leaves_the_interrupt_pending,
    a_rolled_back_answer_of_a_subagent_leaves_nothing,
    a_rolled_back_turn_restores_the_interrupt_before_it,
    a_run_with_subagents_is_rolled_back_with_them,
    the_strategies_interrupt_and_rollback_stop_the_run_at_work_and_no_queued_one,
    an_answer_goes_before_messages_that_are_queued,
    an_accepted_answer_survives_a_message_with_the_strategy_interrupt,
    the_answers_of_a_cancelled_pending_run_are_withdrawn,
    a_pending_run_can_be_cancelled,
    a_queued_run_that_is_cancelled_leaves_the_error_of_the_run_before_it,
    a_finished_run_cannot_be_cancelled,
    runs_are_listed_newest_first_without_those_of_subagents,
    a_deleted_run_is_not_found,
    a_failed_run_returns_its_error_with_status_200,
    an_unknown_agent_or_thread_is_refused_before_anything_is_stored,
}

on_postgres! {
    another_server_can_stream_and_cancel_a_run,
}

async fn a_background_run_goes_from_pending_to_success(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let text = script().calls(lookup("c1", "x")).says("done");
    let reply = client
        .post(
            &alice.path("/runs"),
            alice.run_body(&text, json!({"metadata": {"k": "v"}})),
        )
        .await;
    let location = reply.header("content-location").unwrap().to_owned();
    let record = reply.ok();
    let run = alice.run(&record);
    assert_eq!(location, run.path);
    assert!(
        record["status"] == "pending" || record["status"] == "running",
        "{record}"
    );
    assert_eq!(&record["thread_id"], &json!(alice.thread));
    assert_eq!(&record["metadata"]["k"], &json!("v"));
    assert_eq!(alice.status().await.as_str(), "busy");
    assert_eq!(run.status().await.as_str(), "running");
    server.tools.let_go("lookup");
    assert_eq!(
        transcript(&run.finishes().await),
        ["human: …", "ai calls lookup", "lookup: found x", "ai: done"]
    );
    assert_eq!(alice.status().await.as_str(), "idle");
    assert_eq!(run.status().await.as_str(), "success");
}

async fn a_wait_returns_the_values_and_the_location_of_the_run(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let reply = client
        .post(&alice.path("/runs/wait"), alice.run_body("hello", json!({})))
        .await;
    let run = alice.run(&alice.runs().await[0]);
    assert_eq!(reply.header("content-location"), Some(run.path.as_str()));
    assert_eq!(reply.header("location"), Some(format!("{}/join", run.path).as_str()));
    let values = reply.ok();
    assert_eq!(transcript(&values), ["human: hello", "ai: echo: hello"]);
    assert_eq!(run.finishes().await, values);
}

async fn the_turns_of_a_conversation_follow_each_other(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("one").await;
    let values = alice.says("two").await;
    assert_eq!(
        transcript(&values),
        ["human: one", "ai: echo: one", "human: two", "ai: echo: two"]
    );
}

async fn enqueued_runs_wait_for_their_turn(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let first = alice.asks(script().calls(lookup("c1", "x")).says("first")).await;
    server.tools.called("lookup", 1).await;
    let second = alice.asks("second").await;
    let third = alice.asks("third").await;
    assert_eq!(second.status().await.as_str(), "pending");
    assert_eq!(third.status().await.as_str(), "pending");
    server.tools.let_go("lookup");
    third.finishes().await;
    assert_eq!(first.status().await, "success");
    assert_eq!(second.status().await, "success");
    let said = [
        "human: …",
        "ai calls lookup",
        "lookup: found x",
        "ai: first",
        "human: second",
        "ai: echo: second",
        "human: third",
        "ai: echo: third",
    ];
    assert_eq!(alice.transcript().await, said);
}

async fn a_delayed_run_begins_when_its_time_has_come(server: TestServer) {
    let clock = ManualClock::starting_at(SystemClock.now());
    server.uses_clock(&clock).await;
    let alice = server.human("agent").await;
    let later = alice
        .starts(alice.run_body("later", json!({"after_seconds": 3600})))
        .await;
    clock.advance(Duration::from_secs(3_599));
    assert_eq!(later.status().await, "pending");
    clock.advance(Duration::from_secs(1));
    later.finishes().await;
    assert_eq!(alice.transcript().await, ["human: later", "ai: echo: later"]);
}

async fn a_busy_thread_rejects_a_run_with_the_strategy_reject(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let first = alice.asks(script().calls(lookup("c1", "x")).says("first")).await;
    server.tools.called("lookup", 1).await;
    let body = alice.run_body("second", json!({"multitask_strategy": "reject"}));
    for door in ["/runs", "/runs/wait", "/runs/stream"] {
        let detail = client.post(&alice.path(door), body.clone()).await.refused(409);
        assert!(detail.starts_with("Thread is already running a task."), "{detail}");
    }
    server.tools.let_go("lookup");
    first.finishes().await;
    assert_eq!(alice.transcript().await.len(), 4);
    client.post(&alice.path("/runs/wait"), body).await.ok();
}

async fn a_cancelled_run_is_interrupted_and_its_work_stays(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let run = alice.asks(script().calls(lookup("c1", "x")).says("never")).await;
    server.tools.called("lookup", 1).await;
    assert_eq!(run.is_cancelled("interrupt").await.status, 200);
    assert_eq!(run.status().await, "interrupted");
    assert_eq!(alice.transcript().await, ["human: …", "ai calls lookup"]);
    let thread = alice.record().await;
    assert_eq!(&thread["status"], &json!("interrupted"));
    assert_eq!(&thread["error"]["error"], &json!("UserInterrupt"));
    server.tools.let_go("lookup");
    let said = transcript(&alice.says("go on").await);
    assert!(
        said[2].starts_with("lookup failed: Tool call lookup with id c1 did not complete"),
        "{said:?}"
    );
    assert_eq!(said[3..], ["human: go on", "ai: echo: go on"]);
}

async fn the_readers_of_a_cancelled_run_get_what_it_wrote_and_no_error(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let text = script().calls(lookup("c1", "x")).says("never");
    let stream = alice.streams(&text, json!({"stream_mode": "values"})).await;
    let run = alice.run_of_id(&stream.run_id());
    server.tools.called("lookup", 1).await;
    run.is_cancelled("interrupt").await.ok();
    server.tools.let_go("lookup");
    let frames = stream.rest().await;
    assert!(frames.iter().all(|frame| frame.event != "error"), "{frames:#?}");
    let written = ["human: …", "ai calls lookup"];
    assert_eq!(transcript(&frames.last().unwrap().data), written);
    assert_eq!(transcript(&run.finishes().await), written);
    assert_eq!(alice.record().await["error"]["error"], "UserInterrupt");
}

async fn whoever_waits_for_a_run_that_is_cancelled_gets_what_it_wrote(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let text = script().calls(lookup("c1", "x")).says("never");
    let cancels = async {
        server.tools.called("lookup", 1).await;
        alice.run(&alice.runs().await[0]).is_cancelled("interrupt").await.ok();
    };
    let values = tokio::join!(alice.says(&text), cancels).0;
    server.tools.let_go("lookup");
    assert_eq!(transcript(&values), ["human: …", "ai calls lookup"]);
}

async fn joining_a_cancelled_run_later_returns_the_values_of_the_thread(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let run = alice.asks(script().calls(lookup("c1", "x")).says("never")).await;
    server.tools.called("lookup", 1).await;
    run.is_cancelled("interrupt").await.ok();
    server.tools.let_go("lookup");
    alice.says("go on").await;
    assert_eq!(transcript(&run.finishes().await), alice.transcript().await);
}

async fn a_displaced_run_ends_its_stream_without_an_error(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let text = script().calls(lookup("c1", "x")).says("never");
    let stream = alice.streams(&text, json!({"stream_mode": "values"})).await;
    let first = alice.run_of_id(&stream.run_id());
    server.tools.called("lookup", 1).await;
    let second = alice.run_body("second", json!({"multitask_strategy": "interrupt"}));
    let second = alice.starts(second).await;
    let frames = stream.rest().await;
    server.tools.let_go("lookup");
    assert!(frames.iter().all(|frame| frame.event != "error"), "{frames:#?}");
    let written = ["human: …", "ai calls lookup"];
    assert_eq!(transcript(&frames.last().unwrap().data), written);
    second.finishes().await;
    let said = transcript(&first.finishes().await);
    assert_eq!(said.last().unwrap(), "ai: echo: second", "{said:?}");
}

async fn a_rollback_removes_the_run_and_its_changes(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("before").await;
    server.tools.hold("lookup");
    let run = alice.asks(script().calls(lookup("c1", "x")).says("never")).await;
    server.tools.called("lookup", 1).await;
    assert_eq!(run.is_cancelled("rollback").await.status, 200);
    server.tools.let_go("lookup");
    assert_eq!(client.get(&run.path).await.status, 404);
    assert_eq!(alice.transcript().await, ["human: before", "ai: echo: before"]);
    assert_eq!(alice.status().await, "idle");
}

async fn a_rolled_back_answer_leaves_the_interrupt_pending(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let text = script().calls_all([mail("m1", "bob"), lookup("c1", "x")]).says("done");
    alice.says(&text).await;
    let question = alice.question().await;
    let before = alice.record().await;
    let state = alice.state().await;
    server.tools.hold("lookup");
    let run = alice.resumes(json!({"decisions": [{"type": "approve"}]})).await;
    server.tools.called("lookup", 1).await;
    run.is_cancelled("rollback").await.ok();
    assert_eq!(client.get(&run.path).await.status, 404);
    assert_eq!(alice.question().await, question);
    let after = alice.record().await;
    let again = alice.state().await;
    for field in ["status", "interrupts", "values"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    for field in ["values", "next", "tasks", "checkpoint", "interrupts"] {
        assert_eq!(again[field], state[field], "{field}");
    }
    server.tools.let_go("lookup");
    alice
        .resumes(json!({"decisions": [{"type": "reject", "message": "no"}]}))
        .await
        .finishes()
        .await;
    let said = alice.transcript().await;
    assert_eq!(said.last().unwrap(), "ai: done", "{said:?}");
    assert!(
        said.contains(&"send_email failed: User rejected the tool call for `send_email` with reason: no".to_owned())
    );
}

async fn a_rolled_back_answer_of_a_subagent_leaves_nothing(server: TestServer) {
    let alice = server.human("agent").await;
    let inner = script().calls(mail("m1", "bob")).calls(lookup("c1", "x")).says("sent");
    let text = script().calls(task("t1", "mailer", inner)).says("done");
    let first = alice.asks(&text).await;
    first.finishes().await;
    let question = alice.question().await;
    let children = first.children().await;
    for _ in 0..2 {
        server.tools.hold("lookup");
        let calls = server.tools.calls_of("lookup").len();
        let run = alice.resumes(json!({"decisions": [{"type": "approve"}]})).await;
        server.tools.called("lookup", calls + 1).await;
        run.is_cancelled("rollback").await.ok();
        server.tools.let_go("lookup");
        assert_eq!(alice.question().await, question);
        assert_eq!(alice.status().await, "interrupted");
        let statuses = |children: &[Value]| children.iter().map(|child| child["status"].clone()).collect::<Vec<_>>();
        assert_eq!(statuses(&first.children().await), statuses(&children));
    }
    alice
        .resumes(json!({"decisions": [{"type": "approve"}]}))
        .await
        .finishes()
        .await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", "task: sent", "ai: done"]
    );
}

async fn a_rolled_back_turn_restores_the_interrupt_before_it(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    server.tools.hold("lookup");
    let run = alice.asks(script().calls(lookup("c1", "x")).says("never")).await;
    server.tools.called("lookup", 1).await;
    assert_eq!(alice.record().await["interrupts"], json!({}));
    run.is_cancelled("rollback").await.ok();
    server.tools.let_go("lookup");
    assert_eq!(alice.question().await, question);
    alice
        .resumes(json!({"decisions": [{"type": "approve"}]}))
        .await
        .finishes()
        .await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}

async fn a_run_with_subagents_is_rolled_back_with_them(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("before").await;
    server.tools.hold("lookup");
    let inner = script().calls(lookup("c1", "x")).says("found");
    let run = alice
        .asks(script().calls(task("t1", "researcher", inner)).says("never"))
        .await;
    server.tools.called("lookup", 1).await;
    let child = run.children().await[0]["run_id"].as_str().unwrap().to_owned();
    run.is_cancelled("rollback").await.ok();
    server.tools.let_go("lookup");
    for gone in [&run.id, &child] {
        assert_eq!(client.get(&alice.path(&format!("/runs/{gone}"))).await.status, 404);
    }
    assert_eq!(alice.transcript().await, ["human: before", "ai: echo: before"]);
    assert_eq!(alice.record().await["error"]["error"], "UserRollback");
}

async fn the_strategies_interrupt_and_rollback_stop_the_run_at_work_and_no_queued_one(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    for (strategy, status) in [("interrupt", 200), ("rollback", 404)] {
        server.tools.hold("lookup");
        let calls = server.tools.calls_of("lookup").len();
        let first = alice.asks(script().calls(lookup("c1", "x")).says("never")).await;
        server.tools.called("lookup", calls + 1).await;
        let waiting = alice.asks("waiting").await;
        let second = alice
            .starts(alice.run_body("second", json!({"multitask_strategy": strategy})))
            .await;
        second.finishes().await;
        server.tools.let_go("lookup");
        assert_eq!(client.get(&first.path).await.status, status, "{strategy}");
        assert_eq!(waiting.status().await, "success", "{strategy}");
        assert_eq!(second.status().await.as_str(), "success");
        assert_eq!(alice.status().await.as_str(), "idle");
    }
    let said = alice.transcript().await;
    assert!(said[2].starts_with("lookup failed: "), "{said:?}");
    assert_eq!(said[..2], ["human: …", "ai calls lookup"]);
    let turns = [
        "human: waiting",
        "ai: echo: waiting",
        "human: second",
        "ai: echo: second",
    ];
    assert_eq!(said[3..], [turns, turns].concat());
}

/// Lets two mailers ask, and returns their questions, of which the first comes from the agent that looks up something
/// after its mail.
async fn two_questions(alice: &Human) -> [Question; 2] {
    let slow = script()
        .calls(mail("m1", "ann"))
        .calls(lookup("c1", "x"))
        .says("ann knows");
    let quick = script().calls(mail("m2", "bob")).says("bob knows");
    let text = script()
        .calls_all([task("t1", "mailer", slow), task("t2", "mailer", quick)])
        .says("all done");
    alice.says(text).await;
    let mut questions = alice.questions().await;
    questions.sort_by_key(|question| question.0["task_call_id"].to_string());
    questions.try_into().expect("two questions")
}

const BOTH_SENT: [&str; 5] = [
    "human: …",
    "ai calls task, task",
    "task: ann knows",
    "task: bob knows",
    "ai: all done",
];

async fn an_answer_goes_before_messages_that_are_queued(server: TestServer) {
    let alice = server.human("agent").await;
    let [ann, bob] = two_questions(&alice).await;
    server.tools.hold("lookup");
    let first = alice.approves(&ann).await;
    server.tools.called("lookup", 1).await;
    let message = alice.asks("and now?").await;
    alice
        .resolves(&bob, json!({"decisions": [{"type": "approve"}]}))
        .await
        .ok();
    server.tools.let_go("lookup");
    message.finishes().await;
    assert_eq!(first.status().await, "success");
    assert_eq!(server.tools.calls_of("send_email").len(), 2);
    let said = alice.transcript().await;
    assert_eq!(said[..5], BOTH_SENT);
    assert_eq!(said[5..], ["human: and now?", "ai: echo: and now?"]);
}

async fn an_accepted_answer_survives_a_message_with_the_strategy_interrupt(server: TestServer) {
    let alice = server.human("agent").await;
    let [ann, bob] = two_questions(&alice).await;
    server.tools.hold("lookup");
    alice.approves(&ann).await;
    server.tools.called("lookup", 1).await;
    let answer = alice.approves(&bob).await;
    let message = alice
        .starts(alice.run_body("stop it", json!({"multitask_strategy": "interrupt"})))
        .await;
    server.tools.let_go("lookup");
    message.finishes().await;
    assert_eq!(answer.status().await, "success");
    assert_eq!(server.tools.calls_of("send_email").len(), 2);
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: echo: stop it");
}

async fn the_answers_of_a_cancelled_pending_run_are_withdrawn(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let body = json!({"command": {"resume": {"decisions": [{"type": "approve"}]}}, "after_seconds": 3600});
    let later = alice.starts(body).await;
    assert_eq!(alice.status().await, "busy");
    later.is_cancelled("interrupt").await.ok();
    assert_eq!(alice.question().await, question);
    assert_eq!(alice.status().await.as_str(), "interrupted");
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
    alice
        .resumes(json!({"decisions": [{"type": "approve"}]}))
        .await
        .finishes()
        .await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}

async fn another_server_can_stream_and_cancel_a_run(server: TestServer) {
    let other = server.starts_twin().await;
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let more = json!({"stream_mode": ["values"], "stream_resumable": true});
    let text = script().calls(lookup("c1", "x")).says("done");
    let run = alice.starts(alice.run_body(text, more)).await;
    server.tools.called("lookup", 1).await;
    let path = format!("{}/stream", run.path);
    let joined = other.client.get_stream(&path, Some("-1")).await;
    let stopped = other
        .client
        .post(&format!("{}/cancel?wait=true", run.path), json!({}))
        .await;
    assert_eq!(stopped.status, 200);
    assert_eq!(run.status().await.as_str(), "interrupted");
    let frames = joined.rest().await;
    assert!(frames.iter().all(|frame| frame.event != "error"), "{frames:#?}");
    let written = ["human: …", "ai calls lookup"];
    assert_eq!(transcript(&frames.last().unwrap().data), written);
    server.tools.let_go("lookup");
    other.stops().await;
}

async fn a_pending_run_can_be_cancelled(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let first = alice.asks(script().calls(lookup("c1", "x")).says("first")).await;
    server.tools.called("lookup", 1).await;
    let second = alice.asks("second").await;
    second.is_cancelled("interrupt").await.ok();
    assert_eq!(second.status().await, "interrupted");
    server.tools.let_go("lookup");
    first.finishes().await;
    assert_eq!(alice.status().await, "idle");
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: first");
}

async fn a_queued_run_that_is_cancelled_leaves_the_error_of_the_run_before_it(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let first = alice.asks(script().calls(lookup("c1", "x")).says("never")).await;
    server.tools.called("lookup", 1).await;
    first.is_cancelled("interrupt").await.ok();
    server.tools.let_go("lookup");
    let error = alice.record().await["error"].clone();
    let tasks = alice.state().await["tasks"].clone();
    assert_eq!(error["error"], "UserInterrupt");
    assert!(tasks[0]["error"].is_string(), "{tasks}");
    let later = alice
        .starts(alice.run_body("later", json!({"after_seconds": 3600})))
        .await;
    later.is_cancelled("interrupt").await.ok();
    let thread = alice.record().await;
    assert_eq!((&thread["status"], &thread["error"]), (&json!("interrupted"), &error));
    assert_eq!(alice.state().await["tasks"], tasks);
}

async fn a_finished_run_cannot_be_cancelled(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("hello").await;
    let run = alice.run(&alice.runs().await[0]);
    assert_eq!(run.is_cancelled("interrupt").await.status, 404);
    let nowhere = alice.path(&format!("/runs/{}/cancel", Uuid::new_v4()));
    assert_eq!(client.post(&nowhere, json!({})).await.status, 404);
}

async fn runs_are_listed_newest_first_without_those_of_subagents(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let delegation = task("t1", "researcher", script().says("found"));
    let first = alice.asks(script().calls(delegation).says("done")).await;
    first.finishes().await;
    let second = alice.asks("two").await;
    second.finishes().await;
    let ids = |runs: &[Value]| {
        runs.iter()
            .map(|run| run["run_id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&alice.runs().await), [second.id.clone(), first.id.clone()]);
    let one = client.get(&alice.path("/runs?limit=1&offset=1")).await.ok();
    assert_eq!(ids(one.as_array().unwrap()), [first.id]);
    assert_eq!(client.get(&alice.path("/runs?status=error")).await.ok(), json!([]));
}

async fn a_deleted_run_is_not_found(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("hello").await;
    let run = alice.run(&alice.runs().await[0]);
    assert_eq!(client.delete(&run.path).await.status, 204);
    assert_eq!(client.get(&run.path).await.status, 404);
    assert_eq!(client.delete(&run.path).await.status, 404);
    assert_eq!(alice.runs().await, Vec::<Value>::new());
}

async fn a_failed_run_returns_its_error_with_status_200(server: TestServer) {
    let alice = server.human("agent").await;
    let values = alice.says(script().fails(400)).await;
    let error = values["__error__"].clone();
    assert!(error["error"].is_string(), "{values}");
    assert!(error["message"].is_string(), "{values}");
    let run = alice.run(&alice.runs().await[0]);
    assert_eq!(run.status().await, "error");
    let thread = alice.record().await;
    assert_eq!(&thread["status"], &json!("error"));
    assert_eq!(&thread["error"], &error);
    assert_eq!(run.finishes().await, json!({"__error__": error}));
    let state = alice.state().await;
    assert_eq!(state["next"], json!(["model"]));
    assert!(state["tasks"][0]["error"].is_string(), "{state}");
    assert_eq!(
        transcript(&alice.says("again").await).last().unwrap(),
        "ai: echo: again"
    );
}

async fn an_unknown_agent_or_thread_is_refused_before_anything_is_stored(server: TestServer) {
    let client = server.client();
    let alice = server.human("nobody").await;
    for door in ["/runs", "/runs/wait", "/runs/stream"] {
        let reply = client.post(&alice.path(door), alice.run_body("hello", json!({}))).await;
        assert!(reply.refused(422).contains("nobody"));
    }
    assert_eq!(alice.runs().await, Vec::<Value>::new());
    let body = alice.run_body("hello", json!({"assistant_id": "agent"}));
    let elsewhere = format!("/threads/{}/runs", Uuid::new_v4());
    assert_eq!(client.post(&elsewhere, body.clone()).await.status, 404);
    let made = alice.run_body("hello", json!({"assistant_id": "agent", "if_not_exists": "create"}));
    client.post(&format!("{elsewhere}/wait"), made).await.ok();
    let wrong = alice.run_body("hello", json!({"assistant_id": "agent", "stream_mode": "telepathy"}));
    assert_eq!(client.post(&alice.path("/runs"), wrong).await.status, 422);
}
