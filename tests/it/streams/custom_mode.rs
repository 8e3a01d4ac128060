//! Custom data that tools stream while they run.

use serde_json::{Value, json};

use crate::support::sse::Frame;
use crate::support::viewer::{Viewer, data, depth, until_ends};
use crate::support::{TestServer, call, on_both_engines, script, task};

/// Returns the depths and the data of the custom events.
fn told(frames: &[Frame]) -> Vec<(usize, Value)> {
    let custom = frames.iter().filter(|frame| frame.mode() == "custom");
    custom.map(|frame| (frame.depth(), frame.data.clone())).collect()
}

on_both_engines! {
    custom_data_of_a_tool_is_streamed_while_it_runs,
    custom_data_of_a_subagent_has_its_namespace,
    pieces_of_a_result_are_streamed_while_the_tool_runs,
}

async fn custom_data_of_a_tool_is_streamed_while_it_runs(server: TestServer) {
    let alice = server.human("plain").await;
    server.tools.hold("progress");
    let text = script().calls(call("p1", "progress", json!({}))).says("done");
    let more = json!({"stream_mode": ["custom", "updates"], "stream_resumable": true});
    let mut stream = alice.streams(text, more).await;
    let run = alice.run_of_id(&stream.run_id());
    let before = stream.until(|frame| frame.mode() == "custom").await;
    assert_eq!(before.last().unwrap().data, json!({"done": 0.5}));
    assert_eq!(run.status().await, "running");
    server.tools.let_go("progress");
    let after = stream.rest().await;
    assert_eq!(told(&after), [(0, json!("almost")), (0, json!(1))]);
    let result = after.iter().find(|frame| frame.data.get("tools").is_some()).unwrap();
    assert_eq!(result.data["tools"]["messages"][0]["content"], "all done");
    let again = run.is_joined(Some("-1")).await.rest().await;
    assert_eq!(
        told(&again),
        [(0, json!({"done": 0.5})), (0, json!("almost")), (0, json!(1))]
    );
}

async fn custom_data_of_a_subagent_has_its_namespace(server: TestServer) {
    let alice = server.human("agent").await;
    let research = script().calls(call("p1", "progress", json!({}))).says("found");
    let text = script().calls(task("t1", "researcher", research)).says("done");
    let more = json!({"stream_mode": ["custom"], "stream_subgraphs": true});
    let frames = alice.streams(&text, more).await.rest().await;
    assert_eq!(
        told(&frames),
        [(1, json!({"done": 0.5})), (1, json!("almost")), (1, json!(1))]
    );
    let quiet = alice
        .streams(&text, json!({"stream_mode": ["custom"]}))
        .await
        .rest()
        .await;
    assert_eq!(told(&quiet), []);
}

async fn pieces_of_a_result_are_streamed_while_the_tool_runs(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    server.tools.hold("progress");
    let mut stream = viewer.opens(json!({"channels": ["tools", "lifecycle"]})).await;
    let research = script().calls(call("p1", "progress", json!({}))).says("found");
    viewer
        .starts("agent", script().calls(task("t1", "researcher", research)).says("done"))
        .await;
    let piece = stream
        .until(|frame| data(frame)["event"] == "tool-output-delta")
        .await
        .pop()
        .unwrap();
    assert_eq!(
        data(&piece),
        &json!({"event": "tool-output-delta", "tool_call_id": "p1", "delta": "all "})
    );
    assert_eq!(depth(&piece), 1);
    assert_eq!(&piece.data["params"]["agent_name"], &json!("researcher"));
    server.tools.let_go("progress");
    let live = until_ends(&mut stream, 1).await;
    let of_tool = |frame: &&Frame| frame.event == "tools" && data(frame)["tool_call_id"] == "p1";
    let events = |frames: &[Frame]| -> Vec<Value> {
        frames
            .iter()
            .filter(of_tool)
            .map(|frame| data(frame)["event"].clone())
            .collect()
    };
    assert_eq!(events(&live), ["tool-output-delta", "tool-finished"]);
    // A later reader gets the result, with the pieces or without them.
    let later = events(&viewer.replays(1).await);
    assert_eq!(&later[0], &json!("tool-started"));
    assert_eq!(later.last().unwrap(), &json!("tool-finished"));
}
