//! The modes `messages` and `messages-tuple`.

use std::collections::BTreeMap;

use super::*;

/// The message that a client assembles from its chunks.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    text: String,
    calls: BTreeMap<u64, (String, String, String)>,
    finish: Vec<String>,
    tokens: u64,
    last: usize,
    node: String,
}

/// Assembles chunks as clients do.
fn heard(frames: &[Frame]) -> BTreeMap<String, Heard> {
    let mut all: BTreeMap<String, Heard> = BTreeMap::new();
    for frame in frames.iter().filter(|frame| frame.event.word == "messages") {
        let data = data(frame);
        let piece = &data[0];
        let metadata = &data[1];
        let heard = all
            .entry(piece["id"].as_str().unwrap_or_default().to_owned())
            .or_default();
        heard.text += piece["content"].as_str().unwrap_or_default();
        metadata["langgraph_node"]
            .as_str()
            .unwrap_or_default()
            .clone_into(&mut heard.node);
        for part in piece["tool_call_chunks"].as_array().into_iter().flatten() {
            let call = heard
                .calls
                .entry(part["index"].as_u64().unwrap_or_default())
                .or_default();
            call.0 += part["id"].as_str().unwrap_or_default();
            call.1 += part["name"].as_str().unwrap_or_default();
            call.2 += part["args"].as_str().unwrap_or_default();
        }
        let finish = piece["response_metadata"]["finish_reason"]
            .as_str()
            .map(ToOwned::to_owned);
        heard
            .finish
            .extend(finish.filter(|_| piece["type"] == "AIMessageChunk"));
        heard.tokens += piece["usage_metadata"]["total_tokens"].as_u64().unwrap_or_default();
        heard.last += usize::from(piece["chunk_position"] == "last");
    }
    all
}

fn tool_loop() -> Play {
    let mut play = Play::new();
    let mut main = play.main();
    play.start(&main, false);
    play.input(&mut main, "hi");
    let calls = [
        call("c1", "lookup", json!({"query": "a b"})),
        call("c2", "lookup", json!({"query": "ü\"\\"})),
    ];
    play.say(&mut main, "m1", "let me see", &calls);
    play.answer(&mut main, 0, "first", true);
    play.answer(&mut main, 1, "second", false);
    play.tools(&mut main);
    play.say(&mut main, "m2", "here you are", &[]);
    play.end(&main);
    play
}

fn is_piece(event: &Event) -> bool {
    matches!(event.body, EventBody::Delta(_))
}

const TUPLE: [StreamMode; 1] = [StreamMode::MessagesTuple];

#[test]
fn an_answer_is_sent_in_chunks_and_a_tool_result_as_a_whole() {
    let frames = tool_loop().all(&TUPLE, false);
    let all = lines(&frames);
    assert_eq!(
        all[1..4],
        [
            "messages AIMessageChunk:",
            "messages AIMessageChunk: let",
            "messages AIMessageChunk: me"
        ]
    );
    assert!(all.contains(&"messages tool: second".to_owned()));
    let heard = heard(&frames);
    let call = |id: &str, args: Value| (id.to_owned(), "lookup".to_owned(), args.to_string());
    let expected = Heard {
        text: "let me see".to_owned(),
        calls: [
            (0, call("c1", json!({"query": "a b"}))),
            (1, call("c2", json!({"query": "ü\"\\"}))),
        ]
        .into(),
        finish: vec!["stop".to_owned()],
        tokens: 5,
        last: 1,
        node: "model".to_owned(),
    };
    assert_eq!(heard["m1"], expected);
    assert_eq!(heard.len(), 4);
}

