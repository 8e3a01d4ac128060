//! Positions in a stream: a reader that resumes at one of them gets the next frame, and each has its own.

use std::collections::HashSet;

use super::*;
use crate::domain::event::AgentWork;

/// A run in which the main agent makes two calls at once, one of which is a delegation.
fn delegation() -> Play {
    let mut play = Play::new();
    let mut main = play.main();
    play.start(&main, false);
    play.input(&mut main, "hi");
    let calls = [
        call("c1", "task", json!({"to": "a b"})),
        call("c2", "lookup", json!({"q": "ü"})),
    ];
    play.say(&mut main, "m1", "let me see", &calls);
    play.answer(&mut main, 1, "first", true);
    let mut child = play.child(&main, 0, "c1");
    play.start(&child, false);
    play.input(&mut child, "look");
    play.say(&mut child, "s1", "found it", &[]);
    play.end(&child);
    play.answer(&mut main, 0, "second", false);
    play.tools(&mut main);
    play.say(&mut main, "m2", "here you are", &[]);
    play.end(&main);
    play
}

/// A run in which two subagents answer at once. One of them ends in the middle of the answer of the other.
fn two_at_once() -> Play {
    let mut play = Play::new();
    let mut main = play.main();
    play.start(&main, false);
    play.input(&mut main, "hi");
    play.put(&main, EventBody::Begun(AgentWork::Model));
    let calls = [
        call("c1", "task", json!({"to": "a"})),
        call("c2", "task", json!({"to": "b"})),
    ];
    play.say(&mut main, "m1", "both of you", &calls);
    let mut first = play.child(&main, 0, "c1");
    let mut second = play.child(&main, 1, "c2");
    for child in [&mut first, &mut second] {
        play.start(child, false);
        play.input(child, "look");
        play.put(child, EventBody::Begun(AgentWork::Model));
    }
    let text = "there is nothing here";
    let mut others = play.pieces(&second, "s2", text, &[]).into_iter();
    for piece in play.pieces(&first, "s1", "found it", &[]) {
        play.put(&first, piece);
        let other = others.next().expect("the other answer is longer");
        play.put(&second, other);
    }
    play.conclude(&mut first, "s1", "found it", &[]);
    play.end(&first);
    play.answer(&mut main, 0, "first", true);
    for piece in others {
        play.put(&second, piece);
    }
    play.conclude(&mut second, "s2", text, &[]);
    play.end(&second);
    play.answer(&mut main, 1, "second", false);
    play.tools(&mut main);
    play.say(&mut main, "m2", "here you are", &[]);
    play.end(&main);
    play
}

fn stored(play: &Play) -> Vec<Event> {
    play.events
        .iter()
        .filter(|event| event.body.is_stored())
        .cloned()
        .collect()
}

const ALL: [StreamMode; 10] = [
    StreamMode::Values,
    StreamMode::Updates,
    StreamMode::Messages,
    StreamMode::MessagesTuple,
    StreamMode::Custom,
    StreamMode::Tasks,
    StreamMode::Checkpoints,
    StreamMode::Debug,
    StreamMode::Events,
    StreamMode::Tools,
];

/// The frames as their ids, their names and what they say. The rest of their data names the thread of the reader.
fn told(frames: &[(String, Frame)]) -> Vec<(String, String, Value)> {
    let told = |(id, frame): &(String, Frame)| (id.clone(), frame.event.to_string(), data(frame)[0].clone());
    frames.iter().map(told).collect()
}

#[track_caller]
fn check_every_position(play: &Play, events: &[Event], modes: &[StreamMode]) {
    let all = play.resume(events, modes, None);
    let ids: HashSet<&String> = all.iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), all.len(), "{:#?}", told(&all));
    for at in 0..all.len() {
        let rest = play.resume(events, modes, Some(&all[at].0));
        assert_eq!(told(&rest), told(&all[at + 1..]), "after {}", all[at].0);
    }
}

