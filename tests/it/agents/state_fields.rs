//! Declared fields of the state: merging, schemas and visibility.

use serde_json::{Value, json};

use crate::support::{TestServer, call, on_both_engines, script, task};

/// Returns a call that writes into the state.
fn note(id: &str, update: Value) -> Value {
    call(id, "note", json!({"update": update}))
}

/// Returns a delegation to a subagent that writes into the state.
fn scribe(id: &str, update: Value) -> Value {
    task(
        id,
        "scribe",
        script().calls(note(&format!("{id}-note"), update)).says("noted"),
    )
}

on_both_engines! {
    fields_are_merged_by_their_rules_also_from_subagents,
    the_later_call_wins_when_two_subagents_write_one_field,
    private_fields_are_not_shown,
    values_that_do_not_fit_a_declared_field_are_refused,
    updates_of_the_state_may_write_the_fields_that_an_input_may_not,
    the_schemas_of_the_assistant_show_the_declared_fields,
}

async fn fields_are_merged_by_their_rules_also_from_subagents(server: TestServer) {
    let alice = server.human("keeper").await;
    let first = json!({"findings": ["a"], "scores": {"x": 1, "y": 1}});
    let calls = [
        scribe("t1", json!({"findings": ["b"], "scores": {"x": null}})),
        scribe("t2", json!({"findings": ["c"], "scores": {"z": 3}})),
    ];
    alice
        .says(script().calls(note("n1", first)).calls_all(calls).says("done"))
        .await;
    let values = &alice.state().await["values"];
    assert_eq!(values["findings"], json!(["a", "b", "c"]));
    assert_eq!(values["scores"], json!({"y": 1, "z": 3}));
    alice
        .says(script().calls(note("n2", json!({"findings": ["d"]}))).says("done"))
        .await;
    assert_eq!(alice.state().await["values"]["findings"], json!(["a", "b", "c", "d"]));
}

async fn the_later_call_wins_when_two_subagents_write_one_field(server: TestServer) {
    let alice = server.human("keeper").await;
    let calls = [scribe("t1", json!({"plain": 1})), scribe("t2", json!({"plain": 2}))];
    alice.says(script().calls_all(calls).says("done")).await;
    assert_eq!(alice.state().await["values"]["plain"], 2);
    let said = alice.transcript().await;
    assert_eq!(said[2], "task: noted");
    assert!(said[3].contains("also wrote `plain`"), "{}", said[3]);
    assert_eq!(said[4], "ai: done");
}

async fn private_fields_are_not_shown(server: TestServer) {
    let alice = server.human("keeper").await;
    let look = script().turn(json!({"echo_messages": true})).to_string();
    let work = script()
        .calls(note("n1", json!({"draft": "mine", "verdict": "good"})))
        .calls(task("t1", "scribe", look))
        .says("done");
    let body = json!({"input": {"messages": [{"role": "user", "content": work.to_string()}], "hint": "psst"}});
    let input = body["input"].clone();
    alice
        .starts(alice.run_body("", json!({"input": input})))
        .await
        .finishes()
        .await;
    let state = alice.state().await;
    assert_eq!(state["values"]["verdict"], "good");
    assert_eq!(state["values"].get("hint"), None);
    assert_eq!(state["values"].get("draft"), None);
    let history = alice.history().await;
    assert!(!history.is_empty());
    for entry in history {
        let results = entry["tasks"].as_array().unwrap().iter().map(|task| &task["result"]);
        for shown in results.chain([&entry["values"]]) {
            assert_eq!(shown.get("hint"), None);
            assert_eq!(shown.get("draft"), None);
            assert_eq!(shown.get("_rules"), None);
        }
    }
}

async fn values_that_do_not_fit_a_declared_field_are_refused(server: TestServer) {
    let alice = server.human("keeper").await;
    for (input, field) in [
        (json!({"verdict": "good"}), "verdict"),
        (json!({"draft": "x"}), "draft"),
        (json!({"findings": "x"}), "findings"),
        (json!({"findings": [7]}), "findings.0"),
    ] {
        let reply = server
            .client()
            .post(&alice.path("/runs"), json!({"assistant_id": "keeper", "input": input}))
            .await;
        assert_eq!(reply.status, 422, "{input}");
        assert!(reply.body.to_string().contains(field), "{}", reply.body);
    }
    alice
        .says(script().calls(note("n1", json!({"scores": [1]}))).says("done"))
        .await;
    let said = alice.transcript().await;
    assert!(said[2].contains("`scores`"), "{}", said[2]);
    assert!(said[2].contains("must be an object"), "{}", said[2]);
    let written = server
        .client()
        .post(&alice.path("/state"), json!({"values": {"findings": [7]}}))
        .await;
    assert_eq!(written.status, 422, "{}", written.body);
}

async fn updates_of_the_state_may_write_the_fields_that_an_input_may_not(server: TestServer) {
    let alice = server.human("keeper").await;
    alice.says("hello").await;
    let fields = |verdict: &str| json!({"verdict": verdict, "draft": "x"});
    let command = json!({"assistant_id": "keeper", "command": {"update": fields("bad")}});
    for (path, body, verdict) in [
        ("/state", json!({"values": fields("good")}), "good"),
        ("/runs/wait", command, "bad"),
    ] {
        server.client().post(&alice.path(path), body).await.ok();
        let values = alice.state().await["values"].clone();
        assert_eq!(values["verdict"], verdict);
        assert_eq!(values.get("draft"), None);
    }
}

async fn the_schemas_of_the_assistant_show_the_declared_fields(server: TestServer) {
    let found = server
        .client()
        .post("/assistants/search", json!({"graph_id": "keeper"}))
        .await;
    let id = found.body[0]["assistant_id"].as_str().unwrap().to_owned();
    let schemas = server.client().get(&format!("/assistants/{id}/schemas")).await.body;
    let has = |part: &str, field: &str| schemas[part]["properties"].get(field).is_some();
    let seen =
        ["hint", "verdict", "draft", "findings"].map(|field| (has("input_schema", field), has("output_schema", field)));
    assert_eq!(seen, [(true, false), (false, true), (false, false), (true, true)]);
}
