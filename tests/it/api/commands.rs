//! Commands: `update`, `goto` and `resume`.

use serde_json::{Value, json};

use crate::support::actors::Human;
use crate::support::sse::Frame;
use crate::support::{TestServer, approval, mail, on_both_engines, script, transcript, two_mailers};

/// Sends a command and waits for the values afterwards.
async fn commands(server: &TestServer, who: &Human, command: Value) -> Value {
    let body = json!({"assistant_id": "agent", "command": command});
    server.client().post(&who.path("/runs/wait"), body).await.ok()
}

on_both_engines! {
    an_update_may_be_an_object_or_a_list_of_pairs,
    input_beside_an_update_is_refused_and_nothing_is_written,
    a_goto_cancels_the_interrupt,
    a_goto_to_the_end_ends_the_turn,
    an_answer_may_contain_an_update,
    answers_in_the_form_of_ag_ui_reach_their_questions,
    an_answer_beside_a_goto_is_refused_and_the_question_stays,
    a_send_to_the_model_replaces_its_input,
    calls_can_be_sent_to_the_tools_node,
    the_task_of_a_call_that_is_sent_begins_before_it_ends_in_every_run,
    an_unknown_node_is_ignored_and_two_nodes_are_refused,
    an_empty_command_beside_input_is_no_command,
    a_command_without_effect_leaves_a_new_thread_idle,
    a_goto_on_a_new_thread_waits_for_its_answer,
    a_goto_on_a_new_thread_goes_on_from_its_breakpoint,
}

async fn an_update_may_be_an_object_or_a_list_of_pairs(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("hello").await;
    let note = json!({"role": "user", "content": "a note"});
    commands(&server, &alice, json!({"update": {"messages": [note]}})).await;
    let pairs = json!([["messages", note], ["files", {"/a.txt": "A"}]]);
    let values = commands(&server, &alice, json!({"update": pairs})).await;
    assert_eq!(transcript(&values)[2..], ["human: a note", "human: a note"]);
    assert_eq!(values["files"]["/a.txt"]["content"], "A");
    let body = json!({"assistant_id": "agent", "command": {"update": [["messages"]]}});
    let detail = server.client().post(&alice.path("/runs"), body).await.refused(422);
    assert!(detail.starts_with("command.update"), "{detail}");
}

async fn input_beside_an_update_is_refused_and_nothing_is_written(server: TestServer) {
    let alice = server.human("agent").await;
    let before = alice.says("hello").await;
    let update = json!({"messages": [{"role": "user", "content": "a note"}]});
    let input = json!({"messages": [{"role": "user", "content": "hello?"}]});
    let body = json!({"assistant_id": "agent", "input": input, "command": {"update": update}});
    let detail = server.client().post(&alice.path("/runs"), body).await.refused(422);
    assert!(
        detail.starts_with("input: cannot be given together with `command.update`"),
        "{detail}"
    );
    assert_eq!(alice.state().await["values"].clone(), before);
    assert_eq!(alice.runs().await.len(), 1);
}

async fn a_goto_cancels_the_interrupt(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob"))).await;
    let question = alice.question().await;
    let update = json!({"messages": [{"role": "user", "content": "never mind"}]});
    let values = commands(&server, &alice, json!({"goto": "model", "update": update})).await;
    assert_eq!(transcript(&values).last().unwrap(), "ai: echo: never mind");
    assert_eq!(alice.status().await, "idle");
    let path = alice.path(&format!("/interrupts/{}", question.id()));
    assert_eq!(server.client().get(&path).await.ok()["status"], "dropped");
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
}

async fn a_goto_to_the_end_ends_the_turn(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("never said")).await;
    let question = alice.question().await;
    let update = json!({"files": {"/a.txt": "A"}});
    let values = commands(&server, &alice, json!({"goto": "__end__", "update": update})).await;
    assert_eq!(&values["files"]["/a.txt"]["content"], &json!("A"));
    assert_eq!(values.get("__interrupt__"), None);
    assert_eq!(alice.status().await, "idle");
    let state = server.client().get(&alice.path("/state")).await.ok();
    assert_eq!(&state["next"], &json!([]));
    assert_eq!(&state["interrupts"], &json!([]));
    let path = alice.path(&format!("/interrupts/{}", question.id()));
    assert_eq!(server.client().get(&path).await.ok()["status"], "dropped");
    let values = alice.says("and on").await;
    assert_eq!(transcript(&values).last().unwrap(), "ai: echo: and on");
}