#[test]
fn a_replay_is_resumed_after_any_frame_with_the_next_one() {
    let play = delegation();
    let stored = stored(&play);
    check_every_position(&play, &stored, &[StreamMode::MessagesTuple]);
    check_every_position(&play, &stored, &[StreamMode::Messages]);
    check_every_position(&play, &stored, &[StreamMode::Tasks, StreamMode::MessagesTuple]);
    check_every_position(&play, &stored, &[StreamMode::Tools]);
    check_every_position(&play, &stored, &ALL);
}

#[test]
fn a_live_stream_is_resumed_after_any_frame_with_the_next_one() {
    let play = delegation();
    check_every_position(&play, &play.events, &[StreamMode::MessagesTuple]);
    check_every_position(&play, &play.events, &ALL);
}

#[test]
fn a_stream_of_answers_that_are_given_at_once_is_resumed_after_any_frame_with_the_next_one() {
    let play = two_at_once();
    for modes in [&[StreamMode::MessagesTuple][..], &[StreamMode::Tasks], &ALL] {
        check_every_position(&play, &play.events, modes);
        check_every_position(&play, &stored(&play), modes);
    }
}

#[test]
fn a_stream_over_takeovers_is_resumed_after_any_frame_with_the_next_one() {
    let mut play = Play::new();
    let mut main = play.main();
    play.start(&main, false);
    play.input(&mut main, "hi");
    // Other servers go on before the model has answered, and before its call has a result.
    play.put(&main, EventBody::Begun(AgentWork::Model));
    play.start(&main, true);
    play.put(&main, EventBody::Begun(AgentWork::Model));
    play.say(
        &mut main,
        "m1",
        "let me see",
        &[call("c1", "lookup", json!({"q": "x"}))],
    );
    play.start(&main, true);
    play.answer(&mut main, 0, "found", false);
    play.tools(&mut main);
    let head = main.machine.head.expect("a step");
    play.say(&mut main, "m2", "here you are", &[]);
    play.end(&main);
    let stored = stored(&play);
    let modes = [StreamMode::Tasks, StreamMode::MessagesTuple];
    check_every_position(&play, &play.events, &modes);
    check_every_position(&play, &stored, &modes);
    // The start of a step without a takeover has the key that every version gives it.
    let key = AnswerOffset::key_of([1].into_iter().chain(*head.0.as_bytes()));
    let all = play.resume(&stored, &modes, None);
    assert!(all.iter().any(|(id, _)| id.contains(&format!("~{key:x}.1"))));
}

/// Returns the parts of a message that a client knows: its text, its finish reasons, its tokens and its ends.
fn known(frames: &[&Frame], message: &str) -> (String, Vec<Value>, u64, usize) {
    let pieces = frames.iter().filter(|frame| frame.event.word == "messages");
    let pieces: Vec<Value> = pieces.map(|frame| data(frame)[0].clone()).collect();
    let own: Vec<&Value> = pieces.iter().filter(|piece| piece["id"] == message).collect();
    let text = own.iter().filter_map(|piece| piece["content"].as_str()).collect();
    let reasons = own
        .iter()
        .map(|piece| piece["response_metadata"]["finish_reason"].clone());
    let tokens = own
        .iter()
        .filter_map(|piece| piece["usage_metadata"]["total_tokens"].as_u64());
    let ends = own.iter().filter(|piece| piece["chunk_position"] == "last").count();
    (text, reasons.filter(Value::is_string).collect(), tokens.sum(), ends)
}

#[test]
fn a_live_stream_that_is_resumed_when_its_pieces_are_gone_adds_up() {
    let play = delegation();
    let stored = stored(&play);
    let modes = [StreamMode::MessagesTuple, StreamMode::Messages];
    let live = play.resume(&play.events, &modes, None);
    let whole: Vec<&Frame> = live.iter().map(|(_, frame)| frame).collect();
    for at in 0..live.len() {
        let rest = play.resume(&stored, &modes, Some(&live[at].0));
        let both: Vec<&Frame> = live[..=at].iter().chain(&rest).map(|(_, frame)| frame).collect();
        for message in ["m1", "s1", "m2"] {
            assert_eq!(known(&both, message), known(&whole, message), "after {}", live[at].0);
        }
    }
}

