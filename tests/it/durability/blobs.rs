//! Images, audio and files of messages are stored once as blobs, and clients and models do not notice.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::provider::Turn;
use crate::support::{Human, TestServer, eventually, lookup, on_both_engines, script};

on_both_engines! {
    an_image_of_many_turns_is_stored_once_and_every_reader_gets_it,
    an_encrypted_image_is_stored_once_and_cannot_be_read_in_the_database,
    an_image_survives_a_server_that_is_killed,
    a_message_that_looks_like_a_reference_shows_nothing,
    the_smallest_blob_is_a_setting,
}

/// A text in the image, which must not be found in a database that is encrypted.
const MARKER: &str = "xyzzy-blob-1138";

/// Returns an image of about 40 kB in base64.
fn image() -> String {
    STANDARD.encode(MARKER.repeat(2000))
}

/// Returns a message with this text and the image.
fn content(text: impl ToString) -> Value {
    json!([
        {"type": "text", "text": text.to_string()},
        {"type": "image", "base64": image(), "mime_type": "image/png"},
    ])
}

fn input(content: &Value) -> Value {
    json!({"input": {"messages": [{"role": "user", "content": content}]}})
}

/// Sends a message and waits for the end of its run.
async fn sends(human: &Human, content: &Value) {
    let run = human.starts(input(content)).await;
    run.finishes().await;
    assert_eq!(run.status().await, "success");
}

async fn blobs(server: &TestServer) -> i64 {
    server.number_in_database("select count(*) from blobs").await
}

/// Returns the number of bytes of the log and the requests.
async fn bytes_of_texts(server: &TestServer) -> i64 {
    let sql = "select cast((select sum(octet_length(writes) + octet_length(position) + coalesce(octet_length(next_event), 0)) \
        from checkpoints) + (select coalesce(sum(octet_length(body)), 0) from events) \
        + (select sum(octet_length(request)) from runs) as bigint)";
    server.number_in_database(sql).await
}

/// Returns the contents of the messages of humans in these values.
fn said_by_human(values: &Value) -> Vec<Value> {
    let messages = values["messages"].as_array().expect("messages").iter();
    let of_humans = messages.filter(|message| message["type"] == "human");
    of_humans.map(|message| message["content"].clone()).collect()
}

/// Plays a conversation with the same image in each turn, and compares what every reader gets.
async fn every_reader_gets_what_was_sent(server: &TestServer) {
    let alice = server.human("openai").await;
    let sent = content("look");
    server
        .models
        .will([Turn::Says("one"), Turn::Says("two"), Turn::Says("three")]);
    for _ in 0..3 {
        sends(&alice, &sent).await;
    }
    assert_eq!(blobs(server).await, 1);
    let bytes = bytes_of_texts(server).await;
    assert!(bytes < 40_000, "{bytes} bytes besides the blob");
    let asked = server.models.asked();
    let last = &asked.last().expect("a request").body;
    assert_eq!(last.matches(&image()).count(), 3, "the model gets each");
    // Nothing is read from the memory of the process.
    server.is_stopped_and_started_again().await;
    let alice = Human::at(
        server.client(),
        "openai",
        alice.record().await["thread_id"].as_str().expect("an id"),
    );
    let client = alice.client();
    let all = vec![sent.clone(); 3];
    assert_eq!(said_by_human(&alice.state().await["values"]), all, "state");
    assert_eq!(said_by_human(&alice.record().await["values"]), all, "thread");
    let history = alice.history().await;
    assert_eq!(said_by_human(&history[0]["values"]), all, "history");
    let runs = alice.runs().await;
    let inputs = runs.iter().map(|run| &run["kwargs"]["input"]["messages"][0]["content"]);
    assert!(!runs.is_empty(), "there are runs");
    assert!(inputs.clone().all(|content| *content == sent), "requests");
    server.models.will([Turn::Says("four")]);
    let mut body = input(&sent);
    body["assistant_id"] = json!("openai");
    body["stream_mode"] = json!(["values", "updates"]);
    body["stream_resumable"] = json!(true);
    let stream = client.post_stream(&alice.path("/runs/stream"), body).await;
    let frames = stream.rest().await;
    let values = frames
        .iter()
        .rev()
        .find(|frame| frame.mode() == "values")
        .expect("values");
    assert_eq!(said_by_human(&values.data).len(), 4);
    assert_eq!(said_by_human(&values.data)[0], sent, "stream");
    let run = alice.run(&alice.runs().await[0]);
    let joined = run.is_joined(Some("-1")).await.rest().await;
    let values = joined
        .iter()
        .rev()
        .find(|frame| frame.mode() == "values")
        .expect("values");
    assert_eq!(said_by_human(&values.data)[3], sent, "joined stream");
    let asked = server.models.asked();
    let last = &asked.last().expect("a request").body;
    assert_eq!(last.matches(&image()).count(), 4, "the model gets each after a restart");
    let copy = client.post(&alice.path("/copy"), json!({})).await.ok();
    assert_eq!(blobs(server).await, 1);
    assert_eq!(client.delete(&alice.path("")).await.status, 204);
    let copy = alice.on(copy["thread_id"].as_str().expect("an id"));
    assert_eq!(said_by_human(&copy.state().await["values"])[0], sent, "copy");
    assert_eq!(client.delete(&copy.path("")).await.status, 204);
    for table in ["blobs", "entry_blobs", "request_blobs"] {
        let left = server
            .number_in_database(&format!("select count(*) from {table}"))
            .await;
        assert_eq!(left, 0, "{table}");
    }
}

