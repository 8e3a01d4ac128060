//! The stream of a thread (protocol v2): all clients read one log.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::runs::delegation;
use crate::support::sse::Frame;
use crate::support::viewer::{ALL, Viewer, data, depth, in_short, name, seq, until_ends};
use crate::support::{TestServer, call, eventually, lookup, on_both_engines, script, task};

/// Checks that sequence numbers grow, that ids are unique, and that every event has all its fields.
fn check_order(frames: &[Frame]) {
    assert!(frames.len() > 1, "there is no order to check: {frames:#?}");
    assert!(
        frames.windows(2).all(|pair| seq(&pair[0]) < seq(&pair[1])),
        "{frames:#?}"
    );
    let names: HashSet<&str> = frames.iter().map(name).collect();
    assert_eq!(names.len(), frames.len());
    for frame in frames {
        assert_eq!(&frame.data["type"], &json!("event"));
        assert_eq!(&frame.data["method"], &json!(frame.event));
        assert_eq!(frame.id.as_deref(), Some(seq(frame).to_string().as_str()));
        assert!(
            frame.data["params"]["timestamp"]
                .as_i64()
                .is_some_and(|at| at > 1_700_000_000_000)
        );
        assert!(frame.data["params"]["agent_path"].is_array());
    }
}

/// Returns the events that are the same for all clients: all but the pieces of answers.
fn lasting(frames: &[Frame]) -> Vec<(String, Value)> {
    let is_piece = |frame: &Frame| data(frame)["event"] == "content-block-delta" && data(frame).get("delta").is_some();
    let of = |frame: &Frame| {
        (
            name(frame).to_owned(),
            json!([frame.data["params"]["namespace"], data(frame)]),
        )
    };
    frames.iter().filter(|frame| !is_piece(frame)).map(of).collect()
}

/// Returns the text of a message, put together from its pieces.
fn said(frames: &[Frame], message: &str) -> String {
    let piece = |frame: &Frame| data(frame)["delta"]["text"].as_str().map(str::to_owned);
    let of = |frame: &&Frame| name(frame).starts_with(&format!("{message}:"));
    frames.iter().filter(of).filter_map(piece).collect()
}

