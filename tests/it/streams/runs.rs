//! Streams: every step of every agent, live, joined late, or taken up again.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::actors::Run;
use crate::support::sse::{Frame, put_together};
use crate::support::{TestServer, lookup, on_both_engines, on_postgres, script, task, transcript};

/// Returns the names of the events, without namespaces.
fn names(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.event.as_str()).collect()
}

/// Returns the nodes of `updates` with their depths.
fn nodes(frames: &[Frame]) -> Vec<(usize, String)> {
    let updates = frames.iter().filter(|frame| frame.mode() == "updates");
    let node = |frame: &Frame| frame.data.as_object().unwrap().keys().next().unwrap().clone();
    updates.map(|frame| (frame.depth(), node(frame))).collect()
}

/// Returns a delegation to the researcher, who calls a tool.
pub(super) fn delegation() -> String {
    let research = script().calls(lookup("c1", "x")).says("it is x");
    script()
        .calls(task("t1", "researcher", research))
        .says("the researcher says x")
        .to_string()
}

/// Returns whether more pieces of the same message follow.
fn is_within_a_message(frame: &Frame) -> bool {
    frame.mode() == "messages" && frame.data[0]["type"] == "AIMessageChunk" && frame.data[0]["chunk_position"] != "last"
}

/// Checks that the events up to `at` and those of a stream resumed there are the events of the whole stream.
async fn check_taken_up(run: &Run, live: &[Frame], at: usize) {
    let rest = run.is_joined(live[at].id.as_deref()).await.rest().await;
    let known: Vec<Frame> = live[..=at].iter().chain(&rest).cloned().collect();
    let known = put_together(&known);
    let wanted = put_together(live);
    let wrong = known.iter().zip(&wanted).find(|(known, wanted)| known != wanted);
    assert!(wrong.is_none(), "taken up after {:?}: {wrong:#?}", live[at].id);
    assert_eq!(known.len(), wanted.len());
}

on_both_engines! {
    a_stream_begins_and_ends_with_the_run,
    updates_contain_the_writes_of_each_node,
    subgraphs_are_streamed_on_request,
    every_token_has_the_name_of_its_agent,
    every_token_has_the_metadata_and_the_tags_of_its_run,
    metadata_by_which_servers_know_their_runs_stay_on_the_thread,
    metadata_of_a_thread_that_are_too_large_for_a_run_are_left_out,
    tokens_come_in_pieces_that_add_up_to_the_message,
    the_older_mode_of_messages_sends_the_message_so_far,
    a_failure_is_the_last_event,
    a_resumed_stream_contains_the_missed_events,
    a_stream_resumed_within_a_message_repeats_nothing,
    a_late_join_with_a_position_misses_nothing,
    an_empty_position_is_no_position,
    the_events_of_a_join_can_be_filtered,
    messages_are_joined_under_either_name,
    of_a_run_with_both_forms_of_messages_a_reader_gets_the_named_one,
    the_calls_of_tools_are_streamed,
    a_slow_reader_delays_no_run,
    a_disconnect_cancels_the_run_only_on_request,
    the_first_events_of_a_stream_are_sent_with_the_head_of_its_response,
}

on_postgres! {
    a_reader_at_another_server_gets_all_events_of_parallel_subagents,
}

