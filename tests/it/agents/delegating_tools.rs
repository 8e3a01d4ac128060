//! Tools that delegate and are called again with the result.

use serde_json::{Value, json};

use crate::support::{Human, TestServer, call, lookup, mail, on_both_engines, script};

on_both_engines! {
    a_tool_gets_the_result_of_each_of_its_delegations,
    a_subagent_finds_the_files_of_the_one_before_it,
    the_files_of_all_subagents_are_part_of_the_result,
    a_tool_learns_that_its_subagent_has_failed,
    an_interrupt_of_a_subagent_is_answered_before_the_tool_is_called_again,
    the_state_shows_the_interrupt_and_the_subagent_of_each_delegation_of_a_call,
    a_tool_delegates_at_most_sixteen_times_in_a_call,
    an_unknown_subagent_ends_the_call,
    a_call_that_delegates_again_survives_a_kill,
    each_delegation_has_its_own_place_in_the_stream,
}

/// Returns a call of the tool that delegates `steps` one after the other.
fn investigate(steps: Vec<Value>) -> Value {
    call("i1", "investigate", json!({"steps": steps}))
}

/// Returns a delegation to the researcher.
fn step(work: impl ToString) -> Value {
    json!({"description": work.to_string(), "subagent_type": "researcher"})
}

/// Returns a call that writes a file.
fn write(path: &str, content: &str) -> Value {
    call("w1", "write_file", json!({"file_path": path, "content": content}))
}

/// Lets the agent call the tool, and returns the result.
async fn result(alice: &Human, steps: Vec<Value>) -> String {
    alice.says(script().calls(investigate(steps)).says("done")).await;
    alice.transcript().await[2].clone()
}

async fn a_tool_gets_the_result_of_each_of_its_delegations(server: TestServer) {
    let alice = server.human("deep").await;
    let research = script().calls(lookup("c1", "x")).says("two");
    let run = alice
        .asks(
            script()
                .calls(investigate(vec![step(script().says("one")), step(research)]))
                .says("done"),
        )
        .await;
    run.finishes().await;
    assert_eq!(
        alice.transcript().await,
        [
            "human: …",
            "ai calls investigate",
            "investigate: success: one | success: two",
            "ai: done"
        ]
    );
    let calls = server.tools.calls_of("investigate");
    let known: Vec<&Value> = calls.iter().map(|call| &call["delegations"]).collect();
    let first = json!({"subagent_type": "researcher", "status": "success", "content": "one"});
    let second = json!({"subagent_type": "researcher", "status": "success", "content": "two"});
    assert_eq!(known, [&Value::Null, &json!([first]), &json!([first, second])]);
    assert_eq!(server.tools.keys_of("investigate"), ["i1", "i1", "i1"]);
    let children = run.children().await;
    let shown = children
        .iter()
        .map(|child| json!([child["task_call_id"], child["status"]]));
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [json!(["i1", "success"]), json!(["i1", "success"])]
    );
    assert_ne!(children[0]["run_id"], children[1]["run_id"]);
}

async fn a_subagent_finds_the_files_of_the_one_before_it(server: TestServer) {
    let alice = server.human("deep").await;
    let reads = script()
        .calls(call("r1", "read_file", json!({"file_path": "/plan.md"})))
        .turn(json!({"echo_last_tool": true}));
    let writes = script().calls(write("/plan.md", "look twice")).says("written");
    let found = result(&alice, vec![step(writes), step(reads)]).await;
    assert!(found.contains("look twice"), "{found}");
}

async fn the_files_of_all_subagents_are_part_of_the_result(server: TestServer) {
    let alice = server.human("deep").await;
    let writes = |path: &str, text: &str| step(script().calls(write(path, text)).says("written"));
    let steps = vec![writes("/a.md", "a1"), writes("/b.md", "b1")];
    assert_eq!(
        result(&alice, steps).await,
        "investigate: success: written | success: written"
    );
    let files = alice.state().await["values"]["files"].clone();
    let paths: Vec<&String> = files.as_object().expect("the files").keys().collect();
    assert_eq!(paths, ["/a.md", "/b.md"]);
}

async fn a_tool_learns_that_its_subagent_has_failed(server: TestServer) {
    let alice = server.human("deep").await;
    let fails = script().fails(400);
    let found = result(&alice, vec![step(fails), step(script().says("two"))]).await;
    assert!(
        found.starts_with("investigate: error: The subagent `researcher` failed"),
        "{found}"
    );
    assert!(found.ends_with("| success: two"), "{found}");
}