/// Checks that a reader of the events `before` who goes on with the events `after` behind any frame knows each message once.
#[track_caller]
fn check_that_messages_add_up(play: &Play, before: &[Event], after: &[Event]) {
    let modes = [StreamMode::MessagesTuple, StreamMode::Messages];
    let all = play.resume(before, &modes, None);
    let whole: Vec<&Frame> = all.iter().map(|(_, frame)| frame).collect();
    for at in 0..all.len() {
        let rest = play.resume(after, &modes, Some(&all[at].0));
        let both: Vec<&Frame> = all[..=at].iter().chain(&rest).map(|(_, frame)| frame).collect();
        for message in ["m1", "s1", "s2", "m2"] {
            assert_eq!(known(&both, message), known(&whole, message), "after {}", all[at].0);
        }
    }
}

#[test]
fn a_replay_that_is_resumed_where_the_pieces_still_are_adds_up() {
    for play in [delegation(), two_at_once()] {
        check_that_messages_add_up(&play, &stored(&play), &play.events);
    }
}

#[test]
fn answers_that_are_given_at_once_add_up_when_their_pieces_are_gone() {
    let play = two_at_once();
    check_that_messages_add_up(&play, &play.events, &stored(&play));
}

#[test]
fn a_reader_that_goes_on_with_or_without_the_starts_has_each_task_once() {
    let play = two_at_once();
    let stored = stored(&play);
    let modes = [StreamMode::Tasks];
    let sorted = |frames: &[(String, Frame)]| {
        let mut texts: Vec<String> = frames.iter().map(|(_, frame)| data(frame).to_string()).collect();
        texts.sort();
        texts
    };
    for (before, after) in [(&stored, &play.events), (&play.events, &stored)] {
        let all = play.resume(before, &modes, None);
        for at in 0..all.len() {
            let rest = play.resume(after, &modes, Some(&all[at].0));
            let both: Vec<(String, Frame)> = all[..=at].iter().chain(&rest).cloned().collect();
            assert_eq!(sorted(&both), sorted(&all), "after {}", all[at].0);
        }
    }
}

#[test]
fn a_reader_that_is_cut_off_twice_still_misses_and_repeats_nothing() {
    let play = delegation();
    let stored = stored(&play);
    let modes = [StreamMode::MessagesTuple];
    let live = play.resume(&play.events, &modes, None);
    let middle = live
        .iter()
        .position(|(_, frame)| data(frame)[0]["id"] == "s1")
        .unwrap_or_default()
        + 1;
    let rest = play.resume(&stored, &modes, Some(&live[middle].0));
    for (at, (id, _)) in rest.iter().enumerate() {
        let again = play.resume(&stored, &modes, Some(id));
        assert_eq!(told(&again), told(&rest[at + 1..]), "after {id}");
    }
}

#[test]
fn positions_that_older_servers_wrote_are_resumed() {
    let play = delegation();
    let stored = stored(&play);
    let modes = [StreamMode::MessagesTuple];
    let all = play.resume(&stored, &modes, None);
    // An older server counted a piece as sent with the last of its frames, so the first frame of an end had the position
    // before it.
    let is_end = |(id, _): &(String, Frame)| id.contains(".ffffffff.") && id.ends_with(".1");
    let at = all.iter().position(is_end).unwrap_or_default();
    let parts = all[at].0.split_once(".ffffffff.");
    let older = parts.map(|(answer, cut)| format!("{answer}.{}", cut.trim_end_matches(".1")));
    let rest = play.resume(&stored, &modes, older.as_deref());
    assert_eq!(told(&rest), told(&all[at..]));
    // Where the pieces still are, the other frames of the piece follow.
    let live = play.resume(&play.events, &modes, None);
    let at = live.iter().position(is_end).unwrap_or_default();
    let parts = live[at].0.split_once(".ffffffff.");
    let older = parts.map(|(answer, cut)| format!("{answer}.{}", cut.trim_end_matches(".1")));
    assert!(older.is_some());
    let rest = play.resume(&play.events, &modes, older.as_deref());
    assert_eq!(told(&rest), told(&live[at + 1..]));
}
