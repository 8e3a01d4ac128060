//! Stream tickets of browsers.

use std::time::Duration;

use adjutant::domain::time::{Clock, ManualClock, SystemClock};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio_tungstenite::connect_async;

use crate::support::client::Client;
use crate::support::{TestServer, on_both_engines};

on_both_engines! {
    a_ticket_opens_one_stream,
    a_ticket_opens_a_websocket,
    a_ticket_expires,
    a_ticket_is_for_streams_only,
    a_ticket_ends_with_its_key,
    a_ticket_has_the_rights_of_its_user,
}

async fn ticket(client: &Client) -> String {
    let issued = client.post("/auth/tickets", json!({})).await.ok();
    issued["ticket"].as_str().expect("a ticket").to_owned()
}

/// Returns the status of the response to a request for a stream, without reading the stream.
async fn stream_status(client: &Client, path: &str) -> u16 {
    let response = client.request(Method::GET, path).send().await.expect("an answer");
    response.status().as_u16()
}

async fn a_ticket_opens_one_stream(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let thread = ann.thread().await;
    let path = format!("/threads/{thread}/stream?ticket={}", ticket(&ann).await);
    let nobody = keys.nobody();
    assert_eq!(stream_status(&nobody, &path).await, 200);
    assert_eq!(stream_status(&nobody, &path).await, 401, "the ticket was used");
}

async fn a_ticket_opens_a_websocket(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let thread = ann.thread().await;
    let base = ann.base().replacen("http", "ws", 1);
    let path = format!("{base}/threads/{thread}/stream/events");
    let refused = connect_async(&path).await.expect_err("there is no ticket");
    assert!(refused.to_string().contains("401"), "{refused}");
    let opened = connect_async(format!("{path}?ticket={}", ticket(&ann).await)).await;
    assert_eq!(opened.expect("a socket").1.status(), StatusCode::SWITCHING_PROTOCOLS);
}

async fn a_ticket_expires(server: TestServer) {
    let clock = ManualClock::starting_at(SystemClock.now());
    server.uses_clock(&clock).await;
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let thread = ann.thread().await;
    let issued = ann.post("/auth/tickets", json!({})).await.ok();
    let expected = clock.now().plus(Duration::from_secs(60)).to_string();
    assert_eq!(issued["expires_at"], expected);
    let path = format!("/threads/{thread}/stream?ticket={}", issued["ticket"].as_str().unwrap());
    clock.advance(Duration::from_secs(60));
    assert_eq!(stream_status(&keys.nobody(), &path).await, 401);
}

async fn a_ticket_is_for_streams_only(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let thread = ann.thread().await;
    let ticket = ticket(&ann).await;
    let nobody = keys.nobody();
    for path in ["", "/state", "/history", "/runs"] {
        let path = format!("/threads/{thread}{path}?ticket={ticket}");
        assert_eq!(nobody.get(&path).await.status, 401, "{path}");
    }
    assert_eq!(nobody.get(&format!("/auth/me?ticket={ticket}")).await.status, 401);
    let path = format!("/threads/{thread}/stream/events?ticket={ticket}");
    let body = json!({"channels": ["values"]});
    assert_eq!(nobody.post(&path, body).await.status, 401);
    assert_eq!(nobody.with_key(&ticket).get("/auth/me").await.status, 401);
    for wrong in [
        "",
        "adjt_",
        "adjt_0",
        &format!("adjt_{}", "0".repeat(64)),
        &ticket.to_uppercase(),
    ] {
        let path = format!("/threads/{thread}/stream?ticket={wrong}");
        assert_eq!(stream_status(&nobody, &path).await, 401, "{wrong}");
    }
    let path = format!("/threads/{thread}/stream?ticket={ticket}");
    assert_eq!(
        stream_status(&nobody, &path).await,
        200,
        "it was not used up by wrong uses"
    );
}

async fn a_ticket_ends_with_its_key(server: TestServer) {
    let keys = server.is_protected().await;
    let root = keys.client("root");
    let issued = root.post("/auth/keys", json!({"name": "page"})).await.ok();
    let page = keys.with(issued["api_key"].as_str().unwrap());
    let thread = page.thread().await;
    let path = format!("/threads/{thread}/stream?ticket={}", ticket(&page).await);
    root.delete(&format!("/auth/keys/{}", issued["key_id"].as_str().unwrap()))
        .await
        .ok();
    assert_eq!(stream_status(&keys.nobody(), &path).await, 401);
}

async fn a_ticket_has_the_rights_of_its_user(server: TestServer) {
    let keys = server.is_protected().await;
    let limited = json!({"name": "no tickets", "scopes": ["threads:*"]});
    let issued = keys.client("root").post("/auth/keys", limited).await.ok();
    let limited = keys.with(issued["api_key"].as_str().unwrap());
    let refused = limited.post("/auth/tickets", json!({})).await;
    assert_eq!(refused.status, 403);
    assert_eq!(refused.body["code"], Value::from("forbidden"));
}
