//! Answers that broke off: who comes later sees what was said of them, and no model does.

use serde_json::{Value, json};

use crate::support::sse::{Frame, put_together};
use crate::support::viewer::{Viewer, data, depth, in_short, name, seq, until_ends};
use crate::support::{TestServer, on_both_engines, script, task, transcript};

/// Returns a turn in which the model streams `one ` and then pauses.
fn hesitates() -> Value {
    json!({"text": "one two", "delay_ms": 3_600_000})
}

/// Returns the messages as clients of the thread's stream assemble them.
fn said(frames: &[Frame]) -> Vec<(String, Value)> {
    let spoken = frames.iter().filter(|frame| frame.event == "messages");
    spoken
        .map(|frame| (name(frame).to_owned(), data(frame).clone()))
        .collect()
}

/// Returns the texts of models, as clients of a run's stream assemble them.
fn texts(frames: &[Frame]) -> Vec<(Value, Value)> {
    let is_spoken = |frame: &&Frame| frame.mode() == "messages" && frame.data[0]["type"] == "AIMessageChunk";
    let whole = put_together(frames);
    whole
        .iter()
        .filter(is_spoken)
        .map(|frame| (frame.data[0]["id"].clone(), frame.data[0]["content"].clone()))
        .collect()
}

on_both_engines! {
    the_text_of_a_cancelled_answer_is_in_every_replay,
    a_reader_who_reconnects_gets_the_rest_of_a_cancelled_answer,
    the_text_of_a_cancelled_subagent_is_in_every_replay,
    a_failed_answer_is_an_error_in_every_replay,
    a_late_reader_gets_a_cancelled_answer_once,
}

async fn the_text_of_a_cancelled_answer_is_in_every_replay(server: TestServer) {
    let alice = server.human("agent").await;
    let viewer = Viewer::of(&server, &alice.thread);
    let mut live = viewer.opens_all().await;
    let run = alice.run_of_id(&viewer.starts("agent", script().turn(hesitates()).in_pieces_of(4)).await);
    let mut heard = live.until(|frame| data(frame)["delta"]["text"] == "one ").await;
    run.is_cancelled("interrupt").await.ok();
    heard.extend(until_ends(&mut live, 1).await);
    drop(live);
    server.is_stopped_and_started_again().await;
    let replayed = viewer.replays(1).await;
    assert_eq!(
        in_short(&replayed, &["messages", "lifecycle"]),
        [
            "lifecycle running agent",
            "messages message-start ai",
            "messages content-block-start 0",
            "messages content-block-delta 0",
            "messages content-block-finish 0",
            "lifecycle interrupted agent",
        ]
    );
    assert_eq!(said(&replayed), said(&heard));
    // The broken answer is no message of the conversation, and the model is not shown it.
    let told = transcript(&alice.says("go on").await);
    assert_eq!(told, ["human: …", "human: go on", "ai: echo: go on"]);
}

async fn a_reader_who_reconnects_gets_the_rest_of_a_cancelled_answer(server: TestServer) {
    let alice = server.human("agent").await;
    let viewer = Viewer::of(&server, &alice.thread);
    let mut live = viewer.opens_all().await;
    let turn = json!({"text": "one two three", "delay_ms": 700});
    let run = alice.run_of_id(&viewer.starts("agent", script().turn(turn).in_pieces_of(4)).await);
    let piece = |text: &'static str| move |frame: &Frame| data(frame)["delta"]["text"] == text;
    let mut heard = live.until(piece("one ")).await;
    let since = seq(heard.last().unwrap());
    heard.extend(live.until(piece("two ")).await);
    run.is_cancelled("interrupt").await.ok();
    heard.extend(until_ends(&mut live, 1).await);
    drop(live);
    let whole: String = heard
        .iter()
        .filter_map(|frame| data(frame)["delta"]["text"].as_str())
        .collect();
    assert!(whole.starts_with("one two "), "{whole}");
    server.is_stopped_and_started_again().await;
    let mut rest = viewer
        .opens(json!({"channels": ["messages", "lifecycle"], "since": since}))
        .await;
    let rest = until_ends(&mut rest, 1).await;
    let block = rest
        .iter()
        .find(|frame| data(frame)["event"] == "content-block-finish")
        .expect("the end of the block");
    assert_eq!(data(block)["content"], json!({"type": "text", "text": whole}));
    assert!(rest.iter().all(|frame| seq(frame) > since), "{rest:#?}");
}

async fn the_text_of_a_cancelled_subagent_is_in_every_replay(server: TestServer) {
    let alice = server.human("agent").await;
    let viewer = Viewer::of(&server, &alice.thread);
    let mut live = viewer.opens_all().await;
    let research = script().turn(hesitates()).in_pieces_of(4);
    let asked = viewer
        .starts(
            "agent",
            script().calls(task("t1", "researcher", research)).says("never"),
        )
        .await;
    let mut heard = live.until(|frame| data(frame)["delta"]["text"] == "one ").await;
    alice.run_of_id(&asked).is_cancelled("interrupt").await.ok();
    heard.extend(until_ends(&mut live, 1).await);
    drop(live);
    server.is_stopped_and_started_again().await;
    let below = |frames: Vec<Frame>| -> Vec<Frame> { frames.into_iter().filter(|frame| depth(frame) == 1).collect() };
    let heard = below(heard);
    let replayed = below(viewer.replays(1).await);
    assert!(
        replayed.iter().any(|frame| data(frame)["delta"]["text"] == "one "),
        "{replayed:#?}"
    );
    assert_eq!(said(&replayed), said(&heard));
}

async fn a_failed_answer_is_an_error_in_every_replay(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let mut live = viewer.opens_all().await;
    viewer
        .starts(
            "agent",
            script().turn(json!({"text": "one two", "drop": true})).in_pieces_of(4),
        )
        .await;
    let heard = until_ends(&mut live, 1).await;
    drop(live);
    server.is_stopped_and_started_again().await;
    let replayed = viewer.replays(1).await;
    assert_eq!(
        in_short(&replayed, &["messages", "lifecycle"]),
        [
            "lifecycle running agent",
            "messages message-start ai",
            "messages content-block-start 0",
            "messages content-block-delta 0",
            "messages error",
            "lifecycle failed agent",
        ]
    );
    assert_eq!(said(&replayed), said(&heard));
}

async fn a_late_reader_gets_a_cancelled_answer_once(server: TestServer) {
    let alice = server.human("agent").await;
    let more = json!({"stream_mode": ["messages-tuple"], "stream_resumable": true});
    let mut live = alice.streams(script().turn(hesitates()).in_pieces_of(4), more).await;
    let run = alice.run_of_id(&live.run_id());
    let is_piece = |frame: &Frame| frame.mode() == "messages" && frame.data[0]["content"] == "one ";
    let mut heard = live.until(is_piece).await;
    let last = heard.last().and_then(|frame| frame.id.clone());
    run.is_cancelled("interrupt").await.ok();
    heard.extend(live.rest().await);
    server.is_stopped_and_started_again().await;
    let replayed = run.is_joined(Some("-1")).await.rest().await;
    assert_eq!(
        texts(&replayed).iter().map(|(_, text)| text).collect::<Vec<_>>(),
        ["one "]
    );
    assert_eq!(texts(&replayed), texts(&heard));
    let rest = run.is_joined(last.as_deref()).await.rest().await;
    assert!(texts(&rest).is_empty(), "{rest:#?}");
}
