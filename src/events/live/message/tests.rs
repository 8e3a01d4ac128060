use serde_json::json;

use super::*;
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::id::TaskId;
use crate::domain::visibility::Visibility;

fn origin(text: &str) -> Arc<Origin> {
    Arc::new(Origin {
        lane: Lane::Child(RunId::mint()),
        namespace: vec![TaskId::of_step(None, "tools", 1)],
        agent: "writer".to_owned(),
        path: vec!["boss".to_owned(), "writer".to_owned()],
        cause: Some("c1".to_owned()),
        visibility: Visibility::Full,
        display_text: Some(text.to_owned()),
    })
}

fn answer() -> Arc<AnswerHead> {
    Arc::new(AnswerHead {
        message: "m1".to_owned(),
        task: TaskId::of_step(None, "model", 0),
        step: 3,
        provider: "lab".to_owned(),
        model: "m".to_owned(),
    })
}

struct Thread {
    run: RunId,
    origin: Arc<Origin>,
    answer: Arc<AnswerHead>,
}

impl Thread {
    fn new() -> Self {
        Self {
            run: RunId::mint(),
            origin: origin("Writes"),
            answer: answer(),
        }
    }

    fn event(&self, seq: i64, body: EventBody) -> Arc<Event> {
        Arc::new(Event {
            seq,
            run: self.run,
            at: Timestamp(1_700_000_000_000_000 + seq),
            origin: Arc::clone(&self.origin),
            body,
        })
    }

    fn delta(&self, seq: i64, chunk: Chunk) -> Arc<Event> {
        let ordinal = u32::try_from(seq).expect("small");
        let answer = Arc::clone(&self.answer);
        self.event(seq, EventBody::Delta(Delta { answer, ordinal, chunk }))
    }
}

/// Returns the events as one of the two servers has them: stored ones as their number only.
fn shown(events: &[Arc<Event>]) -> Vec<String> {
    let show = |event: &Arc<Event>| match event.body.is_stored() {
        true => format!("{} stored", event.seq),
        false => format!("{event:?}"),
    };
    events.iter().map(show).collect()
}

/// Returns the events that the texts bring, with their ranges.
fn received(texts: &[String]) -> (Vec<String>, Vec<(i64, i64)>) {
    let mut events = vec![];
    let mut ranges = vec![];
    for text in texts {
        for (range, body) in unpack(text).expect("a text") {
            ranges.push((range.after, range.upto));
            let (slots, _) = read_slots(range, body).expect("events");
            events.extend(slots.into_iter().map(|slot| match slot.content {
                SlotContent::Visible(event) => format!("{event:?}"),
                SlotContent::Stored(_) => format!("{} stored", slot.seq),
                SlotContent::Reserved => panic!("nothing is reserved"),
            }));
        }
    }
    (events, ranges)
}

#[test]
fn all_chunks_arrive_as_they_were_sent() {
    let thread = Thread::new();
    let metadata = json!({"finish_reason": "stop"})
        .as_object()
        .cloned()
        .unwrap_or_default();
    let call = Chunk::Call {
        index: 1,
        id: Some("c".to_owned()),
        name: None,
        args: "{\"a\n".to_owned(),
    };
    let end = Chunk::End {
        response_metadata: metadata,
        usage: Some(json!({"input_tokens": 1})),
    };
    let output = EventBody::Output {
        call: "c".to_owned(),
        text: "line 1\nline 2".to_owned(),
    };
    let events = [
        thread.event(4, EventBody::Fact(Fact::Paused)),
        thread.event(5, EventBody::Begun(AgentWork::Model)),
        thread.delta(7, Chunk::Begin),
        thread.delta(8, Chunk::Text("one \"two\"\u{0}".to_owned())),
        thread.delta(9, Chunk::Reasoning("why".to_owned())),
        thread.delta(10, call),
        thread.delta(11, end),
        thread.delta(12, Chunk::Void),
        thread.event(13, output),
    ];
    let (parts, too_large) = parts_of(ThreadId::mint(), 3, &events, MAX_CHUNKS);
    assert_eq!(parts.len(), 1);
    assert_eq!(too_large, 0);
    assert_eq!(parts[0].chunks, 8);
    let (arrived, ranges) = received(&pack(&parts));
    assert_eq!(arrived, shown(&events));
    assert_eq!(ranges, [(3, 13)]);
}

#[test]
fn many_chunks_are_split_into_texts_that_postgres_takes() {
    let thread = Thread::new();
    let events: Vec<_> = (1..2000)
        .map(|seq| thread.delta(seq, Chunk::Text("word ".repeat(usize::try_from(seq % 30).unwrap_or(0)))))
        .collect();
    let (parts, too_large) = parts_of(ThreadId::mint(), 0, &events, MAX_CHUNKS);
    assert_eq!(too_large, 0);
    assert!(parts.len() > 10 && parts.iter().all(|part| part.text.len() <= MAX_CHUNKS));
    let texts = pack(&parts);
    assert!(texts.iter().all(|text| text.len() < 8_000));
    let (arrived, ranges) = received(&texts);
    assert_eq!(arrived, shown(&events));
    assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0), "{ranges:?}");
}

