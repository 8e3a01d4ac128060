//! Registered subagents: other agents of the server as subagents.

use serde_json::{Value, json};

use crate::support::{TestServer, call, lookup, mail, on_both_engines, script, task};

/// Returns the script of the clerk.
fn clerk(id: &str, work: impl std::fmt::Display) -> Value {
    task(id, "clerk", work)
}

/// Returns the definition of an agent that has another agent of the server as its subagent.
fn parent_of(graph_id: &str) -> Value {
    let subagent = json!({"name": "other", "description": "Another agent.", "graph_id": graph_id, "async": false});
    json!({"model": "scripted:mock", "subagents": [subagent]})
}

on_both_engines! {
    a_registered_subagent_has_its_own_tools_and_subagents,
    a_registered_subagent_raises_interrupts_on_the_thread_of_its_parent,
    agents_that_delegate_to_each_other_reach_the_maximum_depth,
    fields_that_both_agents_declare_pass_between_them_and_no_others,
    a_removed_agent_is_an_error_result,
    an_interrupted_agent_keeps_its_definition,
}

async fn a_registered_subagent_has_its_own_tools_and_subagents(server: TestServer) {
    let alice = server.human("chief").await;
    let intern = script().calls(lookup("c1", "x")).says("the intern knows");
    let work = script().calls(task("t2", "intern", intern)).says("the clerk knows");
    let run = alice.asks(script().calls(clerk("t1", work)).says("done")).await;
    run.finishes().await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", "task: the clerk knows", "ai: done"]
    );
    let calls = server.tools.calls_of("lookup");
    assert_eq!(calls[0]["agent_path"], json!(["chief-agent", "clerk", "intern"]));
    let [child] = &run.children().await[..] else {
        panic!("one child")
    };
    assert_eq!(&child["agent_name"], &json!("clerk"));
    assert_eq!(&child["depth"], &json!(1));
    let state = server
        .client()
        .get(&format!("{}/state", alice.run(child).path))
        .await
        .ok();
    assert_eq!(state["values"]["messages"][1]["name"], "clerk");
}

async fn a_registered_subagent_raises_interrupts_on_the_thread_of_its_parent(server: TestServer) {
    let alice = server.human("chief").await;
    let work = script().calls(mail("m1", "bob")).says("sent");
    alice.says(script().calls(clerk("t1", work)).says("done")).await;
    let question = alice.question().await;
    assert_eq!(question.agent(), "clerk");
    assert_eq!(&question.0["task_call_id"], &json!("t1"));
    server.is_stopped_and_started_again().await;
    alice.approves(&question).await.finishes().await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", "task: sent", "ai: done"]
    );
    assert_eq!(server.tools.keys_of("send_email").len(), 1);
}

async fn agents_that_delegate_to_each_other_reach_the_maximum_depth(server: TestServer) {
    let alice = server.human("chief").await;
    let deepest = script().calls(clerk("t3", "go on")).says("the boss is alone");
    let work = script().calls(task("t2", "boss", deepest)).says("back from the boss");
    let run = alice.asks(script().calls(clerk("t1", work)).says("done")).await;
    run.finishes().await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", "task: back from the boss", "ai: done"]
    );
    let tree = server.client().get(&format!("{}/tree", run.path)).await.ok();
    let boss = &tree["children"][0]["children"][0];
    assert_eq!(&boss["agent_name"], &json!("boss"));
    assert_eq!(&boss["depth"], &json!(2));
    assert_eq!(&boss["children"], &json!([]));
    let state = server
        .client()
        .get(&format!("{}/state", alice.run(boss).path))
        .await
        .ok();
    let refusal = state["values"]["messages"][2]["content"].as_str().expect("a text");
    assert!(refusal.starts_with("Error: task is not a valid tool"), "{refusal}");
}

async fn fields_that_both_agents_declare_pass_between_them_and_no_others(server: TestServer) {
    let alice = server.human("chief").await;
    let noted = call(
        "n1",
        "note",
        json!({"update": {"notes": ["from the clerk"], "gossip": "psst"}}),
    );
    let text = script()
        .calls(clerk("t1", script().calls(noted).says("noted")))
        .says("done")
        .to_string();
    let input = json!({"messages": [{"role": "user", "content": text}], "notes": ["from alice"], "plans": "mine"});
    let run = server
        .client()
        .post(&alice.path("/runs"), json!({"assistant_id": "chief", "input": input}))
        .await
        .ok();
    let run = alice.run(&run);
    run.finishes().await;
    let values = alice.state().await["values"].clone();
    assert_eq!(&values["notes"], &json!(["from alice", "from the clerk"]));
    assert_eq!(&values["plans"], &json!("mine"));
    assert_eq!(values.get("gossip"), None);
    let [child] = &run.children().await[..] else {
        panic!("one child")
    };
    let below = server
        .client()
        .get(&format!("{}/state", alice.run(child).path))
        .await
        .ok();
    let below = &below["values"];
    assert_eq!(&below["notes"], &json!(["from alice", "from the clerk"]));
    assert_eq!(below.get("plans"), None);
}

async fn a_removed_agent_is_an_error_result(server: TestServer) {
    let client = server.client();
    client
        .put("/agents/passing", json!({"model": "scripted:mock"}))
        .await
        .ok();
    client.put("/agents/lonely", parent_of("passing")).await.ok();
    client.delete("/agents/passing").await.ok();
    let alice = server.human("lonely").await;
    alice
        .says(script().calls(task("t1", "other", "hello")).says("alone"))
        .await;
    let refusal = "task failed: The agent `passing` is not defined on this server. Do the work yourself.";
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", refusal, "ai: alone"]
    );
}

async fn an_interrupted_agent_keeps_its_definition(server: TestServer) {
    let client = server.client();
    let careful = json!({"model": "scripted:mock", "tools": ["send_email"], "interrupt_on": {"send_email": true}});
    client.put("/agents/changing", careful).await.ok();
    client.put("/agents/waiting", parent_of("changing")).await.ok();
    let alice = server.human("waiting").await;
    let work = script().calls(mail("m1", "bob")).calls(mail("m2", "ann")).says("sent");
    alice.says(script().calls(task("t1", "other", work)).says("done")).await;
    client
        .put("/agents/changing", json!({"model": "scripted:mock"}))
        .await
        .ok();
    server.is_stopped_and_started_again().await;
    alice.approves(&alice.question().await).await.finishes().await;
    alice.approves(&alice.question().await).await.finishes().await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", "task: sent", "ai: done"]
    );
    assert_eq!(server.tools.keys_of("send_email").len(), 2);
}