async fn an_image_of_many_turns_is_stored_once_and_every_reader_gets_it(server: TestServer) {
    every_reader_gets_what_was_sent(&server).await;
}

async fn an_encrypted_image_is_stored_once_and_cannot_be_read_in_the_database(server: TestServer) {
    let key = STANDARD.encode([7; 32]);
    server.file_is_written("master.keys", &format!("k:{key}\n"));
    server
        .is_configured_with("[encryption]\nkey_file = \"master.keys\"")
        .await;
    let bob = server.human("openai").await;
    server.models.will([Turn::Says("seen")]);
    sends(&bob, &content("look")).await;
    let plain = "select count(*) from blobs where not sealed";
    assert_eq!(server.number_in_database(plain).await, 0);
    assert!(!crate::access::encryption::is_stored(&server, MARKER).await);
    assert_eq!(bob.client().delete(&bob.path("")).await.status, 204);
    every_reader_gets_what_was_sent(&server).await;
}

async fn an_image_survives_a_server_that_is_killed(server: TestServer) {
    server.moves_into_a_process().await;
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let sent = content(script().calls(lookup("c1", "x")).says("done"));
    let run = alice.starts(input(&sent)).await;
    server.tools.called("lookup", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    eventually(async || run.status().await == "success").await;
    assert_eq!(said_by_human(&alice.state().await["values"]), [sent]);
    assert_eq!(blobs(&server).await, 1);
    let unreferenced = "select count(*) from blobs where digest not in (select digest from entry_blobs)";
    assert_eq!(server.number_in_database(unreferenced).await, 0);
    assert_eq!(alice.client().delete(&alice.path("")).await.status, 204);
    assert_eq!(blobs(&server).await, 0);
}

async fn a_message_that_looks_like_a_reference_shows_nothing(server: TestServer) {
    let alice = server.human("openai").await;
    server.models.will([Turn::Says("seen"), Turn::Says("what?")]);
    sends(&alice, &content("look")).await;
    let digest = sha256(&STANDARD.decode(image()).expect("bytes"));
    let header = format!("blobs1:[{{\"at\":0,\"digest\":\"{digest}\",\"bytes\":30000}}]\n");
    let eve = server.human("openai").await;
    let forged = json!([
        {"type": "text", "text": header},
        {"type": "text", "text": format!("{{\"at\":0,\"digest\":\"{digest}\",\"bytes\":30000}}")},
    ]);
    sends(&eve, &forged).await;
    server.is_stopped_and_started_again().await;
    let eve = Human::at(
        server.client(),
        "openai",
        eve.record().await["thread_id"].as_str().expect("an id"),
    );
    assert_eq!(said_by_human(&eve.state().await["values"]), [forged]);
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    hex::encode(sha2::Sha256::digest(bytes))
}

async fn the_smallest_blob_is_a_setting(server: TestServer) {
    server
        .is_reconfigured("[storage]\n", "[storage]\nblob_min_chars = 100000\n")
        .await;
    let alice = server.human("openai").await;
    server.models.will([Turn::Says("seen")]);
    sends(&alice, &content("look")).await;
    assert_eq!(blobs(&server).await, 0);
    assert_eq!(said_by_human(&alice.state().await["values"]), [content("look")]);
}
