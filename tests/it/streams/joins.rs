//! Readers who join in the middle of an answer, and readers who come back to a position.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::other_servers::{reads, text_of};
use crate::support::sse::{Frame, Sse};
use crate::support::{Human, TestServer, lookup, on_both_engines, on_postgres, script, task};

on_both_engines! {
    a_reader_who_joins_in_the_middle_of_an_answer_gets_its_beginning_and_then_each_piece,
    a_reader_of_growing_messages_who_joins_in_the_middle_gets_the_message_so_far,
    a_thread_is_followed_from_the_middle_of_an_answer,
    a_reader_who_joins_gets_the_beginnings_of_all_agents,
    a_reader_who_joins_a_subagent_in_the_middle_gets_the_beginning_of_its_answer,
    every_event_has_its_own_id_behind_which_the_next_one_follows,
    a_reader_who_has_read_on_without_the_pieces_gets_the_rest_of_the_answer,
    every_event_of_a_run_that_was_taken_over_has_its_own_id,
}

on_postgres! {
    a_reader_without_a_position_at_another_server_gets_the_beginning_of_the_answer,
}

/// Checks that the pieces add up to one message that ends once.
#[track_caller]
fn check_whole(frames: &[Frame], text: &str) {
    assert_eq!(text_of(frames), text);
    let pieces = frames.iter().filter(|frame| frame.mode() == "messages");
    let pieces: Vec<&Value> = pieces.map(|frame| &frame.data[0]).collect();
    let count = |is_meant: &dyn Fn(&Value) -> bool| pieces.iter().filter(|piece| is_meant(piece)).count();
    assert_eq!(count(&|piece| piece["usage_metadata"].is_object()), 1, "{pieces:#?}");
    assert_eq!(count(&|piece| piece["response_metadata"]["finish_reason"] == "stop"), 1);
    assert_eq!(count(&|piece| piece["chunk_position"] == "last"), 1);
}

async fn a_reader_who_joins_in_the_middle_of_an_answer_gets_its_beginning_and_then_each_piece(server: TestServer) {
    for is_resumable in [false, true] {
        let dictation = server.models.will_be_dictated();
        let alice = server.human("openai").await;
        let more = json!({"stream_mode": "messages-tuple", "stream_resumable": is_resumable});
        let mut first = alice.streams("hello", more).await;
        let run = alice.run_of_id(&first.run_id());
        dictation.says("one ");
        dictation.says("two ");
        reads(&mut first, "two ").await;
        let mut late = run.is_joined(None).await;
        let mut heard = reads(&mut late, "two ").await;
        assert_eq!(text_of(&heard), "one two ");
        for piece in ["three ", "four"] {
            dictation.says(piece);
            // The next piece waits until the reader has this one.
            heard.extend(reads(&mut late, piece).await);
        }
        dictation.ends();
        heard.extend(late.rest().await);
        check_whole(&heard, "one two three four");
        check_whole(&first.rest().await, "three four");
    }
}

async fn a_reader_of_growing_messages_who_joins_in_the_middle_gets_the_message_so_far(server: TestServer) {
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let mut first = alice.streams("hello", json!({"stream_mode": "messages"})).await;
    let run = alice.run_of_id(&first.run_id());
    let says =
        |text: &'static str| move |frame: &Frame| frame.event == "messages/partial" && frame.data[0]["content"] == text;
    dictation.says("one ");
    dictation.says("two ");
    first.until(says("one two ")).await;
    let mut late = run.is_joined(None).await;
    let heard = late.until(says("one two ")).await;
    assert_eq!(heard[0].event, "messages/metadata");
    dictation.says("three");
    late.until(says("one two three")).await;
    dictation.ends();
    let last = late.rest().await;
    assert_eq!(last.last().expect("an end").data[0]["content"], "one two three");
    drop(first);
}

