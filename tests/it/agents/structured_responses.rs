//! Structured responses of agents and subagents.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::provider::Turn;
use crate::support::script::Script;
use crate::support::{TestServer, call, mail, on_both_engines, script, task};

fn finding() -> Value {
    json!({"title": "Finding", "type": "object", "properties": {"summary": {"type": "string"}}, "required": ["summary"]})
}

/// Defines an agent that delegates to a subagent with this response format.
async fn desk(client: &Client, format: Value) {
    let analyst = json!({"name": "analyst", "description": "Returns a finding.", "system_prompt": "Analyse.",
        "response_format": format});
    client
        .put("/agents/desk", json!({"model": "scripted:lab", "subagents": [analyst]}))
        .await
        .ok();
}

fn answer(id: &str, args: Value) -> Value {
    call(id, "Finding", args)
}

on_both_engines! {
    native_structured_output_is_text,
    each_provider_receives_the_response_format_in_its_protocol,
    an_invalid_structured_response_is_handled_as_configured,
    a_response_format_can_be_one_of_several_schemas,
    a_response_format_cannot_have_the_name_of_a_tool,
    a_tool_that_delegates_may_set_the_response_format,
}

async fn native_structured_output_is_text(server: TestServer) {
    desk(&server.client(), json!({"schema": finding(), "strategy": "provider"})).await;
    let alice = server.human("desk").await;
    let good = script()
        .calls(call("l1", "ls", json!({"path": "/"})))
        .says(r#"{"summary": "it is so"}"#);
    let calls = [
        task("t1", "analyst", good),
        task("t2", "analyst", script().says(r#"{"summary": 7}"#)),
    ];
    alice.says(script().calls_all(calls).says("done")).await;
    let said = alice.transcript().await;
    assert_eq!(said[2], r#"task: {"summary":"it is so"}"#);
    assert!(
        said[3].starts_with("task failed: The subagent `analyst` failed (StructuredOutputError)"),
        "{said:#?}"
    );
    assert_eq!(said[4], "ai: done");

    // The error that the model receives is a script, too, so that its next answer is valid.
    let told = script().says(r#"{"summary": "at last"}"#).to_string();
    desk(
        &server.client(),
        json!({"schema": finding(), "strategy": "provider", "handle_errors": told}),
    )
    .await;
    let bob = server.human("desk").await;
    bob.says(
        script()
            .calls(task("t1", "analyst", script().says("plain words")))
            .says("done"),
    )
    .await;
    assert_eq!(bob.transcript().await[2], r#"task: {"summary":"at last"}"#);
}

async fn each_provider_receives_the_response_format_in_its_protocol(server: TestServer) {
    let client = server.client();
    for provider in ["fake_openai", "fake_anthropic", "fake_google"] {
        let format = json!({"schema": finding(), "strategy": "provider", "strict": true});
        client
            .put(
                "/agents/desk",
                json!({"model": format!("{provider}:m-1"), "response_format": format}),
            )
            .await
            .ok();
        let alice = server.human("desk").await;
        let before = server.models.asked().len();
        server.models.will([Turn::Says(r#"{"summary": "so"}"#)]);
        let values = alice.says("what is it?").await;
        assert_eq!(
            values["structured_response"],
            json!({"summary": "so"}),
            "{provider}: {values:#}"
        );
        let asked = server.models.asked().split_off(before);
        assert!(asked.len() == 1, "{provider}: {}", asked[0].body);
        assert!(
            asked[0].body.contains("\"summary\":{\"type\":\"string\"}"),
            "{provider}: {}",
            asked[0].body
        );
    }
}

async fn an_invalid_structured_response_is_handled_as_configured(server: TestServer) {
    let client = server.client();
    let form = |errors: Value| json!({"schema": finding(), "tool_message_content": "Kept.", "handle_errors": errors});
    let work = || {
        script()
            .calls(answer("f1", json!({})))
            .calls(answer("f2", json!({"summary": "so"})))
    };
    let delegates = async |errors: Value| {
        desk(&client, form(errors)).await;
        let alice = server.human("desk").await;
        let run = alice
            .asks(script().calls(task("t1", "analyst", work())).says("done"))
            .await;
        run.finishes().await;
        let child = run.children().await[0]["run_id"].as_str().unwrap().to_owned();
        let state = client.get(&alice.path(&format!("/runs/{child}/state"))).await.ok();
        let texts = state["values"]["messages"].as_array().unwrap().iter();
        let results = texts
            .filter(|message| message["type"] == "tool")
            .map(|message| message["content"].clone());
        (alice.transcript().await[2].clone(), results.collect::<Vec<Value>>())
    };
    let (said, results) = delegates(json!("Give the summary.")).await;
    assert_eq!(said.as_str(), r#"task: {"summary":"so"}"#);
    assert_eq!(results, vec![json!("Give the summary."), json!("Kept.")]);
    let (said, results) = delegates(json!(true)).await;
    assert_eq!(said, r#"task: {"summary":"so"}"#);
    assert!(
        results[0].as_str().unwrap().contains("`summary`: is required"),
        "{results:?}"
    );
    let (said, _) = delegates(json!(false)).await;
    assert!(
        said.starts_with("task failed: The subagent `analyst` failed (StructuredOutputError)"),
        "{said}"
    );
}

async fn a_response_format_can_be_one_of_several_schemas(server: TestServer) {
    let doubt = json!({"title": "Doubt", "type": "object", "properties": {"why": {"type": "string"}}});
    let union = json!({"anyOf": [{"$ref": "#/$defs/Finding"}, doubt], "$defs": {"Finding": finding()}});
    desk(&server.client(), union).await;
    let alice = server.human("desk").await;
    let sure = script().calls(answer("f1", json!({"summary": "so"})));
    let unsure = script().calls(call("f2", "Doubt", json!({"why": "dark"})));
    let calls = [task("t1", "analyst", sure), task("t2", "analyst", unsure)];
    alice.says(script().calls_all(calls).says("done")).await;
    let said = alice.transcript().await;
    assert_eq!(
        said[2..],
        [r#"task: {"summary":"so"}"#, r#"task: {"why":"dark"}"#, "ai: done"]
    );
}

async fn a_response_format_cannot_have_the_name_of_a_tool(server: TestServer) {
    let body = json!({"model": "scripted:lab", "response_format": {"title": "ls", "type": "object"}});
    let told = server.client().put("/agents/desk", body).await.refused(422);
    assert!(
        told.contains("response_format.title: `ls` is the name of a tool of the agent"),
        "{told}"
    );
}

async fn a_tool_that_delegates_may_set_the_response_format(server: TestServer) {
    let spawn = |id: &str, who: &str, work: &Script, format: Value| {
        call(
            id,
            "spawn",
            json!({"description": work.to_string(), "subagent_type": who, "response_format": format}),
        )
    };
    server.moves_into_a_process().await;
    let alice = server.human("deep").await;
    let work = script()
        .calls(mail("m1", "bob"))
        .calls(answer("f1", json!({"summary": "sent"})));
    let wrong = json!({"type": "array"});
    let calls = [
        spawn("s1", "researcher", &work, finding()),
        spawn("s2", "researcher", &work, wrong),
        spawn("s3", "general-purpose", &script().says("as ever"), Value::Null),
    ];
    alice
        .asks(script().calls_all(calls).says("done"))
        .await
        .finishes()
        .await;
    server.is_killed_and_started_again().await;
    alice.approves(&alice.question().await).await.finishes().await;
    let said = alice.transcript().await;
    assert_eq!(said[2], r#"spawn: {"summary":"sent"}"#);
    assert!(
        said[3].contains("response_format: must be a JSON Schema of an object"),
        "{}",
        said[3]
    );
    assert_eq!(said[4..], ["spawn: as ever", "ai: done"]);
}
