//! The Store: items and their search.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, Reply, reply};
use crate::support::provider::Turn;
use crate::support::{TestServer, eventually, on_both_engines};

/// Sends a body to `/store/items`.
async fn items(client: &Client, method: Method, body: Value) -> Reply {
    reply(client.request(method, "/store/items").json(&body)).await
}

async fn put(client: &Client, namespace: Value, key: &str, value: Value) -> Reply {
    items(
        client,
        Method::PUT,
        json!({"namespace": namespace, "key": key, "value": value}),
    )
    .await
}

async fn get(client: &Client, namespace: &str, key: &str) -> Value {
    client
        .get(&format!("/store/items?namespace={namespace}&key={key}"))
        .await
        .ok()
}

/// Returns the keys of the items that a search finds.
async fn found(client: &Client, body: Value) -> Vec<String> {
    let found = client.post("/store/items/search", body).await.ok();
    let items = found["items"].as_array().expect("a list");
    items
        .iter()
        .map(|item| item["key"].as_str().expect("a key").to_owned())
        .collect()
}

async fn namespaces(client: &Client, body: Value) -> Value {
    client.post("/store/namespaces", body).await.ok()["namespaces"].clone()
}

on_both_engines! {
    an_item_is_stored_until_it_is_deleted,
    items_are_searched_by_namespace_and_value,
    namespaces_are_listed_by_prefix_suffix_and_depth,
    an_item_is_deleted_after_its_ttl,
    the_configured_ttl_of_items_is_the_default,
    expired_items_are_removed_again_and_again,
    an_invalid_item_is_refused_by_field,
    items_are_found_by_meaning,
    an_item_is_not_stored_without_its_embedding,
}

async fn an_item_is_stored_until_it_is_deleted(server: TestServer) {
    let client = server.client();
    let stored = put(
        &client,
        json!(["users", "al"]),
        "food",
        json!({"likes": "fish", "n": 1}),
    )
    .await;
    assert_eq!(stored.status, 204);
    assert_eq!(stored.body, Value::Null);
    let item = get(&client, "users.al", "food").await;
    assert_eq!(&item["namespace"], &json!(["users", "al"]));
    assert_eq!(&item["key"], &json!("food"));
    assert_eq!(&item["value"], &json!({"likes": "fish", "n": 1}));
    assert_eq!(&item["created_at"], &item["updated_at"]);
    server.is_stopped_and_started_again().await;
    put(&client, json!(["users", "al"]), "food", json!({"likes": "tea"}))
        .await
        .ok();
    let newer = get(&client, "users.al", "food").await;
    assert_eq!(&newer["value"], &json!({"likes": "tea"}));
    assert_eq!(&newer["created_at"], &item["created_at"]);
    assert!(newer["updated_at"].as_str() > item["updated_at"].as_str());
    for _ in 0..2 {
        let gone = items(
            &client,
            Method::DELETE,
            json!({"namespace": ["users", "al"], "key": "food"}),
        )
        .await;
        assert_eq!(gone.status, 204);
        assert_eq!(gone.body, Value::Null);
    }
    assert_eq!(get(&client, "users.al", "food").await, Value::Null);
}

async fn items_are_searched_by_namespace_and_value(server: TestServer) {
    let client = server.client();
    for (place, key, value) in [
        (json!(["u", "al"]), "a", json!({"kind": "note", "n": 1})),
        (
            json!(["u", "al", "old"]),
            "b",
            json!({"kind": "note", "n": 2, "tag": {"x": true}}),
        ),
        (json!(["u", "bo"]), "c", json!({"kind": "task", "n": 3})),
    ] {
        put(&client, place, key, value).await.ok();
    }
    let whole = client
        .post("/store/items/search", json!({"namespace_prefix": ["u", "al", "old"]}))
        .await
        .ok();
    let item = &whole["items"][0];
    assert_eq!(&item["namespace"], &json!(["u", "al", "old"]));
    assert_eq!(&item["score"], &Value::Null);
    assert_eq!(
        found(&client, json!({"namespace_prefix": ["u", "al"]})).await,
        ["a", "b"]
    );
    assert_eq!(found(&client, json!({"namespace_prefix": []})).await, ["a", "b", "c"]);
    assert_eq!(
        found(&client, json!({"namespace_prefix": ["u"], "limit": 1, "offset": 1})).await,
        ["b"]
    );
    let cases = [
        (json!({"kind": "note", "n": {"$gte": 2}}), vec!["b"]),
        (json!({"n": {"$lt": 3}}), vec!["a", "b"]),
        (json!({"kind": {"$ne": "note"}}), vec!["c"]),
        (json!({"tag": {"x": true}}), vec!["b"]),
        (json!({"tag": null}), vec!["a", "c"]),
    ];
    for (filter, keys) in cases {
        let body = json!({"namespace_prefix": ["u"], "filter": filter});
        assert_eq!(found(&client, body).await, keys, "{filter}");
    }
}

