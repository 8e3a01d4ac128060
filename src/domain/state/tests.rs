use serde_json::json;

use super::*;
use crate::domain::message::{REMOVE_ALL, Role};

fn said(id: &str, text: &str) -> Message {
    Message::human(text).with_id(id)
}

fn texts(state: &State) -> Vec<String> {
    state.messages.texts()
}

fn state_of(messages: impl IntoIterator<Item = Message>) -> State {
    let mut state = State::default();
    state.apply(&Update::messages(messages));
    state
}

fn file(content: &str) -> Option<Arc<File>> {
    Some(Arc::new(File::text(content, Timestamp(0))))
}

#[test]
fn a_message_is_appended_or_replaces_the_one_with_its_id() {
    let mut state = state_of([said("1", "a"), said("2", "b"), Message::human("c")]);
    state.apply(&Update::messages([said("1", "A"), said("3", "d"), Message::human("c")]));
    assert_eq!(texts(&state), ["A", "b", "c", "d", "c"]);
}

#[test]
fn a_removal_deletes_one_message_or_all_before_it() {
    let remove = |id: &str| Message::new(Role::Remove, "").with_id(id);
    let mut state = state_of([said("1", "a"), said("2", "b")]);
    state.apply(&Update::messages([
        remove("1"),
        remove("unknown"),
        Message::new(Role::Remove, ""),
    ]));
    assert_eq!(texts(&state), ["b"]);
    state.apply(&Update::messages([said("3", "c"), remove(REMOVE_ALL), said("4", "d")]));
    assert_eq!(texts(&state), ["d"]);
}

#[test]
fn files_are_written_and_deleted_by_path_and_fields_set_by_name() {
    let mut state = State::default();
    let files = BTreeMap::from([("/a".to_owned(), file("1")), ("/b".to_owned(), file("2"))]);
    state.apply(&Update {
        files,
        ..Update::field("x", json!(1))
    });
    state.apply(&Update {
        files: BTreeMap::from([("/a".to_owned(), None)]),
        ..Update::field("x", json!(null))
    });
    assert_eq!(state.files.keys().collect::<Vec<_>>(), ["/b"]);
    assert_eq!(state.fields["x"], json!(null));
}

#[test]
fn merged_updates_have_the_effect_of_single_ones() {
    let deleted = BTreeMap::from([("/a".to_owned(), None)]);
    let written = BTreeMap::from([("/a".to_owned(), file("1"))]);
    let steps = [
        Update {
            files: written,
            ..Update::messages([said("1", "a")])
        },
        Update {
            files: deleted,
            ..Update::field("x", json!(1))
        },
        Update {
            messages: vec![Arc::new(said("1", "b"))],
            ..Update::field("x", json!(2))
        },
    ];
    let mut one_by_one = State::default();
    let mut merged = State::default();
    let mut sum = Update::none();
    for step in steps {
        one_by_one.apply(&step);
        sum.merge(step);
    }
    merged.apply(&sum);
    assert_eq!(one_by_one, merged);
}

#[test]
fn an_update_round_trips_through_storage() {
    let update = Update {
        messages: vec![
            Arc::new(said("1", "a")),
            Arc::new(Message::new(Role::Remove, "").with_id("2")),
        ],
        files: BTreeMap::from([("/a".to_owned(), None), ("/b".to_owned(), file("x"))]),
        fields: BTreeMap::from([("x".to_owned(), json!({"y": [1]}))]),
        ..Update::none()
    };
    let stored = serde_json::to_string(&update).unwrap();
    assert_eq!(serde_json::from_str::<Update>(&stored).unwrap(), update);
    assert_eq!(serde_json::to_string(&Update::none()).unwrap(), "{}");
}

#[test]
fn clients_see_public_fields_only() {
    let mut state = State::default();
    for name in ["topic", "_secret", "memory_contents"] {
        state.apply(&Update::field(name, json!(1)));
    }
    assert_eq!(
        Value::Object(state.values()),
        json!({"messages": [], "files": {}, "topic": 1})
    );
    let update = Update {
        fields: state.fields,
        ..Update::none()
    };
    assert_eq!(update.public(), Update::field("topic", json!(1)));
}

#[test]
fn a_subagent_gets_files_and_shared_fields_without_messages() {
    let mut state = state_of([said("1", "a")]);
    for name in ["topic", "_secret", "todos", "structured_response", "rubric"] {
        state.apply(&Update::field(name, json!(1)));
    }
    let files = BTreeMap::from([("/a".to_owned(), file("1"))]);
    state.apply(&Update {
        files: files.clone(),
        ..Update::none()
    });
    assert_eq!(
        state.for_subagent(),
        Update {
            files,
            ..Update::field("topic", json!(1))
        }
    );
}