async fn an_answer_may_contain_an_update(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent it")).await;
    let update = json!({"files": {"/a.txt": "A"}});
    let answer = json!({"decisions": [{"type": "approve"}]});
    let values = commands(&server, &alice, json!({"resume": answer, "update": update})).await;
    assert_eq!(transcript(&values).last().unwrap(), "ai: sent it");
    assert_eq!(values["files"]["/a.txt"]["content"], "A");
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn answers_in_the_form_of_ag_ui_reach_their_questions(server: TestServer) {
    let alice = server.human("agent").await;
    alice
        .asks(script().calls_all(two_mailers()).says("both were sent"))
        .await
        .finishes()
        .await;
    let questions = alice.questions().await;
    let [first, second] = questions.as_slice() else {
        panic!("not two questions: {questions:#?}")
    };
    let resolved = json!({"status": "resolved", "payload": approval()});
    // A question that was cancelled on the page stays open.
    let answers = json!({first.id(): resolved, second.id(): {"status": "cancelled"}});
    let only_cancelled = json!({"__agui_cancelled__": true, "interrupt_id": second.id()});
    for resume in [json!({"__agui_resume_map__": answers}), only_cancelled] {
        let values = commands(&server, &alice, json!({"resume": resume})).await;
        assert_eq!(values["__interrupt__"].as_array().map(Vec::len), Some(1), "{values}");
        assert_eq!(values["__interrupt__"][0]["id"], second.id());
    }
    let answers = json!({second.id(): resolved});
    let values = commands(&server, &alice, json!({"resume": {"__agui_resume_map__": answers}})).await;
    assert_eq!(transcript(&values).last().unwrap(), "ai: both were sent");
    assert_eq!(server.tools.calls_of("send_email").len(), 2);
}

async fn an_answer_beside_a_goto_is_refused_and_the_question_stays(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent it")).await;
    let question = alice.question().await;
    let approval = json!({"decisions": [{"type": "approve"}]});
    for goto in [
        json!("model"),
        json!("__end__"),
        json!([{"node": "tools", "input": mail("m2", "eve")}]),
    ] {
        for path in ["/runs", "/runs/wait", "/runs/stream"] {
            let body = json!({"assistant_id": "agent", "command": {"resume": approval, "goto": goto}});
            let detail = server.client().post(&alice.path(path), body).await.refused(422);
            assert!(detail.starts_with("command.goto: cannot be given together"), "{detail}");
        }
    }
    assert_eq!(alice.question().await.id(), question.id());
    assert_eq!(alice.runs().await.len(), 1);
    let values = commands(&server, &alice, json!({"resume": approval, "goto": []})).await;
    assert_eq!(transcript(&values).last().unwrap(), "ai: sent it");
    assert_eq!(server.tools.keys_of("send_email"), ["m1"]);
}

async fn a_send_to_the_model_replaces_its_input(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("hello").await;
    let input = json!({"messages": [{"role": "user", "content": "an aside"}]});
    let values = commands(&server, &alice, json!({"goto": {"node": "model", "input": input}})).await;
    assert_eq!(
        transcript(&values),
        ["human: hello", "ai: echo: hello", "ai: echo: an aside"]
    );
}

async fn calls_can_be_sent_to_the_tools_node(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("hello").await;
    let call = |id: &str| json!({"name": "lookup", "args": {"query": id}, "id": id, "type": "tool_call"});
    let goto = json!([{"node": "tools", "input": call("s1")}, {"node": "tools", "input": [call("s2")]}]);
    let values = commands(&server, &alice, json!({"goto": goto})).await;
    assert_eq!(transcript(&values)[2..4], ["lookup: found s1", "lookup: found s2"]);
    let mut keys = server.tools.keys_of("lookup");
    keys.sort();
    assert_eq!(keys, ["s1", "s2"]);
}

/// The ids of the tasks of tool calls in a stream of the mode `tasks`: those that begin, and those that end.
fn tasks_of_calls(frames: &[Frame]) -> [Vec<Value>; 2] {
    let tasks = frames
        .iter()
        .filter(|frame| frame.event == "tasks" && frame.data["name"] == "tools");
    let (ended, begun): (Vec<&Frame>, Vec<&Frame>) = tasks.partition(|frame| frame.data.get("result").is_some());
    [begun, ended].map(|tasks| tasks.into_iter().map(|frame| frame.data["id"].clone()).collect())
}

async fn the_task_of_a_call_that_is_sent_begins_before_it_ends_in_every_run(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("hello").await;
    let goto = json!({"node": "tools", "input": mail("m1", "bob")});
    let modes = json!(["tasks", "debug"]);
    let body = json!({"assistant_id": "agent", "command": {"goto": goto}, "stream_mode": modes});
    let asks = server.client().post_stream(&alice.path("/runs/stream"), body).await;
    let [begun, ended] = tasks_of_calls(&asks.rest().await);
    assert_eq!(begun.len(), 1, "it asks for an approval");
    assert_eq!(begun, ended);
    let sends = alice.streams_resume(approval(), json!({"stream_mode": modes})).await;
    let frames = sends.rest().await;
    let again = tasks_of_calls(&frames);
    assert_eq!(again, [begun, ended]);
    let start = frames.iter().find(|frame| frame.data["input"].is_array());
    assert_eq!(start.expect("a start").data["input"][0]["id"], "m1");
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn an_unknown_node_is_ignored_and_two_nodes_are_refused(server: TestServer) {
    let alice = server.human("agent").await;
    let before = alice.says("hello").await;
    assert_eq!(commands(&server, &alice, json!({"goto": "nowhere"})).await, before);
    let body = json!({"assistant_id": "agent", "command": {"goto": ["model", "tools"]}});
    let detail = server.client().post(&alice.path("/runs"), body).await.refused(422);
    assert!(detail.starts_with("command.goto[1]: is another node"), "{detail}");
}

async fn an_empty_command_beside_input_is_no_command(server: TestServer) {
    for command in [json!({}), json!({"resume": null, "update": null, "goto": []})] {
        let alice = server.human("agent").await;
        let input = json!({"messages": [{"role": "user", "content": "hello"}]});
        let body = json!({"assistant_id": "agent", "input": input, "command": command});
        let values = server.client().post(&alice.path("/runs/wait"), body).await.ok();
        assert_eq!(transcript(&values), ["human: hello", "ai: echo: hello"], "{command}");
    }
}

async fn a_command_without_effect_leaves_a_new_thread_idle(server: TestServer) {
    for command in [json!({"goto": "nowhere"}), json!({"update": {"files": {}}})] {
        let alice = server.human("agent").await;
        commands(&server, &alice, command.clone()).await;
        assert_eq!(alice.status().await, "idle", "{command}");
    }
}

async fn a_goto_on_a_new_thread_waits_for_its_answer(server: TestServer) {
    let alice = server.human("agent").await;
    let goto = json!({"node": "tools", "input": mail("m1", "bob")});
    commands(&server, &alice, json!({"goto": goto})).await;
    assert_eq!(alice.state().await["interrupts"].as_array().map(Vec::len), Some(1));
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
    alice.approves(&alice.question().await).await.finishes().await;
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
    assert_eq!(alice.status().await, "idle");
}

async fn a_goto_on_a_new_thread_goes_on_from_its_breakpoint(server: TestServer) {
    let alice = server.human("agent").await;
    let body = json!({"assistant_id": "agent", "command": {"goto": "model"}, "interrupt_before": ["model"]});
    server.client().post(&alice.path("/runs/wait"), body).await.ok();
    assert_eq!(alice.status().await, "interrupted");
    assert_eq!(alice.state().await["next"], json!(["model"]));
    let body = json!({"assistant_id": "agent", "input": null});
    let values = server.client().post(&alice.path("/runs/wait"), body).await.ok();
    assert_eq!(transcript(&values), ["ai: no human message"]);
    assert_eq!(alice.status().await, "idle");
}
