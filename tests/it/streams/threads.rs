//! The stream of a thread shows what happens on it, in run after run.

use serde_json::json;

use crate::support::sse::{Frame, Sse};
use crate::support::{TestServer, on_both_engines, script, transcript};

/// Returns the frames up to the end of a run.
async fn one_run(stream: &mut Sse) -> Vec<Frame> {
    let mut frames = vec![];
    loop {
        let frame = stream.next().await.expect("the stream does not end");
        let is_over = frame.data["status"] == "run_done";
        frames.push(frame);
        if is_over {
            return frames;
        }
    }
}

fn names(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.event.as_str()).collect()
}

on_both_engines! {
    a_thread_is_followed_from_run_to_run,
    a_thread_is_followed_from_an_event_on,
    lifecycle_contains_only_the_start_and_end_of_runs,
    invalid_streams_of_a_thread_are_refused,
    the_stream_of_a_thread_ends_with_it,
}

async fn a_thread_is_followed_from_run_to_run(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let mut stream = client.get_stream(&alice.path("/stream"), None).await;
    for text in ["one", "two"] {
        let run = alice.asks(text).await;
        let frames = one_run(&mut stream).await;
        assert_eq!(frames[0].data["run_id"], run.id);
        assert_eq!(names(&frames), ["metadata", "values", "values", "metadata"]);
        assert_eq!(
            transcript(&frames[2].data).last().unwrap(),
            &format!("ai: echo: {text}")
        );
        assert_eq!(frames[3].data, json!({"status": "run_done", "run_id": run.id}));
        assert!(frames.iter().all(|frame| frame.id.is_some()));
    }
}

async fn a_thread_is_followed_from_an_event_on(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    alice.says("two").await;
    let path = alice.path("/stream");
    let mut stream = client.get_stream(&path, Some("-1")).await;
    let all = [one_run(&mut stream).await, one_run(&mut stream).await].concat();
    assert_eq!(all.len(), 8);
    let mut stream = client.get_stream(&path, Some("-")).await;
    let again = [one_run(&mut stream).await, one_run(&mut stream).await].concat();
    assert_eq!(again, all, "LangGraph calls the beginning `-`");
    for seen in 0..8 {
        let mut stream = client.get_stream(&path, all[seen].id.as_deref()).await;
        let mut rest = vec![];
        while rest.len() < 7 - seen {
            rest.push(stream.next().await.expect("the stream does not end"));
        }
        assert_eq!(rest, all[seen + 1..], "behind {seen}");
    }
}

async fn lifecycle_contains_only_the_start_and_end_of_runs(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let path = alice.path("/stream?stream_mode=lifecycle&stream_mode=state_update");
    let mut stream = client.get_stream(&path, None).await;
    alice.says(script().says("hello")).await;
    assert_eq!(names(&one_run(&mut stream).await), ["metadata", "metadata"]);
    let values = json!({"messages": [{"role": "user", "content": "aside"}]});
    let written = client.post(&alice.path("/state"), json!({"values": values})).await.ok();
    let frame = stream.next().await.expect("the stream does not end");
    assert_eq!(frame.event.as_str(), "state_update");
    assert_eq!(&frame.data["thread_id"], &json!(alice.thread));
    assert_eq!(frame.data["state"]["checkpoint_id"], written["checkpoint_id"]);
    assert_eq!(
        transcript(&frame.data["state"]["values"]).last().unwrap(),
        "human: aside"
    );
}

async fn invalid_streams_of_a_thread_are_refused(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    assert_eq!(client.get(&alice.path("/stream?stream_mode=values")).await.status, 422);
    let nowhere = format!("/threads/{}/stream", uuid::Uuid::new_v4());
    assert_eq!(client.get(&nowhere).await.status, 404);
    let odd = client
        .request(reqwest::Method::GET, &alice.path("/stream"))
        .header("Last-Event-ID", "x");
    assert_eq!(odd.send().await.unwrap().status(), 422);
}

async fn the_stream_of_a_thread_ends_with_it(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let stream = client.get_stream(&alice.path("/stream"), None).await;
    client.delete(&alice.path("")).await.ok();
    assert_eq!(stream.rest().await, vec![]);
}