async fn an_interrupt_of_a_subagent_is_answered_before_the_tool_is_called_again(server: TestServer) {
    let alice = server.human("deep").await;
    let mails = script().calls(mail("m1", "bob")).says("sent");
    let steps = vec![step(mails), step(script().says("two"))];
    alice.says(script().calls(investigate(steps)).says("done")).await;
    assert_eq!(server.tools.calls_of("investigate").len(), 1);
    let question = alice.question().await;
    assert_eq!(question.agent(), "researcher");
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.transcript().await[2], "investigate: success: sent | success: two");
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn the_state_shows_the_interrupt_and_the_subagent_of_each_delegation_of_a_call(server: TestServer) {
    let alice = server.human("deep").await;
    let mails = |id, to| step(script().calls(mail(id, to)).says("sent"));
    let steps = vec![mails("m1", "bob"), mails("m2", "eve")];
    alice.says(script().calls(investigate(steps)).says("done")).await;
    for to in ["bob", "eve"] {
        let question = alice.question().await;
        let state = alice.try_get("/state?subgraphs=true").await.expect("a state");
        let task = &state["tasks"][0];
        assert_eq!(task["interrupts"][0]["id"], question.id(), "{to}");
        assert_eq!(task["interrupts"].as_array().map(Vec::len), Some(1), "{to}");
        assert_eq!(state["interrupts"], task["interrupts"], "{to}");
        let calls = &task["state"]["values"]["messages"][1]["tool_calls"];
        assert_eq!(calls[0]["args"]["to"], to);
        assert_eq!(alice.history().await[0]["tasks"][0]["interrupts"], task["interrupts"]);
        alice.approves(&question).await.finishes().await;
    }
    let finished = alice.history().await.into_iter();
    let interrupts: Vec<usize> = finished
        .filter(|checkpoint| checkpoint["next"] == json!(["tools"]))
        .filter_map(|checkpoint| Some(checkpoint["tasks"][0]["interrupts"].as_array()?.len()))
        .collect();
    assert_eq!(interrupts, [2]);
}

async fn a_tool_delegates_at_most_sixteen_times_in_a_call(server: TestServer) {
    let alice = server.human("deep").await;
    let steps = (0..17).map(|number| step(script().says(&number.to_string()))).collect();
    let found = result(&alice, steps).await;
    assert!(found.contains("has delegated 16 times in one call"), "{found}");
    assert_eq!(server.tools.calls_of("investigate").len(), 17);
}

async fn an_unknown_subagent_ends_the_call(server: TestServer) {
    let alice = server.human("deep").await;
    let unknown = json!({"description": "x", "subagent_type": "nobody"});
    let found = result(&alice, vec![step(script().says("one")), unknown]).await;
    assert_eq!(found, "investigate failed: There is no subagent `nobody` here.");
}

async fn a_call_that_delegates_again_survives_a_kill(server: TestServer) {
    server.moves_into_a_process().await;
    let alice = server.human("deep").await;
    server.tools.hold("lookup");
    let waits = script().calls(lookup("s1", "x")).says("two");
    let writes = script().calls(write("/a.md", "a1")).says("one");
    let steps = vec![step(writes), step(waits), step(script().says("three"))];
    let run = alice.asks(script().calls(investigate(steps)).says("done")).await;
    server.tools.called("lookup", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.called("lookup", 2).await;
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(
        alice.transcript().await[2],
        "investigate: success: one | success: two | success: three"
    );
    assert_eq!(run.children().await.len(), 3);
    assert!(alice.state().await["values"]["files"]["/a.md"].is_object());
}

async fn each_delegation_has_its_own_place_in_the_stream(server: TestServer) {
    let alice = server.human("deep").await;
    let steps = vec![step(script().says("one")), step(script().says("two"))];
    let more = json!({"stream_mode": ["updates"], "stream_subgraphs": true});
    let text = script().calls(investigate(steps)).says("done");
    let frames = alice.streams(text, more).await.rest().await;
    let mut places: Vec<&str> = frames
        .iter()
        .filter_map(|frame| frame.event.split('|').nth(1))
        .collect();
    places.dedup();
    assert_eq!(places.len(), 2, "{places:?}");
    assert!(places.iter().all(|place| place.starts_with("tools:")), "{places:?}");
}