async fn namespaces_are_listed_by_prefix_suffix_and_depth(server: TestServer) {
    let client = server.client();
    for place in [json!(["a", "x", "notes"]), json!(["a", "y", "notes"]), json!(["b"])] {
        put(&client, place, "k", json!({})).await.ok();
    }
    assert_eq!(
        namespaces(&client, json!({})).await,
        json!([["a", "x", "notes"], ["a", "y", "notes"], ["b"]])
    );
    let deep = json!({"prefix": ["a"], "suffix": ["notes"], "max_depth": 2, "limit": 1, "offset": 1});
    assert_eq!(namespaces(&client, deep).await, json!([["a", "y"]]));
    assert_eq!(
        namespaces(&client, json!({"prefix": ["*", "y"]})).await,
        json!([["a", "y", "notes"]])
    );
}

async fn an_item_is_deleted_after_its_ttl(server: TestServer) {
    let client = server.client();
    let brief = json!({"namespace": ["n"], "key": "brief", "value": {}, "ttl": 0.001});
    items(&client, Method::PUT, brief).await.ok();
    let long = json!({"namespace": ["n"], "key": "long", "value": {}, "ttl": 60});
    items(&client, Method::PUT, long).await.ok();
    put(&client, json!(["n"]), "lasting", json!({})).await.ok();
    let gone = async || {
        client
            .get("/store/items?namespace=n&key=brief&refresh_ttl=false")
            .await
            .ok()
            .is_null()
    };
    eventually(gone).await;
    assert_eq!(
        found(&client, json!({"namespace_prefix": ["n"]})).await,
        ["lasting", "long"]
    );
    assert!(get(&client, "n", "long").await.is_object());
}

async fn the_configured_ttl_of_items_is_the_default(server: TestServer) {
    let client = server.client();
    let lines = "[store.ttl]\ndefault_ttl = 0.001\nrefresh_on_read = false\nsweep_interval_minutes = 0.002";
    server.is_configured_with(lines).await;
    put(&client, json!(["n"]), "k", json!({})).await.ok();
    let forever = json!({"namespace": ["n"], "key": "forever", "value": {}, "ttl": null});
    items(&client, Method::PUT, forever).await.ok();
    eventually(async || get(&client, "n", "k").await.is_null()).await;
    assert_eq!(found(&client, json!({})).await, ["forever"]);
}

async fn expired_items_are_removed_again_and_again(server: TestServer) {
    let client = server.client();
    server
        .is_configured_with("[store.ttl]\ndefault_ttl = 0.001\nsweep_interval_minutes = 0.002")
        .await;
    for key in ["first", "second"] {
        put(&client, json!(["n"]), key, json!({})).await.ok();
        eventually(async || server.number_in_database("select count(*) from items").await == 0).await;
    }
}

async fn an_invalid_item_is_refused_by_field(server: TestServer) {
    let client = server.client();
    let good = json!({"namespace": ["n"], "key": "k", "value": {}});
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body
    };
    let cases = [
        (with("namespace", json!([])), 400, "Namespace cannot be empty."),
        (
            with("namespace", json!(["langgraph", "x"])),
            400,
            "Root label for namespace cannot be \"langgraph\".",
        ),
        (
            with("namespace", json!(["a.b"])),
            422,
            "namespace[0]: Namespace label 'a.b' must be a non-empty string",
        ),
        (
            with("namespace", json!(["a", ""])),
            422,
            "namespace[1]: Namespace label ''",
        ),
        (
            with("namespace", json!(vec!["n"; 33])),
            422,
            "namespace: has more than 32 labels",
        ),
        (with("namespace", json!("n")), 422, "namespace: "),
        (with("key", json!("")), 422, "key: must not be empty"),
        (with("key", json!("k".repeat(600))), 422, "key: is longer than"),
        (with("value", json!("str")), 422, "value: "),
        (
            with("value", json!({"a": "x\0"})),
            422,
            "value.a: contains the character U+0000",
        ),
        (
            with("value", json!({"a": "x".repeat(1_100_000)})),
            422,
            "value: is longer than",
        ),
        (with("ttl", json!(0)), 422, "ttl: must be more than 0"),
        (with("ttl", json!("soon")), 422, "ttl: "),
        (
            with("index", json!({})),
            422,
            "index: must be false or a list of fields",
        ),
        (json!({"key": "k"}), 422, "body: `namespace` must be given"),
    ];
    for (body, status, reason) in cases {
        let refused = items(&client, Method::PUT, body.clone()).await.refused(status);
        assert!(refused.contains(reason), "{body}: {refused}");
    }
    for query in [
        "",
        "?namespace=n",
        "?namespace=a..b&key=k",
        "?namespace=n&key=k&refresh_ttl=maybe",
    ] {
        client.get(&format!("/store/items{query}")).await.refused(422);
    }
    let searches = [
        (json!({"limit": 0}), "limit: must be from 1 to 1000"),
        (json!({"limit": 1001}), "limit: must be from 1 to 1000"),
        (json!({"offset": -1}), "offset: "),
        (json!({"namespace_prefix": ["a.b"]}), "namespace_prefix[0]: "),
        (
            json!({"filter": {"a": {"$in": [1]}}}),
            "filter.a: has `$in` among operators",
        ),
    ];
    for (body, reason) in searches {
        let refused = client.post("/store/items/search", body).await.refused(422);
        assert!(refused.contains(reason), "{refused}");
    }
    client
        .post("/store/namespaces", json!({"max_depth": 0}))
        .await
        .refused(422);
    assert_eq!(found(&client, json!({})).await, [""; 0]);
}