async fn a_thread_is_followed_from_the_middle_of_an_answer(server: TestServer) {
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let mut first = alice.streams("hello", json!({"stream_mode": "messages-tuple"})).await;
    dictation.says("one ");
    reads(&mut first, "one ").await;
    let mut late = server.client().get_stream(&alice.path("/stream"), None).await;
    let mut heard = reads(&mut late, "one ").await;
    dictation.says("two");
    heard.extend(reads(&mut late, "two").await);
    dictation.ends();
    heard.extend(late.until(|frame| frame.data["status"] == "run_done").await);
    check_whole(&heard, "one two");
    drop(first);
}

/// Returns a researcher who says `one ` and then pauses.
fn hesitates() -> String {
    let turn = json!({"text": "one two", "delay_ms": 3_600_000});
    script().turn(turn).in_pieces_of(4).to_string()
}

/// Reads until `count` answers have said `one `, and returns the number of pieces that did.
async fn hear_from(stream: &mut Sse, count: usize) -> usize {
    let mut speakers = HashSet::new();
    let mut pieces = 0;
    while speakers.len() < count {
        let frame = stream.next().await.expect("the stream goes on");
        if text_of(std::slice::from_ref(&frame)) == "one " {
            pieces += 1;
            speakers.insert(frame.data[0]["id"].to_string());
        }
    }
    pieces
}

async fn a_reader_who_joins_gets_the_beginnings_of_all_agents(server: TestServer) {
    let alice = server.human("agent").await;
    let both = script().calls_all([
        task("t1", "researcher", hesitates()),
        task("t2", "researcher", hesitates()),
    ]);
    let more = json!({"stream_mode": ["messages-tuple", "updates"], "stream_subgraphs": true});
    let mut first = alice.streams(both, more).await;
    let run = alice.run_of_id(&first.run_id());
    hear_from(&mut first, 2).await;
    let mut late = run.is_joined(None).await;
    assert_eq!(hear_from(&mut late, 2).await, 2);
    run.is_cancelled("interrupt").await.ok();
    assert_eq!(text_of(&late.rest().await), "", "nothing is said twice");
    drop(first);
}

async fn a_reader_who_joins_a_subagent_in_the_middle_gets_the_beginning_of_its_answer(server: TestServer) {
    let alice = server.human("agent").await;
    let more = json!({"stream_mode": "messages-tuple", "stream_subgraphs": true});
    let text = script().calls(task("t1", "researcher", hesitates()));
    let mut first = alice.streams(text, more).await;
    let run = alice.run_of_id(&first.run_id());
    hear_from(&mut first, 1).await;
    let child = run.children().await[0]["run_id"].as_str().expect("an id").to_owned();
    let mut late = alice.run_of_id(&child).is_joined(None).await;
    assert_eq!(hear_from(&mut late, 1).await, 1);
    run.is_cancelled("interrupt").await.ok();
    assert_eq!(text_of(&late.rest().await), "", "nothing is said twice");
    drop(first);
}

async fn every_event_has_its_own_id_behind_which_the_next_one_follows(server: TestServer) {
    let alice = server.human("agent").await;
    let research = script().calls(lookup("c1", "x")).says("it is x");
    let text = script()
        .calls(task("t1", "researcher", research))
        .says("the researcher says x");
    let modes = json!([
        "values",
        "updates",
        "messages",
        "messages-tuple",
        "tasks",
        "checkpoints",
        "custom"
    ]);
    let more = json!({"stream_mode": modes, "stream_subgraphs": true, "stream_resumable": true});
    let stream = alice.streams(text, more).await;
    let run = alice.run_of_id(&stream.run_id());
    stream.rest().await;
    // The pieces of the answers are gone, so each replay is the same.
    server.is_stopped_and_started_again().await;
    let all = run.is_joined(Some("-1")).await.rest().await;
    let ids: HashSet<&str> = all.iter().filter_map(|frame| frame.id.as_deref()).collect();
    assert_eq!(ids.len(), all.len(), "{all:#?}");
    for at in 0..all.len() {
        let rest = run.is_joined(all[at].id.as_deref()).await.rest().await;
        assert_eq!(rest, all[at + 1..], "behind {:?}", all[at].id);
    }
}

