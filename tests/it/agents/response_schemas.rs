//! A response format for one delegation, for every kind of subagent.

use serde_json::{Value, json};

use crate::support::script::Script;
use crate::support::{TestServer, call, lookup, mail, on_both_engines, script};

fn finding() -> Value {
    json!({"title": "Finding", "type": "object", "properties": {"summary": {"type": "string"}}, "required": ["summary"]})
}

/// Returns a call of a tool that delegates `work` with this response format.
fn spawn(id: &str, who: &str, work: impl ToString, format: Value) -> Value {
    call(
        id,
        "spawn",
        json!({"description": work.to_string(), "subagent_type": who, "response_format": format}),
    )
}

fn finds(summary: &str) -> Script {
    script().calls(call("f1", "Finding", json!({"summary": summary})))
}

/// Returns an agent with a fork and a registered agent as its subagents.
async fn boss(server: &TestServer) {
    let own = json!({"title": "Own", "type": "object"});
    let clerk = json!({"model": "scripted:lab", "tools": ["lookup", "send_email"], "interrupt_on": {"send_email": true},
        "response_format": own});
    server.client().put("/agents/file-clerk", clerk).await.ok();
    let subagents = json!([
        {"name": "twin", "description": "Goes on as the boss does.", "mode": "fork"},
        {"name": "clerk", "description": "Knows where everything is.", "graph_id": "file-clerk", "async": false},
    ]);
    let boss = json!({"model": "scripted:lab", "tools": ["spawn", "lookup"], "subagents": subagents});
    server.client().put("/agents/boss", boss).await.ok();
}

on_both_engines! {
    forks_and_registered_subagents_follow_the_response_format,
    the_response_format_applies_after_a_crash,
    an_unusable_response_format_is_refused_before_the_delegation,
    the_result_of_a_program_is_validated_by_the_response_format,
}

async fn forks_and_registered_subagents_follow_the_response_format(server: TestServer) {
    boss(&server).await;
    let alice = server.human("boss").await;
    let own = script().calls(call("o1", "Own", json!({"x": 1})));
    let calls = [
        spawn("s1", "twin", finds("by the twin"), finding()),
        spawn("s2", "clerk", finds("by the clerk"), finding()),
        spawn("s3", "twin", script().says("as ever"), Value::Null),
        spawn("s4", "clerk", &own, Value::Null),
        spawn(
            "s5",
            "clerk",
            &own,
            json!({"title": "Own", "type": "object", "required": ["x"]}),
        ),
        spawn(
            "s6",
            "twin",
            script()
                .calls(call("f1", "Finding", json!({})))
                .calls(lookup("l1", "x"))
                .calls(call("f2", "Finding", json!({"summary": "in the end"}))),
            finding(),
        ),
    ];
    alice.says(script().calls_all(calls).says("done")).await;
    let said = [
        r#"{"summary":"by the twin"}"#,
        r#"{"summary":"by the clerk"}"#,
        "as ever",
        r#"{"x":1}"#,
        r#"{"x":1}"#,
        r#"{"summary":"in the end"}"#,
    ];
    assert_eq!(
        alice.transcript().await[2..8],
        said.map(|text| format!("spawn: {text}"))
    );
}

async fn the_response_format_applies_after_a_crash(server: TestServer) {
    server.moves_into_a_process().await;
    boss(&server).await;
    let alice = server.human("boss").await;
    let work = script()
        .calls(mail("m1", "bob"))
        .calls(call("f1", "Finding", json!({"summary": "sent"})));
    alice
        .asks(script().calls(spawn("s1", "clerk", work, finding())).says("done"))
        .await
        .finishes()
        .await;
    server.is_killed_and_started_again().await;
    alice.approves(&alice.question().await).await.finishes().await;
    assert_eq!(
        alice.transcript().await[2..],
        [r#"spawn: {"summary":"sent"}"#, "ai: done"]
    );
}

async fn an_unusable_response_format_is_refused_before_the_delegation(server: TestServer) {
    boss(&server).await;
    let far = json!({"name": "far", "description": "Works on another server.", "graph_id": "x", "async": false,
            "url": "https://agents.example.org"});
    let distant = json!({"model": "scripted:lab", "tools": ["spawn"], "subagents": [far]});
    server.client().put("/agents/distant", distant).await.ok();
    let refused = async |agent: &str, who: &str, format: Value| {
        let alice = server.human(agent).await;
        let run = alice
            .asks(
                script()
                    .calls(spawn("s1", who, script().says("no"), format))
                    .says("done"),
            )
            .await;
        run.finishes().await;
        assert_eq!(run.children().await, Vec::<Value>::new());
        alice.transcript().await[2].clone()
    };
    let lookup = || json!({"title": "lookup", "type": "object"});
    for who in ["twin", "clerk"] {
        let told = refused("boss", who, lookup()).await;
        let start =
            format!("spawn failed: `{who}` cannot answer in the form that was asked for: response_format.title:");
        assert!(told.starts_with(&start), "{told}");
        assert!(told.contains("`lookup` is the name of a tool"), "{told}");
        let told = refused("boss", who, json!({"type": "array"})).await;
        assert!(
            told.contains("response_format: must be a JSON Schema of an object"),
            "{told}"
        );
    }
    let told = refused("distant", "far", finding()).await;
    assert!(
        told.starts_with("spawn failed: `far` works on another server, which cannot be told of a form"),
        "{told}"
    );
}

async fn the_result_of_a_program_is_validated_by_the_response_format(server: TestServer) {
    server.is_embedded().await;
    let filler = json!({"name": "filler", "description": "Fills in any form.", "runnable": "fills"});
    let agent = json!({"model": "scripted:lab", "tools": ["spawn"], "subagents": [filler]});
    server.client().put("/agents/forms", agent).await.ok();
    let alice = server.human("forms").await;
    let calls = [
        spawn("s1", "filler", r#"{"summary": "said"}"#, finding()),
        spawn("s2", "filler", "field", finding()),
        spawn("s3", "filler", r#"{"summary": 7}"#, finding()),
        spawn("s4", "filler", "plain words", finding()),
        spawn("s5", "filler", "plain words", Value::Null),
    ];
    alice.says(script().calls_all(calls).says("done")).await;
    let said = alice.transcript().await;
    assert_eq!(said[2], r#"spawn: {"summary":"said"}"#);
    assert_eq!(said[3], r#"spawn: {"summary":"Finding"}"#);
    for (at, why) in [(4, "`/summary`: 7 is not of type"), (5, "it is not JSON")] {
        let start = "spawn failed: The subagent `filler` failed (StructuredOutputError): its result does not match: ";
        assert!(said[at].starts_with(start), "{}", said[at]);
        assert!(said[at].contains(why), "{}", said[at]);
    }
    assert_eq!(said[6..], ["spawn: plain words", "ai: done"]);
}