async fn items_are_found_by_meaning(server: TestServer) {
    let client = server.client();
    let index = "[store.index]\ndims = 256\nembed = \"scripted:words\"\nfields = [\"text\", \"tags[*]\"]";
    server.is_configured_with(index).await;
    for (key, value, fields) in [
        (
            "fish",
            json!({"text": "she likes fresh fish", "kind": "food"}),
            Value::Null,
        ),
        ("train", json!({"text": "the train is late"}), Value::Null),
        (
            "tagged",
            json!({"text": "nothing of that", "tags": ["blue", "fish"], "kind": "food"}),
            Value::Null,
        ),
        ("hidden", json!({"text": "fish fish fish"}), json!(false)),
        (
            "other",
            json!({"text": "fish", "title": "a late train"}),
            json!(["title"]),
        ),
    ] {
        let item = json!({"namespace": ["n"], "key": key, "value": value, "index": fields});
        items(&client, Method::PUT, item).await.ok();
    }
    let about = json!({"namespace_prefix": ["n"], "query": "fish", "limit": 2});
    assert_eq!(found(&client, about.clone()).await, ["tagged", "fish"]);
    let scores = client.post("/store/items/search", about).await.ok();
    let score = |at: usize| scores["items"][at]["score"].as_f64().expect("a score");
    assert!((score(0) - 1.0).abs() < 1e-4, "{scores}");
    assert!(score(1) > 0.2, "{scores}");
    assert!(score(1) < score(0), "{scores}");
    let late = json!({"namespace_prefix": [], "query": "a late train", "limit": 1});
    assert_eq!(found(&client, late).await, ["other"]);
    let food = json!({"namespace_prefix": ["n"], "query": "fish", "filter": {"kind": "food"}});
    assert_eq!(found(&client, food).await, ["tagged", "fish"]);
    assert_eq!(found(&client, json!({"namespace_prefix": ["n"]})).await.len(), 5);
    let wrong = json!({"namespace": ["n"], "key": "k", "value": {}, "index": ["a["]});
    let refused = items(&client, Method::PUT, wrong).await.refused(422);
    assert!(refused.starts_with("index[0]: "), "{refused}");
    let long = json!({"namespace_prefix": ["n"], "query": "x".repeat(9000)});
    client.post("/store/items/search", long).await.refused(422);
}

async fn an_item_is_not_stored_without_its_embedding(server: TestServer) {
    let client = server.client();
    server
        .is_configured_with("[store.index]\ndims = 2\nembed = \"fake_openai:e-1\"")
        .await;
    server.models.will([
        Turn::Points(vec![[3.0, 4.0]]),
        Turn::Points(vec![[1.0, 0.0]]),
        Turn::Refuses(400, None),
    ]);
    put(&client, json!(["n"]), "k", json!({"x": 1})).await.ok();
    let asked = json!({"namespace_prefix": ["n"], "query": "what"});
    let answer = client.post("/store/items/search", asked.clone()).await.ok();
    assert!(
        (answer["items"][0]["score"].as_f64().expect("a score") - 0.6).abs() < 1e-5,
        "{answer}"
    );
    let refused = put(&client, json!(["n"]), "k", json!({"x": 2})).await.refused(424);
    assert!(refused.contains("ModelRefusedError"), "{refused}");
    assert!(!refused.contains("secret"), "{refused}");
    assert_eq!(get(&client, "n", "k").await["value"], json!({"x": 1}));
    let first = server.models.asked().remove(0);
    assert_eq!(first.path.as_str(), "/openai/v1/embeddings");
    assert_eq!(first.key.as_deref(), Some("secret-openai"));
    let body = first.json();
    assert_eq!(&body["model"], &json!("e-1"));
    assert_eq!(&body["input"], &json!([r#"{"x":1}"#]));
    server
        .models
        .will([Turn::Points(vec![[1.0, 0.0], [0.0, 1.0]]), Turn::Refuses(401, None)]);
    client.post("/store/items/search", asked.clone()).await.refused(424);
    client.post("/store/items/search", asked).await.refused(424);
}
