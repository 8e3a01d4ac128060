//! The stream mode `events`: what begins, is said and ends, as records.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::support::sse::Frame;
use crate::support::{TestServer, lookup, on_both_engines, script, task};

/// Returns the event, the name and the depth of each record.
fn told(frames: &[Frame]) -> Vec<(String, String, usize)> {
    let records = frames
        .iter()
        .filter(|frame| frame.event == "events")
        .map(|frame| &frame.data);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let told = records.map(|r| {
        (
            text(&r["event"]),
            text(&r["name"]),
            r["parent_ids"].as_array().unwrap().len(),
        )
    });
    let mut told: Vec<_> = told.collect();
    // However many pieces an answer comes in, it is one stream.
    told.dedup_by(|next, one| next == one && one.0 == "on_chat_model_stream");
    told
}

fn of(depth: usize, name: &str, events: &[&str]) -> Vec<(String, String, usize)> {
    events
        .iter()
        .map(|event| ((*event).to_owned(), name.to_owned(), depth))
        .collect()
}

/// Returns the records of one model call at this depth.
fn asking(depth: usize) -> Vec<(String, String, usize)> {
    let model = of(
        depth + 1,
        "Chat:scripted",
        &["on_chat_model_start", "on_chat_model_stream", "on_chat_model_end"],
    );
    [
        of(depth, "model", &["on_chain_start"]),
        model,
        of(depth, "model", &["on_chain_stream", "on_chain_end"]),
    ]
    .concat()
}

fn record<'a>(frames: &'a [Frame], event: &str, name: &str) -> &'a Value {
    let found = frames
        .iter()
        .find(|frame| frame.data["event"] == event && frame.data["name"] == name);
    &found.unwrap_or_else(|| panic!("no {event} of {name}")).data
}

on_both_engines! {
    a_turn_is_recorded_from_its_beginning_to_its_end,
    subagents_are_recorded_below_the_tool_that_delegates,
    a_stream_of_events_can_be_resumed_after_each_event,
}

async fn a_turn_is_recorded_from_its_beginning_to_its_end(server: TestServer) {
    let alice = server.human("agent").await;
    let text = script().calls(lookup("c1", "x")).says("done now").in_pieces_of(4);
    let stream = alice.streams(&text, json!({"stream_mode": ["events", "values"]})).await;
    let run = stream.run_id();
    let frames = stream.rest().await;
    let tools = [
        of(1, "tools", &["on_chain_start"]),
        of(2, "lookup", &["on_tool_start", "on_tool_end"]),
        of(1, "tools", &["on_chain_stream", "on_chain_end"]),
    ];
    let expected = [
        of(0, "main-agent", &["on_chain_start"]),
        asking(1),
        tools.concat(),
        asking(1),
        of(0, "main-agent", &["on_chain_end"]),
    ];
    assert_eq!(told(&frames), expected.concat());
    let root = record(&frames, "on_chain_start", "main-agent");
    assert_eq!(root["run_id"].as_str(), Some(run.as_str()));
    assert_eq!(&root["data"]["input"]["messages"][0]["role"], &json!("user"));
    let tool = record(&frames, "on_tool_end", "lookup");
    assert_eq!(tool["data"]["input"], json!({"query": "x"}));
    assert_eq!(tool["data"]["output"]["content"], "found x");
    assert_eq!(
        tool["parent_ids"],
        json!([run, record(&frames, "on_chain_start", "tools")["run_id"]])
    );
    let pieces = frames
        .iter()
        .filter(|frame| frame.data["event"] == "on_chat_model_stream");
    let said: String = pieces
        .filter_map(|frame| frame.data["data"]["chunk"]["content"].as_str())
        .collect();
    assert_eq!(said, "done now");
    let end = record(&frames, "on_chain_end", "main-agent");
    assert_eq!(
        end["data"]["output"],
        frames.iter().rfind(|frame| frame.event == "values").unwrap().data
    );
}

