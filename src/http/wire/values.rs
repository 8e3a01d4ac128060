//! The values of states, encoded so that the checkpoints of a history share texts.
//!
//! A history of a thousand checkpoints contains nearly the same messages a thousand times. Each message, file and field
//! is encoded once, and the values of a checkpoint point to these texts. So a history takes as much memory as its
//! differences, and sending a checkpoint only copies bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use crate::domain::message::Message;
use crate::domain::message_list::{CompressedMessages, MessageList};
use crate::domain::recent_texts::RecentTexts;
use crate::domain::state::{File, State};

/// The values of one state.
#[derive(Debug, Clone, Default)]
pub struct Values(Vec<(Arc<str>, Part)>);

#[derive(Debug, Clone)]
enum Part {
    /// A field.
    Whole(Text),
    /// The messages.
    List(Vec<Text>),
    /// The files, by path.
    Map(Vec<(Arc<str>, Text)>),
}

/// The JSON of a value.
#[derive(Debug, Clone)]
struct Text(Arc<RawValue>);

impl Text {
    /// Encodes a value.
    fn of(value: &impl Serialize) -> Self {
        Self(encode(value).into())
    }

    fn bytes(&self) -> usize {
        self.0.get().len() + 1
    }
}

/// Encodes a value. Messages, files and fields are JSON, so the fallback to null is never used.
fn encode(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.as_ref().serialize(serializer)
    }
}

impl Serialize for Values {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, part) in &self.0 {
            map.serialize_entry(name.as_ref(), part)?;
        }
        map.end()
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Whole(text) => text.serialize(serializer),
            Self::List(texts) => {
                let mut list = serializer.serialize_seq(Some(texts.len()))?;
                for text in texts {
                    list.serialize_element(text)?;
                }
                list.end()
            }
            Self::Map(texts) => {
                let mut map = serializer.serialize_map(Some(texts.len()))?;
                for (name, text) in texts {
                    map.serialize_entry(name.as_ref(), text)?;
                }
                map.end()
            }
        }
    }
}

impl Values {
    /// The approximate length of the JSON.
    pub fn bytes(&self) -> usize {
        let part = |part: &Part| match part {
            Part::Whole(text) => text.bytes(),
            Part::List(texts) => texts.iter().map(Text::bytes).sum(),
            Part::Map(texts) => texts
                .iter()
                .map(|(name, text)| name.len() + 4 + text.bytes())
                .sum::<usize>(),
        };
        self.0.iter().map(|(name, of)| name.len() + 6 + part(of)).sum()
    }
}

/// Encodes the states of a history, which differ little from one to the next.
///
/// It holds the texts of the last state that it has encoded, and none of earlier ones: those are held by the values that the
/// page keeps. So it takes no more than the largest state (`max_state_bytes`), however long the thread is.
#[derive(Default)]
pub struct ValuesWriter {
    /// The fields to encode; all when empty.
    keys: Vec<String>,
    /// The texts of messages that clients have read before.
    recent: Arc<RecentTexts>,
    earlier_messages: Vec<(Arc<CompressedMessages>, Vec<Text>)>,
    messages: Vec<(Arc<Message>, Text)>,
    files: BTreeMap<String, (Arc<File>, Arc<str>, Text)>,
    fields: BTreeMap<String, (Arc<str>, Text)>,
}

impl ValuesWriter {
    /// Creates a writer for these fields; for all if there are none. The texts of messages in `recent` are known.
    pub fn new(keys: Vec<String>, recent: Arc<RecentTexts>) -> Self {
        Self {
            keys,
            recent,
            ..Self::default()
        }
    }

    /// Marks fields as changed since the last state; all of them if `None`.
    pub fn fields_changed(&mut self, names: Option<&BTreeSet<&str>>) {
        match names {
            Some(names) => self.fields.retain(|name, _| !names.contains(name.as_str())),
            None => self.fields.clear(),
        }
    }

    /// Encodes the values of a state.
    pub fn write(&mut self, state: &State) -> Values {
        let mut parts = vec![];
        if self.wants("messages") {
            parts.push(("messages".into(), Part::List(self.messages(&state.messages))));
        }
        if self.wants("files") {
            parts.push(("files".into(), Part::Map(self.files(&state.files))));
        }
        for (name, value) in state.fields.iter().filter(|(name, _)| !state.hides(name)) {
            if self.wants(name) {
                let known = self.fields.entry(name.clone());
                let (name, text) = known.or_insert_with(|| (Arc::from(name.as_str()), Text::of(value)));
                parts.push((Arc::clone(name), Part::Whole(text.clone())));
            }
        }
        Values(parts)
    }

