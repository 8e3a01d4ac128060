//! Messages as compressed JSON: a part of a [`MessageList`](super::MessageList).

use std::io::Write;
use std::sync::Arc;

use serde::Deserializer;
use serde::de::{SeqAccess, Visitor};
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use super::{hash_of, size_of_media};
use crate::domain::deflated::Deflated;
use crate::domain::message::Message;
use crate::domain::stored::MessagesWithIds;

/// The first character of an id in compressed messages whose last part is a UUID, which is not compressed.
const WITH_UUID: char = '~';
/// The first character of any other id there.
const WHOLE: char = '=';

/// A part of the messages, as compressed JSON.
pub struct CompressedMessages {
    /// The messages without the UUIDs at the ends of their ids: as texts these would be half of it.
    json: Deflated,
    /// The UUIDs at the ends of the ids, in the order of the messages.
    uuids: Box<[Uuid]>,
    pub(super) count: usize,
    /// The sum of the messages' sizes, see [`Message::size`].
    pub(super) size: usize,
    /// The hashes of the messages' ids, sorted.
    pub(super) ids: Box<[u32]>,
    /// True if there are large media.
    pub(super) has_media: bool,
}

impl CompressedMessages {
    /// Compresses messages. Returns none if reading them back did not return the same.
    pub(super) fn new(messages: &[Arc<Message>]) -> Option<Self> {
        let ids = messages.iter().filter_map(|message| message.id.as_deref());
        let uuids: Vec<Uuid> = ids.clone().filter_map(uuid_at_end).collect();
        let mut hashes: Vec<u32> = ids.map(hash_of).collect();
        hashes.sort_unstable();
        let shorter: Vec<Option<String>> = messages
            .iter()
            .map(|message| message.id.as_deref().map(without_uuid))
            .collect();
        let stored = MessagesWithIds {
            messages,
            ids: &shorter,
        };
        let size: usize = messages.iter().map(|message| message.size()).sum();
        let media: usize = messages.iter().map(|message| size_of_media(message)).sum();
        let write = |writer: &mut dyn Write| -> std::io::Result<()> { Ok(serde_json::to_writer(writer, &stored)?) };
        let json = match media > size / 4 {
            true => Deflated::of_base64(write)?,
            false => Deflated::of(write)?,
        };
        let compressed = Self {
            json,
            uuids: uuids.into_boxed_slice(),
            count: messages.len(),
            size,
            ids: hashes.into_boxed_slice(),
            has_media: media > 0,
        };
        let mut left = messages.iter();
        let is_same = compressed.each(|message| left.next().is_some_and(|same| **same == message));
        (is_same && left.next().is_none()).then_some(compressed)
    }

    /// Returns the messages.
    pub fn messages(&self) -> Vec<Arc<Message>> {
        let mut messages = Vec::with_capacity(self.count);
        let is_whole = self.each(|message| {
            messages.push(Arc::new(message));
            true
        });
        debug_assert!(is_whole, "they were read once when they were compressed");
        messages
    }

    /// Passes the messages to `visit`, as [`MessageList::try_each`](super::MessageList::try_each) does.
    pub(super) fn try_each<E: serde::ser::Error>(
        &self,
        mut visit: impl FnMut(&Message) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut result = Ok(());
        let is_whole = self.each(|message| {
            result = visit(&message);
            result.is_ok()
        });
        if result.is_ok() && !is_whole {
            return Err(E::custom("compressed messages cannot be read"));
        }
        result
    }

    /// Passes the messages to `visit`, oldest first, until it returns false. Returns whether all were read and it never did.
    fn each(&self, visit: impl FnMut(Message) -> bool) -> bool {
        let text = self.json.text();
        let mut json = serde_json::Deserializer::from_str(&text);
        let reader = MessageReader {
            uuids: self.uuids.iter(),
            visit,
        };
        Deserializer::deserialize_seq(&mut json, reader).unwrap_or(false)
    }

    /// Returns the approximate size in memory, in bytes.
    pub fn weight(&self) -> usize {
        self.json.weight() + size_of_val(&*self.uuids) + size_of_val(&*self.ids)
    }
}

impl std::fmt::Debug for CompressedMessages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompressedMessages")
            .field("count", &self.count)
            .field("bytes", &self.json.weight())
            .finish_non_exhaustive()
    }
}

/// Reads compressed messages one by one: a list of all of them would take much more than their text.
struct MessageReader<'u, F> {
    uuids: std::slice::Iter<'u, Uuid>,
    visit: F,
}

