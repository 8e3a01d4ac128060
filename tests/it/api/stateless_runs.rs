//! Runs that bring their own thread.

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::{TestServer, eventually, lookup, mail, on_both_engines, script, transcript};

/// Returns the body of a run of `agent`.
fn run_body(agent: &str, text: impl ToString) -> Value {
    json!({"assistant_id": agent, "input": {"messages": [{"role": "user", "content": text.to_string()}]}})
}

/// Returns when the thread is gone.
async fn is_forgotten(client: &Client, thread: &str) {
    eventually(async || client.get(&format!("/threads/{thread}")).await.status == 404).await;
}

on_both_engines! {
    a_stateless_wait_returns_the_values_and_deletes_the_thread,
    a_stateless_stream_deletes_its_thread,
    a_stateless_run_can_keep_its_thread,
    a_stateless_background_run_has_a_thread_until_it_ends,
    a_stateless_run_takes_no_answer,
    an_interrupt_of_a_stateless_run_is_returned_once,
}

async fn a_stateless_wait_returns_the_values_and_deletes_the_thread(server: TestServer) {
    let client = server.client();
    let reply = client.post("/runs/wait", run_body("agent", "hello")).await;
    let thread = reply.header("location").unwrap().split('/').nth(2).unwrap().to_owned();
    assert_eq!(transcript(&reply.ok()), ["human: hello", "ai: echo: hello"]);
    is_forgotten(&client, &thread).await;
}

async fn a_stateless_stream_deletes_its_thread(server: TestServer) {
    let client = server.client();
    let stream = client.post_stream("/runs/stream", run_body("agent", "hello")).await;
    assert!(stream.headers().contains_key("content-location"));
    let frames = stream.rest().await;
    assert_eq!(frames[0].event, "metadata");
    assert_eq!(
        transcript(&frames.last().unwrap().data),
        ["human: hello", "ai: echo: hello"]
    );
    eventually(async || client.post("/threads/search", json!({})).await.ok() == json!([])).await;
}

async fn a_stateless_run_can_keep_its_thread(server: TestServer) {
    let client = server.client();
    let mut body = run_body("agent", "hello");
    body["on_completion"] = json!("keep");
    client.post("/runs/wait", body).await.ok();
    let threads = client.post("/threads/search", json!({})).await.ok();
    assert_eq!(transcript(&threads[0]["values"]), ["human: hello", "ai: echo: hello"]);
}

async fn a_stateless_background_run_has_a_thread_until_it_ends(server: TestServer) {
    let client = server.client();
    server.tools.hold("lookup");
    let body = run_body("agent", script().calls(lookup("c1", "x")).says("done"));
    let run = client.post("/runs", body).await.ok();
    assert_eq!(run["kwargs"]["temporary"], true);
    let path = format!("/threads/{}", run["thread_id"].as_str().unwrap());
    server.tools.called("lookup", 1).await;
    assert_eq!(client.get(&path).await.ok()["status"], "busy");
    let joined = client
        .get_stream(&format!("{path}/runs/{}/stream", run["run_id"].as_str().unwrap()), None)
        .await;
    server.tools.let_go("lookup");
    joined.rest().await;
    is_forgotten(&client, run["thread_id"].as_str().unwrap()).await;
}

async fn a_stateless_run_takes_no_answer(server: TestServer) {
    let client = server.client();
    let body = json!({"assistant_id": "agent", "command": {"resume": {"decisions": []}}});
    assert_eq!(
        client.post("/runs/wait", body).await.refused(400),
        "You must provide a thread_id when resuming."
    );
}

async fn an_interrupt_of_a_stateless_run_is_returned_once(server: TestServer) {
    let client = server.client();
    let values = client
        .post("/runs/wait", run_body("agent", script().calls(mail("m1", "bob"))))
        .await
        .ok();
    assert_eq!(
        values["__interrupt__"][0]["value"]["action_requests"][0]["name"],
        "send_email"
    );
    let nothing = json!({"interrupts": []});
    eventually(async || client.get("/interrupts?status=pending").await.ok() == nothing).await;
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
}