#[test]
fn a_chunk_has_all_the_keys_that_clients_expect() {
    let frames = tool_loop().all(&TUPLE, false);
    let keys = |value: &Value| {
        value
            .as_object()
            .into_iter()
            .flat_map(Map::keys)
            .cloned()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let expected = "content additional_kwargs response_metadata type name id tool_calls invalid_tool_calls \
                    usage_metadata tool_call_chunks chunk_position";
    for frame in frames.iter().filter(|frame| data(frame)[0]["type"] == "AIMessageChunk") {
        assert_eq!(keys(&data(frame)[0]), expected);
        assert_eq!(data(frame)[1], data(&frames[1])[1].clone().patch(&data(frame)[1]));
    }
    let metadata = &data(&frames[1])[1];
    assert_eq!(metadata["lc_agent_name"], "main-agent");
    assert_eq!(metadata["checkpoint_ns"], metadata["langgraph_checkpoint_ns"]);
    assert_eq!(metadata["ls_provider"], "openai");
}

/// The metadata of the pieces of a message, in order.
fn metadata_of(frames: &[Frame], message: &str) -> Vec<Value> {
    let pieces = frames.iter().filter(|frame| frame.event.word == "messages").map(data);
    pieces
        .filter(|pair| pair[0]["id"] == message)
        .map(|pair| pair[1].clone())
        .collect()
}

#[test]
fn lean_metadata_is_whole_on_the_first_piece_only() {
    let play = tool_loop();
    let full = play.all(&TUPLE, false);
    let lean = play.read_with(MetadataDetail::Lean, &play.events, &TUPLE, false);
    assert_eq!(heard(&lean), heard(&full));
    assert_eq!(lean.len(), full.len());
    for message in ["m1", "m2"] {
        let all = metadata_of(&full, message);
        let few = metadata_of(&lean, message);
        let keys = |value: &Value| {
            value
                .as_object()
                .into_iter()
                .flat_map(Map::keys)
                .cloned()
                .collect::<Vec<_>>()
        };
        assert_eq!(keys(&few[0]), keys(&all[0]));
        assert!(few.len() > 3, "{few:?}");
        for piece in &few[1..] {
            let expected = ["lc_agent_name", "langgraph_node", "langgraph_checkpoint_ns", "run_id"];
            assert_eq!(keys(piece), expected);
            assert!(expected.iter().all(|key| piece[key] == all[0][key]), "{piece}");
        }
    }
    // A tool result is one piece, so it has everything.
    assert_eq!(metadata_of(&lean, "t-c1")[0]["langgraph_node"], "tools");
    assert!(metadata_of(&lean, "t-c1")[0]["assistant_id"].is_string());
}

#[test]
fn a_reader_of_lean_metadata_that_missed_pieces_gets_the_whole_of_it_once() {
    let play = tool_loop();
    let stored: Vec<Event> = play.events.iter().filter(|event| !is_piece(event)).cloned().collect();
    let lean = play.read_with(MetadataDetail::Lean, &stored, &TUPLE, false);
    assert_eq!(heard(&lean), heard(&play.all(&TUPLE, false)));
    let few = metadata_of(&lean, "m1");
    assert!(few[0]["assistant_id"].is_string());
    assert!(few[1..].iter().all(|piece| piece["assistant_id"].is_null()), "{few:?}");
}

/// Makes the metadata of different answers comparable.
trait Patch {
    fn patch(self, other: &Value) -> Value;
}

impl Patch for Value {
    fn patch(mut self, other: &Value) -> Value {
        for name in ["checkpoint_ns", "langgraph_checkpoint_ns", "langgraph_step"] {
            self[name] = other[name].clone();
        }
        self
    }
}

#[test]
fn with_any_chunks_missing_the_message_is_complete_and_nothing_is_sent_twice() {
    let play = tool_loop();
    let live = heard(&play.all(&TUPLE, false));
    let pieces: Vec<_> = (0..play.events.len())
        .filter(|at| is_piece(&play.events[*at]))
        .collect();
    let without = |missing: &dyn Fn(usize) -> bool| {
        let kept = play
            .events
            .iter()
            .enumerate()
            .filter(|(at, _)| !missing(*at))
            .map(|(_, event)| event.clone());
        heard(&play.read(&kept.collect::<Vec<_>>(), &TUPLE, false))
    };
    assert_eq!(without(&|at| pieces.contains(&at)), live, "a replay");
    for gap in &pieces {
        assert_eq!(without(&|at| at == *gap), live, "without {gap}");
        assert_eq!(
            without(&|at| at >= *gap && pieces.contains(&at)),
            live,
            "without all from {gap}"
        );
        assert_eq!(
            without(&|at| at <= *gap && pieces.contains(&at)),
            live,
            "without all up to {gap}"
        );
    }
}

#[test]
fn a_reader_that_joins_in_the_middle_of_an_answer_gets_all_of_it() {
    let play = tool_loop();
    let live = heard(&play.all(&TUPLE, false));
    for from in 0..play.events.len() {
        let late = heard(&play.read(&play.events[from..], &TUPLE, false));
        for (id, message) in &late {
            assert_eq!(message, &live[id], "from {from}");
        }
    }
}

#[test]
fn arguments_with_other_spacing_are_completed() {
    let mut play = tool_loop();
    let cut = play.events.iter_mut().filter_map(|event| match &mut event.body {
        EventBody::Delta(Delta {
            chunk: Chunk::Call { index: 0, args, .. },
            ..
        }) if !args.is_empty() => Some(args),
        _ => None,
    });
    let mut cut: Vec<_> = cut.collect();
    "{ \"query\": \"a".clone_into(cut[0]);
    let second = play.events.iter().rposition(|event| {
        matches!(&event.body, EventBody::Delta(Delta { chunk: Chunk::Call { index: 0, args, .. }, .. }) if !args.is_empty())
    });
    play.events.remove(second.unwrap_or_default());
    let heard = heard(&play.all(&TUPLE, false));
    let args: Value = serde_json::from_str(&heard["m1"].calls[&0].2).unwrap_or_default();
    assert_eq!(args, json!({"query": "a b"}));
}

#[test]
fn a_restarted_answer_ends_only_once() {
    let mut play = tool_loop();
    let first = play.events.iter().position(is_piece).unwrap_or_default();
    let EventBody::Delta(begin) = play.events[first].body.clone() else {
        return;
    };
    let head = Arc::new(AnswerHead {
        message: "m0".to_owned(),
        ..(*begin.answer).clone()
    });
    let chunks = [Chunk::Begin, Chunk::Text("oh ".to_owned()), Chunk::Void];
    let broken: Vec<_> = (0..)
        .zip(chunks)
        .map(|(ordinal, chunk)| {
            EventBody::Delta(Delta {
                answer: Arc::clone(&head),
                ordinal,
                chunk,
            })
        })
        .map(|body| Event {
            body,
            ..play.events[first].clone()
        })
        .collect();
    play.events.splice(first..first, broken);
    let heard = heard(&play.all(&TUPLE, false));
    assert_eq!(heard["m0"].text.as_str(), "oh ");
    assert_eq!(heard["m0"].last, 0);
    assert_eq!(heard["m1"].text, "let me see");
}

#[test]
fn the_mode_messages_repeats_the_growing_message() {
    let play = tool_loop();
    let frames = play.all(&[StreamMode::Messages], true);
    let all = lines(&frames);
    let expected = [
        "messages/metadata",
        "messages/partial ai:",
        "messages/partial ai: let",
        "messages/partial ai: let me",
    ];
    assert_eq!(all[1..5], expected);
    let partial = frames.iter().filter(|frame| frame.event.word == "messages/partial");
    let calls: Vec<_> = partial
        .map(|frame| data(frame)[0]["tool_calls"][0]["args"].clone())
        .collect();
    assert!(calls.contains(&json!({})) && calls.contains(&json!({"query": "a b"})));
    assert!(all.contains(&"messages/complete tool: first".to_owned()));

    let stored: Vec<_> = play.events.iter().filter(|event| !is_piece(event)).cloned().collect();
    let replay = play.read(&stored, &[StreamMode::Messages], true);
    let last = |frames: &[Frame]| {
        frames
            .iter()
            .rev()
            .find(|frame| frame.event.word == "messages/partial")
            .map(data)
    };
    assert_eq!(last(&replay), last(&frames));
}

#[test]
fn messages_of_subagents_name_their_source() {
    let mut play = Play::new();
    let mut main = play.main();
    play.start(&main, false);
    play.input(&mut main, "hi");
    play.say(&mut main, "m1", "", &[call("c1", "task", json!({}))]);
    let mut child = play.child(&main, 0, "c1");
    play.start(&child, false);
    play.input(&mut child, "look");
    play.say(&mut child, "s1", "found", &[]);
    let frames = play.all(&TUPLE, true);
    let Some(inner) = frames.iter().find(|frame| frame.event.namespace.is_some()) else {
        panic!("nothing from inside")
    };
    let metadata = &data(inner)[1];
    assert_eq!(metadata["checkpoint_ns"], json!(inner.event.namespace.as_deref()));
    assert_eq!(&metadata["lc_agent_name"], &json!("researcher"));
    assert_eq!(&metadata["tool_call_id"], &json!("c1"));
    assert!(heard(&play.all(&TUPLE, false)).keys().all(|id| id == "m1"));
    let plain = play.all(&[StreamMode::Messages], true);
    assert!(
        plain.iter().all(|frame| frame.event.namespace.is_none()),
        "this mode has no namespaces"
    );
}
