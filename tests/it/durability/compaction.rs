//! A server that is killed while a conversation is being summarised: nothing is lost, and nothing is done twice.

use serde_json::{Value, json};

use crate::support::actors::transcript;
use crate::support::sse::Frame;
use crate::support::{TestServer, lookup, on_both_engines, script};

/// An agent whose summaries take so long that the server is killed meanwhile.
const AGENT: &str = r#"
[agents.slow-writer]
model = "scripted:lab"
system_prompt = "You talk."
tools = ["lookup"]
general_purpose_subagent = { enabled = false }

[agents.slow-writer.summarization]
trigger = { messages = 6 }
keep = { messages = 3 }
summary_prompt = '{"script": [{"text": "SUMMARY", "first_ms": 4000}]}'
"#;

fn is_news(frame: &Frame, status: &str) -> bool {
    frame.mode() == "custom" && frame.data["type"] == "summarization" && frame.data["status"] == status
}

/// Runs the server as a process with the agent. Leases are short, since on a shared database a dead process keeps its
/// runs for that long.
async fn runs_in_a_process(server: &TestServer) {
    server.is_configured_with(AGENT).await;
    let leases = ["lease_s = 2.0\nheartbeat_s = 0.5", "lease_s = 1.0\nheartbeat_s = 0.2"];
    server.is_reconfigured(leases[0], leases[1]).await;
    server.moves_into_a_process().await;
}

on_both_engines! {
    a_run_that_is_killed_while_it_summarises_goes_on_without_doing_anything_twice,
    a_compaction_that_is_killed_is_completed_by_the_next_process,
}

async fn a_run_that_is_killed_while_it_summarises_goes_on_without_doing_anything_twice(server: TestServer) {
    runs_in_a_process(&server).await;
    let alice = server.human("slow-writer").await;
    for text in ["one", "two"] {
        alice.says(text).await;
    }
    let text = script().calls(lookup("l1", "x")).says("done");
    let more = json!({"stream_mode": ["custom"], "stream_resumable": true});
    let mut stream = alice.streams(text, more).await;
    let run = alice.run_of_id(&stream.run_id());
    stream.until(|frame| is_news(frame, "started")).await;
    server.is_killed_and_started_again().await;
    run.finishes().await;
    assert_eq!(run.status().await, "success");
    assert_eq!(server.tools.calls_of("lookup").len(), 1, "the call is not repeated");
    let state = alice.state().await;
    let said = transcript(&state["values"]);
    assert_eq!(said.len(), 8, "{said:#?}");
    assert_eq!(said.last().unwrap(), "ai: done");
    assert_eq!(state["values"]["summarization"]["count"], 1, "one summary was kept");
    let files = state["values"]["files"].as_object().expect("files");
    assert_eq!(files.len(), 1, "{files:#?}");
    let told = run.is_joined(Some("-1")).await.rest().await;
    let times = |status: &str| told.iter().filter(|frame| is_news(frame, status)).count();
    assert_eq!(
        [times("started"), times("finished")],
        [2, 1],
        "the summary was written anew"
    );
}

async fn a_compaction_that_is_killed_is_completed_by_the_next_process(server: TestServer) {
    runs_in_a_process(&server).await;
    let alice = server.human("slow-writer").await;
    for text in ["one", "two"] {
        alice.says(text).await;
    }
    let client = alice.client().clone();
    let path = alice.path("/compact");
    let mut followed = client.get_stream(&alice.path("/stream"), None).await;
    let asked = tokio::spawn(async move {
        let body = json!({"keep_messages": 1});
        client.tries(reqwest::Method::POST, &path, Some(&body)).await.is_ok()
    });
    followed.until(|frame| frame.data["status"] == "started").await;
    server.is_killed_and_started_again().await;
    assert!(!asked.await.expect("no panic"), "the client was disconnected");
    let runs: Vec<Value> = alice.runs().await;
    let run = alice.run(&runs[0]);
    run.finishes().await;
    assert_eq!(run.status().await, "success");
    let state = alice.state().await;
    assert_eq!(state["values"]["summarization"]["count"], 1);
    assert_eq!(state["values"]["messages"].as_array().unwrap().len(), 4);
    assert_eq!(alice.status().await, "idle");
}