async fn a_reader_who_has_read_on_without_the_pieces_gets_the_rest_of_the_answer(server: TestServer) {
    server.tools.hold("lookup");
    let alice = server.human("plain").await;
    let asks = json!({"text": "one two ", "tool_calls": [lookup("l1", "x")]});
    let text = script().turn(asks).says("three").in_pieces_of(4);
    let more = json!({"stream_mode": ["messages-tuple", "updates"], "stream_resumable": true});
    let mut live = alice.streams(text, more).await;
    let run = alice.run_of_id(&live.run_id());
    let heard = live.until(|frame| frame.mode() == "updates").await;
    assert_eq!(text_of(&heard), "one two ");
    let last = heard.iter().rfind(|frame| frame.mode() == "messages").expect("a piece");
    let id = last.id.as_deref().expect("an id");
    let (seq, rest) = id.split_once('-').expect("a position");
    let answer = rest.split(['~', '.']).nth(1).expect("an answer");
    server.tools.called("lookup", 1).await;
    // A server without the pieces sends the whole answer behind the last of their numbers. This reader has nothing of it but
    // the beginning.
    let joined = run.is_joined(Some(&format!("{seq}~{answer}.1"))).await;
    server.tools.let_go("lookup");
    assert_eq!(text_of(&joined.rest().await), "one two three");
    assert_eq!(text_of(&live.rest().await), "three");
}

async fn every_event_of_a_run_that_was_taken_over_has_its_own_id(server: TestServer) {
    server.moves_into_a_process().await;
    server.tools.hold("lookup");
    let alice = server.human("plain").await;
    let text = script().calls(lookup("l1", "x")).says("found");
    let more = json!({"stream_mode": ["values", "tasks", "messages-tuple"], "stream_resumable": true});
    let run = alice.starts(alice.run_body(text, more)).await;
    server.tools.called("lookup", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    run.finishes().await;
    // The pieces of the answers are gone, so each replay is the same.
    server.is_killed_and_started_again().await;
    let all = run.is_joined(Some("-1")).await.rest().await;
    let begun = all.iter().filter(|frame| frame.data["metadata"]["run_attempt"] == 2);
    assert!(begun.count() > 0, "{all:#?}");
    let ids: HashSet<_> = all.iter().map(|frame| frame.id.clone()).collect();
    assert_eq!(ids.len(), all.len(), "{all:#?}");
    for at in 0..all.len() {
        let rest = run.is_joined(all[at].id.as_deref()).await.rest().await;
        assert_eq!(rest, all[at + 1..], "behind {:?}", all[at].id);
    }
}

async fn a_reader_without_a_position_at_another_server_gets_the_beginning_of_the_answer(server: TestServer) {
    let twin = server.starts_twin().await;
    let dictation = server.models.will_be_dictated();
    let alice = server.human("openai").await;
    let mut first = alice.streams("hello", json!({"stream_mode": "messages-tuple"})).await;
    let there = Human::at(twin.client.clone(), "openai", &alice.thread);
    let run = there.run_of_id(&first.run_id());
    dictation.says("one ");
    dictation.says("two ");
    reads(&mut first, "two ").await;
    // The second reader there finds the pieces in memory.
    let mut late = vec![];
    for _ in 0..2 {
        let mut stream = run.is_joined(None).await;
        let heard = reads(&mut stream, "two ").await;
        assert_eq!(text_of(&heard), "one two ");
        late.push((stream, heard));
    }
    dictation.says("three");
    for (stream, heard) in &mut late {
        heard.extend(reads(stream, "three").await);
    }
    dictation.ends();
    for (stream, mut heard) in late {
        heard.extend(stream.rest().await);
        check_whole(&heard, "one two three");
    }
    drop(first);
    twin.stops().await;
}
