//! Streams and waits without end: how many of them a thread and a client may have open, and whose requests are whose.

use std::net::IpAddr;

use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Error;

use crate::support::client::reply;
use crate::support::{TestServer, eventually, lookup, on_both_engines, script};

/// Returns a client at another address of this machine.
fn client_at(address: &str) -> reqwest::Client {
    let address: IpAddr = address.parse().expect("an address");
    adjutant::net::client_builder()
        .no_proxy()
        .local_address(address)
        .build()
        .expect("a client")
}

/// Returns the body of a run that does not end while the tool is held.
fn held() -> Value {
    let text = script().calls(lookup("c1", "x")).says("done").to_string();
    json!({"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": text}]}})
}

/// Returns every request with a long response, on `thread`, where `run` is running.
fn lasting(server: &TestServer, thread: &str, run: &str) -> Vec<(&'static str, RequestBuilder)> {
    let client = server.client();
    let at = |method: Method, path: &str| client.request(method, &format!("/threads/{thread}{path}"));
    let on_thread = json!({"assistant_id": "agent", "input": {"messages": []}, "multitask_strategy": "enqueue"});
    vec![
        ("run stream", at(Method::POST, "/runs/stream").json(&on_thread)),
        ("run wait", at(Method::POST, "/runs/wait").json(&on_thread)),
        ("join", at(Method::GET, &format!("/runs/{run}/join"))),
        ("join stream", at(Method::GET, &format!("/runs/{run}/stream"))),
        ("thread stream", at(Method::GET, "/stream")),
        (
            "thread events",
            at(Method::POST, "/stream/events").json(&json!({"channels": ["values"]})),
        ),
        (
            "stateless stream",
            client.request(Method::POST, "/runs/stream").json(&held()),
        ),
        (
            "stateless wait",
            client.request(Method::POST, "/runs/wait").json(&held()),
        ),
    ]
}

/// Sends the request again until the stream before it is over, of which the server notices the end on its own time.
async fn opens(request: RequestBuilder) -> Response {
    let answer = std::sync::Mutex::new(None);
    eventually(async || {
        let again = request.try_clone().expect("a body in memory");
        let response = again.send().await.expect("an answer");
        let is_open = response.status() != 429;
        *answer.lock().unwrap() = Some(response);
        is_open
    })
    .await;
    answer.into_inner().unwrap().expect("an answer")
}

on_both_engines! {
    every_long_response_counts_as_a_stream,
    a_client_with_too_many_streams_blocks_no_other_client,
    an_idempotency_key_does_not_reveal_responses_of_other_clients,
}

async fn every_long_response_counts_as_a_stream(server: TestServer) {
    server.is_configured("max_streams_per_client = 1").await;
    server.tools.hold("lookup");
    let client = server.client();
    let alice = server.human("agent").await;
    let run = alice.starts(held()).await;
    server.tools.called("lookup", 1).await;
    for (kind, first) in lasting(&server, &alice.thread, &run.id) {
        let open = opens(first).await;
        assert_eq!(open.status(), 200, "{kind}");
        let runs = alice.runs().await.len();
        let threads = client.post("/threads/count", json!({})).await.ok();
        for (other, second) in lasting(&server, &alice.thread, &run.id) {
            let key = uuid::Uuid::new_v4().to_string();
            let refused = reply(
                second
                    .header("x-api-key", &key)
                    .header("authorization", format!("Bearer {key}")),
            )
            .await;
            assert_eq!(refused.status, 429, "{kind}, then {other}: {refused:?}");
            assert_eq!(refused.header("retry-after"), Some("1"));
            assert_eq!(refused.body["code"], "too_many_streams");
        }
        let socket = connect_async(client.socket_request(&alice.thread)).await;
        let is_refused = matches!(&socket, Err(Error::Http(response)) if response.status() == 429);
        assert!(is_refused, "{kind}, then a socket");
        assert_eq!(
            alice.runs().await.len(),
            runs,
            "a request that was refused started nothing"
        );
        assert_eq!(client.post("/threads/count", json!({})).await.ok(), threads);
        drop(open);
    }
    server.tools.let_go("lookup");
}

async fn a_client_with_too_many_streams_blocks_no_other_client(server: TestServer) {
    server.is_configured("max_streams_per_client = 1").await;
    let alice = server.human("agent").await;
    let url = format!("{}{}", server.client().base(), alice.path("/stream"));
    let first = client_at("127.0.0.1").get(&url).send().await.expect("an answer");
    assert_eq!(first.status(), 200);
    assert_eq!(
        client_at("127.0.0.1")
            .get(&url)
            .send()
            .await
            .expect("an answer")
            .status(),
        429
    );
    assert_eq!(
        client_at("127.0.0.2")
            .get(&url)
            .send()
            .await
            .expect("an answer")
            .status(),
        200
    );
}

async fn an_idempotency_key_does_not_reveal_responses_of_other_clients(server: TestServer) {
    let url = format!("{}/threads", server.client().base());
    let make = async |address: &str| {
        let request = client_at(address)
            .post(&url)
            .header("idempotency-key", "k1")
            .json(&json!({}));
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        let is_replayed = response.headers().contains_key("idempotent-replayed");
        let thread: Value = response.json().await.expect("a thread");
        (thread["thread_id"].clone(), is_replayed)
    };
    let (alices, _) = make("127.0.0.1").await;
    let (bobs, is_replayed) = make("127.0.0.2").await;
    assert_ne!(alices, bobs);
    assert!(!is_replayed);
    assert_eq!(make("127.0.0.1").await, (alices, true));
    assert_eq!(make("127.0.0.2").await, (bobs, true));
}