impl<'de, F: FnMut(Message) -> bool> Visitor<'de> for MessageReader<'_, F> {
    type Value = bool;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut messages: A) -> Result<bool, A::Error> {
        while let Some(mut message) = messages.next_element::<Message>()? {
            message.id = message.id.map(|id| with_uuid(&id, &mut self.uuids));
            if !(self.visit)(message) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the UUID with which an id ends, if it is written as the server writes one.
fn uuid_at_end(id: &str) -> Option<Uuid> {
    let at = id.len().checked_sub(Hyphenated::LENGTH)?;
    let end = id.get(at..)?;
    let uuid = Uuid::try_parse(end).ok()?;
    let mut buffer = Uuid::encode_buffer();
    let usual: &str = uuid.hyphenated().encode_lower(&mut buffer);
    (usual == end).then_some(uuid)
}

/// Returns an id as compressed messages have it.
fn without_uuid(id: &str) -> String {
    match uuid_at_end(id) {
        Some(_) => format!("{WITH_UUID}{}", &id[..id.len() - Hyphenated::LENGTH]),
        None => format!("{WHOLE}{id}"),
    }
}

/// Returns the id of [`without_uuid`]. The next of `uuids` is its UUID, if it has one.
fn with_uuid(id: &str, uuids: &mut std::slice::Iter<'_, Uuid>) -> String {
    match id.strip_prefix(WITH_UUID) {
        Some(beginning) => {
            let uuid = uuids.next().copied().unwrap_or_default();
            format!("{beginning}{uuid}")
        }
        None => id.strip_prefix(WHOLE).unwrap_or(id).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::message::Content;
    use crate::domain::message_list::MessageList;

    #[test]
    fn ids_of_any_kind_read_back_as_they_were() {
        const UUID: &str = "01a229d5-8395-70bd-afae-0508d3edd5aa";
        let ids = [
            UUID.to_owned(),
            format!("lc_run--{UUID}"),
            format!("é{UUID}"),
            format!("~{UUID}"),
            format!("={UUID}"),
            format!("{UUID}:{UUID}"),
            format!("urn:uuid:{UUID}"),
            UUID.to_owned(),
            format!("{UUID}~"),
            UUID.to_uppercase(),
            UUID.replace('-', ""),
            format!("{{{UUID}}}"),
            Uuid::nil().to_string(),
            "é".repeat(20),
            "~".to_owned(),
            "=short".to_owned(),
            String::new(),
        ];
        let mut messages: Vec<Arc<Message>> = ids
            .iter()
            .map(|id| Arc::new(Message::human("hi").with_id(id.clone())))
            .collect();
        messages.insert(3, Arc::new(Message::human("without an id")));
        let part = CompressedMessages::new(&messages).expect("they read back");
        assert_eq!(part.messages(), messages);
        assert_eq!(part.uuids.len(), 9, "{:?}", part.uuids);
        let list = MessageList {
            earlier: vec![Arc::new(part)],
            ..MessageList::default()
        };
        assert!(ids.iter().all(|id| list.may_have_compressed(id)));
        assert_eq!(json!(list), json!(messages));
    }

    #[test]
    fn messages_with_much_base64_read_back_as_they_were() {
        let image = json!({"type": "image", "base64": "iVBORw0K".repeat(1_000), "mime_type": "image/png"});
        let seen = Arc::new(Message::human(Content::Blocks(vec![image])).with_id("m1"));
        let messages = [seen, Arc::new(Message::ai("a picture").with_id("m2"))];
        let part = CompressedMessages::new(&messages).expect("they read back");
        assert!(part.has_media);
        assert_eq!(part.messages(), messages);
    }

    #[test]
    fn a_list_of_which_a_part_cannot_be_read_is_not_sent_without_it() {
        let mut list = MessageList::from(vec![Arc::new(Message::human("hello"))]);
        let beginning = br#"[{"type": "human", "content": "hi"}, "#;
        let part = CompressedMessages {
            json: Deflated::of(|writer| writer.write_all(beginning)).expect("a compressed text"),
            uuids: Box::default(),
            count: 2,
            size: 0,
            ids: Box::default(),
            has_media: false,
        };
        assert!(serde_json::to_string(&list).is_ok());
        list.earlier.push(Arc::new(part));
        assert!(serde_json::to_string(&list).is_err());
    }
}