    fn wants(&self, name: &str) -> bool {
        self.keys.is_empty() || self.keys.iter().any(|key| key == name)
    }

    fn messages(&mut self, messages: &MessageList) -> Vec<Text> {
        self.write_earlier(messages.earlier());
        match self.messages.is_empty() {
            true => self.write_first(messages.recent()),
            false => self.write_next(messages.recent()),
        }
        let earlier = self.earlier_messages.iter().flat_map(|(_, texts)| texts);
        let recent = self.messages.iter().map(|(_, text)| text);
        earlier.chain(recent).cloned().collect()
    }

    /// Encodes the messages of a first state, most of which clients may have read before.
    fn write_first(&mut self, messages: &[Arc<Message>]) {
        let texts = self.recent.of(messages, |at| Some(encode(messages.get(at)?.as_ref())));
        let texts = texts.unwrap_or_default().into_iter().map(Text);
        self.messages = messages.iter().cloned().zip(texts).collect();
    }

    /// Encodes the messages of a state that differ from those of the state before.
    fn write_next(&mut self, messages: &[Arc<Message>]) {
        let mut before = std::mem::take(&mut self.messages);
        let same = before
            .iter()
            .zip(messages)
            .take_while(|((known, _), message)| Arc::ptr_eq(known, message))
            .count();
        // After the first difference, the remaining messages may have moved.
        let behind: Vec<(Arc<Message>, Text)> = before.drain(same..).collect();
        let moved: HashMap<*const Message, &Text> =
            behind.iter().map(|(known, text)| (Arc::as_ptr(known), text)).collect();
        for message in &messages[same..] {
            let known = moved.get(&Arc::as_ptr(message));
            let text = known.map_or_else(|| Text::of(message.as_ref()), |text| Text::clone(text));
            before.push((Arc::clone(message), text));
        }
        self.messages = before;
    }

    fn write_earlier(&mut self, parts: &[Arc<CompressedMessages>]) {
        let known = self.earlier_messages.iter().zip(parts);
        let same = known.take_while(|((known, _), part)| Arc::ptr_eq(known, part)).count();
        self.earlier_messages.truncate(same);
        for part in &parts[same..] {
            let texts = part
                .messages()
                .iter()
                .map(|message| Text::of(message.as_ref()))
                .collect();
            self.earlier_messages.push((Arc::clone(part), texts));
        }
    }

