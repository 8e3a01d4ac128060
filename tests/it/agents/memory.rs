//! Memory: the tools for the Store, in a namespace of the agent.

use serde_json::{Value, json};

use crate::support::{TestServer, call, lookup, on_both_engines, script, task};

fn put(id: &str, key: &str, value: Value) -> Value {
    call(id, "store_put", json!({"key": key, "value": value}))
}

/// Returns the items below a namespace, without their times.
async fn items(server: &TestServer, prefix: Value) -> Vec<Value> {
    let found = server
        .client()
        .post("/store/items/search", json!({"namespace_prefix": prefix, "limit": 100}))
        .await
        .ok();
    let items = found["items"].as_array().expect("a list").iter();
    items
        .map(|item| json!([item["namespace"], item["key"], item["value"]]))
        .collect()
}

on_both_engines! {
    memories_are_available_on_the_next_thread,
    a_model_reaches_nothing_but_its_own_namespace,
    a_run_without_the_context_for_its_memory_fails_with_the_key,
    subagents_have_the_memory_of_their_parent_unless_told_otherwise,
    a_write_is_not_repeated_after_a_kill,
}

async fn memories_are_available_on_the_next_thread(server: TestServer) {
    let context = json!({"context": {"user_id": "al@example.org"}});
    let alice = server.human("rememberer").await;
    let asked = script()
        .calls(put("p1", "food", json!({"likes": "fish"})))
        .says("noted");
    alice
        .starts(alice.run_body(asked, context.clone()))
        .await
        .finishes()
        .await;
    assert_eq!(
        alice.transcript().await[1..],
        ["ai calls store_put", "store_put: Stored under `food`.", "ai: noted"]
    );
    let own = json!(["memories", "al@example%2Eorg"]);
    assert_eq!(
        items(&server, json!([])).await,
        [json!([own, "food", {"likes": "fish"}])]
    );

    let again = server.human("rememberer").await;
    let get = call("g1", "store_get", json!({"key": "food"}));
    let search = call("s1", "store_search", json!({"filter": {"likes": {"$ne": "tea"}}}));
    let forget = call("d1", "store_delete", json!({"key": "food"}));
    let asked = script().calls(get).calls(search).calls(forget).says("fish");
    again.starts(again.run_body(asked, context)).await.finishes().await;
    let said = again.transcript().await;
    assert_eq!(said[2], r#"store_get: {"likes":"fish"}"#);
    assert!(said[4].starts_with("store_search: [{"), "{}", said[4]);
    assert!(said[4].contains("fish"), "{}", said[4]);
    assert_eq!(said[6], "store_delete: There is nothing under `food` any more.");
    assert_eq!(items(&server, json!([])).await, [Value::Null; 0]);
}

async fn a_model_reaches_nothing_but_its_own_namespace(server: TestServer) {
    let client = server.client();
    for place in [json!(["memories", "bo"]), json!(["memories", "bo", "deep"])] {
        let item = json!({"namespace": place, "key": "secret", "value": {"x": 1}});
        let put = client.request(reqwest::Method::PUT, "/store/items").json(&item);
        crate::support::client::reply(put).await.ok();
    }
    let alice = server.human("rememberer").await;
    let calls = [
        call("c1", "store_search", json!({})),
        call("c2", "store_search", json!({"namespace": ["bo"]})),
        call("c3", "store_get", json!({"key": "secret", "namespace": ["..", "bo"]})),
        call(
            "c4",
            "store_put",
            json!({"key": "k", "value": {}, "namespace": ["x.y"]}),
        ),
    ];
    let asked = script().calls_all(calls).says("nothing");
    alice
        .starts(alice.run_body(asked, json!({"context": {"user_id": "al"}})))
        .await
        .finishes()
        .await;
    let said = alice.transcript().await;
    assert_eq!(
        said[2..4],
        ["store_search: Nothing was found.", "store_search: Nothing was found."]
    );
    assert!(said[4].starts_with("store_get failed:"), "{said:?}");
    assert!(said[5].starts_with("store_put failed:"), "{said:?}");
    assert_eq!(items(&server, json!(["memories", "al"])).await, [Value::Null; 0]);
}

async fn a_run_without_the_context_for_its_memory_fails_with_the_key(server: TestServer) {
    let alice = server.human("rememberer").await;
    alice.says(script().calls(put("p1", "k", json!({}))).says("no")).await;
    let said = alice.transcript().await;
    assert!(
        said[2].contains("the context of the run has no `user_id`"),
        "{}",
        said[2]
    );
    assert_eq!(said[3], "ai: no");
}

async fn subagents_have_the_memory_of_their_parent_unless_told_otherwise(server: TestServer) {
    let alice = server.human("rememberer").await;
    let heir = script().calls(put("p1", "from", json!({"who": "heir"}))).says("noted");
    let reader = script()
        .calls(put("p2", "from", json!({"who": "reader"})))
        .calls(call("g1", "store_get", json!({"key": "from"})))
        .says("read");
    let asked = script()
        .calls(task("t1", "heir", heir))
        .calls(task("t2", "reader", reader))
        .says("done");
    alice
        .starts(alice.run_body(asked, json!({"context": {"user_id": "al"}})))
        .await
        .finishes()
        .await;
    let stored = items(&server, json!([])).await;
    assert_eq!(stored, [json!([["memories", "al"], "from", {"who": "heir"}])]);
}

async fn a_write_is_not_repeated_after_a_kill(server: TestServer) {
    server.moves_into_a_process().await;
    let alice = server.human("rememberer").await;
    server.tools.hold("lookup");
    let calls = [put("p1", "food", json!({"likes": "fish"})), lookup("l1", "x")];
    let asked = script().calls_all(calls).says("done");
    let run = alice
        .starts(alice.run_body(asked, json!({"context": {"user_id": "al"}})))
        .await;
    server.tools.called("lookup", 1).await;
    let client = server.client();
    let path = "/store/items?namespace=memories.al&key=food";
    crate::support::eventually(async || !client.get(path).await.ok().is_null()).await;
    let before = client.get(path).await.ok();
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(client.get(path).await.ok(), before);
    let said = alice.transcript().await;
    assert_eq!(
        said[2..],
        ["store_put: Stored under `food`.", "lookup: found x", "ai: done"]
    );
}