/// Returns the ids of the messages that models started.
fn messages(frames: &[Frame]) -> Vec<String> {
    let begins = |frame: &&Frame| data(frame)["event"] == "message-start" && data(frame)["role"] == "ai";
    frames
        .iter()
        .filter(begins)
        .map(|frame| data(frame)["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns the first event of this channel.
pub(crate) fn find<'a>(frames: &'a [Frame], method: &str) -> &'a Frame {
    frames
        .iter()
        .find(|frame| frame.event == method)
        .unwrap_or_else(|| panic!("no {method} in {frames:#?}"))
}

on_both_engines! {
    a_run_is_streamed_from_start_to_end,
    a_replay_has_the_ids_numbers_and_times_of_the_live_stream,
    a_live_piece_has_the_same_id_in_a_replay,
    a_stream_outlasts_runs_and_waits_for_its_thread,
    subagents_of_one_name_have_different_namespaces,
    only_the_subagent_that_fails_is_reported_failed,
    a_failed_run_streams_its_error,
    a_cancelled_run_ends_in_the_middle_of_a_message,
    a_run_of_one_protocol_is_visible_in_the_other,
    filters_do_not_change_sequence_numbers,
    v2_runs_on_a_busy_thread_follow_the_multitask_strategy,
    a_run_can_begin_at_an_older_checkpoint,
    custom_data_of_tools_has_a_channel_for_each_name,
    custom_data_names_its_channel,
    a_run_that_a_crash_interrupted_is_streamed_once,
    too_many_streams_are_refused,
    invalid_commands_are_refused_with_codes_of_the_protocol,
    the_tree_of_agents_shows_their_status,
    the_tree_of_agents_is_that_of_the_run_at_work,
}

async fn a_run_is_streamed_from_start_to_end(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let run = viewer
        .starts(
            "agent",
            script().calls(lookup("c1", "x")).says("it is x").in_pieces_of(4),
        )
        .await;
    let frames = viewer.replays(1).await;
    check_order(&frames);
    assert_eq!(
        in_short(&frames, &["lifecycle", "values", "tools", "messages"]),
        [
            "lifecycle running agent",
            "values 1",
            "messages message-start ai",
            "messages content-block-start 0",
            "messages content-block-delta 0",
            "messages content-block-finish 0",
            "messages message-finish",
            "values 2",
            "tools tool-started c1",
            "tools tool-finished c1",
            "messages@1 message-start tool",
            "messages@1 content-block-start 0",
            "messages@1 content-block-delta 0",
            "messages@1 content-block-finish 0",
            "messages@1 message-finish",
            "values 3",
            "messages message-start ai",
            "messages content-block-start 0",
            "messages content-block-delta 0",
            "messages content-block-finish 0",
            "messages message-finish",
            "values 4",
            "lifecycle completed agent",
        ]
    );
    assert_eq!(name(&frames[0]), format!("synth:{run}:lc||running"));
    assert_eq!(name(frames.last().unwrap()), format!("synth:{run}:lc||completed"));
    let said: Vec<String> = messages(&frames).iter().map(|message| said(&frames, message)).collect();
    assert_eq!(said, ["", "it is x"]);
    let values = data(frames.iter().rfind(|frame| frame.event == "values").unwrap());
    assert_eq!(values["messages"][3]["id"], messages(&frames)[1]);
    assert_eq!(
        values["messages"][3]["content"],
        json!([{"type": "text", "text": "it is x", "index": 0}])
    );
}

async fn a_replay_has_the_ids_numbers_and_times_of_the_live_stream(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let mut live = viewer.opens_all().await;
    viewer.starts("agent", delegation()).await;
    let heard = until_ends(&mut live, 1).await;
    viewer.starts("agent", script().says("one two three")).await;
    let later = until_ends(&mut live, 1).await;
    let heard: Vec<Frame> = heard.into_iter().chain(later).collect();
    check_order(&heard);
    // With the run's memory gone, there is only what is stored.
    drop(live);
    server.is_stopped_and_started_again().await;
    let replayed = viewer.replays(2).await;
    check_order(&replayed);
    assert_eq!(lasting(&replayed), lasting(&heard));
    assert!(!messages(&heard).is_empty(), "{heard:#?}");
    for message in messages(&heard) {
        assert_eq!(said(&replayed, &message), said(&heard, &message));
    }
    let at = |frames: &[Frame], name_: &str| {
        let frame = frames.iter().find(|frame| name(frame) == name_).unwrap();
        (seq(frame), frame.data["params"]["timestamp"].clone())
    };
    for frame in heard.iter().filter(|frame| frame.event != "messages") {
        assert_eq!(at(&replayed, name(frame)), at(&heard, name(frame)), "{frame:#?}");
    }
}

async fn a_live_piece_has_the_same_id_in_a_replay(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let mut live = viewer.opens_all().await;
    viewer.starts("agent", script().says("one two three")).await;
    let heard = until_ends(&mut live, 1).await;
    drop(live);
    server.is_stopped_and_started_again().await;
    let names: HashSet<&str> = heard.iter().map(name).collect();
    let replayed = viewer.replays(1).await;
    assert!(
        replayed.iter().all(|frame| names.contains(name(frame))),
        "{replayed:#?}"
    );
}

async fn a_stream_outlasts_runs_and_waits_for_its_thread(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let mut stream = viewer.opens_all().await;
    for text in ["first", "second"] {
        viewer.starts("agent", text).await;
        let frames = until_ends(&mut stream, 1).await;
        assert_eq!(
            in_short(&frames, &["lifecycle"]),
            ["lifecycle running agent", "lifecycle completed agent"]
        );
    }
}

async fn subagents_of_one_name_have_different_namespaces(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let research = |id: &str, what: &str| script().calls(lookup(id, what)).says(&format!("it is {what}"));
    let calls = [
        task("t1", "researcher", research("c1", "x")),
        task("t2", "researcher", research("c2", "y")),
    ];
    viewer.starts("agent", script().calls_all(calls).says("done")).await;
    let frames = viewer.replays(1).await;
    check_order(&frames);
    for (call, text) in [("t1", "it is x"), ("t2", "it is y")] {
        let own: Vec<Frame> = frames
            .iter()
            .filter(|frame| frame.data["params"]["tool_call_id"] == call && frame.event != "checkpoints")
            .cloned()
            .collect();
        let started = find(&own, "lifecycle");
        assert_eq!(
            data(started)["cause"],
            json!({"type": "toolCall", "tool_call_id": call})
        );
        assert_eq!(&data(started)["event"], &json!("started"));
        assert_eq!(&data(started)["graph_name"], &json!("researcher"));
        let namespace = &started.data["params"]["namespace"];
        assert_eq!(namespace, &data(started)["namespace"]);
        assert_eq!(
            namespace[0],
            format!("tools:{}", data(started)["trigger_call_id"].as_str().unwrap())
        );
        assert!(
            own.iter()
                .all(|frame| frame.data["params"]["namespace"][0] == namespace[0])
        );
        assert!(
            own.iter()
                .all(|frame| frame.data["params"]["agent_path"] == json!(["main-agent", "researcher"]))
        );
        let last = messages(&own).last().unwrap().clone();
        assert_eq!(said(&own, &last), text);
        assert_eq!(data(own.last().unwrap())["event"], "completed");
    }
    let first_state = |call: &str| {
        let own = |frame: &&Frame| frame.event == "values" && frame.data["params"]["tool_call_id"] == call;
        data(frames.iter().find(own).unwrap())["messages"][0]["content"].clone()
    };
    assert_eq!(first_state("t2"), research("c2", "y").to_string());
}

async fn only_the_subagent_that_fails_is_reported_failed(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let calls = [
        task("t1", "researcher", script().fails(400)),
        task("t2", "researcher", script().says("fine")),
    ];
    viewer
        .starts("agent", script().calls_all(calls).says("one of them failed"))
        .await;
    let frames = viewer.replays(1).await;
    let ends = |call: Value| {
        let of = |frame: &&Frame| frame.event == "lifecycle" && frame.data["params"]["tool_call_id"] == call;
        data(frames.iter().rfind(of).unwrap())["event"].clone()
    };
    assert_eq!(
        [ends(json!("t1")), ends(json!("t2")), ends(Value::Null)],
        ["failed", "completed", "completed"]
    );
    let tools = in_short(&frames, &["tools"]);
    assert!(tools.contains(&"tools tool-error t1".to_owned()));
    assert!(tools.contains(&"tools tool-finished t2".to_owned()));
}

async fn a_failed_run_streams_its_error(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    viewer.starts("agent", script().fails(400)).await;
    let frames = viewer.replays(1).await;
    assert_eq!(
        in_short(&frames, &["lifecycle", "messages"]),
        ["lifecycle running agent", "lifecycle failed agent"]
    );
    assert!(
        data(frames.last().unwrap())["error"]
            .as_str()
            .is_some_and(|text| text.contains("refused"))
    );
    let viewer = Viewer::of_new(&server);
    viewer
        .starts(
            "plain",
            script().calls(call("f1", "fail_hard", json!({"why": "broken"}))),
        )
        .await;
    let frames = viewer.replays(1).await;
    assert_eq!(
        in_short(&frames, &["tools"]),
        ["tools tool-started f1", "tools tool-error f1"]
    );
    assert_eq!(data(frames.last().unwrap())["event"], "failed");
}

async fn a_cancelled_run_ends_in_the_middle_of_a_message(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    server.tools.hold("lookup");
    let run = viewer
        .starts("agent", script().calls(lookup("c1", "x")).says("done"))
        .await;
    let mut stream = viewer.opens_all().await;
    stream.until(|frame| frame.event == "tools").await;
    let path = format!("/threads/{}/runs/{run}/cancel?wait=0&action=interrupt", viewer.thread);
    server.client().post(&path, json!({})).await.ok();
    let frames = until_ends(&mut stream, 1).await;
    assert_eq!(
        in_short(&frames, &["lifecycle", "tools", "input.requested"]),
        ["lifecycle interrupted agent"]
    );
    server.tools.let_go("lookup");
}

async fn a_run_of_one_protocol_is_visible_in_the_other(server: TestServer) {
    let alice = server.human("agent").await;
    let viewer = Viewer::of(&server, &alice.thread);
    let mut stream = viewer.opens_all().await;
    let more = json!({"stream_mode": ["messages-tuple"], "stream_subgraphs": true});
    let older = alice.streams(delegation(), more).await;
    let newer = until_ends(&mut stream, 1).await;
    let older = crate::support::sse::put_together(&older.rest().await);
    let spoken: Vec<(Value, Value)> = older
        .iter()
        .filter(|frame| frame.mode() == "messages" && frame.data[0]["type"] == "AIMessageChunk")
        .map(|frame| (frame.data[0]["id"].clone(), frame.data[0]["content"].clone()))
        .collect();
    let own = messages(&newer);
    let told: Vec<(Value, Value)> = own
        .iter()
        .map(|message| (json!(message), json!(said(&newer, message))))
        .collect();
    assert_eq!(told, spoken);
    let run = viewer.starts("agent", script().says("one two")).await;
    until_ends(&mut stream, 1).await;
    let joined = alice.run_of_id(&run).is_joined(Some("-1")).await.rest().await;
    assert!(joined.iter().any(|frame| frame.event == "values"));
    let whole = crate::support::sse::put_together(&joined);
    assert!(
        whole
            .iter()
            .any(|frame| frame.mode() == "messages" && frame.data[0]["content"] == "one two")
    );
}

async fn filters_do_not_change_sequence_numbers(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    viewer.starts("agent", delegation()).await;
    let all = viewer.replays(1).await;
    let opens = async |filter: Value| {
        let mut body = json!({"channels": ["lifecycle", "values"]});
        body.as_object_mut()
            .unwrap()
            .extend(filter.as_object().unwrap().clone());
        viewer.opens(body).await
    };
    let lines = |frames: &[Frame]| in_short(frames, &ALL);
    let root = until_ends(&mut opens(json!({"namespaces": [[]], "depth": 0})).await, 1).await;
    assert_eq!(
        lines(&root),
        [
            "lifecycle running agent",
            "values 1",
            "values 2",
            "values 3",
            "values 4",
            "lifecycle completed agent",
        ]
    );
    let same = |frame: &Frame| {
        all.iter()
            .any(|other| name(other) == name(frame) && seq(other) == seq(frame))
    };
    assert!(root.iter().all(same));
    let ends = |frame: &Frame| data(frame)["event"] == "completed";
    let below = opens(json!({"namespaces": [["tools"]]})).await.until(ends).await;
    assert!(below.iter().all(|frame| depth(frame) == 1));
    assert!(below.iter().all(same));
    let since = seq(&all[all.len() / 2]);
    let late = until_ends(&mut viewer.opens(json!({"channels": ALL, "since": since})).await, 1).await;
    assert_eq!(lasting(&late), lasting(&all[all.len() / 2 + 1..]));
}

async fn v2_runs_on_a_busy_thread_follow_the_multitask_strategy(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    server.tools.hold("lookup");
    let mut stream = viewer.opens_all().await;
    let slow = script().calls(lookup("c1", "x")).says("slow").to_string();
    viewer.starts("agent", &slow).await;
    stream.until(|frame| frame.event == "tools").await;
    let start = |strategy: &str| {
        let input = json!({"messages": [{"role": "user", "content": "next"}]});
        json!({"assistant_id": "agent", "input": input, "multitaskStrategy": strategy})
    };
    let refused = viewer.commands("run.start", start("reject")).await;
    assert_eq!(refused["error"], "unknown_error");
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .starts_with("409: Thread is already running a task")
    );
    viewer.succeeds("run.start", start("no such strategy")).await;
    server.tools.let_go("lookup");
    let frames = until_ends(&mut stream, 2).await;
    let ends = |frames: &[Frame]| in_short(frames, &["lifecycle"]);
    assert_eq!(
        ends(&frames),
        [
            "lifecycle completed agent",
            "lifecycle running agent",
            "lifecycle completed agent"
        ]
    );
    server.tools.hold("lookup");
    viewer.starts("agent", &slow).await;
    stream.until(|frame| frame.event == "tools").await;
    viewer.succeeds("run.start", start("interrupt")).await;
    let frames = until_ends(&mut stream, 2).await;
    assert_eq!(
        ends(&frames),
        [
            "lifecycle interrupted agent",
            "lifecycle running agent",
            "lifecycle completed agent"
        ]
    );
    let before = viewer.replays(4).await;
    viewer.starts("agent", &slow).await;
    stream.until(|frame| frame.event == "tools").await;
    viewer.succeeds("run.start", start("rollback")).await;
    let frames = until_ends(&mut stream, 1).await;
    assert_eq!(ends(&frames), ["lifecycle running agent", "lifecycle completed agent"]);
    let after = viewer.replays(5).await;
    let (old, new) = after.split_at(
        after
            .iter()
            .position(|frame| seq(frame) > seq(before.last().unwrap()))
            .unwrap(),
    );
    assert_eq!(lasting(old), lasting(&before));
    assert_eq!(ends(new), ["lifecycle running agent", "lifecycle completed agent"]);
    server.tools.let_go("lookup");
}

