//! Approvers: who answers an interrupt that is assigned, and that nobody else gets past it.

use std::time::Duration;

use adjutant::domain::time::{Clock, ManualClock, SystemClock, Timestamp};
use serde_json::{Value, json};

use crate::support::actors::Question;
use crate::support::client::{Client, Reply};
use crate::support::{
    Human, Keys, TestServer, approval, call, continuation, eventually, lookup, mail, on_both_engines, script, task,
};

on_both_engines! {
    approvers_see_what_is_assigned_to_them_and_nothing_else,
    pages_of_approvers_contain_what_is_assigned_to_them,
    those_named_and_admins_answer,
    everybody_else_is_refused_whichever_way_they_answer,
    a_program_that_continues_does_not_get_past_an_approver,
    an_approver_is_refused_every_other_part_of_the_thread,
    one_answer_to_several_interrupts_needs_the_right_to_each,
    calls_with_different_approvers_are_asked_about_one_by_one,
    questions_of_one_step_are_listed_in_the_order_of_the_calls,
    the_approvers_of_an_agent_answer_all_its_questions,
    interrupts_of_subagents_are_assigned_too,
    a_write_into_the_state_does_not_get_past_an_approver,
    jumps_and_updates_do_not_get_past_an_approver,
    a_run_from_a_checkpoint_does_not_get_past_an_approver,
    a_question_of_a_left_branch_has_the_same_approvers,
    a_run_that_waited_in_the_queue_does_not_get_past_an_approver,
    a_cron_does_not_get_past_an_approver,
    a_copy_of_the_thread_asks_the_same_approvers,
    the_agent_goes_on_working_in_a_copy_for_whoever_made_it,
    new_input_withdraws_the_question_and_nothing_is_done,
    the_end_of_the_turn_withdraws_the_question_unless_it_brings_values,
    a_cancelled_subagent_withdraws_its_question_and_nothing_is_done,
    approvers_themselves_may_change_the_thread_that_they_own,
    decisions_and_attempts_are_in_the_audit,
    the_agent_goes_on_working_for_its_user,
    an_answer_is_not_refused_for_what_the_approver_stores,
    more_approvers_than_allowed_are_refused,
}

