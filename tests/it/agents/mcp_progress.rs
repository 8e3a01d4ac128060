//! Notifications of MCP servers in the middle of a call: progress, and lines of their log.

use serde_json::{Value, json};

use crate::support::mcp::{McpTransport, docs};
use crate::support::sse::Frame;
use crate::support::viewer::Viewer;
use crate::support::{TestServer, call, on_both_engines, script, transcript};

on_both_engines! {
    clients_see_what_a_program_tells_about_a_call_while_it_is_made,
    clients_see_what_a_server_behind_http_tells_about_a_call_while_it_is_made,
    progress_of_a_program_extends_the_time_without_data_and_not_that_of_the_call,
    progress_of_a_server_behind_http_extends_the_time_without_data_and_not_that_of_the_call,
    a_flood_of_progress_of_a_program_becomes_a_few_events,
    a_flood_of_progress_of_a_server_behind_http_becomes_a_few_events,
    progress_that_is_too_long_ends_the_call_of_a_program_and_no_other,
    progress_that_is_too_long_ends_the_call_behind_http_and_no_other,
    progress_of_another_call_is_not_shown,
    a_policy_that_rewrites_results_withholds_what_servers_tell,
}

/// Returns a call of the tool that sends notifications.
fn tell(id: &str, args: Value) -> Value {
    call(id, "docs__tell", args)
}

/// Returns a notification about the progress of the call with this token.
fn progress(token: Value, progress: Value) -> Value {
    let params = json!({"progressToken": token, "progress": progress, "total": 4, "message": "digging"});
    json!({"method": "notifications/progress", "params": params})
}

fn line(text: &str) -> Value {
    json!({"method": "notifications/message", "params": {"level": "warning", "logger": "spade", "data": text}})
}

fn is_custom(frame: &Frame, name: &str) -> bool {
    frame.mode() == "custom" && frame.data["name"] == name
}

/// Returns the payloads of the progress in a stream.
fn shown(frames: &[Frame]) -> Vec<&Value> {
    let custom = frames.iter().filter(|frame| is_custom(frame, "tool_progress"));
    custom.map(|frame| &frame.data["payload"]).collect()
}

async fn clients_see_what_a_program_tells_about_a_call_while_it_is_made(server: TestServer) {
    notices_are_shown(&server, McpTransport::Stdio).await;
}

async fn clients_see_what_a_server_behind_http_tells_about_a_call_while_it_is_made(server: TestServer) {
    notices_are_shown(&server, McpTransport::Http).await;
}

async fn notices_are_shown(server: &TestServer, way: McpTransport) {
    let Some(_docs) = docs(server, way, "").await else {
        return;
    };
    server.tools.hold("dig");
    let alice = server.human("librarian").await;
    let notifications = json!([line("It is hard."), progress(json!("own"), json!(0.5))]);
    let text = script()
        .calls(tell("c1", json!({"notifications": notifications})))
        .says("done");
    let viewer = Viewer::of(server, &alice.thread);
    let mut events = viewer.opens(json!({"channels": ["custom"]})).await;
    let more = json!({"stream_mode": ["custom", "tools"], "stream_resumable": true});
    let mut stream = alice.streams(text, more).await;
    let run = alice.run_of_id(&stream.run_id());
    let told = stream.until(|frame| is_custom(frame, "tool_progress")).await;
    let payload = json!({"progress": 0.5, "total": 4, "message": "digging",
        "lc_agent_name": "librarian", "tool_call_id": "c1", "tool_name": "docs__tell"});
    assert_eq!(shown(&told), [&payload]);
    let log = told.iter().find(|frame| is_custom(frame, "tool_log")).expect("a line");
    let expected = json!({"level": "warning", "logger": "spade", "data": "It is hard.",
        "lc_agent_name": "librarian", "tool_call_id": "c1", "tool_name": "docs__tell"});
    assert_eq!(log.data["payload"], expected);
    let event = told.iter().find(|frame| frame.data["event"] == "on_tool_event");
    let expected = json!({"event": "on_tool_event", "toolCallId": "c1", "name": "docs__tell", "data": payload});
    assert_eq!(event.map(|frame| &frame.data), Some(&expected), "{told:#?}");
    let is_named = |frame: &Frame| frame.data["params"]["data"]["name"] == "tool_progress";
    let seen = events.until(is_named).await;
    let seen = seen.last().expect("an event");
    assert_eq!(seen.data["params"]["data"]["payload"], payload);
    assert_eq!(run.status().await, "running");

    server.tools.let_go("dig");
    stream.rest().await;
    assert_eq!(alice.transcript().await[2..], ["docs__tell: told", "ai: done"]);
    let state = alice.state().await.to_string();
    assert!(!state.contains("tool_progress"), "{state}");
    let later = run.is_joined(Some("-1")).await.rest().await;
    assert_eq!(shown(&later), [&payload], "who comes later sees it, too");
}

async fn progress_of_a_program_extends_the_time_without_data_and_not_that_of_the_call(server: TestServer) {
    time_is_extended(&server, McpTransport::Stdio).await;
}

async fn progress_of_a_server_behind_http_extends_the_time_without_data_and_not_that_of_the_call(server: TestServer) {
    time_is_extended(&server, McpTransport::Http).await;
}