#[test]
fn a_chunk_that_is_too_large_is_left_out_of_its_range() {
    let mut thread = Thread::new();
    let before = thread.delta(1, Chunk::Text("a".to_owned()));
    let large = thread.delta(2, Chunk::Text("x".repeat(9_000)));
    let after = thread.delta(3, Chunk::Text("b".to_owned()));
    thread.origin = origin(&"x".repeat(9_000));
    let stored = thread.event(4, EventBody::Fact(Fact::Paused));
    let events = [before, large, after, stored];
    let (parts, too_large) = parts_of(ThreadId::mint(), 0, &events, MAX_CHUNKS);
    assert_eq!(too_large, 1);
    let (arrived, ranges) = received(&pack(&parts));
    let [first, _, third, fourth] = shown(&events).try_into().expect("four");
    assert_eq!(arrived, [first, third, fourth]);
    assert_eq!(ranges, [(0, 1), (1, 4)]);
}

#[test]
fn a_part_counts_with_its_line_and_as_long_as_it_is_when_sealed() {
    let thread = Thread::new();
    let last = i64::from(u32::MAX);
    let events = [thread.delta(last, Chunk::Text("x".repeat(3_000)))];
    let (parts, _) = parts_of(ThreadId::mint(), last - 1, &events, MAX_CHUNKS);
    let texts = pack(&parts);
    let ([part], [text]) = (parts.as_slice(), texts.as_slice()) else {
        panic!("{} parts in {} texts", parts.len(), texts.len());
    };
    let bytes = part.sent_bytes(false);
    assert!(
        text.len() <= bytes && bytes < text.len() + 8,
        "{} of {bytes}",
        text.len()
    );
    assert!(part.sent_bytes(true) > part.text.len() / 3 * 4 + 64);
    assert!(part.sent_bytes(true) < MAX_TEXT);
}

#[test]
fn a_stored_event_says_whose_answers_it_ends() {
    let mut thread = Thread::new();
    let lane = thread.origin.lane;
    let small = thread.event(1, EventBody::Fact(Fact::Undone));
    let other = thread.event(2, EventBody::Fact(Fact::Paused));
    thread.origin = origin(&"x".repeat(9_000));
    let large = thread.event(3, EventBody::Fact(Fact::Undone));
    let (parts, too_large) = parts_of(ThreadId::mint(), 0, &[small, other, large], MAX_CHUNKS);
    assert_eq!(too_large, 0);
    let mut ends = vec![];
    for part in parts {
        let (slots, _) = read_slots(part.range, &part.text).expect("events");
        ends.extend(slots.into_iter().map(|slot| match slot.content {
            SlotContent::Stored(ends) => (slot.seq, ends),
            SlotContent::Visible(_) | SlotContent::Reserved => panic!("{} is not stored", slot.seq),
        }));
    }
    // An agent that has no room in a message is not named.
    assert_eq!(ends, [(1, Some(lane)), (2, None), (3, None)]);
}

#[test]
fn announcements_arrive_as_they_were_sent() {
    let interest = Interest {
        server: LiveAddress(ThreadId::mint().0),
        is_new: true,
        threads: (0..450).map(|_| ThreadId::mint()).collect(),
    };
    let texts = interest.texts();
    assert!(texts.len() == 3 && texts.iter().all(|text| text.len() < 8_000));
    let read: Vec<Interest> = texts.iter().map(|text| Interest::read(text).expect("a text")).collect();
    assert!(read.iter().all(|part| part.server == interest.server && part.is_new));
    let threads: Vec<ThreadId> = read.into_iter().flat_map(|part| part.threads).collect();
    assert_eq!(threads, interest.threads);
}

#[test]
fn other_versions_and_nonsense_are_told_apart() {
    let thread = ThreadId::mint();
    for text in ["", "2\nnew x", "1", "10\n"] {
        let expected = if text == "1" {
            Unusable::Malformed
        } else {
            Unusable::OtherVersion
        };
        assert_eq!(Interest::read(text), Err(expected), "{text:?}");
    }
    for text in ["1\nold 5", "1\nnew", "1\nnew x", "1\nnew  "] {
        assert_eq!(Interest::read(text), Err(Unusable::Malformed), "{text:?}");
    }
    assert_eq!(unpack("2\nx"), Err(Unusable::OtherVersion));
    for line in [
        "x".to_owned(),
        format!("{thread} 1"),
        format!("{thread} 2 1 {{}}"),
        format!("{thread} -1 1 {{}}"),
        format!("{thread} 1 {} {{}}", i64::MAX),
        format!("{thread} 1 2"),
    ] {
        assert_eq!(unpack(&format!("1\n{line}")), Err(Unusable::Malformed), "{line}");
    }
    let range = ChunkRange {
        thread,
        after: 1,
        upto: 3,
    };
    let body = |events: &str| {
        let run = RunId::mint();
        format!("{{\"run\":\"{run}\",\"origins\":[],\"answers\":[],\"events\":[{events}]}}")
    };
    let is_read = |events: &str| read_slots(range, &body(events)).is_ok();
    assert!(is_read("[2,0,0,\"stored\"],[3,0,0,\"stored\"]"));
    let wrong = [
        "[1,0,0,\"stored\"]",
        "[4,0,0,\"stored\"]",
        "[3,0,0,\"stored\"],[2,0,0,\"stored\"]",
        "[2,0,0,{\"output\":[\"c\",\"t\"]}]",
    ];
    assert!(wrong.into_iter().all(|events| !is_read(events)));
}
