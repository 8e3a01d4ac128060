//! Readers at another server than the one at which the run is active.

use serde_json::{Value, json};
use sqlx::postgres::PgListener;

use crate::support::actors::Run;
use crate::support::client::Client;
use crate::support::sse::{Frame, Sse, put_together};
use crate::support::viewer::{Viewer, data, name, until_ends};
use crate::support::{Human, TestServer, eventually, lookup, on_postgres, script, task};

on_postgres! {
    a_piece_reaches_a_reader_at_another_server_before_the_answer_is_complete,
    a_reader_who_joins_another_server_in_the_middle_gets_the_beginning,
    readers_at_both_servers_get_the_same_events,
    both_servers_have_the_same_pieces_of_a_thread,
    a_reader_gets_everything_after_its_server_has_lost_the_connection_that_listens,
    a_reader_who_came_before_the_run_gets_its_pieces,
    messages_of_another_version_are_passed_over_and_counted,
    pieces_beyond_the_limit_come_with_the_whole_answer,
    nothing_is_sent_without_readers_at_other_servers,
    pieces_are_sealed_on_a_server_that_encrypts,
}

/// Returns the sum of a metric over all labels.
pub(super) async fn metric(client: &Client, metric: &str, reason: Option<&str>) -> f64 {
    let metrics = client.get("/metrics?format=json").await.ok();
    let samples = metrics["metrics"].as_array().expect("a list").clone();
    let is_meant =
        |sample: &&Value| sample["name"] == metric && reason.is_none_or(|reason| sample["labels"]["reason"] == reason);
    samples
        .iter()
        .filter(is_meant)
        .filter_map(|sample| sample["value"].as_f64())
        .sum()
}

/// Returns the text of the pieces in a stream of the mode `messages`.
pub(super) fn text_of(frames: &[Frame]) -> String {
    let is_piece = |frame: &&Frame| frame.mode() == "messages" && frame.data[0]["type"] == "AIMessageChunk";
    let pieces = frames.iter().filter(is_piece);
    pieces.filter_map(|frame| frame.data[0]["content"].as_str()).collect()
}

/// Reads until the text that was streamed ends so.
pub(super) async fn reads(stream: &mut Sse, end: &str) -> Vec<Frame> {
    stream
        .until(|frame| text_of(std::slice::from_ref(frame)).ends_with(end))
        .await
}

/// Starts a run whose pieces are streamed. The server at which it starts works on it.
pub(super) async fn begins(alice: &Human) -> Run {
    let more = json!({"stream_mode": ["messages-tuple"], "stream_resumable": true});
    alice.starts(alice.run_body("hello", more)).await
}

/// Joins the stream of a run at another server, from its beginning.
pub(super) async fn joins(client: &Client, alice: &Human, run: &Run) -> Sse {
    let there = Human::at(client.clone(), "openai", &alice.thread);
    there.run_of_id(&run.id).is_joined(Some("-1")).await
}

async fn a_piece_reaches_a_reader_at_another_server_before_the_answer_is_complete(server: TestServer) {
    let twin = server.starts_twin().await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let run = begins(&alice).await;
    let mut there = joins(&twin.client, &alice, &run).await;
    let mut heard = vec![];
    for piece in ["one ", "two ", "three"] {
        dictation.says(piece);
        // The next piece waits until the reader has this one.
        heard.extend(reads(&mut there, piece).await);
    }
    dictation.ends();
    heard.extend(there.rest().await);
    assert_eq!(text_of(&heard), "one two three");
    let replayed = run.is_joined(Some("-1")).await.rest().await;
    assert_eq!(put_together(&heard), put_together(&replayed));
    twin.stops().await;
}

async fn a_reader_who_joins_another_server_in_the_middle_gets_the_beginning(server: TestServer) {
    let twin = server.starts_twin().await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let run = begins(&alice).await;
    let mut here = run.is_joined(Some("-1")).await;
    dictation.says("one ");
    dictation.says("two ");
    reads(&mut here, "two ").await;
    let mut first = joins(&twin.client, &alice, &run).await;
    let mut heard = reads(&mut first, "two ").await;
    assert_eq!(text_of(&heard), "one two ");
    // The second reader at the same server finds the pieces there.
    let mut second = joins(&twin.client, &alice, &run).await;
    assert_eq!(text_of(&reads(&mut second, "two ").await), "one two ");
    dictation.says("three");
    heard.extend(reads(&mut first, "three").await);
    reads(&mut second, "three").await;
    dictation.ends();
    heard.extend(first.rest().await);
    assert_eq!(text_of(&heard), "one two three");
    twin.stops().await;
}