async fn a_run_can_begin_at_an_older_checkpoint(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    viewer.starts("agent", "first").await;
    let frames = viewer.replays(1).await;
    let checkpoint = data(frames.iter().rfind(|frame| frame.event == "checkpoints").unwrap())["id"].clone();
    viewer.starts("agent", "second").await;
    viewer.replays(2).await;
    let input = json!({"messages": [{"role": "user", "content": "other"}]});
    let config = json!({"configurable": {"checkpoint_id": checkpoint}});
    viewer
        .succeeds(
            "run.start",
            json!({"assistant_id": "agent", "input": input, "config": config}),
        )
        .await;
    let frames = viewer.replays(3).await;
    let contents = |values: &Value| -> Vec<Value> {
        values["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message["content"].clone())
            .collect()
    };
    let last = frames.iter().rfind(|frame| frame.event == "values").unwrap();
    assert_eq!(contents(data(last)).len(), 4);
    assert_eq!(contents(data(last))[2], "other");
}

async fn custom_data_of_tools_has_a_channel_for_each_name(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    viewer
        .starts("plain", script().calls(call("p1", "progress", json!({}))).says("done"))
        .await;
    let frames = viewer.replays(1).await;
    let custom = find(&frames, "custom");
    assert!(!data(custom)["payload"].is_null());
    let tasks: Vec<&Value> = frames.iter().filter(|frame| frame.event == "tasks").map(data).collect();
    assert!(
        tasks
            .iter()
            .any(|task| task["name"] == "tools" && task.get("result").is_some())
    );
    let updates = frames.iter().filter(|frame| frame.event == "updates");
    let nodes: Vec<&Value> = updates.map(|frame| &frame.data["params"]["node"]).collect();
    assert_eq!(nodes, ["model", "tools", "model"]);
    let steps = frames.iter().filter(|frame| frame.event == "checkpoints");
    let steps: Vec<i64> = steps.map(|frame| data(frame)["step"].as_i64().unwrap()).collect();
    assert_eq!(steps, [-1, 0, 1, 2, 3]);
}

async fn custom_data_names_its_channel(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let mut named = viewer
        .opens(json!({"channels": ["custom:progress", "lifecycle"]}))
        .await;
    let mut other = viewer.opens(json!({"channels": ["custom:other", "lifecycle"]})).await;
    let progress = call("p1", "progress", json!({"name": "progress"}));
    viewer.starts("plain", script().calls(progress).says("done")).await;
    let told = |frames: Vec<Frame>| -> Vec<Value> {
        frames
            .iter()
            .filter(|frame| frame.event == "custom")
            .map(|frame| data(frame).clone())
            .collect()
    };
    let whole = json!({"name": "progress", "payload": {"name": "progress", "done": 0.5}});
    assert_eq!(told(until_ends(&mut named, 1).await), std::slice::from_ref(&whole));
    assert_eq!(told(until_ends(&mut other, 1).await), Vec::<Value>::new());
    let all = told(viewer.replays(1).await);
    assert_eq!(all, [whole, json!({"payload": "almost"}), json!({"payload": 1})]);
}

async fn a_run_that_a_crash_interrupted_is_streamed_once(server: TestServer) {
    server.moves_into_a_process().await;
    let viewer = Viewer::of_new(&server);
    server.tools.hold("lookup");
    viewer
        .starts("agent", script().calls(lookup("c1", "x")).says("done"))
        .await;
    server.tools.called("lookup", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    let frames = viewer.replays(1).await;
    check_order(&frames);
    assert_eq!(
        in_short(&frames, &["lifecycle", "tools"]),
        [
            "lifecycle running agent",
            "tools tool-started c1",
            "tools tool-finished c1",
            "lifecycle completed agent",
        ]
    );
}

async fn too_many_streams_are_refused(server: TestServer) {
    server.is_configured("max_streams_per_thread = 2").await;
    let viewer = Viewer::of_new(&server);
    let first = viewer.opens_all().await;
    let _second = viewer.opens_all().await;
    let path = format!("/threads/{}/stream/events", viewer.thread);
    let opens = async || server.client().post(&path, json!({"channels": ["values"]})).await;
    let refused = opens().await;
    assert_eq!(refused.body["code"], "too_many_streams");
    assert_eq!(refused.body["limit"], "max_streams_per_thread");
    assert!(refused.refused(429).starts_with("This thread has 2 open streams"));
    drop(first);
    let client = server.client();
    eventually(async || {
        let request = client
            .request(reqwest::Method::POST, &path)
            .json(&json!({"channels": ["values"]}));
        request.send().await.unwrap().status() == 200
    })
    .await;
}

async fn invalid_commands_are_refused_with_codes_of_the_protocol(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let client = server.client();
    let path = format!("/threads/{}/commands", viewer.thread);
    let text = client
        .request(reqwest::Method::POST, &path)
        .header("content-type", "application/json")
        .body("{nope");
    assert_eq!(
        crate::support::client::reply(text).await.refused(400),
        "Invalid JSON body"
    );
    for (body, id) in [
        (json!({"method": "run.start"}), Value::Null),
        (json!({"id": "1", "method": "run.start"}), json!("1")),
        (json!({"id": 7}), json!(7)),
        (json!([]), Value::Null),
    ] {
        let reply = client.post(&path, body).await;
        assert_eq!(reply.status, 400);
        assert_eq!(&reply.body["error"], &json!("invalid_argument"));
        assert_eq!(&reply.body["type"], &json!("error"));
        assert_eq!(&reply.body["id"], &id);
    }
    for (method, params, code) in [
        ("no.such", json!({}), "unknown_command"),
        ("state.get", json!({}), "unknown_command"),
        ("run.start", json!({"input": {}}), "invalid_argument"),
        (
            "run.start",
            json!({"assistant_id": "nobody", "input": {}}),
            "unknown_error",
        ),
        (
            "run.start",
            json!({"assistant_id": "agent", "config": {"configurable": {"checkpoint_id": "x"}}}),
            "invalid_argument",
        ),
        (
            "run.start",
            json!({"assistant_id": "agent", "input": {"messages": 7}}),
            "invalid_argument",
        ),
        ("agent.getTree", json!({}), "no_such_run"),
        ("input.respond", json!({}), "invalid_argument"),
        ("input.respond", json!({"responses": []}), "invalid_argument"),
        (
            "input.respond",
            json!({"interrupt_id": "nope", "response": 1}),
            "no_such_run",
        ),
        (
            "subscription.unsubscribe",
            json!({"subscription_id": "nope"}),
            "no_such_subscription",
        ),
    ] {
        assert_eq!(viewer.refused(method, params.clone()).await, code, "{method} {params}");
    }
    let result = viewer
        .succeeds("subscription.subscribe", json!({"channels": ["values"]}))
        .await;
    assert_eq!(result["replayed_events"], 0);
    let nowhere = Viewer::of(&server, "not-a-uuid");
    let answer = nowhere
        .commands("run.start", json!({"assistant_id": "agent", "input": {}}))
        .await;
    assert_eq!(&answer["error"], &json!("unknown_error"));
    assert_eq!(&answer["message"], &json!("422: Invalid thread ID"));
    let stream = format!("/threads/{}/stream/events", viewer.thread);
    for body in [
        json!({}),
        json!({"channels": []}),
        json!({"channels": ["values", "debug"]}),
    ] {
        assert!(client.post(&stream, body).await.refused(400).starts_with("channels"));
    }
}

async fn the_tree_of_agents_shows_their_status(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    viewer.starts("agent", delegation()).await;
    viewer.replays(1).await;
    let tree = viewer.succeeds("agent.getTree", json!({})).await["tree"].clone();
    assert_eq!(&tree["namespace"], &json!([]));
    assert_eq!(&tree["graph_name"], &json!("agent"));
    assert_eq!(&tree["status"], &json!("completed"));
    let child = &tree["children"][0];
    assert_eq!(&child["graph_name"], &json!("researcher"));
    assert_eq!(&child["status"], &json!("completed"));
    assert!(child["namespace"][0].as_str().unwrap().starts_with("tools:"));
}

async fn the_tree_of_agents_is_that_of_the_run_at_work(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    server.tools.hold("lookup");
    viewer.starts("agent", delegation()).await;
    server.tools.called("lookup", 1).await;
    viewer.starts("agent", "a message that waits").await;
    let tree = viewer.succeeds("agent.getTree", json!({})).await["tree"].clone();
    assert_eq!(tree["status"], "running", "{tree}");
    assert_eq!(tree["children"][0]["graph_name"], "researcher", "{tree}");
    server.tools.let_go("lookup");
    viewer.replays(2).await;
}
