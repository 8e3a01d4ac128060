//! The input of runs, and messages in it: what is accepted and refused, on every way by which a run is made.

use serde_json::{Value, json};

use crate::support::viewer::Viewer;
use crate::support::{TestServer, eventually, on_both_engines, transcript};

/// Returns a message as `JSON.stringify` writes an instance of LangChain for JavaScript.
fn instance(class: &str, kwargs: Value) -> Value {
    json!({"lc": 1, "type": "constructor", "id": ["langchain_core", "messages", class], "kwargs": kwargs})
}

fn human(text: &str) -> Value {
    let kwargs = json!({"content": text, "additional_kwargs": {}, "response_metadata": {}});
    instance("HumanMessage", kwargs)
}

/// Returns the contents of the users' messages.
fn asked(values: &Value) -> Vec<String> {
    let lines = transcript(values).into_iter();
    lines.filter(|line| line.starts_with("human: ")).collect()
}

/// Returns the body of a run with this input.
fn run_body(input: Value, more: Value) -> Value {
    let mut body = json!({"assistant_id": "agent", "input": input});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

on_both_engines! {
    instances_of_langchain_are_messages_on_every_way,
    what_an_instance_holds_is_kept,
    an_instance_of_another_class_is_refused_by_its_field,
    an_input_that_is_no_object_is_refused_on_every_way,
}

async fn instances_of_langchain_are_messages_on_every_way(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let input = json!({"messages": [human("hi")]});
    let values = client
        .post(&alice.path("/runs/wait"), run_body(input.clone(), json!({})))
        .await
        .ok();
    assert_eq!(transcript(&values), ["human: hi", "ai: echo: hi"]);
    let update = json!({"update": {"messages": [human("by command")]}});
    let body = json!({"assistant_id": "agent", "command": update});
    client.post(&alice.path("/runs/wait"), body).await.ok();
    let written = json!({"values": {"messages": [human("by update")]}});
    client.post(&alice.path("/state"), written).await.ok();
    assert_eq!(
        asked(&alice.state().await["values"]),
        ["human: hi", "human: by command", "human: by update"]
    );

    let values = client.post("/runs/wait", run_body(input.clone(), json!({}))).await.ok();
    assert_eq!(transcript(&values), ["human: hi", "ai: echo: hi"]);
    let kept = json!({"on_completion": "keep"});
    let runs = client
        .post("/runs/batch", json!([run_body(input.clone(), kept)]))
        .await
        .ok();
    let bob = alice.on(runs[0]["thread_id"].as_str().unwrap());
    bob.run(&runs[0]).finishes().await;
    assert_eq!(asked(&bob.state().await["values"]), ["human: hi"]);

    let viewer = Viewer::of_new(&server);
    let params = json!({"assistant_id": "agent", "input": input.clone()});
    viewer.succeeds("run.start", params).await;
    viewer.replays(1).await;
    let carol = alice.on(&viewer.thread);
    assert_eq!(asked(&carol.state().await["values"]), ["human: hi"]);

    let dave = server.human("agent").await;
    let cron = run_body(input, json!({"schedule": "0 0 1 1 *"}));
    client.post(&dave.path("/runs/crons"), cron).await.ok();
    crate::api::crons::all_are_due(&server).await;
    eventually(async || dave.runs().await.first().is_some_and(|run| run["status"] == "success")).await;
    assert_eq!(asked(&dave.state().await["values"]), ["human: hi"]);
}

async fn what_an_instance_holds_is_kept(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let blocks = json!([{"type": "text", "text": "in blocks"}]);
    let call = json!({"name": "lookup", "args": {"query": "x"}, "id": "c1", "type": "tool_call"});
    let sent = json!([
        instance("SystemMessage", json!({"content": "calm", "id": "s1"})),
        instance(
            "HumanMessageChunk",
            json!({"content": blocks, "id": "h1", "name": "ann"})
        ),
        instance(
            "AIMessage",
            json!({"content": "", "id": "a1", "tool_calls": [call], "invalid_tool_calls": []})
        ),
        instance(
            "ToolMessage",
            json!({"content": "no", "tool_call_id": "c1", "name": "lookup", "status": "error",
            "artifact": {"page": 3}})
        ),
        human("gone"),
    ]);
    client
        .post(&alice.path("/state"), json!({"values": {"messages": sent}}))
        .await
        .ok();
    let kept = alice.state().await["values"]["messages"].clone();
    assert_eq!(kept[0]["type"], "system");
    assert_eq!(kept[0]["id"], "s1");
    assert_eq!(kept[1]["content"], blocks);
    assert_eq!(kept[1]["name"], "ann");
    assert_eq!(kept[2]["tool_calls"][0]["args"], json!({"query": "x"}));
    assert_eq!(kept[2]["id"], "a1");
    assert_eq!(kept[3]["tool_call_id"], "c1");
    assert_eq!(kept[3]["status"], "error");
    assert_eq!(kept[3]["artifact"], json!({"page": 3}));
    let removed = instance("RemoveMessage", json!({"content": [], "id": kept[4]["id"]}));
    client
        .post(&alice.path("/state"), json!({"values": {"messages": [removed]}}))
        .await
        .ok();
    assert_eq!(alice.transcript().await.len(), 4);
}

async fn an_instance_of_another_class_is_refused_by_its_field(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let prompt = instance("PromptTemplate", json!({"template": "x"}));
    let input = json!({"messages": [human("hi"), prompt]});
    let body = run_body(input, json!({}));
    let detail = client.post(&alice.path("/runs"), body).await.refused(422);
    assert!(
        detail.starts_with("messages[1].id: names the class \"PromptTemplate\""),
        "{detail}"
    );
    assert!(alice.runs().await.is_empty());
}

async fn an_input_that_is_no_object_is_refused_on_every_way(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let expected = r#"input: must be an object of state fields, as in {"messages": [...]}, not "#;
    for input in [json!([{"role": "user", "content": "z"}]), json!("z"), json!(7)] {
        let body = run_body(input.clone(), json!({}));
        let cron = run_body(input.clone(), json!({"schedule": "0 0 1 1 *"}));
        for (path, body) in [
            (alice.path("/runs"), body.clone()),
            (alice.path("/runs/wait"), body.clone()),
            (alice.path("/runs/stream"), body.clone()),
            ("/runs".to_owned(), body.clone()),
            ("/runs/wait".to_owned(), body.clone()),
            ("/runs/batch".to_owned(), json!([body.clone()])),
            (alice.path("/runs/crons"), cron.clone()),
            ("/runs/crons".to_owned(), cron.clone()),
        ] {
            let detail = client.post(&path, body).await.refused(422);
            assert!(detail.contains(expected), "{path} {input}: {detail}");
        }
        let params = json!({"assistant_id": "agent", "input": input});
        let viewer = Viewer::of(&server, &alice.thread);
        assert_eq!(viewer.refused("run.start", params).await, "invalid_argument");
    }
    assert!(alice.runs().await.is_empty());
}