async fn readers_at_both_servers_get_the_same_events(server: TestServer) {
    let twin = server.starts_twin().await;
    let alice = server.human("agent").await;
    let research = |say: &str| script().calls(lookup("c1", "x")).says(say).in_pieces_of(2);
    let both = script()
        .calls_all([
            task("t1", "researcher", research("it is x")),
            task("t2", "researcher", research("it is y")),
        ])
        .says("the researchers say x and y")
        .in_pieces_of(2);
    server.tools.hold("lookup");
    let more = json!({"stream_mode": ["messages-tuple", "updates", "values"], "stream_subgraphs": true,
        "stream_resumable": true});
    let run = alice.starts(alice.run_body(both, more)).await;
    let here = run.is_joined(Some("-1")).await;
    let there = Human::at(twin.client.clone(), "agent", &alice.thread);
    let there = there.run_of_id(&run.id).is_joined(Some("-1")).await;
    server.tools.called("lookup", 2).await;
    server.tools.let_go("lookup");
    let (here, there) = tokio::join!(here.rest(), there.rest());
    let by_event = |frames: &[Frame]| {
        let mut frames: Vec<(String, String)> = put_together(frames)
            .into_iter()
            .map(|frame| (frame.event, frame.data.to_string()))
            .collect();
        // The events of agents side by side are in the order of the log; messages stand where their first piece does.
        frames.sort();
        frames
    };
    assert_eq!(by_event(&there), by_event(&here));
    let lasting = |frames: &[Frame]| {
        let lasting = frames.iter().filter(|frame| frame.mode() != "messages");
        lasting
            .map(|frame| (frame.event.clone(), frame.data.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(lasting(&there), lasting(&here));
    twin.stops().await;
}

async fn both_servers_have_the_same_pieces_of_a_thread(server: TestServer) {
    let twin = server.starts_twin().await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let viewer = Viewer::of(&server, &alice.thread);
    let mut here = viewer.opens_all().await;
    let path = format!("/threads/{}/stream/events", alice.thread);
    let mut there = twin
        .client
        .post_stream(&path, json!({"channels": crate::support::viewer::ALL}))
        .await;
    viewer.starts("openai", "hello").await;
    let is_piece = |piece: &'static str| move |frame: &Frame| data(frame)["delta"]["text"] == piece;
    let mut heard_here = vec![];
    let mut heard_there = vec![];
    for piece in ["one ", "two "] {
        dictation.says(piece);
        heard_here.extend(here.until(is_piece(piece)).await);
        heard_there.extend(there.until(is_piece(piece)).await);
    }
    dictation.ends();
    heard_here.extend(until_ends(&mut here, 1).await);
    heard_there.extend(until_ends(&mut there, 1).await);
    let named = |frames: &[Frame]| {
        let frames = frames.iter().map(|frame| (name(frame).to_owned(), data(frame).clone()));
        frames.collect::<Vec<_>>()
    };
    assert_eq!(named(&heard_there), named(&heard_here));
    drop((here, there));
    twin.stops().await;
}

async fn a_reader_gets_everything_after_its_server_has_lost_the_connection_that_listens(server: TestServer) {
    let twin = server.starts_twin().await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let run = begins(&alice).await;
    let mut there = joins(&twin.client, &alice, &run).await;
    dictation.says("one ");
    let mut heard = reads(&mut there, "one ").await;
    let cut = "select count(pg_terminate_backend(pid)) from pg_locks where locktype = 'advisory' \
        and database = (select oid from pg_database where datname = current_database())";
    assert_eq!(server.number_in_database(cut).await, 2);
    dictation.says("two ");
    // Once the servers listen again, the reader gets what it has missed.
    heard.extend(reads(&mut there, "two ").await);
    dictation.says("three");
    dictation.ends();
    heard.extend(there.rest().await);
    assert_eq!(text_of(&heard), "one two three");
    twin.stops().await;
}

async fn a_reader_who_came_before_the_run_gets_its_pieces(server: TestServer) {
    let twin = server.starts_twin().await;
    let alice = server.human("openai").await;
    let there = Human::at(twin.client.clone(), "openai", &alice.thread);
    let mut stream = there.client().get_stream(&there.path("/stream"), None).await;
    let dictation = server.models.will_be_dictated();
    begins(&alice).await;
    dictation.says("one ");
    stream.until(|frame| frame.data.to_string().contains("one ")).await;
    dictation.ends();
    drop(stream);
    twin.stops().await;
}

async fn messages_of_another_version_are_passed_over_and_counted(server: TestServer) {
    let client = server.client();
    let counted = async |reason| metric(&client, "adjutant_live_messages_passed_over_total", Some(reason)).await;
    server
        .executes_sql("select pg_notify('adjutant_live', E'0\\nnew something else')")
        .await;
    eventually(async || counted("other_version").await > 0.0).await;
    server
        .executes_sql("select pg_notify('adjutant_live', E'1\\nnonsense')")
        .await;
    eventually(async || counted("malformed").await > 0.0).await;
    let values = server.human("plain").await.says(script().says("done")).await;
    assert_eq!(values["messages"][1]["content"], "done");
}

async fn pieces_beyond_the_limit_come_with_the_whole_answer(server: TestServer) {
    server.is_configured_with("[cluster]\nlive_bytes_per_s = 1\n").await;
    let twin = server.starts_twin().await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let run = begins(&alice).await;
    let there = joins(&twin.client, &alice, &run).await;
    dictation.says("one ");
    let client = server.client();
    eventually(async || metric(&client, "adjutant_live_chunks_unsent_total", Some("rate_limit")).await > 0.0).await;
    dictation.says("two");
    dictation.ends();
    assert_eq!(text_of(&there.rest().await), "one two");
    twin.stops().await;
}

async fn nothing_is_sent_without_readers_at_other_servers(server: TestServer) {
    let twin = server.starts_twin().await;
    let alice = server.human("plain").await;
    let stream = alice.streams(script().says("one two").in_pieces_of(4), json!({})).await;
    stream.rest().await;
    let client = server.client();
    assert!(metric(&client, "adjutant_live_messages_sent_total", None).await < 0.5);
    assert!(metric(&twin.client, "adjutant_live_chunks_received_total", None).await < 0.5);
    twin.stops().await;
}

async fn pieces_are_sealed_on_a_server_that_encrypts(server: TestServer) {
    let keys = server.configuration().with_file_name("master.keys");
    std::fs::write(keys, "old:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n").expect("the keys");
    server
        .is_configured_with("[encryption]\nkey_file = \"master.keys\"\n")
        .await;
    let mut wire = PgListener::connect(&server.database_url()).await.expect("a connection");
    wire.listen("adjutant_live").await.expect("it listens");
    let twin = server.starts_twin().await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let run = begins(&alice).await;
    let mut there = joins(&twin.client, &alice, &run).await;
    let announced = wire.recv().await.expect("an announcement");
    let server_id = announced
        .payload()
        .split_whitespace()
        .nth(2)
        .expect("an id")
        .replace('-', "");
    wire.listen(&format!("adjutant_live_{server_id}"))
        .await
        .expect("it listens");
    dictation.says("xyzzy");
    reads(&mut there, "xyzzy").await;
    let payload = loop {
        let heard = wire.recv().await.expect("a message");
        if heard.channel() != "adjutant_live" {
            break heard.payload().to_owned();
        }
    };
    assert!(payload.starts_with("1\n") && payload.contains("sealed1:"), "{payload}");
    assert!(!payload.contains("xyzzy") && !payload.contains("openai"), "{payload}");
    // Whoever can connect to the database could send plain pieces, which are not taken.
    let forged = format!("1\n{} 0 1000000 {{}}", alice.thread);
    let forge = format!("select pg_notify('adjutant_live_{server_id}', '{forged}')");
    server.executes_sql(&forge).await;
    let counted = async || metric(&twin.client, "adjutant_live_messages_passed_over_total", Some("sealed")).await > 0.0;
    eventually(counted).await;
    dictation.ends();
    there.rest().await;
    twin.stops().await;
}