    fn files(&mut self, files: &BTreeMap<String, Arc<File>>) -> Vec<(Arc<str>, Text)> {
        self.files.retain(|path, _| files.contains_key(path));
        let mut texts = Vec::with_capacity(files.len());
        for (path, file) in files {
            let known = self.files.get(path).filter(|(known, ..)| Arc::ptr_eq(known, file));
            let (path, text) = match known {
                Some((_, path, text)) => (Arc::clone(path), text.clone()),
                None => {
                    let name: Arc<str> = Arc::from(path.as_str());
                    let text = Text::of(file.as_ref());
                    self.files
                        .insert(path.clone(), (Arc::clone(file), Arc::clone(&name), text.clone()));
                    (name, text)
                }
            };
            texts.push((path, text));
        }
        texts
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::state::Update;
    use crate::domain::time::Timestamp;

    fn step(state: &mut State, writer: &mut ValuesWriter, update: &Update) -> Value {
        let names: BTreeSet<&str> = update.fields.keys().map(String::as_str).collect();
        writer.fields_changed(Some(&names));
        state.apply(update);
        super::super::json(&writer.write(state))
    }

    #[test]
    fn the_values_equal_the_state_after_every_kind_of_update() {
        let mut state = State::default();
        let mut writer = ValuesWriter::default();
        let with_id = |id: &str, text: &str| Message {
            id: Some(id.to_owned()),
            ..Message::human(text)
        };
        let removal = Message {
            role: crate::domain::message::Role::Remove,
            ..with_id("a", "")
        };
        let file = |text: &str| Some(Arc::new(File::text(text, Timestamp(0))));
        let updates = [
            Update::messages([with_id("a", "one"), with_id("b", "two")]),
            Update::messages([with_id("a", "ONE")]),
            Update::field("todos", json!(["x"])),
            Update {
                files: BTreeMap::from([("/a".to_owned(), file("1"))]),
                ..Update::none()
            },
            Update {
                files: BTreeMap::from([("/a".to_owned(), file("2")), ("/b".to_owned(), file("3"))]),
                ..Update::none()
            },
            Update::messages([removal, with_id("c", "three")]),
            Update::field("todos", json!([])),
            Update {
                files: BTreeMap::from([("/a".to_owned(), None)]),
                ..Update::none()
            },
            Update::field("_private", json!(1)),
        ];
        for update in &updates {
            let shown = step(&mut state, &mut writer, update);
            assert_eq!(shown, super::super::json(&state), "after {update:?}");
        }
        let text = serde_json::to_string(&writer.write(&state)).expect("JSON");
        assert_eq!(text, serde_json::to_string(&state).expect("JSON"));
        assert!(
            writer.write(&state).bytes().abs_diff(text.len()) < 64,
            "{} of {text}",
            writer.write(&state).bytes()
        );
    }

    #[test]
    fn messages_that_are_compressed_are_written_as_before() {
        let mut state = State::default();
        let mut writer = ValuesWriter::default();
        let said = |id: usize, text: &str| {
            let author = if id.is_multiple_of(2) {
                Message::human(text)
            } else {
                Message::ai(text)
            };
            author.with_id(format!("m{id}"))
        };
        let event = json!({"last_message_id": "m290", "summary_message": {"type": "human", "content": "S"}});
        let updates = [
            Update::messages((0..300).map(|id| said(id, "first"))),
            Update::field(crate::domain::summarization::EVENT, event),
            Update::messages([said(300, "first")]),
            Update::messages([said(4, "second")]),
        ];
        let mut compressed = vec![];
        for update in &updates {
            let shown = step(&mut state, &mut writer, update);
            assert_eq!(shown, super::super::json(&state));
            compressed.push(state.messages.earlier_len());
        }
        assert_eq!(compressed, [0, 236, 236, 0]);
    }

    #[test]
    fn texts_are_held_of_the_last_state_only() {
        let mut state = State::default();
        let mut writer = ValuesWriter::default();
        let said = |id: usize| {
            let author = if id.is_multiple_of(2) {
                Message::human("said")
            } else {
                Message::ai("said")
            };
            author.with_id(format!("m{id}"))
        };
        let left = json!({"last_message_id": "m290", "summary_message": {"type": "human", "content": "S"},
            "left_until": "m199", "left_messages": 200});
        let summarized = json!({"last_message_id": "m290", "summary_message": {"type": "human", "content": "S"}});
        let file = Some(Arc::new(File::text("1", Timestamp(0))));
        let updates = [
            Update {
                files: BTreeMap::from([("/a".to_owned(), file)]),
                ..Update::messages((0..300).map(said))
            },
            Update::field(crate::domain::summarization::EVENT, summarized),
            Update::field(crate::domain::summarization::EVENT, left),
            Update {
                files: BTreeMap::from([("/a".to_owned(), None)]),
                ..Update::none()
            },
        ];
        let mut held = vec![];
        for update in &updates {
            step(&mut state, &mut writer, update);
            let earlier: usize = writer.earlier_messages.iter().map(|(_, texts)| texts.len()).sum();
            assert_eq!(earlier + writer.messages.len(), state.messages.len());
            held.push((state.messages.len(), writer.files.len()));
        }
        assert_eq!(held, [(300, 1), (300, 1), (100, 1), (100, 0)]);
    }

    #[test]
    fn a_state_that_was_read_before_is_written_as_at_first() {
        let recent: Arc<RecentTexts> = Arc::default();
        let said = |id: usize, text: &str| Message::human(text).with_id(format!("m{id}"));
        let mut state = State::default();
        for update in [
            Update::messages([said(0, "one"), said(1, "two")]),
            Update::messages([said(2, "three")]),
            Update::messages([said(0, "ONE")]),
        ] {
            state.apply(&update);
            for _ in 0..2 {
                let mut writer = ValuesWriter::new(vec![], Arc::clone(&recent));
                let shown = super::super::json(&writer.write(&state));
                assert_eq!(shown, super::super::json(&state), "after {update:?}");
                let mut later = state.clone();
                let shown = step(&mut later, &mut writer, &Update::messages([said(3, "four")]));
                assert_eq!(shown, super::super::json(&later));
            }
        }
    }

    #[test]
    fn only_the_selected_fields_are_encoded() {
        let mut state = State::default();
        state.apply(&Update::messages([Message::human("x")]));
        state.apply(&Update::field("todos", json!([1])));
        let mut writer = ValuesWriter::new(vec!["todos".to_owned()], Arc::default());
        assert_eq!(super::super::json(&writer.write(&state)), json!({"todos": [1]}));
    }
}