/// Agents whose mails are approved by `bob` and by everybody with the role `approver`.
const AGENTS: &str = "
[agents.guarded]
model = \"scripted:lab\"
system_prompt = \"x\"
tools = [\"lookup\", \"send_email\", \"slow\"]

[agents.guarded.interrupt_on]
send_email = { allowed_decisions = [\"approve\", \"reject\", \"respond\"], approvers = { users = [\"bob\"], roles = [\"approver\"] } }
lookup = { allowed_decisions = [\"approve\"], approvers = { users = [\"eve\"] } }
slow = true

[[agents.guarded.subagents]]
name = \"mailer\"
description = \"Sends mails to whoever should get one.\"
system_prompt = \"x\"

[agents.queued]
model = \"scripted:lab\"
system_prompt = \"x\"
tools = [\"lookup\", \"send_email\"]

[agents.queued.interrupt_on]
send_email = { allowed_decisions = [\"approve\"], approvers = { users = [\"bob\"], roles = [\"approver\"] } }

[agents.supervised]
model = \"scripted:lab\"
system_prompt = \"x\"
tools = [\"lookup\", \"send_email\"]
interrupt_on = { send_email = true, lookup = { allowed_decisions = [\"approve\"], approvers = { users = [\"ann\"] } } }
approvers = { roles = [\"approver\"] }

[agents.panel]
model = \"scripted:lab\"
system_prompt = \"x\"
tools = [\"lookup\", \"send_email\", \"slow\", \"progress\"]

[agents.panel.interrupt_on]
lookup = { allowed_decisions = [\"approve\"], approvers = { users = [\"ann\", \"bob\"] } }
send_email = { allowed_decisions = [\"approve\"], approvers = { users = [\"ann\", \"eve\"] } }
slow = { allowed_decisions = [\"approve\"], approvers = { users = [\"ann\"] } }
progress = { allowed_decisions = [\"approve\"], approvers = { users = [\"ann\"], roles = [\"approver\"] } }

[[agents.panel.subagents]]
name = \"worker\"
description = \"Does all of it.\"
system_prompt = \"x\"
";

async fn protected(server: &TestServer) -> Keys {
    server.is_protected_with("", AGENTS).await
}

/// Returns ann, whose run waits for the approval of a mail.
async fn ann_waits(keys: &Keys) -> Human {
    let ann = Human::on_new_thread(keys.client("ann"), "guarded").await;
    ann.says(script().calls(mail("m1", "bob")).says("sent")).await;
    ann
}

/// Returns the ids of the interrupts that a caller finds.
async fn found(client: &Client, query: &str) -> Vec<String> {
    let found = client.get(&format!("/interrupts{query}")).await.ok();
    let all = found["interrupts"].as_array().expect("a list");
    all.iter()
        .map(|one| one["id"].as_str().expect("an id").to_owned())
        .collect()
}

fn mails(server: &TestServer) -> usize {
    server.tools.calls_of("send_email").len()
}

/// Checks that a request was refused because the question is assigned to others.
fn is_refused_as_assigned(reply: &Reply, question: &Question) {
    assert_eq!(reply.status, 403, "{reply:?}");
    assert_eq!(reply.body["code"], "interrupt_assigned", "{reply:?}");
    let detail = reply.body["detail"].as_str().expect("a text");
    assert!(detail.contains(question.id()), "{detail}");
    assert!(detail.contains("the user `bob`, the role `approver`"), "{detail}");
}

/// Checks that the question is still open, that no mail was sent, and that one is sent after the approval.
async fn is_still_asked(server: &TestServer, keys: &Keys, ann: &Human, question: &Question) {
    assert_eq!(mails(server), 0, "nobody has approved it");
    assert_eq!(ann.question().await.id(), question.id());
    let eve = Human::at(keys.client("eve"), "guarded", &ann.thread);
    let resolved = eve.resolves(question, approval()).await.ok();
    ann.run(&resolved).finishes().await;
    assert_eq!(mails(server), 1);
    assert_eq!(ann.transcript().await.last().unwrap(), "ai: sent");
}

async fn approvers_see_what_is_assigned_to_them_and_nothing_else(server: TestServer) {
    let keys = protected(&server).await;
    let ann = ann_waits(&keys).await;
    let question = ann.question().await;
    let other = Human::on_new_thread(keys.client("ann"), "guarded").await;
    other.says(script().calls(lookup("l1", "x")).says("done")).await;
    let of_eve = other.question().await;
    assert_eq!(found(&keys.client("bob"), "").await, [question.id()]);
    assert_eq!(found(&keys.client("eve"), "").await, [question.id(), of_eve.id()]);
    assert_eq!(found(&keys.client("approver-of-other"), "").await, [""; 0]);
    let eve = keys.client("eve");
    let shown = eve.get(&ann.path(&format!("/interrupts/{}", question.id()))).await.ok();
    assert_eq!(shown["value"]["action_requests"][0]["name"], "send_email");
    assert_eq!(shown["value"]["action_requests"][0]["args"]["to"], "bob");
    assert_eq!(shown["thread_id"], json!(ann.thread));
    assert_eq!(shown["approvers"], json!({"users": ["bob"], "roles": ["approver"]}));
    let bob = Human::at(keys.client("bob"), "guarded", &other.thread);
    bob.client().get(&bob.path("/interrupts")).await.refused(404);
    let path = bob.path(&format!("/interrupts/{}", of_eve.id()));
    bob.client().get(&path).await.refused(404);
    assert_eq!(
        Human::at(keys.client("bob"), "guarded", &ann.thread).questions().await,
        [question]
    );
}

async fn pages_of_approvers_contain_what_is_assigned_to_them(server: TestServer) {
    let keys = protected(&server).await;
    let mut assigned = vec![];
    for number in 0..4 {
        let ann = Human::on_new_thread(keys.client("ann"), "guarded").await;
        let call = if number % 2 == 0 {
            mail("m1", "x")
        } else {
            lookup("l1", "x")
        };
        ann.says(script().calls(call).says("done")).await;
        if number % 2 == 0 {
            assigned.push(ann.question().await.id().to_owned());
        }
    }
    let bob = keys.client("bob");
    assert_eq!(found(&bob, "?limit=1").await, assigned[..1]);
    assert_eq!(found(&bob, "?limit=1&offset=1").await, assigned[1..]);
    assert_eq!(found(&bob, "?limit=1&offset=2").await, [""; 0]);
    assert_eq!(found(&keys.client("operator"), "?limit=100").await.len(), 4);
}

async fn those_named_and_admins_answer(server: TestServer) {
    let keys = protected(&server).await;
    for (number, caller) in ["bob", "eve", "root"].into_iter().enumerate() {
        let ann = ann_waits(&keys).await;
        let question = ann.question().await;
        let approver = Human::at(keys.client(caller), "guarded", &ann.thread);
        let resolved = approver.resolves(&question, approval()).await.ok();
        assert_eq!(resolved["interrupt"]["status"], "resolved");
        ann.run(&resolved).finishes().await;
        assert_eq!(mails(&server), number + 1, "{caller}");
        let again = approver.resolves(&question, approval()).await.ok();
        assert_eq!(again["run_id"], resolved["run_id"]);
    }
}

async fn everybody_else_is_refused_whichever_way_they_answer(server: TestServer) {
    let keys = protected(&server).await;
    let ann = ann_waits(&keys).await;
    let question = ann.question().await;
    for caller in ["ann", "operator"] {
        let human = Human::at(keys.client(caller), "guarded", &ann.thread);
        is_refused_as_assigned(&human.resolves(&question, approval()).await, &question);
        let by_id = json!({question.id(): approval()});
        for answer in [approval(), by_id, json!([{"type": "approve"}])] {
            is_refused_as_assigned(&human.tries_to_resume(answer.clone()).await, &question);
            let body = json!({"assistant_id": "guarded", "command": {"resume": answer}});
            for path in ["/runs/wait", "/runs/stream"] {
                let reply = human.client().post(&human.path(path), body.clone()).await;
                is_refused_as_assigned(&reply, &question);
            }
        }
        for command in [
            json!({"id": 1, "method": "input.respond",
                "params": {"interrupt_id": question.id(), "response": approval()}}),
            // An input of this form counts as an answer.
            json!({"id": 2, "method": "run.start", "params": {"assistant_id": "guarded", "input": approval()}}),
        ] {
            let answer = human.client().post(&human.path("/commands"), command).await.ok();
            let text = answer.to_string();
            assert!(text.contains("403") && text.contains("is assigned to"), "{text}");
        }
    }
    for caller in ["approver-of-other", "root-of-other"] {
        let stranger = Human::at(keys.client(caller), "guarded", &ann.thread);
        let reply = stranger.resolves(&question, approval()).await;
        assert_eq!(reply.status, 404, "{reply:?}");
    }
    is_still_asked(&server, &keys, &ann, &question).await;
    let late = ann.resolves(&question, approval()).await;
    is_refused_as_assigned(&late, &question);
}

async fn a_program_that_continues_does_not_get_past_an_approver(server: TestServer) {
    let keys = protected(&server).await;
    let ann = ann_waits(&keys).await;
    let question = ann.question().await;
    let other = ann_waits(&keys).await;
    let of_other = other.question().await;
    let path = ann.path("/runs/wait");
    let continues = |answers: Value| {
        let config = continuation(&answers);
        json!({"assistant_id": "guarded", "input": {"messages": []}, "config": config})
    };
    let answer = continues(json!({question.id(): approval()}));
    is_refused_as_assigned(&ann.client().post(&path, answer.clone()).await, &question);
    let command = json!({"id": 1, "method": "run.start", "params": answer});
    let refused = ann
        .client()
        .post(&ann.path("/commands"), command)
        .await
        .ok()
        .to_string();
    assert!(
        refused.contains("403") && refused.contains("is assigned to"),
        "{refused}"
    );
    // Without an answer to this question it is asked again.
    for answers in [json!({}), json!({of_other.id(): approval()})] {
        let values = ann.client().post(&path, continues(answers)).await.ok();
        assert_eq!(values["__interrupt__"][0]["id"], question.id());
    }
    assert_eq!(other.question().await.id(), of_other.id());
    is_still_asked(&server, &keys, &ann, &question).await;
}

async fn an_approver_is_refused_every_other_part_of_the_thread(server: TestServer) {
    let keys = protected(&server).await;
    let ann = ann_waits(&keys).await;
    let question = ann.question().await;
    let eve = Human::at(keys.client("eve"), "guarded", &ann.thread);
    for path in ["", "/state", "/history", "/runs", "/stream", "/storage"] {
        let reply = eve.client().get(&eve.path(path)).await;
        assert_eq!(reply.status, 403, "{path}: {reply:?}");
    }
    eve.tries_to_resume(approval()).await.refused(403);
    let searched = eve.client().post("/threads/search", json!({})).await;
    assert_eq!(searched.status, 403, "{searched:?}");
    // A user who is named has a thread of their own at most, and does not get this one.
    let bob = Human::at(keys.client("bob"), "guarded", &ann.thread);
    for path in ["", "/state", "/history", "/runs", "/stream"] {
        let reply = bob.client().get(&bob.path(path)).await;
        assert_eq!(reply.status, 404, "{path}: {reply:?}");
    }
    bob.tries_to_resume(approval()).await.refused(404);
    let respond = json!({"id": 1, "method": "input.respond",
        "params": {"interrupt_id": question.id(), "response": approval()}});
    let answer = bob.client().post(&bob.path("/commands"), respond).await.ok();
    assert!(answer.to_string().contains("404"), "{answer}");
    is_still_asked(&server, &keys, &ann, &question).await;
}

async fn one_answer_to_several_interrupts_needs_the_right_to_each(server: TestServer) {
    let keys = protected(&server).await;
    let ann = Human::on_new_thread(keys.client("ann"), "guarded").await;
    let calls = [mail("m1", "bob"), json!({"id": "s1", "name": "slow", "args": {}})];
    ann.says(script().calls_all(calls).says("sent")).await;
    let questions = ann.questions().await;
    assert_eq!(questions.len(), 2);
    let mail = questions
        .iter()
        .find(|asked| asked.0["approvers"] != json!(null))
        .unwrap();
    let own = questions
        .iter()
        .find(|asked| asked.0["approvers"] == json!(null))
        .unwrap();
    let both = json!({mail.id(): approval(), own.id(): approval()});
    is_refused_as_assigned(&ann.tries_to_resume(both).await, mail);
    assert_eq!(ann.questions().await.len(), 2, "neither answer was stored");
    ann.resumes(json!({own.id(): approval()})).await.finishes().await;
    assert_eq!(
        server.tools.calls_of("slow").len(),
        0,
        "the step waits for all of its questions"
    );
    is_still_asked(&server, &keys, &ann, mail).await;
    assert_eq!(server.tools.calls_of("slow").len(), 1);
}

async fn calls_with_different_approvers_are_asked_about_one_by_one(server: TestServer) {
    let keys = protected(&server).await;
    let ann = Human::on_new_thread(keys.client("ann"), "guarded").await;
    let calls = [mail("m1", "bob"), lookup("l1", "x"), mail("m2", "mia")];
    ann.says(script().calls_all(calls).says("sent")).await;
    let questions = ann.questions().await;
    let names = |asked: &Question| -> Vec<String> {
        let names = asked
            .requests()
            .iter()
            .map(|call| call["tool_call_id"].as_str().unwrap().to_owned());
        names.collect()
    };
    let seen: Vec<_> = questions.iter().map(names).collect();
    assert_eq!(seen, [vec!["m1", "m2"], vec!["l1"]]);
    let bob = Human::at(keys.client("bob"), "guarded", &ann.thread);
    assert_eq!(bob.resolves(&questions[1], approval()).await.status, 404);
    let two = json!({"decisions": [{"type": "approve"}, {"type": "reject"}]});
    let resolved = bob.resolves(&questions[0], two).await.ok();
    ann.run(&resolved).finishes().await;
    assert_eq!(mails(&server), 0, "the step waits for all of its questions");
    let eve = Human::at(keys.client("eve"), "guarded", &ann.thread);
    let resolved = eve.resolves(&questions[1], approval()).await.ok();
    ann.run(&resolved).finishes().await;
    assert_eq!(mails(&server), 1);
    assert_eq!(server.tools.calls_of("lookup").len(), 1);
    assert_eq!(ann.transcript().await.last().unwrap(), "ai: sent");
}

/// Checks that every list of the open interrupts has those of the calls `c0` to `c3` in this order.
async fn are_listed_in_order(ann: &Human, waited: &Value, name: &str) {
    let calls = |all: &Value| -> Vec<String> {
        let all = all.as_array().unwrap_or_else(|| panic!("{name}: {all}"));
        let call = |one: &Value| one["value"]["action_requests"][0]["tool_call_id"].clone();
        all.iter()
            .map(|one| call(one).as_str().expect("an id").to_owned())
            .collect()
    };
    let expected = ["c0", "c1", "c2", "c3"];
    assert_eq!(
        calls(&waited["__interrupt__"]),
        expected,
        "{name}: the answer to the waiting client"
    );
    let of_thread = ann.client().get(&ann.path("/interrupts")).await.ok();
    assert_eq!(
        calls(&of_thread["interrupts"]),
        expected,
        "{name}: the interrupts of the thread"
    );
    let of_all = ann.client().get("/interrupts").await.ok();
    assert_eq!(calls(&of_all["interrupts"]), expected, "{name}: all interrupts");
    let state = ann.state().await;
    assert_eq!(calls(&state["interrupts"]), expected, "{name}: the state");
    assert_eq!(
        calls(&state["tasks"][0]["interrupts"]),
        expected,
        "{name}: the task of the state"
    );
    let history = ann.history().await;
    assert_eq!(calls(&history[0]["interrupts"]), expected, "{name}: the history");
    let thread = ann.record().await;
    let by_task = thread["interrupts"].as_object().expect("interrupts by task");
    assert_eq!(by_task.len(), 1, "{name}: {thread}");
    assert_eq!(
        calls(by_task.values().next().expect("one")),
        expected,
        "{name}: the thread"
    );
}

async fn questions_of_one_step_are_listed_in_the_order_of_the_calls(server: TestServer) {
    let keys = protected(&server).await;
    let tools = ["lookup", "send_email", "slow", "progress"];
    for rotation in 0..4 {
        let ann = Human::on_new_thread(keys.client("ann"), "panel").await;
        let mut order = tools;
        order.rotate_left(rotation);
        let calls: Vec<Value> = order
            .iter()
            .zip(0..)
            .map(|(tool, number)| match *tool {
                "lookup" => lookup(&format!("c{number}"), "x"),
                "send_email" => mail(&format!("c{number}"), "x"),
                other => call(&format!("c{number}"), other, json!({})),
            })
            .collect();
        let direct = script().calls_all(calls);
        let waited = ann.says(direct.clone().says("done")).await;
        are_listed_in_order(&ann, &waited, &format!("{order:?}")).await;
        ann.client().delete(&ann.path("")).await.ok();
        let ann = Human::on_new_thread(keys.client("ann"), "panel").await;
        let delegated = script().calls(task("t1", "worker", direct.says("done"))).says("done");
        let waited = ann.says(delegated).await;
        are_listed_in_order(&ann, &waited, &format!("{order:?}, by a subagent")).await;
        ann.client().delete(&ann.path("")).await.ok();
    }
}

async fn the_approvers_of_an_agent_answer_all_its_questions(server: TestServer) {
    let keys = protected(&server).await;
    let ann = Human::on_new_thread(keys.client("ann"), "supervised").await;
    ann.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = ann.question().await;
    assert_eq!(question.0["approvers"], json!({"users": [], "roles": ["approver"]}));
    ann.resolves(&question, approval()).await.refused(403);
    let eve = Human::at(keys.client("eve"), "supervised", &ann.thread);
    let resolved = eve.resolves(&question, approval()).await.ok();
    ann.run(&resolved).finishes().await;
    ann.says(script().calls(lookup("l1", "x")).says("done")).await;
    let own = ann.question().await;
    assert_eq!(own.0["approvers"], json!({"users": ["ann"], "roles": []}));
    assert_eq!(eve.resolves(&own, approval()).await.status, 404);
    let resolved = ann.resolves(&own, approval()).await.ok();
    ann.run(&resolved).finishes().await;
    assert_eq!(server.tools.calls_of("lookup").len(), 1);
}

async fn interrupts_of_subagents_are_assigned_too(server: TestServer) {
    let keys = protected(&server).await;
    let ann = Human::on_new_thread(keys.client("ann"), "guarded").await;
    let inner = script().calls(mail("m1", "bob")).says("it is sent");
    ann.says(script().calls(task("t1", "mailer", inner)).says("sent")).await;
    let question = ann.question().await;
    assert_eq!(question.agent(), "mailer");
    is_refused_as_assigned(&ann.resolves(&question, approval()).await, &question);
    is_refused_as_assigned(&ann.tries_to_resume(approval()).await, &question);
    let jump = json!({"assistant_id": "guarded", "command": {"goto": "model"}});
    is_refused_as_assigned(&ann.client().post(&ann.path("/runs"), jump).await, &question);
    is_still_asked(&server, &keys, &ann, &question).await;
}

async fn a_write_into_the_state_does_not_get_past_an_approver(server: TestServer) {
    let keys = protected(&server).await;
    let ann = ann_waits(&keys).await;
    let question = ann.question().await;
    let checkpoint = ann.history().await[1]["checkpoint"]["checkpoint_id"].clone();
    let result = json!({"messages": [{"role": "tool", "tool_call_id": "m1", "name": "send_email", "content": "sent"}]});
    for caller in ["ann", "operator"] {
        let human = Human::at(keys.client(caller), "guarded", &ann.thread);
        for body in [
            json!({"values": result, "as_node": "tools"}),
            json!({"values": {"messages": []}, "as_node": "HumanInTheLoopMiddleware.after_model"}),
            json!({"values": null}),
            json!({"values": result, "checkpoint_id": checkpoint}),
        ] {
            let reply = human.client().post(&human.path("/state"), body).await;
            is_refused_as_assigned(&reply, &question);
        }
    }
    let path = format!("/audit?resource=thread:{}/interrupt:{}", ann.thread, question.id());
    let root = keys.client("root");
    let denied = async |user: &str| {
        let entries = root.get(&path).await.ok();
        let all = entries.as_array().expect("a list").clone();
        let is_denial = |entry: &&Value| entry["user"] == user && entry["outcome"] == "denied";
        all.iter().filter(is_denial).count()
    };
    // The refusals are recorded beside the responses.
    eventually(async || [denied("ann").await, denied("operator").await] == [4, 4]).await;
    is_still_asked(&server, &keys, &ann, &question).await;
    let written = ann
        .client()
        .post(&ann.path("/state"), json!({"values": {"messages": []}}))
        .await;
    assert_eq!(written.status, 200, "nothing is open any more: {written:?}");
}

async fn jumps_and_updates_do_not_get_past_an_approver(server: TestServer) {
    let keys = protected(&server).await;
    let ann = ann_waits(&keys).await;
    let question = ann.question().await;
    let result = json!({"messages": [{"role": "tool", "tool_call_id": "m1", "name": "send_email", "content": "sent"}]});
    for command in [
        json!({"goto": "tools"}),
        json!({"goto": "model"}),
        json!({"goto": {"node": "tools", "input": mail("m2", "mia")}}),
        json!({"update": result}),
        json!({"update": result, "goto": "model"}),
        json!({"resume": approval(), "goto": "tools"}),
    ] {
        for path in ["/runs", "/runs/wait", "/runs/stream"] {
            let body = json!({"assistant_id": "guarded", "command": command});
            let reply = ann.client().post(&ann.path(path), body).await;
            is_refused_as_assigned(&reply, &question);
        }
    }
    // Another agent has no approvals of its own, and gets past this one's as little.
    let body = json!({"assistant_id": "agent", "command": {"goto": "tools"}});
    is_refused_as_assigned(&ann.client().post(&ann.path("/runs"), body).await, &question);
    // Without input a run finds the same question.
    let body = json!({"assistant_id": "guarded", "input": null});
    ann.client().post(&ann.path("/runs/wait"), body).await.ok();
    is_still_asked(&server, &keys, &ann, &question).await;
}

async fn a_run_from_a_checkpoint_does_not_get_past_an_approver(server: TestServer) {
    let keys = protected(&server).await;
    let ann = ann_waits(&keys).await;
    let question = ann.question().await;
    let history = ann.history().await;
    assert!(!history.is_empty());
    for place in history {
        let checkpoint = &place["checkpoint"]["checkpoint_id"];
        for body in [
            json!({"assistant_id": "guarded", "checkpoint_id": checkpoint}),
            json!({"assistant_id": "guarded", "checkpoint_id": checkpoint, "command": {"resume": approval()}}),
        ] {
            let reply = ann.client().post(&ann.path("/runs"), body).await;
            is_refused_as_assigned(&reply, &question);
        }
        let start = json!({"id": 1, "method": "run.start", "params": {"assistant_id": "guarded",
            "config": {"configurable": {"checkpoint_id": checkpoint}}}});
        let answer = ann.client().post(&ann.path("/commands"), start).await.ok();
        assert!(answer.to_string().contains("is assigned to"), "{answer}");
    }
    is_still_asked(&server, &keys, &ann, &question).await;
    // After the approval every replay asks again.
    let ends_with_call = |place: &Value| {
        let last = place["values"]["messages"].as_array().and_then(|all| all.last());
        last.is_some_and(|message| message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty()))
    };
    let place = ann.history().await.into_iter().find(ends_with_call).expect("a call");
    let body = json!({"assistant_id": "guarded", "checkpoint_id": place["checkpoint"]["checkpoint_id"]});
    ann.client().post(&ann.path("/runs/wait"), body).await.ok();
    is_refused_as_assigned(
        &ann.resolves(&ann.question().await, approval()).await,
        &ann.question().await,
    );
    assert_eq!(mails(&server), 1);
}

async fn a_question_of_a_left_branch_has_the_same_approvers(server: TestServer) {
    let keys = protected(&server).await;
    // An approver may leave the branch of the question.
    let bob = Human::on_new_thread(keys.client("bob"), "guarded").await;
    bob.says(script().calls(mail("m1", "mia")).says("sent")).await;
    let question = bob.question().await;
    let place = bob.state().await["checkpoint"].clone();
    let first = bob.history().await.pop().expect("a checkpoint");
    bob.starts(bob.run_body("edited", json!({"checkpoint": first["checkpoint"]})))
        .await
        .finishes()
        .await;
    let operator = Human::at(keys.client("operator"), "guarded", &bob.thread);
    is_refused_as_assigned(&operator.resolves(&question, approval()).await, &question);
    let by_id = json!({question.id(): approval()});
    is_refused_as_assigned(&operator.tries_to_resume(by_id.clone()).await, &question);
    for answer in [approval(), by_id] {
        let body = json!({"assistant_id": "guarded", "checkpoint": place, "command": {"resume": answer}});
        is_refused_as_assigned(&operator.client().post(&operator.path("/runs"), body).await, &question);
    }
    assert_eq!(mails(&server), 0);
    let eve = Human::at(keys.client("eve"), "guarded", &bob.thread);
    let resolved = eve.resolves(&question, approval()).await.ok();
    bob.run(&resolved).finishes().await;
    assert_eq!(mails(&server), 1);
    assert_eq!(bob.transcript().await.last().unwrap(), "ai: sent");
}

async fn a_run_that_waited_in_the_queue_does_not_get_past_an_approver(server: TestServer) {
    let keys = protected(&server).await;
    let ann = Human::on_new_thread(keys.client("ann"), "queued").await;
    server.tools.hold("lookup");
    let first = ann
        .asks(script().calls(lookup("l1", "x")).calls(mail("m1", "bob")).says("sent"))
        .await;
    server.tools.called("lookup", 1).await;
    let jump = json!({"command": {"goto": "model"}, "multitask_strategy": "enqueue"});
    let second = ann.starts(jump).await;
    server.tools.let_go("lookup");
    first.finishes().await;
    second.finishes().await;
    assert_eq!(second.status().await, "error");
    let question = ann.question().await;
    is_still_asked(&server, &keys, &ann, &question).await;
}

async fn a_cron_does_not_get_past_an_approver(server: TestServer) {
    let clock = ManualClock::starting_at(Timestamp::read("2026-11-21T12:00:00Z").unwrap());
    server.uses_clock(&clock).await;
    let keys = protected(&server).await;
    let ann = ann_waits(&keys).await;
    let question = ann.question().await;
    let result = json!({"messages": [{"role": "tool", "tool_call_id": "m1", "name": "send_email", "content": "sent"}]});
    let command = json!({"update": result, "goto": "model"});
    let body = json!({"assistant_id": "guarded", "schedule": "0 * * * *", "command": command});
    let cron = ann.client().post(&ann.path("/runs/crons"), body).await.ok();
    let path = format!("/runs/crons/{}", cron["cron_id"].as_str().unwrap());
    clock.advance(Duration::from_secs(3600));
    // The due time is used up, and its run is refused.
    eventually(async || ann.client().get(&path).await.ok()["next_run_date"] != cron["next_run_date"]).await;
    assert_eq!(ann.runs().await.len(), 1);
    ann.client().delete(&path).await.ok();
    is_still_asked(&server, &keys, &ann, &question).await;
}

async fn a_copy_of_the_thread_asks_the_same_approvers(server: TestServer) {
    let keys = protected(&server).await;
    let ann = ann_waits(&keys).await;
    let copy = ann.client().post(&ann.path("/copy"), json!({})).await.ok();
    let copy = ann.on(copy["thread_id"].as_str().unwrap());
    let body = json!({"assistant_id": "guarded", "input": null});
    ann.client().post(&copy.path("/runs/wait"), body).await.ok();
    let question = copy.question().await;
    is_refused_as_assigned(&copy.tries_to_resume(approval()).await, &question);
    is_still_asked(&server, &keys, &copy, &question).await;
    assert_eq!(ann.questions().await.len(), 1, "the original still waits");
}

async fn the_agent_goes_on_working_in_a_copy_for_whoever_made_it(server: TestServer) {
    let keys = protected(&server).await;
    let ann = ann_waits(&keys).await;
    for user in ["ann", "root"] {
        let client = keys.client(user);
        let copied = client.post(&ann.path("/copy"), json!({})).await.ok();
        let human = Human::at(client, "guarded", copied["thread_id"].as_str().expect("an id"));
        let eve = Human::at(keys.client("eve"), "guarded", &human.thread);
        let resolved = eve.resolves(&human.question().await, approval()).await.ok();
        human.run(&resolved).finishes().await;
        let call = server.tools.calls_of("send_email").pop().expect("a mail");
        assert_eq!(call["thread_id"], json!(human.thread));
        assert_eq!(call["context"]["langgraph_auth_user_id"], user, "{call}");
    }
}

async fn new_input_withdraws_the_question_and_nothing_is_done(server: TestServer) {
    let keys = protected(&server).await;
    let ann = ann_waits(&keys).await;
    let question = ann.question().await;
    ann.says(script().says("never mind")).await;
    assert_eq!(mails(&server), 0);
    assert_eq!(found(&keys.client("eve"), "").await, [""; 0]);
    let eve = Human::at(keys.client("eve"), "guarded", &ann.thread);
    eve.resolves(&question, approval()).await.refused(409);
    let end = json!({"assistant_id": "guarded", "command": {"goto": "__end__"}});
    ann.says(script().calls(mail("m2", "bob")).says("sent")).await;
    ann.client().post(&ann.path("/runs/wait"), end).await.ok();
    assert_eq!(mails(&server), 0);
    assert!(ann.questions().await.is_empty());
}

async fn the_end_of_the_turn_withdraws_the_question_unless_it_brings_values(server: TestServer) {
    let keys = protected(&server).await;
    let ann = ann_waits(&keys).await;
    let question = ann.question().await;
    let result = json!({"messages": [{"role": "tool", "tool_call_id": "m1", "name": "send_email", "content": "sent"}]});
    let writes = json!({"values": result, "as_node": "__end__"});
    let reply = ann.client().post(&ann.path("/state"), writes).await;
    is_refused_as_assigned(&reply, &question);
    let ends = json!({"values": null, "as_node": "__end__"});
    ann.client().post(&ann.path("/state"), ends).await.ok();
    assert_eq!(found(&keys.client("eve"), "").await, [""; 0]);
    let eve = Human::at(keys.client("eve"), "guarded", &ann.thread);
    eve.resolves(&question, approval()).await.refused(409);
    assert_eq!(ann.status().await, "idle");
    assert_eq!(mails(&server), 0);
}

async fn a_cancelled_subagent_withdraws_its_question_and_nothing_is_done(server: TestServer) {
    let keys = protected(&server).await;
    let ann = Human::on_new_thread(keys.client("ann"), "guarded").await;
    let inner = script().calls(mail("m1", "bob")).says("it is sent");
    let run = ann.asks(script().calls(task("t1", "mailer", inner)).says("done")).await;
    run.finishes().await;
    ann.question().await;
    let child = run.children().await[0]["run_id"].as_str().unwrap().to_owned();
    ann.run_of_id(&child).is_cancelled("interrupt").await;
    eventually(async || ann.transcript().await.last().is_some_and(|line| line == "ai: done")).await;
    assert!(ann.questions().await.is_empty());
    assert_eq!(mails(&server), 0);
}

async fn approvers_themselves_may_change_the_thread_that_they_own(server: TestServer) {
    let keys = protected(&server).await;
    let bob = Human::on_new_thread(keys.client("bob"), "guarded").await;
    bob.says(script().calls(mail("m1", "mia")).says("sent")).await;
    let written = bob
        .client()
        .post(&bob.path("/state"), json!({"values": {"messages": []}}))
        .await;
    assert_eq!(written.status, 200, "{written:?}");
    bob.says(script().calls(mail("m2", "mia")).says("sent")).await;
    bob.approves(&bob.question().await).await.finishes().await;
    assert_eq!(mails(&server), 1);
}

async fn decisions_and_attempts_are_in_the_audit(server: TestServer) {
    let keys = protected(&server).await;
    let ann = ann_waits(&keys).await;
    let question = ann.question().await;
    is_refused_as_assigned(&ann.resolves(&question, approval()).await, &question);
    is_still_asked(&server, &keys, &ann, &question).await;
    let root = keys.client("root");
    let resource = format!("thread:{}/interrupt:{}", ann.thread, question.id());
    let path = format!("/audit?resource={resource}");
    let entries = async || root.get(&path).await.ok().as_array().expect("a list").clone();
    let has = |entries: &[Value], user: &str, outcome: &str| {
        entries
            .iter()
            .any(|entry| entry["user"] == user && entry["outcome"] == outcome)
    };
    // The refusal is recorded beside the response.
    eventually(async || has(&entries().await, "ann", "denied")).await;
    let all = entries().await;
    let decided: Vec<_> = all.iter().filter(|entry| entry["detail"] != json!({})).collect();
    assert_eq!(decided.len(), 1, "{all:?}");
    assert_eq!(decided[0]["user"], "eve");
    assert_eq!(decided[0]["detail"], json!({"decisions": ["approve"]}));
}

async fn the_agent_goes_on_working_for_its_user(server: TestServer) {
    let keys = protected(&server).await;
    let ann = ann_waits(&keys).await;
    let question = ann.question().await;
    is_still_asked(&server, &keys, &ann, &question).await;
    let call = &server.tools.calls_of("send_email")[0];
    assert_eq!(call["context"]["langgraph_auth_user_id"], "ann", "{call}");
}

async fn an_answer_is_not_refused_for_what_the_approver_stores(server: TestServer) {
    let clock = ManualClock::starting_at(SystemClock.now());
    server.uses_clock(&clock).await;
    server
        .is_configured_with("[quotas.per_user]\nstored_bytes = 20000")
        .await;
    let keys = protected(&server).await;
    let bob = keys.client("bob");
    let item = json!({"namespace": ["notes"], "key": "k", "value": {"text": "x".repeat(20_000)}});
    assert!([200, 204].contains(&bob.put("/store/items", item.clone()).await.status));
    // The sum is measured after a minute, when something is stored again.
    clock.advance(Duration::from_secs(61));
    eventually(async || bob.put("/store/items", item.clone()).await.status == 507).await;
    let ann = ann_waits(&keys).await;
    let question = ann.question().await;
    let approver = Human::at(bob, "guarded", &ann.thread);
    let resolved = approver.resolves(&question, approval()).await.ok();
    ann.run(&resolved).finishes().await;
    assert_eq!(mails(&server), 1);
}

async fn more_approvers_than_allowed_are_refused(server: TestServer) {
    let users: Vec<String> = (0..65).map(|number| format!("user-{number}")).collect();
    let definition = |approvers: &Value| {
        json!({"model": "scripted:lab", "system_prompt": "x", "tools": ["lookup"], "approvers": approvers,
            "interrupt_on": {"lookup": {"allowed_decisions": ["approve"], "approvers": approvers}}})
    };
    let validate = async |approvers: Value| {
        let body = json!({"definition": definition(&approvers)});
        let answer = server.client().post("/agents/validate", body).await;
        answer.body.to_string()
    };
    let many = validate(json!({"users": users})).await;
    assert!(
        many.contains("names 65 users and roles; at most 64 are allowed"),
        "{many}"
    );
    assert!(many.contains("interrupt_on") && many.contains("approvers"), "{many}");
    let unknown = validate(json!({"roles": ["boss"]})).await;
    assert!(unknown.contains("boss"), "{unknown}");
    let none = validate(json!({"users": ["eve"], "roles": ["approver"]})).await;
    assert!(none.contains("\"valid\":true"), "{none}");
}