async fn a_stream_begins_and_ends_with_the_run(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let stream = alice.streams("hello", json!({})).await;
    let run = alice.run_of_id(&stream.run_id());
    let header = |name: &str| {
        stream
            .headers()
            .get(name)
            .map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(header("content-location"), Some(run.path.clone()));
    assert_eq!(header("location"), Some(format!("{}/stream", run.path)));
    assert_eq!(header("cache-control").as_deref(), Some("no-store"));
    let frames = stream.rest().await;
    assert_eq!(run.status().await.as_str(), "success");
    assert_eq!(alice.status().await.as_str(), "idle");
    assert_eq!(frames[0].event, "metadata");
    assert_eq!(frames[0].data, json!({"run_id": run.id, "attempt": 1}));
    assert_eq!(names(&frames[1..]), ["values", "values"]);
    assert_eq!(transcript(&frames[1].data), ["human: hello"]);
    assert_eq!(frames[2].data, client.get(&alice.path("/state")).await.ok()["values"]);
}

async fn updates_contain_the_writes_of_each_node(server: TestServer) {
    let alice = server.human("agent").await;
    let more = json!({"stream_mode": "updates"});
    let frames = alice
        .streams(script().calls(lookup("c1", "x")).says("done"), more)
        .await
        .rest()
        .await;
    let of = |depth: usize, node: &str| (depth, node.to_owned());
    assert_eq!(nodes(&frames), [of(0, "model"), of(0, "tools"), of(0, "model")]);
    assert_eq!(frames[2].data["tools"]["messages"][0]["content"], "found x");
    assert_eq!(frames[3].data["model"]["messages"][0]["content"], "done");
}

async fn subgraphs_are_streamed_on_request(server: TestServer) {
    let alice = server.human("agent").await;
    let more = json!({"stream_mode": ["updates"], "stream_subgraphs": true});
    let frames = alice.streams(delegation(), more).await.rest().await;
    let expected = [
        (0, "model"),
        (1, "model"),
        (1, "tools"),
        (1, "model"),
        (0, "tools"),
        (0, "model"),
    ];
    assert_eq!(nodes(&frames), expected.map(|(depth, node)| (depth, node.to_owned())));
    let quiet = alice
        .streams(delegation(), json!({"stream_mode": ["updates"]}))
        .await
        .rest()
        .await;
    let expected = [(0, "model"), (0, "tools"), (0, "model")];
    assert_eq!(nodes(&quiet), expected.map(|(depth, node)| (depth, node.to_owned())));
}

async fn every_token_has_the_name_of_its_agent(server: TestServer) {
    let alice = server.human("agent").await;
    let more = json!({"stream_mode": ["messages-tuple"], "stream_subgraphs": true});
    let frames = alice.streams(delegation(), more).await.rest().await;
    let said = |agent: &str| -> String {
        let by = |frame: &&Frame| frame.mode() == "messages" && frame.data[1]["lc_agent_name"] == agent;
        let pieces = frames
            .iter()
            .filter(by)
            .filter(|frame| frame.data[0]["type"] == "AIMessageChunk");
        pieces.filter_map(|frame| frame.data[0]["content"].as_str()).collect()
    };
    assert_eq!(said("main-agent"), "the researcher says x");
    assert_eq!(said("researcher"), "it is x");
    for frame in frames.iter().filter(|frame| frame.mode() == "messages") {
        let metadata = &frame.data[1];
        assert_eq!(
            metadata["lc_agent_name"],
            if frame.depth() == 0 { "main-agent" } else { "researcher" }
        );
        assert!(metadata["langgraph_node"] == "model" || metadata["langgraph_node"] == "tools");
        let namespace = metadata["langgraph_checkpoint_ns"].as_str().unwrap();
        assert_eq!(namespace.matches('|').count(), frame.depth(), "{namespace}");
    }
}

async fn every_token_has_the_metadata_and_the_tags_of_its_run(server: TestServer) {
    let alice = server.human("agent").await;
    let of_thread = json!({"metadata": {"tm": 1, "who": "thread", "run_id": "none", "graph_id": "other"}});
    alice.client().patch(&alice.path(""), of_thread).await.ok();
    let more = json!({"stream_mode": ["messages-tuple", "tasks", "events"],
        "metadata": {"rm": 1, "who": "run"},
        "config": {"metadata": {"cm": 2, "who": "config"}, "tags": ["t1", "t2"]}});
    let frames = alice.streams("hello", more).await.rest().await;
    let run = alice.runs().await.remove(0);
    let tokens = frames.iter().filter(|frame| frame.event == "messages");
    let mut shown: Vec<&Value> = tokens.map(|frame| &frame.data[1]).collect();
    assert!(!shown.is_empty());
    let tasks = frames.iter().filter(|frame| frame.event == "tasks");
    shown.extend(tasks.filter_map(|frame| frame.data.get("metadata")));
    for metadata in &shown {
        assert_eq!(metadata["tags"], json!(["t1", "t2"]), "{metadata:#}");
        assert_eq!(metadata["run_id"], run["run_id"]);
    }
    let state = alice.state().await;
    shown.extend([&run["metadata"], &state["metadata"]]);
    let wanted = json!({"tm": 1, "rm": 1, "cm": 2, "who": "run", "graph_id": "agent"});
    for metadata in shown {
        for (key, value) in wanted.as_object().unwrap() {
            assert_eq!(&metadata[key], value, "{key} in {metadata:#}");
        }
    }
    let records: Vec<&Frame> = frames.iter().filter(|frame| frame.event == "events").collect();
    let is_tagged = |frame: &Frame| {
        frame.data["tags"]
            .as_array()
            .is_some_and(|tags| tags.contains(&json!("t1")))
    };
    assert!(!records.is_empty(), "{frames:#?}");
    assert!(records.into_iter().all(is_tagged), "{frames:#?}");
}

async fn metadata_by_which_servers_know_their_runs_stay_on_the_thread(server: TestServer) {
    let alice = server.human("agent").await;
    let of_thread = json!({"metadata": {"parent_run_id": "r", "adjutant_levels": 0, "mine": 1}});
    alice.client().patch(&alice.path(""), of_thread).await.ok();
    alice.says("hello").await;
    let run = alice.runs().await.remove(0);
    assert_eq!(run["metadata"]["mine"], 1);
    for key in ["parent_run_id", "adjutant_levels"] {
        assert_eq!(run["metadata"].get(key), None, "{key}");
    }
}

async fn metadata_of_a_thread_that_are_too_large_for_a_run_are_left_out(server: TestServer) {
    let alice = server.human("agent").await;
    let large = |name: &str| json!({name: "x".repeat(40 * 1024)});
    let of_thread = json!({"metadata": large("tm")});
    alice.client().patch(&alice.path(""), of_thread).await.ok();
    let more = json!({"metadata": large("rm"), "stream_mode": "values"});
    alice.streams("hello", more).await.rest().await;
    let run = alice.runs().await.remove(0);
    assert_eq!(run["status"], "success");
    assert!(run["metadata"]["rm"].is_string());
    assert_eq!(run["metadata"].get("tm"), None);
}

async fn tokens_come_in_pieces_that_add_up_to_the_message(server: TestServer) {
    let alice = server.human("agent").await;
    let text = script().calls(lookup("c1", "x")).says("one two three").in_pieces_of(4);
    let more = json!({"stream_mode": ["messages-tuple", "updates"]});
    let frames = alice.streams(text, more).await.rest().await;
    let whole = put_together(&frames);
    let messages: Vec<&Value> = whole
        .iter()
        .filter(|frame| frame.mode() == "messages")
        .map(|f| &f.data[0])
        .collect();
    let [asks, result, answers] = messages.as_slice() else {
        panic!("{messages:#?}")
    };
    assert_eq!(asks["tool_call_chunks"][0]["args"], json!({"query": "x"}).to_string());
    assert_eq!(&result["type"], &json!("tool"));
    assert_eq!(&result["content"], &json!("found x"));
    assert_eq!(answers["content"], "one two three");
    let state = alice.state().await;
    assert_eq!(state["values"]["messages"][3]["id"], answers["id"]);
}

async fn the_older_mode_of_messages_sends_the_message_so_far(server: TestServer) {
    let alice = server.human("agent").await;
    let text = script().says("one two").in_pieces_of(4);
    let frames = alice
        .streams(text, json!({"stream_mode": "messages"}))
        .await
        .rest()
        .await;
    assert!(names(&frames).contains(&"messages/metadata"));
    let partial = frames.iter().filter(|frame| frame.event == "messages/partial");
    let so_far: Vec<&str> = partial.filter_map(|frame| frame.data[0]["content"].as_str()).collect();
    assert_eq!(so_far.last(), Some(&"one two"));
    assert!(so_far.len() > 1, "{so_far:?}");
    assert!(so_far.windows(2).all(|pair| pair[1].starts_with(pair[0])), "{so_far:?}");
}

async fn a_failure_is_the_last_event(server: TestServer) {
    let alice = server.human("agent").await;
    let frames = alice.streams(script().fails(400), json!({})).await.rest().await;
    let last = frames.last().unwrap();
    assert_eq!(last.event, "error");
    assert!(last.data["error"].is_string());
    assert!(last.data["message"].is_string());
    assert_eq!(alice.status().await, "error");
}

async fn a_resumed_stream_contains_the_missed_events(server: TestServer) {
    let alice = server.human("agent").await;
    let modes = json!(["values", "updates", "messages-tuple"]);
    let more = json!({"stream_mode": modes, "stream_subgraphs": true, "stream_resumable": true});
    let stream = alice.streams(delegation(), more).await;
    let run = alice.run_of_id(&stream.run_id());
    let live = stream.rest().await;
    assert!(live.len() > 3, "{live:#?}");
    assert!(live.iter().all(|frame| frame.id.is_some()), "{live:#?}");
    let replayed = run.is_joined(Some("-1")).await.rest().await;
    assert_eq!(put_together(&replayed), put_together(&live));
    let between: Vec<usize> = (0..live.len()).filter(|at| !is_within_a_message(&live[*at])).collect();
    assert!(!between.is_empty(), "{live:#?}");
    for at in between {
        check_taken_up(&run, &live, at).await;
    }
}

async fn a_stream_resumed_within_a_message_repeats_nothing(server: TestServer) {
    let alice = server.human("agent").await;
    let more = json!({"stream_mode": "messages-tuple", "stream_subgraphs": true, "stream_resumable": true});
    let stream = alice.streams(delegation(), more).await;
    let run = alice.run_of_id(&stream.run_id());
    let live = stream.rest().await;
    let within: Vec<usize> = (0..live.len()).filter(|at| is_within_a_message(&live[*at])).collect();
    assert!(!within.is_empty(), "{live:#?}");
    for at in within {
        check_taken_up(&run, &live, at).await;
    }
}

async fn a_late_join_with_a_position_misses_nothing(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let more =
        json!({"stream_mode": ["updates", "messages-tuple"], "stream_subgraphs": true, "stream_resumable": true});
    let run = alice.starts(alice.run_body(delegation(), more)).await;
    server.tools.called("lookup", 1).await;
    let late = run.is_joined(Some("-1")).await;
    let later = run.is_joined(None).await;
    server.tools.let_go("lookup");
    let late = late.rest().await;
    let later = later.rest().await;
    assert_eq!(late[0].event, "metadata");
    assert_eq!(
        put_together(&late),
        put_together(&run.is_joined(Some("-1")).await.rest().await)
    );
    assert_eq!(nodes(&later).last().unwrap(), &(0, "model".to_owned()));
    assert!(later.len() < late.len());
    assert_eq!(run.is_joined(None).await.rest().await, vec![]);
}

async fn a_reader_at_another_server_gets_all_events_of_parallel_subagents(server: TestServer) {
    let other = server.starts_twin().await;
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let research = |at: usize| (0..6).fold(script(), |text, step| text.calls(lookup(&format!("c{at}{step}"), "x")));
    let calls = (0..8).map(|at| task(&format!("t{at}"), "researcher", research(at).says("it is x")));
    let more = json!({"stream_mode": ["updates"], "stream_subgraphs": true, "stream_resumable": true});
    let run = alice
        .starts(alice.run_body(script().calls_all(calls).says("done"), more))
        .await;
    server.tools.called("lookup", 8).await;
    let elsewhere = other
        .client
        .get_stream(&format!("{}/stream", run.path), Some("-1"))
        .await;
    server.tools.let_go("lookup");
    let elsewhere = elsewhere.rest().await;
    let places = |frames: &[Frame]| frames.iter().map(|frame| frame.id.clone()).collect::<Vec<_>>();
    assert_eq!(
        places(&elsewhere),
        places(&run.is_joined(Some("-1")).await.rest().await)
    );
    assert!(elsewhere.len() > 8 * 13, "{}", elsewhere.len());
    other.stops().await;
}

async fn an_empty_position_is_no_position(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let text = script().calls(lookup("c1", "x")).says("done");
    let body = alice.run_body(text, json!({"stream_resumable": true}));
    let run = alice.starts(body).await;
    server.tools.called("lookup", 1).await;
    let without = run.is_joined(None).await;
    let empty = run.is_joined(Some("")).await;
    let thread = server.client().get_stream(&alice.path("/stream"), Some("")).await;
    drop(thread);
    server.tools.let_go("lookup");
    let frames = empty.rest().await;
    assert_eq!(transcript(&frames.last().unwrap().data).last().unwrap(), "ai: done");
    assert_eq!(frames, without.rest().await);
}

async fn the_events_of_a_join_can_be_filtered(server: TestServer) {
    let alice = server.human("agent").await;
    let more = json!({"stream_mode": ["values", "updates"], "stream_resumable": true});
    let stream = alice.streams("hello", more).await;
    let run = alice.run_of_id(&stream.run_id());
    stream.rest().await;
    let path = format!("{}/stream?stream_mode=updates", run.path);
    let frames = server.client().get_stream(&path, Some("-1")).await.rest().await;
    assert!(!frames.is_empty());
    assert!(frames.iter().all(|frame| frame.event == "updates"), "{frames:#?}");
}

async fn the_calls_of_tools_are_streamed(server: TestServer) {
    let alice = server.human("agent").await;
    let failing = crate::support::call("f1", "fail", json!({"why": "no"}));
    let text = script().calls(lookup("c1", "x")).calls(failing).says("done");
    let stream = alice.streams(text, json!({"stream_mode": ["tools"]})).await;
    let frames = stream.rest().await;
    let told: Vec<&Value> = frames
        .iter()
        .filter(|frame| frame.event == "tools")
        .map(|frame| &frame.data)
        .collect();
    assert_eq!(told.len(), 4, "{told:#?}");
    let input = json!({"query": "x"});
    let start = json!({"event": "on_tool_start", "toolCallId": "c1", "name": "lookup", "input": input});
    assert_eq!(told[0], &start);
    assert_eq!(told[1]["event"], "on_tool_end");
    assert_eq!(told[1]["output"]["content"], "found x");
    assert_eq!(told[2]["toolCallId"], "f1");
    assert_eq!(told[3]["event"], "on_tool_error");
    assert!(
        told[3]["error"].as_str().is_some_and(|error| !error.is_empty()),
        "{told:#?}"
    );
}

async fn messages_are_joined_under_either_name(server: TestServer) {
    let alice = server.human("agent").await;
    for created in ["messages", "messages-tuple"] {
        let more = json!({"stream_mode": ["values", created], "stream_resumable": true});
        let stream = alice.streams("hello", more).await;
        let run = alice.run_of_id(&stream.run_id());
        stream.rest().await;
        let mut joined = vec![];
        for asked in ["messages", "messages-tuple"] {
            let path = format!("{}/stream?stream_mode={asked}", run.path);
            joined.push(server.client().get_stream(&path, Some("-1")).await.rest().await);
        }
        assert_eq!(joined[0], joined[1], "{created}");
        assert!(!joined[0].is_empty(), "{created}");
        assert!(
            joined[0].iter().all(|frame| frame.event.starts_with("messages")),
            "{joined:#?}"
        );
    }
}

async fn of_a_run_with_both_forms_of_messages_a_reader_gets_the_named_one(server: TestServer) {
    let alice = server.human("agent").await;
    let more = json!({"stream_mode": ["messages", "messages-tuple"], "stream_resumable": true});
    let stream = alice.streams("hello", more).await;
    let run = alice.run_of_id(&stream.run_id());
    stream.rest().await;
    let joins = async |asked: &str| {
        let path = format!("{}/stream?{asked}", run.path);
        let frames = server.client().get_stream(&path, Some("-1")).await.rest().await;
        let forms = frames.iter().map(|frame| frame.event == "messages");
        forms.collect::<Vec<bool>>()
    };
    let tuples = joins("stream_mode=messages-tuple").await;
    assert!(
        !tuples.is_empty() && tuples.iter().all(|is_tuple| *is_tuple),
        "{tuples:?}"
    );
    let growing = joins("stream_mode=messages").await;
    assert!(
        !growing.is_empty() && growing.iter().all(|is_tuple| !is_tuple),
        "{growing:?}"
    );
    let both = joins("stream_mode=messages&stream_mode=messages-tuple").await;
    assert!(both.contains(&true) && both.contains(&false), "{both:?}");
}

async fn a_slow_reader_delays_no_run(server: TestServer) {
    let alice = server.human("plain").await;
    let big = crate::support::call("b1", "big", json!({"chars": 70_000}));
    let text = (0..20).fold(script(), |text, _| text.calls(big.clone())).says("done");
    let more = json!({"stream_mode": ["values", "updates"], "stream_resumable": true});
    let mut slow = alice.streams(text, more).await;
    let run = alice.run_of_id(&slow.run_id());
    slow.until(|frame| frame.event == "metadata").await;
    run.finishes().await;
    assert_eq!(run.status().await, "success");
    let frames = slow.rest().await;
    assert_eq!(transcript(&frames.last().unwrap().data).last().unwrap(), "ai: done");
}

async fn a_disconnect_cancels_the_run_only_on_request(server: TestServer) {
    let alice = server.human("agent").await;
    let bob = server.human("agent").await;
    server.tools.hold("lookup");
    let text = script().calls(lookup("c1", "x")).says("done");
    let stays = alice.streams(&text, json!({})).await;
    let goes = bob.streams(&text, json!({"on_disconnect": "cancel"})).await;
    server.tools.called("lookup", 2).await;
    let stays_on = alice.run_of_id(&stays.run_id());
    let is_cancelled = bob.run_of_id(&goes.run_id());
    drop(stays);
    drop(goes);
    is_cancelled.finishes().await;
    assert_eq!(is_cancelled.status().await, "interrupted");
    server.tools.let_go("lookup");
    stays_on.finishes().await;
    assert_eq!(stays_on.status().await, "success");
}

async fn the_first_events_of_a_stream_are_sent_with_the_head_of_its_response(server: TestServer) {
    let on_new_thread = server.human("plain").await;
    let alice = server.human("plain").await;
    alice.says("one").await;
    let address = server.client().base().replacen("http://", "", 1);
    for human in [on_new_thread, alice] {
        let body = human.run_body("two", json!({"stream_mode": "values"})).to_string();
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            human.path("/runs/stream"),
            body.len()
        );
        let mut stream = TcpStream::connect(&address).await.expect("a connection");
        stream
            .write_all((head + &body).as_bytes())
            .await
            .expect("the server listens");
        let mut first = vec![0; 64 * 1024];
        let length = stream.read(&mut first).await.expect("a response");
        let first = String::from_utf8_lossy(&first[..length]);
        assert!(first.starts_with("HTTP/1.1 200"), "{first}");
        assert!(first.contains("event: metadata"), "{first}");
    }
}
