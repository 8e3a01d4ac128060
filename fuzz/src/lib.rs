//! What must hold for any bytes: one function for each parser of untrusted text. A function panics when it does not.
//!
//! `cargo fuzz run TARGET` searches for such bytes; the test `hostile::fuzz_inputs` of the server asks with the bytes in
//! `corpus/`, and with many that are made of them.

use std::sync::Arc;

use adjutant::definition::front_matter::{self, FrontMatter};
use adjutant::domain::input::read_initial;
use adjutant::domain::message::Message;
use adjutant::domain::path::normalise;
use adjutant::domain::pattern::Pattern;
use adjutant::domain::state::{State, Update};
use adjutant::domain::text_edit::{EditError, TextEdit};
use adjutant::middleware::dangling_calls::repaired;
use adjutant::net::sse::{Frames, PeerFrame};
use serde_json::Value;

/// The maximum size of an event, and of an edited text, in bytes.
const LONGEST: usize = 4_096;

/// A text is taken apart at its front matter, and nothing of it gets lost. YAML ends with a value or an error.
///
/// # Panics
/// If that does not hold.
pub fn front_matter(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match FrontMatter::of(text) {
        FrontMatter::Missing { body } => {
            assert!(text.ends_with(body) && text.len() - body.len() <= '\u{feff}'.len_utf8());
        }
        FrontMatter::Open => assert!(text.contains("---")),
        FrontMatter::Present { yaml, body } => {
            assert!(text.ends_with(body));
            assert!(text.contains(yaml));
            // What is read can be written and read again.
            if let Ok(value) = front_matter::yaml(yaml) {
                let written = value.to_string();
                let read: Value = serde_json::from_str(&written).expect("JSON that was just written");
                assert_eq!(read, value);
            }
        }
    }
}

/// A pattern is compiled or refused, and answers for any path. With names that start with a dot it matches all that it
/// matches without them. The input is a pattern and a path, with a line end between them.
///
/// # Panics
/// If that does not hold.
pub fn patterns(bytes: &[u8]) {
    let Some([pattern, path]) = texts(bytes) else {
        return;
    };
    if let Ok(normal) = normalise(path) {
        assert!(normal.starts_with('/'));
        assert_eq!(
            normalise(&normal).as_deref(),
            Ok(normal.as_str()),
            "a normal path stays as it is"
        );
        assert!(normal.split('/').all(|part| part != ".." && part != "."));
    }
    let relative = path.trim_start_matches('/');
    let compiled = Pattern::new(pattern, "/");
    let with_dots = Pattern::with_dots(pattern);
    assert_eq!(compiled.is_ok(), with_dots.is_ok());
    if let (Ok(compiled), Ok(with_dots)) = (compiled, with_dots)
        && compiled.matches(relative)
    {
        assert!(with_dots.matches(relative));
    }
}

/// An edit replaces exactly what it says, or says why not. The input is a text, the old and the new part, with line
/// ends between them.
///
/// # Panics
/// If that does not hold.
pub fn edit(bytes: &[u8]) {
    let Some([old, new, text]) = texts(bytes) else {
        return;
    };
    for replace_all in [false, true] {
        let edit = TextEdit { old, new, replace_all };
        match edit.apply(text, LONGEST) {
            Ok(edited) => {
                assert!(edited.text.len() <= LONGEST);
                assert_eq!(
                    edited.text.len(),
                    text.len() - edited.count * old.len() + edited.count * new.len()
                );
                assert!(edited.count == 1 || replace_all && edited.count > 1);
                let parts: Vec<&str> = text.split(old).collect();
                assert_eq!(edited.text, parts.join(new));
            }
            Err(EditError::Ambiguous(count)) => assert!(!replace_all && count > 1),
            Err(EditError::TooLong(length)) => assert!(length > LONGEST),
            Err(EditError::NotFound { .. }) => assert!(!text.contains(old)),
            Err(EditError::HasLineBreaks) => assert_eq!(old.replace("\r\n", "\n"), new.replace("\r\n", "\n")),
            Err(EditError::Empty) => assert!(old.is_empty()),
            Err(EditError::Unchanged) => assert_eq!(old, new),
        }
    }
}

/// A repaired conversation has a result for each call, keeps all messages in their order, and needs no second repair.
/// The input is a list of messages as clients write them.
///
/// # Panics
/// If that does not hold.
pub fn message_repair(bytes: &[u8]) {
    let Ok(Value::Array(values)) = serde_json::from_slice::<Value>(bytes) else {
        return;
    };
    let Ok(messages) = read_initial(&values) else {
        return;
    };
    let mut state = State::default();
    let numbered = messages
        .into_iter()
        .enumerate()
        .map(|(at, message)| message.with_id(at.to_string()));
    state.apply(&Update::messages(numbered));
    let before = state.messages.recent().to_vec();
    let Some(update) = repaired(state.messages.recent()) else {
        return;
    };
    state.apply(&update);
    let is_old = |message: &&Arc<Message>| {
        message
            .id
            .as_ref()
            .is_some_and(|id| before.iter().any(|old| old.id.as_ref() == Some(id)))
    };
    let kept: Vec<&Arc<Message>> = state.messages.recent().iter().filter(is_old).collect();
    assert_eq!(kept, before.iter().collect::<Vec<_>>());
    for (at, message) in state.messages.recent().iter().enumerate() {
        for call in message.tool_calls() {
            let mut later = state.messages.recent()[at + 1..].iter();
            assert!(
                later.any(|other| other.answers() == Some(call.id.as_str())),
                "{} has no result",
                call.id
            );
        }
    }
    assert_eq!(repaired(state.messages.recent()).map(|_| ()), None);
}

/// A stream has the same events, whatever the pieces in which it arrives, and takes limited memory.
///
/// # Panics
/// If that does not hold.
pub fn server_sent_events(bytes: &[u8]) {
    let whole = events(bytes, bytes.len().max(1));
    for size in [1, 2, 3, 7] {
        assert_eq!(events(bytes, size), whole, "in pieces of {size}");
    }
    for event in whole {
        assert!(event.data.len() <= LONGEST);
    }
}

/// Returns the events of a stream that arrives in pieces of this size.
fn events(bytes: &[u8], size: usize) -> Vec<PeerFrame> {
    let mut frames = Frames::up_to(LONGEST);
    let mut found = vec![];
    for piece in bytes.chunks(size) {
        found.extend(frames.take(piece));
        assert!(frames.pending() <= 2 * LONGEST);
    }
    found
}

/// Returns the texts of an input: lines, of which the last is all that is left.
fn texts<const COUNT: usize>(bytes: &[u8]) -> Option<[&str; COUNT]> {
    let text = std::str::from_utf8(bytes).ok()?;
    let parts: Vec<&str> = text.splitn(COUNT, '\n').collect();
    parts.try_into().ok()
}
