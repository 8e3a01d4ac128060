//! Initial messages: the messages before the task in the conversation of a subagent.

use serde_json::{Value, json};

use crate::support::actors::Run;
use crate::support::{Human, TestServer, call, on_both_engines, script, task, transcript};

/// Returns the initial messages of the definitions below.
fn registered() -> Value {
    json!([{"role": "user", "content": "What is x?"}, {"role": "assistant", "content": "x is y"}])
}

/// Returns a call of a tool that delegates with these initial messages.
fn spawn(id: &str, who: &str, work: impl ToString, initial: Value) -> Value {
    call(
        id,
        "spawn",
        json!({"description": work.to_string(), "subagent_type": who, "initial_messages": initial}),
    )
}

/// Returns the transcripts of the child runs of a run, in the order of the ids of their calls.
async fn conversations(server: &TestServer, alice: &Human, run: &Run) -> Vec<Vec<String>> {
    let mut all = vec![];
    let mut children = run.children().await;
    children.sort_by_key(|child| child["task_call_id"].to_string());
    for child in children {
        let state = server
            .client()
            .get(&format!("{}/state", alice.run(&child).path))
            .await
            .ok();
        all.push(transcript(&state["values"]));
    }
    all
}

on_both_engines! {
    initial_messages_of_a_call_follow_those_of_the_definition,
    a_program_reads_initial_messages_before_its_task,
    invalid_initial_messages_are_refused,
}

async fn initial_messages_of_a_call_follow_those_of_the_definition(server: TestServer) {
    let scholar = json!({"name": "scholar", "description": "Knows something already.", "system_prompt": "You know.",
            "initial_messages": registered()});
    let agent = json!({"model": "scripted:lab", "tools": ["spawn"], "subagents": [scholar]});
    server.client().put("/agents/school", agent).await.ok();
    let alice = server.human("school").await;
    let answer = script().says("so it is");
    let calls = [
        task("t1", "scholar", &answer),
        spawn("s1", "scholar", &answer, json!(["and z?", ["ai", "z is x"]])),
    ];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    run.finishes().await;
    let known = ["human: What is x?", "ai: x is y"];
    let more = ["human: and z?", "ai: z is x"];
    let work = ["human: …", "ai: so it is"];
    let said = conversations(&server, &alice, &run).await;
    assert_eq!(
        said,
        [[&known[..], &more, &work].concat(), [&known[..], &work].concat()]
    );
    assert_eq!(
        alice.transcript().await[2..],
        ["task: so it is", "spawn: so it is", "ai: done"]
    );
}

async fn a_program_reads_initial_messages_before_its_task(server: TestServer) {
    server.is_embedded().await;
    let parrot = json!({"name": "parrot", "description": "Repeats its task.", "runnable": "echo",
            "initial_messages": registered()});
    let agent = json!({"model": "scripted:lab", "tools": ["spawn"], "subagents": [parrot]});
    server.client().put("/agents/cage", agent).await.ok();
    let alice = server.human("cage").await;
    let run = alice
        .asks(
            script()
                .calls(spawn("s1", "parrot", "hello", json!(["hush"])))
                .says("done"),
        )
        .await;
    run.finishes().await;
    let said = conversations(&server, &alice, &run).await;
    let heard = "ai: cage/parrot heard: hello";
    assert_eq!(
        said,
        [["human: What is x?", "ai: x is y", "human: hush", "human: hello", heard]]
    );
    assert_eq!(alice.transcript().await[2], "spawn: cage/parrot heard: hello");
}

async fn invalid_initial_messages_are_refused(server: TestServer) {
    let client = server.client();
    client.put("/agents/clerk", json!({"model": "scripted:lab"})).await.ok();
    let subagents = json!([
        {"name": "twin", "description": "Goes on as its caller does.", "mode": "fork"},
        {"name": "clerk", "description": "Knows where everything is.", "graph_id": "clerk", "async": false},
    ]);
    let agent = json!({"model": "scripted:lab", "tools": ["spawn"], "subagents": subagents});
    client.put("/agents/school", agent).await.ok();
    let alice = server.human("school").await;
    let calls = [
        spawn("s1", "twin", "x", json!(["hush"])),
        spawn("s2", "clerk", "x", json!(["hush"])),
        spawn(
            "s3",
            "general-purpose",
            "x",
            json!(["hush", {"role": "robot", "content": "x"}]),
        ),
    ];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    run.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[2].starts_with("spawn failed: `twin` takes no initial messages"),
        "{}",
        said[2]
    );
    assert!(
        said[3].starts_with("spawn failed: `clerk` takes no initial messages"),
        "{}",
        said[3]
    );
    assert!(
        said[4].contains("`delegate.initial_messages[1]`: `role` is \"robot\", but allowed are"),
        "{}",
        said[4]
    );
    assert_eq!(run.children().await, Vec::<Value>::new());

    let wrong = json!({"name": "a", "description": "Does all that is left.", "initial_messages": ["x", 3]});
    let told = client
        .put("/agents/school", json!({"model": "scripted:lab", "subagents": [wrong]}))
        .await
        .refused(422);
    assert!(
        told.contains("subagents[0].initial_messages[1]: must be a string, a pair or an object"),
        "{told}"
    );
}