async fn subagents_are_recorded_below_the_tool_that_delegates(server: TestServer) {
    let alice = server.human("agent").await;
    let text = script()
        .calls(task("t1", "researcher", script().says("found")))
        .says("done");
    let frames = alice
        .streams(&text, json!({"stream_mode": "events"}))
        .await
        .rest()
        .await;
    let child = [
        of(3, "researcher", &["on_chain_start"]),
        asking(4),
        of(3, "researcher", &["on_chain_end"]),
    ];
    let tools = [
        of(1, "tools", &["on_chain_start"]),
        of(2, "task", &["on_tool_start"]),
        child.concat(),
        of(2, "task", &["on_tool_end"]),
        of(1, "tools", &["on_chain_stream", "on_chain_end"]),
    ];
    let expected = [
        of(0, "main-agent", &["on_chain_start"]),
        asking(1),
        tools.concat(),
        asking(1),
        of(0, "main-agent", &["on_chain_end"]),
    ];
    assert_eq!(told(&frames), expected.concat());
    let begun = |event: &str| -> HashSet<Value> {
        let named = frames
            .iter()
            .filter(|frame| frame.data["event"].as_str().is_some_and(|name| name.ends_with(event)));
        named.map(|frame| frame.data["run_id"].clone()).collect()
    };
    assert_eq!(begun("_start"), begun("_end"));
    let above = record(&frames, "on_chain_start", "researcher")["parent_ids"]
        .as_array()
        .unwrap();
    assert_eq!(above[2], record(&frames, "on_tool_start", "task")["run_id"]);
    // Clients see by the namespace which agent is at work.
    let call = &record(&frames, "on_tool_start", "task")["metadata"]["langgraph_checkpoint_ns"];
    for event in ["on_chain_start", "on_chain_end"] {
        let metadata = &record(&frames, event, "researcher")["metadata"];
        assert_eq!(metadata["langgraph_node"], "tools");
        assert_eq!(
            [&metadata["langgraph_checkpoint_ns"], &metadata["checkpoint_ns"]],
            [call, call]
        );
    }
    let root = &record(&frames, "on_chain_start", "main-agent")["metadata"];
    assert_eq!(root.get("langgraph_checkpoint_ns"), None);
}

async fn a_stream_of_events_can_be_resumed_after_each_event(server: TestServer) {
    let alice = server.human("agent").await;
    let text = script()
        .calls(task(
            "t1",
            "researcher",
            script().calls(lookup("c1", "x")).says("found"),
        ))
        .says("done");
    for modes in [
        json!(["events"]),
        json!(["tasks", "checkpoints"]),
        json!(["debug", "updates"]),
    ] {
        let more = json!({"stream_mode": modes, "stream_subgraphs": true, "stream_resumable": true});
        let stream = alice.streams(&text, more).await;
        let run = alice.run_of_id(&stream.run_id());
        let live = stream.rest().await;
        let bare = |frames: &[Frame]| -> Vec<(String, Value)> {
            // When something was shown, and in which pieces it was said, is the reader's own.
            let bare = frames
                .iter()
                .filter(|frame| frame.data["event"] != "on_chat_model_stream");
            let mut bare: Vec<_> = bare.map(|frame| (frame.event.clone(), frame.data.clone())).collect();
            bare.iter_mut()
                .for_each(|(_, data)| _ = data.as_object_mut().map(|data| data.remove("timestamp")));
            bare
        };
        let whole = bare(&live);
        assert_eq!(bare(&run.is_joined(Some("-1")).await.rest().await), whole, "{modes}");
        assert!(!whole.is_empty(), "{modes}");
        for at in (0..live.len()).filter(|at| !is_within_an_answer(&live, *at)) {
            let rest = run.is_joined(live[at].id.as_deref()).await.rest().await;
            let known = [bare(&live[..=at]), bare(&rest)].concat();
            assert_eq!(known, whole, "{modes}: taken up after {:?}", live[at].id);
        }
    }
}

/// Returns whether an answer of the model has started and not ended at this frame.
fn is_within_an_answer(frames: &[Frame], at: usize) -> bool {
    let count = |event: &str| {
        frames[..=at]
            .iter()
            .filter(|frame| frame.data["event"] == event)
            .count()
    };
    count("on_chat_model_start") > count("on_chat_model_end")
        || frames[at].event == "events" && frames[at].data["name"] == "model"
}
