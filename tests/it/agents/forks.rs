//! Forks: subagents that start with the conversation of their caller.

use serde_json::{Value, json};

use crate::support::actors::transcript;
use crate::support::{TestServer, call, lookup, mail, on_both_engines, script, task};

fn echo(what: &str) -> String {
    script().turn(json!({what: true})).to_string()
}

on_both_engines! {
    a_fork_has_its_callers_conversation_instructions_and_tools,
    a_fork_cannot_delegate_and_returns_only_its_answer,
    a_fork_shares_files_but_not_todos,
    a_fork_waits_for_approval_over_a_crash,
    a_fork_does_not_stream_the_conversation_of_its_caller,
    the_display_text_is_part_of_the_child_run,
}

async fn a_fork_has_its_callers_conversation_instructions_and_tools(server: TestServer) {
    let alice = server.human("forker").await;
    let files = json!({"/AGENTS.md": {"content": "Likes tea.", "encoding": "utf-8"}});
    let first = script().calls(lookup("l1", "x")).says("found");
    let input = json!({"messages": [{"role": "user", "content": first.to_string()}], "files": files});
    alice.starts(json!({"input": input})).await.finishes().await;
    let asked = script()
        .calls_all([
            task("t1", "twin", echo("echo_messages")),
            task("t2", "twin", echo("echo_system")),
            task("t3", "twin", echo("echo_tools")),
            task("t4", "stranger", echo("echo_messages")),
        ])
        .turn(json!({"echo_system": true}))
        .turn(json!({"echo_tools": true}));
    alice.says(asked).await;
    let mut said = alice.transcript().await;
    said.drain(..5);
    let roles = said[1].clone();
    // Its caller's first turn, the message of the second, and the order; not the answer that delegates.
    assert_eq!(roles.matches("user").count(), 3, "{roles}");
    assert_eq!(roles.matches("assistant").count(), 2, "{roles}");
    assert_eq!(roles.matches("tool").count(), 1, "{roles}");
    assert_eq!(said[4].matches("user").count(), 1, "{}", said[4]);

    let own = said[5].strip_prefix("ai: SYSTEM<<").unwrap();
    let twins = said[2].strip_prefix("task: SYSTEM<<").unwrap();
    let own = own.strip_suffix(">>").unwrap();
    assert!(own.contains("Likes tea."), "{own}");
    assert!(twins.starts_with(own), "{own}\n---\n{twins}");
    assert!(twins.ends_with("\n\nSign as the twin.>>"), "{own}\n---\n{twins}");

    let tools = alice.says(script().turn(json!({"echo_tools": true}))).await;
    let own = transcript(&tools).pop().unwrap();
    assert_eq!(said[3].strip_prefix("task: "), own.strip_prefix("ai: "));
}

async fn a_fork_cannot_delegate_and_returns_only_its_answer(server: TestServer) {
    let alice = server.human("forker").await;
    alice.says("hello").await;
    let work = script()
        .calls(task("t9", "stranger", "x"))
        .turn(json!({"echo_last_tool": true}));
    let silent = script().calls(lookup("l1", "x")).says("");
    alice
        .says(
            script()
                .calls_all([task("t1", "twin", work), task("t2", "twin", silent)])
                .says("done"),
        )
        .await;
    let said = alice.transcript().await;
    assert!(said[4].contains("cannot delegate"), "{}", said[4]);
    assert_eq!(said[5], "task: The subagent finished without saying anything.");
    let values = alice.state().await["values"].clone();
    assert_eq!(values.get("_deepagents_forked_context"), None);
    assert_eq!(
        values["messages"].as_array().unwrap().len(),
        7,
        "nothing of a fork's conversation comes back"
    );
}

async fn a_fork_shares_files_but_not_todos(server: TestServer) {
    let alice = server.human("forker").await;
    let todos = |id: &str, what: &str| {
        call(
            id,
            "write_todos",
            json!({"todos": [{"content": what, "status": "pending"}]}),
        )
    };
    let write = call("w1", "write_file", json!({"file_path": "/out.txt", "content": "done"}));
    let work = script().calls_all([todos("p2", "its own"), write]).says("written");
    let values = alice
        .says(
            script()
                .calls(todos("p1", "mine"))
                .calls(task("t1", "twin", work))
                .says("ok"),
        )
        .await;
    assert_eq!(values["todos"][0]["content"], "mine");
    assert_eq!(values["files"]["/out.txt"]["content"], "done");
}

async fn a_fork_waits_for_approval_over_a_crash(server: TestServer) {
    server.moves_into_a_process().await;
    let alice = server.human("forker").await;
    alice.says("hello").await;
    let work = script().calls(mail("m1", "a@b.c")).turn(json!({"echo_messages": true}));
    alice
        .asks(script().calls(task("t1", "twin", work)).says("done"))
        .await
        .finishes()
        .await;
    let question = alice.question().await;
    assert_eq!(question.agent(), "twin");
    server.is_killed_and_started_again().await;
    alice.approves(&question).await.finishes().await;
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
    let said = alice.transcript().await;
    assert_eq!(said[4].matches("user").count(), 3, "{}", said[4]);
    assert_eq!(said[4].matches("assistant").count(), 2, "{}", said[4]);
    assert_eq!(said[5], "ai: done");
}

async fn a_fork_does_not_stream_the_conversation_of_its_caller(server: TestServer) {
    let alice = server.human("forker").await;
    alice.says("hello").await;
    let work = script().says("from the twin");
    let asked = script().calls(task("t1", "twin", work)).says("done");
    let mut stream = alice
        .streams(
            asked,
            json!({"stream_mode": ["messages-tuple"], "stream_subgraphs": true}),
        )
        .await;
    let mut texts = String::new();
    while let Some(event) = stream.next().await {
        if event.event.starts_with("messages") {
            texts.push_str(event.data[0]["content"].as_str().unwrap_or_default());
        }
    }
    assert!(texts.contains("from the twin"), "{texts}");
    assert!(!texts.contains("echo: hello"), "{texts}");
}

async fn the_display_text_is_part_of_the_child_run(server: TestServer) {
    let alice = server.human("forker").await;
    let run = alice
        .asks(
            script()
                .calls_all([task("t1", "twin", "x"), task("t2", "stranger", "x")])
                .says("done"),
        )
        .await;
    run.finishes().await;
    let told: Vec<Value> = run
        .children()
        .await
        .iter()
        .map(|child| child["display_text"].clone())
        .collect();
    assert_eq!(told, [json!("Going on"), Value::Null]);
    let tree = server.client().get(&format!("{}/tree", run.path)).await.ok();
    assert_eq!(&tree["display_text"], &Value::Null);
    assert_eq!(&tree["children"][0]["display_text"], &json!("Going on"));
    let menu = server.client().get("/agents/forker").await.ok()["definition"]["subagents"][0]["mode"].clone();
    assert_eq!(menu, "fork");
}
