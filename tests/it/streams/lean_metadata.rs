//! Lean metadata beside the pieces of answers, on every stream that has them.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::client::reply;
use crate::support::sse::{Frame, Sse, put_together};
use crate::support::{TestServer, lookup, on_both_engines, script, task};

on_both_engines! {
    lean_metadata_is_whole_once_for_each_message,
    lean_metadata_is_the_choice_of_each_reader,
    a_stream_with_lean_metadata_is_taken_up_within_a_message,
    an_unknown_choice_of_metadata_is_refused,
}

/// The keys that every piece has.
const LEAN: [&str; 4] = ["lc_agent_name", "langgraph_node", "langgraph_checkpoint_ns", "run_id"];

fn delegation() -> String {
    let research = script().calls(lookup("c1", "x")).says("it is x, says the book");
    script()
        .calls(task("t1", "researcher", research))
        .says("the researcher says x")
        .to_string()
}

fn more() -> Value {
    json!({"stream_mode": "messages-tuple", "stream_subgraphs": true, "stream_resumable": true})
}

/// Opens a stream with these headers.
async fn opens(server: &TestServer, method: Method, path: &str, body: Option<&Value>, headers: &[(&str, &str)]) -> Sse {
    let mut request = server.client().request(method, path);
    if let Some(body) = body {
        request = request.json(body);
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Sse::open(request.send().await.expect("an answer")).await
}

const HEADER: (&str, &str) = ("x-stream-metadata", "lean");

/// Returns the pieces of answers of models, each with its metadata, grouped by message.
fn pieces(frames: &[Frame]) -> Vec<(String, Vec<&Value>)> {
    let mut all: Vec<(String, Vec<&Value>)> = vec![];
    let of_models = frames
        .iter()
        .filter(|frame| frame.mode() == "messages" && frame.data[0]["type"] == "AIMessageChunk");
    for frame in of_models {
        let id = frame.data[0]["id"].as_str().expect("an id");
        match all.iter_mut().find(|(known, _)| known == id) {
            Some((_, pieces)) => pieces.push(&frame.data[1]),
            None => all.push((id.to_owned(), vec![&frame.data[1]])),
        }
    }
    all
}

fn is_lean(metadata: &Value) -> bool {
    metadata.as_object().expect("an object").keys().eq(LEAN)
}

#[track_caller]
fn check_lean(frames: &[Frame]) {
    let all = pieces(frames);
    assert_eq!(all.len(), 4, "{all:?}");
    for (message, pieces) in all {
        assert!(pieces[0]["assistant_id"].is_string(), "{message}: {}", pieces[0]);
        assert!(pieces[0]["thread_id"].is_string(), "{message}: {}", pieces[0]);
        assert!(pieces.len() > 1, "{message}");
        for piece in &pieces[1..] {
            assert!(is_lean(piece), "{message}: {piece}");
            assert!(
                LEAN.iter().all(|key| piece[key] == pieces[0][key]),
                "{message}: {piece}"
            );
        }
    }
}

async fn lean_metadata_is_whole_once_for_each_message(server: TestServer) {
    let alice = server.human("agent").await;
    let path = alice.path("/runs/stream");
    let body = alice.run_body(delegation(), more());
    let stream = opens(&server, Method::POST, &path, Some(&body), &[HEADER]).await;
    let run = alice.run_of_id(&stream.run_id());
    let live = stream.rest().await;
    check_lean(&live);
    let agents: Vec<&str> = live
        .iter()
        .filter_map(|frame| frame.data[1]["lc_agent_name"].as_str())
        .collect();
    assert!(
        agents.contains(&"researcher") && agents.contains(&"main-agent"),
        "{agents:?}"
    );

    // Joins, the stream of the thread, and runs without a thread.
    let from_the_start = [HEADER, ("last-event-id", "-1")];
    let joined = opens(
        &server,
        Method::GET,
        &format!("{}/stream", run.path),
        None,
        &from_the_start,
    )
    .await;
    check_lean(&joined.rest().await);
    let mut thread = opens(&server, Method::GET, &alice.path("/stream"), None, &from_the_start).await;
    check_lean(&thread.until(|frame| frame.data["status"] == "run_done").await);
    let stateless = opens(&server, Method::POST, "/runs/stream", Some(&body), &[HEADER]).await;
    check_lean(&stateless.rest().await);
    let by_query = opens(
        &server,
        Method::POST,
        &format!("{path}?stream_metadata=lean"),
        Some(&body),
        &[],
    )
    .await;
    check_lean(&by_query.rest().await);
}

async fn lean_metadata_is_the_choice_of_each_reader(server: TestServer) {
    let alice = server.human("agent").await;
    let stream = alice.streams(delegation(), more()).await;
    let run = alice.run_of_id(&stream.run_id());
    let full = stream.rest().await;
    let of_answers = pieces(&full);
    assert!(!of_answers.is_empty(), "{full:#?}");
    assert!(
        of_answers
            .iter()
            .all(|(_, pieces)| pieces.iter().all(|piece| piece["assistant_id"].is_string()))
    );
    let path = format!("{}/stream", run.path);
    let lean = opens(&server, Method::GET, &path, None, &[HEADER, ("last-event-id", "-1")]).await;
    let lean = lean.rest().await;
    check_lean(&lean);
    // Put together, nothing is missing: the first piece of each message has the metadata.
    assert_eq!(put_together(&lean), put_together(&full));
    let header_wins = format!("{path}?stream_metadata=lean");
    let full_again = opens(
        &server,
        Method::GET,
        &header_wins,
        None,
        &[("x-stream-metadata", "full"), ("last-event-id", "-1")],
    );
    assert_eq!(put_together(&full_again.await.rest().await), put_together(&full));

    // The stream of a subagent.
    let child = run.children().await[0]["run_id"].as_str().expect("an id").to_owned();
    let path = format!("{}/stream", alice.run_of_id(&child).path);
    let child = opens(&server, Method::GET, &path, None, &[HEADER, ("last-event-id", "-1")]).await;
    let child = child.rest().await;
    let of_child = pieces(&child);
    assert_eq!(of_child.len(), 2, "{of_child:?}");
    assert!(
        of_child
            .iter()
            .all(|(_, pieces)| pieces[1..].iter().all(|piece| is_lean(piece)))
    );
}

async fn a_stream_with_lean_metadata_is_taken_up_within_a_message(server: TestServer) {
    let alice = server.human("agent").await;
    let body = alice.run_body(delegation(), more());
    let stream = opens(
        &server,
        Method::POST,
        &alice.path("/runs/stream"),
        Some(&body),
        &[HEADER],
    )
    .await;
    let run = alice.run_of_id(&stream.run_id());
    let live = stream.rest().await;
    let is_within = |frame: &Frame| frame.mode() == "messages" && frame.data[0]["content"] == "it ";
    let at = live.iter().position(is_within).expect("a piece of the researcher");
    let id = live[at].id.clone().expect("an id");
    let path = format!("{}/stream", run.path);
    let rest = opens(&server, Method::GET, &path, None, &[HEADER, ("last-event-id", &id)]).await;
    let rest = rest.rest().await;
    // The reader has the metadata of the message already.
    assert!(is_lean(&rest[0].data[1]), "{rest:#?}");
    let known: Vec<Frame> = live[..=at].iter().chain(&rest).cloned().collect();
    assert_eq!(put_together(&known), put_together(&live));
}

async fn an_unknown_choice_of_metadata_is_refused(server: TestServer) {
    let alice = server.human("agent").await;
    let client = server.client();
    let body = alice.run_body("hello", json!({}));
    let request = client
        .request(Method::POST, &alice.path("/runs/stream"))
        .header("x-stream-metadata", "tiny");
    let said = reply(request.json(&body)).await.refused(422);
    assert!(said.contains("stream_metadata") && said.contains("tiny"), "{said}");
    let path = alice.path("/stream?stream_metadata=none");
    client.get(&path).await.refused(422);
    assert_eq!(
        alice.runs().await,
        Vec::<Value>::new(),
        "a run was started nevertheless"
    );
}