#[test]
fn a_fork_gets_earlier_messages_and_no_fields_of_the_current_turn() {
    let mut state = State::default();
    let calls = Message::ai("").with_id("a2");
    for message in [
        Message::human("one").with_id("h1"),
        Message::ai("two").with_id("a1"),
        Message::human("go"),
        calls,
    ] {
        state.messages.push(Arc::new(message));
    }
    let texts: Vec<String> = state
        .before_last_answer()
        .iter()
        .map(|message| message.content.text())
        .collect();
    assert_eq!(texts, ["one", "two", "go"]);
    for name in [
        "memory_contents",
        "skills_metadata",
        "notes",
        "todos",
        "pinned_skills",
        "_skill_tools_disclosed",
    ] {
        state.fields.insert(name.to_owned(), Value::from(1));
    }
    let fields = state.fields_for_fork();
    let names: Vec<&str> = fields.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "_deepagents_forked_context",
            "memory_contents",
            "notes",
            "skills_metadata"
        ]
    );
    assert!(!state.shares("_deepagents_forked_context"));
}

#[test]
fn the_size_of_a_file_is_the_number_of_its_bytes() {
    for length in 0..8_u8 {
        let bytes: Vec<u8> = (0..length).map(|at| 0xF8 | at).collect();
        let file = File::from_bytes(bytes.clone());
        assert_eq!(file.size(), bytes.len(), "{file:?}");
        assert_eq!(file.to_bytes(), Ok(bytes));
    }
    assert_eq!(File::from_bytes("Größe".into()).size(), 7);
}

/// A long conversation with a summary of the messages up to that with the number `last`.
fn summarized(last: usize) -> State {
    let mut state = state_of((0..400).map(|at| match at % 2 {
        0 => said(&format!("m{at}"), "question"),
        _ => Message::ai(if at < 100 { "answer" } else { "" }).with_id(format!("m{at}")),
    }));
    state.apply(&event(&format!("m{last}")));
    state
}

fn event(last: &str) -> Update {
    let event = json!({"last_message_id": last, "summary_message": {"type": "human", "content": "S"}});
    Update::field(summarization::EVENT, event)
}

#[test]
fn messages_without_a_summary_are_read_by_the_model_again() {
    let older = event("m20");
    let none = Update::field(summarization::EVENT, Value::Null);
    for update in [older, none] {
        let mut state = summarized(300);
        assert_eq!(state.messages.earlier_len(), 300);
        state.apply(&update);
        assert_eq!(state.messages.recent().len(), 400);
    }
}

#[test]
fn the_number_of_messages_that_have_left_is_known_without_their_history() {
    let mut state = summarized(300);
    let mut leaving = event("m300");
    if let Some(event) = leaving.fields.get_mut(summarization::EVENT) {
        event["left_until"] = json!("m99");
        event["left_messages"] = json!(100);
    }
    state.apply(&leaving);
    assert_eq!(state.messages.left_len(), 100);
    let mut anew = State::default();
    anew.apply(&state.as_update());
    assert_eq!(anew.messages.left_len(), 100);
    assert_eq!(anew, state);
}

#[test]
fn a_request_that_has_left_the_state_is_known() {
    let answer = Message::ai("answer").with_id("a");
    let mut state = state_of([said("m0", "first"), said("m1", "second"), said("m2", "third"), answer]);
    assert_eq!(state.left_request(), None);
    let mut leaving = event("m1");
    if let Some(event) = leaving.fields.get_mut(summarization::EVENT) {
        event["left_until"] = json!("m0");
        event["left_request"] = json!({"id": "m0", "text": "first"});
    }
    state.apply(&leaving);
    assert_eq!(state.left_request(), Some(Arc::new(said("m0", "first"))));
}

#[test]
fn the_conclusion_is_found_among_compressed_messages() {
    let state = summarized(300);
    assert_eq!(state.messages.earlier_len(), 300);
    assert_eq!(state.conclusion().as_deref(), Some("answer"));
    assert_eq!(state.conclusion_after(Some("m50")).as_deref(), Some("answer"));
    assert_eq!(state.conclusion_after(Some("m200")), None);
    assert_eq!(state.conclusion_after(Some("m350")), None);
}

#[test]
fn the_media_of_a_result_are_those_that_a_message_may_have() {
    let block = |kind: &str| json!({"type": kind, "base64": "AA"});
    let media = [
        "image",
        "image_url",
        "input_image",
        "file",
        "document",
        "input_file",
        "media",
        "audio",
        "input_audio",
        "video",
        "video_url",
        "input_video",
    ]
    .map(block);
    let mut blocks = vec![json!({"type": "text", "text": "Here they are."})];
    blocks.extend(media.clone());
    blocks.push(json!({"type": "reasoning", "reasoning": "…"}));
    let state = state_of([Message::ai(Content::Blocks(blocks))]);
    assert_eq!(state.media(), media);
}