async fn time_is_extended(server: &TestServer, way: McpTransport) {
    let limits = "[answers]\nfirst_byte_s = 1.5\nbetween_bytes_s = 1.5\n[runtime]\n";
    server.configuration_changes("[runtime]\n", limits);
    let Some(_docs) = docs(server, way, "timeout_s = 5").await else {
        return;
    };
    let alice = server.human("librarian").await;
    let told = |id: &str, times: usize| {
        let notifications = json!([progress(json!("own"), json!("n"))]);
        tell(
            id,
            json!({"notifications": notifications, "times": times, "pause": 0.5}),
        )
    };
    let text = script().calls(told("c1", 6)).calls(told("c2", 100)).says("done");
    let said = transcript(&alice.says(text).await);
    assert_eq!(said[2], "docs__tell: told");
    assert!(
        said[4].contains("there was no answer within 5 s (its `timeout_s`)"),
        "{}",
        said[4]
    );
}

async fn a_flood_of_progress_of_a_program_becomes_a_few_events(server: TestServer) {
    a_flood_is_bounded(&server, McpTransport::Stdio).await;
}

async fn a_flood_of_progress_of_a_server_behind_http_becomes_a_few_events(server: TestServer) {
    a_flood_is_bounded(&server, McpTransport::Http).await;
}

async fn a_flood_is_bounded(server: &TestServer, way: McpTransport) {
    let Some(_docs) = docs(server, way, "").await else {
        return;
    };
    let alice = server.human("librarian").await;
    let notifications = json!([progress(json!("own"), json!("n")), line("again")]);
    let args = json!({"notifications": notifications, "times": 2_000});
    let text = script().calls(tell("c1", args)).says("done");
    let more = json!({"stream_mode": ["custom"]});
    let frames = alice.streams(text, more).await.rest().await;
    let told = shown(&frames);
    assert!(told.len() < 100, "{}", told.len());
    assert_eq!(told.last().map(|payload| &payload["progress"]), Some(&json!(2_000)));
    let lines = frames.iter().filter(|frame| is_custom(frame, "tool_log")).count();
    // Sixteen wait at most until those before them are sent.
    assert!(lines <= 16 * (told.len() + 1), "{lines}");
    assert_eq!(alice.transcript().await[2], "docs__tell: told");
}

async fn progress_that_is_too_long_ends_the_call_of_a_program_and_no_other(server: TestServer) {
    long_progress_ends_the_call(&server, McpTransport::Stdio).await;
}

async fn progress_that_is_too_long_ends_the_call_behind_http_and_no_other(server: TestServer) {
    long_progress_ends_the_call(&server, McpTransport::Http).await;
}

async fn long_progress_ends_the_call(server: &TestServer, way: McpTransport) {
    let Some(_docs) = docs(server, way, "").await else {
        return;
    };
    let alice = server.human("librarian").await;
    let params = json!({"progressToken": "own", "progress": 1, "message": "huge"});
    let huge = json!({"notifications": [{"method": "notifications/progress", "params": params}]});
    let text = script()
        .calls(tell("c1", huge))
        .calls(call("c2", "docs__echo", json!({"text": "still there"})))
        .says("done");
    let said = transcript(&alice.says(text).await);
    assert!(
        said[2].starts_with("docs__tell failed:") && said[2].len() < 10_000,
        "{}",
        said[2]
    );
    assert_eq!(said[4..], ["docs__echo: still there", "ai: done"]);
}

async fn progress_of_another_call_is_not_shown(server: TestServer) {
    for way in [McpTransport::Stdio, McpTransport::Http] {
        let before = std::fs::read_to_string(server.configuration()).expect("a configuration");
        let Some(_docs) = docs(&server, way, "").await else {
            return;
        };
        let alice = server.human("librarian").await;
        let first = json!({"notifications": [progress(json!("own"), json!(1))]});
        let tokens = [
            json!("before"),
            json!(1_000_000),
            json!("someone's"),
            json!(null),
            json!("own"),
        ];
        let notifications: Vec<Value> = tokens
            .into_iter()
            .zip(2..)
            .map(|(token, number)| progress(token, json!(number)))
            .collect();
        let second = json!({"notifications": notifications});
        let text = script().calls(tell("c1", first)).calls(tell("c2", second)).says("done");
        let more = json!({"stream_mode": ["custom"]});
        let frames = alice.streams(text, more).await.rest().await;
        let told: Vec<_> = shown(&frames)
            .into_iter()
            .map(|payload| (&payload["tool_call_id"], &payload["progress"]))
            .collect();
        assert_eq!(told, [(&json!("c1"), &json!(1)), (&json!("c2"), &json!(6))], "{way:?}");
        std::fs::write(server.configuration(), before).expect("it can change");
        server.is_stopped_and_started_again().await;
    }
}

async fn a_policy_that_rewrites_results_withholds_what_servers_tell(server: TestServer) {
    let Some(_docs) = docs(&server, McpTransport::Stdio, "").await else {
        return;
    };
    let policy = "{ name = \"PIIMiddleware\", type = \"email\", apply_to_tool_results = true }";
    let agent = "[agents.careful]\nmodel = \"scripted:lab\"\nsystem_prompt = \"You read.\"\ntools = [\"docs/*\"]\n";
    server
        .is_configured_with(&format!("{agent}middleware = [{policy}]\n"))
        .await;
    let alice = server.human("careful").await;
    let notifications = json!([line("To bob."), progress(json!("own"), json!(1))]);
    let text = script()
        .calls(tell("c1", json!({"notifications": notifications})))
        .says("done");
    let more = json!({"stream_mode": ["custom", "values"]});
    let frames = alice.streams(text, more).await.rest().await;
    assert!(frames.iter().all(|frame| frame.mode() != "custom"), "{frames:#?}");
    assert_eq!(alice.transcript().await[2], "docs__tell: told");
}
