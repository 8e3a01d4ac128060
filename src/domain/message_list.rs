//! The messages of a state. Those that a summary stands for are compressed, since a model does not read them any more
//! and a thread may have thousands of them. If they are more than a state can hold, their media and then the oldest of
//! them leave it; the log of the thread has all of them.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::json_size::value_size;
use super::media::{media_kind, placeholder};
use super::message::{Content, Message, REMOVE_ALL, Role, answered_calls};

mod compressed;

pub use compressed::CompressedMessages;

/// The number of messages from which those that a summary stands for are compressed. Fewer would hardly get smaller, and
/// a list of that many is small.
const LEAST_COMPRESSED: usize = 128;
/// The number of the newest messages that are never compressed: who looks for the last turns finds them here.
const NEVER_COMPRESSED: usize = 64;
/// The size from which media leave the state, in bytes, see [`value_size`]. Less, such as an address, is hardly larger
/// than the text in its place.
const LEAST_MEDIA: usize = 1024;
/// The reason in the texts that are in the places of media.
const SUMMARIZED: &str = "the conversation around it was summarised, and earlier checkpoints of the thread have it";

/// The messages of a state, oldest first. Cloning copies pointers, not texts.
#[derive(Debug, Clone, Default)]
pub struct MessageList {
    /// The number of older messages, which have left the state.
    left_len: usize,
    /// The hashes of their ids, sorted.
    left_ids: Arc<Vec<u64>>,
    /// True if media have left the messages.
    has_left_media: bool,
    /// The oldest messages, in their order.
    earlier: Vec<Arc<CompressedMessages>>,
    /// The messages after them.
    recent: Vec<Arc<Message>>,
}

impl MessageList {
    /// Returns the number of messages, without those that have left the state.
    pub fn len(&self) -> usize {
        self.earlier_len() + self.recent.len()
    }

    /// Returns whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.recent.is_empty()
    }

    /// Returns the number of compressed messages: the index of the first of [`MessageList::recent`].
    pub fn earlier_len(&self) -> usize {
        self.earlier.iter().map(|part| part.count).sum()
    }

    /// Returns the number of older messages that have left the state, see [`MessageList::leave`].
    pub fn left_len(&self) -> usize {
        self.left_len
    }

    /// Returns whether messages have left the state, or media: the log of the thread has more than the state.
    pub fn has_gaps(&self) -> bool {
        self.left_len > 0 || self.has_left_media
    }

    /// Returns the list without its messages. It still knows those that have left the state.
    pub fn without_messages(&self) -> Self {
        Self {
            left_len: self.left_len,
            left_ids: Arc::clone(&self.left_ids),
            has_left_media: self.has_left_media,
            ..Self::default()
        }
    }

    /// Returns whether a message with this id has left the state.
    pub fn has_left(&self, id: &str) -> bool {
        !self.left_ids.is_empty() && self.left_ids.binary_search(&long_hash_of(id)).is_ok()
    }

    /// Returns the parts of the list that are compressed.
    pub fn earlier(&self) -> &[Arc<CompressedMessages>] {
        &self.earlier
    }

    /// Returns the messages that are not compressed: all, or the newest. They begin at the latest with the last message that
    /// a summary stands for, and with the last answer of the model.
    pub fn recent(&self) -> &[Arc<Message>] {
        &self.recent
    }

    /// Returns all messages. Decompresses the earlier ones, so use [`MessageList::recent`] where these suffice.
    pub fn all(&self) -> Cow<'_, [Arc<Message>]> {
        if self.earlier.is_empty() {
            return Cow::Borrowed(&self.recent);
        }
        let earlier = self.earlier.iter().flat_map(|part| part.messages());
        Cow::Owned(earlier.chain(self.recent.iter().cloned()).collect())
    }

    /// Passes the messages to `visit`, oldest first. Only the text of one part, and one of its messages, are decompressed at a
    /// time.
    ///
    /// # Errors
    /// The first error of `visit`, after which it gets no more messages; or that the messages cannot be read.
    pub fn try_each<E: serde::ser::Error>(&self, mut visit: impl FnMut(&Message) -> Result<(), E>) -> Result<(), E> {
        for part in &self.earlier {
            part.try_each(&mut visit)?;
        }
        for message in &self.recent {
            visit(message)?;
        }
        Ok(())
    }

    /// Returns the newest message for which `is_wanted` returns true.
    pub fn newest(&self, is_wanted: impl Fn(&Message) -> bool) -> Option<Arc<Message>> {
        let recent = self.recent.iter().rfind(|message| is_wanted(message)).cloned();
        recent.or_else(|| {
            let mut parts = self.earlier.iter().rev();
            parts.find_map(|part| part.messages().into_iter().rfind(|message| is_wanted(message)))
        })
    }

    /// Returns the messages that are not compressed, if they suffice, else all.
    pub fn recent_or_all(&self, is_enough: impl FnOnce(&[Arc<Message>]) -> bool) -> Cow<'_, [Arc<Message>]> {
        if is_enough(&self.recent) {
            return Cow::Borrowed(&self.recent);
        }
        self.all()
    }

    /// Returns the last answer of the model, and the messages after it; none if there is no answer.
    pub fn last_answer(&self) -> Option<(&Arc<Message>, &[Arc<Message>])> {
        let at = self.recent.iter().rposition(|message| message.is_ai())?;
        Some((&self.recent[at], &self.recent[at + 1..]))
    }

    /// Returns the texts of all messages.
    #[cfg(test)]
    pub fn texts(&self) -> Vec<String> {
        self.all().iter().map(|message| message.content.text()).collect()
    }

    /// Returns the last message.
    pub fn last(&self) -> Option<&Arc<Message>> {
        self.recent.last()
    }

    /// Appends a message. Its id must be unused, see [`MessageList::put`].
    pub fn push(&mut self, message: Arc<Message>) {
        self.recent.push(message);
    }

    /// Appends a message, replaces the one with the same id in place, or removes one. One that has left the state stays
    /// as it is: its place is before all others, and no model reads it.
    pub fn put(&mut self, message: &Arc<Message>) {
        if message.role == Role::Remove {
            self.remove(std::slice::from_ref(message));
            return;
        }
        let id = message.id.as_deref();
        if id.is_some_and(|id| self.has_left(id)) {
            return;
        }
        if id.is_some_and(|id| self.may_have_compressed(id)) {
            self.decompress();
        }
        // Search from the end: replaced messages are mostly the newest.
        let same = id.and_then(|id| self.recent.iter().rposition(|other| has_id(other, id)));
        match same {
            Some(at) => self.replace_recent(at, Arc::clone(message)),
            None => self.recent.push(Arc::clone(message)),
        }
    }

    /// Does [`MessageList::put`] with each of these removals.
    pub(super) fn remove(&mut self, removals: &[Arc<Message>]) {
        let ids = removals.iter().filter_map(|message| message.id.as_deref());
        let ids: HashSet<&str> = ids.filter(|id| !self.has_left(id)).collect();
        if ids.is_empty() {
            return;
        }
        if ids.contains(REMOVE_ALL) {
            *self = Self::default();
            return;
        }
        self.decompress();
        self.recent
            .retain(|message| message.id.as_deref().is_none_or(|id| !ids.contains(id)));
    }

    /// Replaces the message at an index of [`MessageList::recent`].
    pub fn replace_recent(&mut self, at: usize, message: Arc<Message>) {
        let replaced = std::mem::replace(&mut self.recent[at], message);
        if replaced.is_ai() && !self.recent.iter().any(|message| message.is_ai()) {
            self.decompress();
        }
    }

    /// Returns whether one of [`MessageList::recent`] has this id.
    pub fn has_recent(&self, id: &str) -> bool {
        self.recent.iter().any(|message| has_id(message, id))
    }

    /// Returns whether a compressed message may have this id. False positives are very rare.
    pub fn may_have_compressed(&self, id: &str) -> bool {
        if self.earlier.is_empty() {
            return false;
        }
        let hash = hash_of(id);
        self.earlier.iter().any(|part| part.ids.binary_search(&hash).is_ok())
    }

    /// Compresses the messages before the one with the id `last`, which is the last that a summary stands for, if they are
    /// many. None is compressed while middleware has work with them: without an answer of the model it has not seen them, and
    /// a call without a result gets one when the next run begins. Returns whether they were compressed.
    pub fn compress_before(&mut self, last: &str) -> bool {
        let Some(summarized) = self.recent.iter().position(|message| has_id(message, last)) else {
            return false;
        };
        // The calls of the last answer may still be executed.
        let answer = self.recent.iter().rposition(|message| message.is_ai()).unwrap_or(0);
        let newest = self.recent.len().saturating_sub(NEVER_COMPRESSED);
        let end = answer.min(summarized).min(newest);
        if end < LEAST_COMPRESSED || has_open_call(&self.recent, end) {
            return false;
        }
        let Some(part) = CompressedMessages::new(&self.recent[..end]) else {
            return false;
        };
        self.earlier.push(Arc::new(part));
        // A list of its own size: the former one has room for all.
        self.recent = self.recent.split_off(end);
        self.recent.shrink_to_fit();
        true
    }

    /// Replaces large media by texts that name them, in the messages up to the one with the id `last`. Returns whether there
    /// were any.
    pub fn leave_media(&mut self, last: &str) -> bool {
        let has_left = self.replace_media(last);
        self.has_left_media |= has_left;
        has_left
    }

    fn replace_media(&mut self, last: &str) -> bool {
        let mut is_changed = false;
        let whole_parts = match self.recent.iter().position(|message| has_id(message, last)) {
            Some(at) => {
                is_changed |= without_media(&mut self.recent[..=at]);
                self.earlier.len()
            }
            None if !self.earlier.iter().any(|part| part.has_media) => return false,
            None => {
                let Some(mut found) = self.part_with(last) else {
                    return false;
                };
                if without_media(&mut found.messages[..=found.at]) {
                    is_changed |= self.replace_part(found.part, &found.messages);
                }
                found.part
            }
        };
        for number in 0..whole_parts {
            if self.earlier[number].has_media {
                let mut messages = self.earlier[number].messages();
                without_media(&mut messages);
                is_changed |= self.replace_part(number, &messages);
            }
        }
        is_changed
    }

    /// Puts other messages into the place of a compressed part. Returns whether they could be compressed.
    fn replace_part(&mut self, number: usize, messages: &[Arc<Message>]) -> bool {
        match CompressedMessages::new(messages) {
            Some(part) => {
                self.earlier[number] = Arc::new(part);
                true
            }
            None => false,
        }
    }

    /// Removes the messages up to the message `last` from the state. The message `summarized`, which is the last one that a
    /// summary stands for, the last answer of the model, and the messages after one of these two stay. Returns whether any
    /// message was removed.
    pub fn leave(&mut self, last: &str, summarized: &str) -> bool {
        if let Some(at) = self.recent.iter().position(|message| has_id(message, last)) {
            let summarized = self.recent.iter().position(|message| has_id(message, summarized));
            let answer = self.recent.iter().rposition(|message| message.is_ai());
            let end = (at + 1).min(answer.unwrap_or(0)).min(summarized.unwrap_or(0));
            let parts = std::mem::take(&mut self.earlier);
            let kept = self.recent.split_off(end);
            let gone = std::mem::replace(&mut self.recent, kept);
            self.forget(&parts, &gone);
            return !(parts.is_empty() && gone.is_empty());
        }
        let Some(found) = self.part_with(last) else {
            return false;
        };
        let rest = &found.messages[found.at + 1..];
        let rest = match rest.is_empty() {
            true => None,
            false => match CompressedMessages::new(rest) {
                Some(part) => Some(Arc::new(part)),
                None => return false,
            },
        };
        let later = self.earlier.split_off(found.part + 1);
        let mut parts = std::mem::take(&mut self.earlier);
        parts.truncate(found.part);
        self.earlier.extend(rest.into_iter().chain(later));
        self.forget(&parts, &found.messages[..=found.at]);
        true
    }

    /// Counts at least this many messages as having left the state: a state that was stored without its history does not
    /// know them.
    pub fn count_left(&mut self, least: usize) {
        self.left_len = self.left_len.max(least);
    }

    /// Counts messages that have left the state: those of whole parts, and single ones.
    fn forget(&mut self, parts: &[Arc<CompressedMessages>], messages: &[Arc<Message>]) {
        let ids = Arc::make_mut(&mut self.left_ids);
        for part in parts {
            ids.extend(long_hashes(&part.messages()));
            self.left_len += part.count;
        }
        ids.extend(long_hashes(messages));
        ids.sort_unstable();
        self.left_len += messages.len();
    }

    /// Returns the compressed message with this id.
    fn part_with(&self, id: &str) -> Option<Found> {
        let hash = hash_of(id);
        let mut parts = self.earlier.iter().enumerate();
        parts.find_map(|(number, part)| {
            part.ids.binary_search(&hash).ok()?;
            let messages = part.messages();
            let at = messages.iter().position(|message| has_id(message, id))?;
            Some(Found {
                part: number,
                messages,
                at,
            })
        })
    }

    /// Makes all messages recent ones.
    pub fn decompress(&mut self) {
        if !self.earlier.is_empty() {
            self.recent = self.all().into_owned();
            self.earlier.clear();
        }
    }

    /// Returns the sum of the sizes of the messages, see [`Message::size`].
    pub fn size(&self) -> usize {
        let earlier: usize = self.earlier.iter().map(|part| part.size).sum();
        let recent: usize = self.recent.iter().map(|message| message.size()).sum();
        earlier + recent
    }

    fn has_same_parts(&self, other: &Self) -> bool {
        self.earlier.len() == other.earlier.len()
            && self
                .earlier
                .iter()
                .zip(&other.earlier)
                .all(|(own, other)| Arc::ptr_eq(own, other))
    }
}

impl PartialEq for MessageList {
    fn eq(&self, other: &Self) -> bool {
        if self.left_len != other.left_len {
            return false;
        }
        if self.has_same_parts(other) {
            return self.recent == other.recent;
        }
        self.len() == other.len() && self.all() == other.all()
    }
}

impl From<Vec<Arc<Message>>> for MessageList {
    fn from(messages: Vec<Arc<Message>>) -> Self {
        Self {
            recent: messages,
            ..Self::default()
        }
    }
}

impl Extend<Arc<Message>> for MessageList {
    fn extend<T: IntoIterator<Item = Arc<Message>>>(&mut self, messages: T) {
        self.recent.extend(messages);
    }
}

impl Serialize for MessageList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.len()))?;
        self.try_each(|message| list.serialize_element(message))?;
        list.end()
    }
}

/// A compressed message that was looked for.
struct Found {
    /// The number of its part.
    part: usize,
    /// The messages of the part.
    messages: Vec<Arc<Message>>,
    /// The index of the message in the part.
    at: usize,
}

/// Returns whether a call of the first `end` messages has no result.
fn has_open_call(messages: &[Arc<Message>], end: usize) -> bool {
    let answered = answered_calls(messages);
    messages[..end].iter().any(|message| {
        let unreadable = message.invalid_tool_calls().iter();
        let unreadable = unreadable.filter_map(|call| call.id.as_deref());
        let mut ids = message
            .tool_calls()
            .iter()
            .map(|call| call.id.as_str())
            .chain(unreadable);
        ids.any(|id| !answered.contains(id))
    })
}

fn has_id(message: &Message, id: &str) -> bool {
    message.id.as_deref() == Some(id)
}

/// Returns whether a block is media that leave the state.
fn is_large_media(block: &Value) -> bool {
    media_kind(block).is_some() && value_size(block) >= LEAST_MEDIA
}

/// Returns the size of the media of a message that would leave the state, in bytes.
pub fn size_of_media(message: &Message) -> usize {
    let Content::Blocks(blocks) = &message.content else {
        return 0;
    };
    blocks
        .iter()
        .filter(|block| is_large_media(block))
        .map(value_size)
        .sum()
}

/// Replaces the large media of messages by texts. Returns whether there were any.
fn without_media(messages: &mut [Arc<Message>]) -> bool {
    let mut is_changed = false;
    for message in messages.iter_mut().filter(|message| size_of_media(message) > 0) {
        if let Content::Blocks(blocks) = &mut Arc::make_mut(message).content {
            for block in blocks.iter_mut().filter(|block| is_large_media(block)) {
                *block = placeholder(block, SUMMARIZED);
            }
        }
        is_changed = true;
    }
    is_changed
}

fn long_hashes(messages: &[Arc<Message>]) -> impl Iterator<Item = u64> {
    messages
        .iter()
        .filter_map(|message| message.id.as_deref().map(long_hash_of))
}

fn long_hash_of(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

fn hash_of(id: &str) -> u32 {
    // One half of it: a list has thousands of ids, not billions, and who finds one looks at the message.
    u32::try_from(long_hash_of(id) >> 32).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::message::{ToolCall, ToolStatus};

    fn conversation(turns: usize) -> MessageList {
        let mut messages = MessageList::default();
        for turn in 0..turns {
            let call = ToolCall::new(format!("c{turn}"), "lookup", Default::default());
            let mut answer = Message::calling([call.clone()]).with_id(format!("a{turn}"));
            answer
                .response_metadata
                .insert("finish_reason".to_owned(), json!("tool_calls"));
            let all = [
                Message::human(format!("question {turn}")).with_id(format!("h{turn}")),
                answer,
                Message::tool(&call, ToolStatus::Success, "found").with_id(format!("t{turn}")),
                Message::ai(format!("answer {turn}")).with_id(format!("e{turn}")),
            ];
            messages.extend(all.map(Arc::new));
        }
        messages
    }

    /// A conversation whose first messages are compressed, and the same one without.
    fn compressed() -> (MessageList, MessageList) {
        let plain = conversation(100);
        let mut compressed = plain.clone();
        assert!(compressed.compress_before("e79"));
        assert_eq!(compressed.earlier_len(), 319);
        (compressed, plain)
    }

    #[test]
    fn compressed_messages_read_back_as_they_were() {
        let (compressed, plain) = compressed();
        assert_eq!(compressed.len(), plain.len());
        assert_eq!(compressed.all(), plain.all());
        assert_eq!(compressed, plain);
        assert_eq!(json!(compressed), json!(plain));
        assert_eq!(compressed.size(), plain.size());
        assert!(compressed.earlier()[0].weight() < plain.size() / 4);
    }

    #[test]
    fn a_compressed_message_can_be_replaced_and_removed() {
        let (mut compressed, mut plain) = compressed();
        let replaced = Arc::new(Message::ai("better").with_id("e3"));
        let removed = Arc::new(Message::new(Role::Remove, "").with_id("h7"));
        for message in [replaced, removed] {
            compressed.put(&message);
            plain.put(&message);
        }
        assert_eq!(compressed, plain);
        assert_eq!(compressed.len(), 399);
        let all = Arc::new(Message::new(Role::Remove, "").with_id(REMOVE_ALL));
        assert!(compressed.compress_before("e79"));
        compressed.put(&all);
        assert!(compressed.is_empty());
        assert_eq!(compressed, MessageList::default());
    }

    #[test]
    fn the_newest_message_of_a_kind_is_found_among_the_compressed_ones() {
        let (compressed, _) = compressed();
        let text_of = |wanted: &str| {
            let found = compressed.newest(|message| message.content.text() == wanted);
            found.map(|message| message.id.clone().unwrap_or_default())
        };
        assert_eq!(text_of("question 5").as_deref(), Some("h5"));
        assert_eq!(text_of("answer 99").as_deref(), Some("e99"));
        assert_eq!(text_of("question 500"), None);
    }

    #[test]
    fn messages_without_an_answer_stay_as_they_are() {
        let humans = (0..300).map(|at| Arc::new(Message::human("more").with_id(format!("m{at}"))));
        let mut unseen = MessageList::from(humans.collect::<Vec<_>>());
        assert!(!unseen.compress_before("m290"));
        assert_eq!(unseen.recent().len(), 300);
    }

    #[test]
    fn messages_with_a_call_that_has_no_result_stay_as_they_are() {
        let mut dangling = conversation(100);
        dangling.put(&Arc::new(Message::new(Role::Remove, "").with_id("t3")));
        assert!(!dangling.compress_before("e79"));
        let call = ToolCall::new("c3", "lookup", Default::default());
        dangling.put(&Arc::new(Message::tool(&call, ToolStatus::Error, "lost").with_id("t3")));
        assert!(dangling.compress_before("e79"));
    }

    #[test]
    fn numbers_with_many_digits_do_not_keep_messages_from_being_compressed() {
        let longitude = json!({"longitude": 121.487_919_511_619_45, "score": 31.245_270_191_439_438});
        let mut messages = conversation(100);
        let args = longitude.as_object().expect("an object").clone();
        let call = ToolCall::new("c3", "lookup", args);
        messages.put(&Arc::new(Message::calling([call]).with_id("a3")));
        assert!(messages.compress_before("e79"));
    }

    /// A conversation with an image in each result.
    fn with_images(turns: usize) -> MessageList {
        let mut messages = conversation(turns);
        for turn in 0..turns {
            let call = ToolCall::new(format!("c{turn}"), "look", Default::default());
            let image = json!({"type": "image", "base64": "A".repeat(4_000), "mime_type": "image/png"});
            let result = Message::tool(&call, ToolStatus::Success, Content::Blocks(vec![image]));
            messages.put(&Arc::new(result.with_id(format!("t{turn}"))));
        }
        messages
    }

    fn images_of(messages: &MessageList) -> Vec<String> {
        let all = messages.all();
        let with_image = all.iter().filter(|message| size_of_media(message) > 0);
        with_image
            .map(|message| message.id.clone().unwrap_or_default())
            .collect()
    }

    #[test]
    fn the_media_of_older_messages_leave_compressed_and_recent_ones_alike() {
        let mut messages = with_images(100);
        assert!(messages.compress_before("e79"));
        let before = messages.size();
        assert!(!messages.has_gaps());
        assert!(messages.leave_media("t9"));
        assert!(messages.has_gaps());
        assert_eq!(images_of(&messages).len(), 90);
        assert_eq!(images_of(&messages)[0], "t10");
        assert!(messages.size() < before - 10 * 3_000);
        assert!(messages.leave_media("e97"));
        assert_eq!(images_of(&messages), ["t98", "t99"]);
        assert_eq!(messages.len(), 400);
        assert!(!messages.leave_media("e97"), "there are none any more");
        assert!(!messages.leave_media("unknown"));
        let text = messages.all()[2].content.text();
        assert!(text.contains("`image` (image/png, 3000 bytes) is not shown"), "{text}");
    }

    #[test]
    fn the_oldest_messages_leave_and_their_ids_are_known() {
        let plain = conversation(100);
        let mut messages = conversation(100);
        assert!(messages.compress_before("e79"));
        for (last, left) in [("e9", 40), ("e19", 80), ("e89", 319)] {
            assert!(messages.leave(last, "e79"));
            assert_eq!(messages.left_len(), left, "{last}");
            assert_eq!(*messages.all(), plain.all()[left..]);
        }
        assert!(messages.has_left("h0") && messages.has_left("t79"));
        assert!(!messages.has_left("e79"), "the summary ends with it");
        assert!(!messages.leave("e9", "e79"));
        assert!(!messages.leave("unknown", "e79"));
        let again = Arc::new(Message::human("question 0").with_id("h0"));
        messages.put(&again);
        assert_eq!(messages.len(), 81, "its place is before the others");
        messages.put(&Arc::new(Message::new(Role::Remove, "").with_id(REMOVE_ALL)));
        messages.put(&again);
        assert_eq!(messages.left_len(), 0);
        assert_eq!(messages.len(), 1);
    }

    #[test]
    fn the_last_answer_of_the_model_does_not_leave() {
        let mut messages = MessageList::default();
        messages.extend([Message::human("a"), Message::ai("b"), Message::human("c")].map(Arc::new));
        messages.push(Arc::new(Message::human("d").with_id("d")));
        messages.push(Arc::new(Message::human("e").with_id("e")));
        assert!(messages.leave("d", "e"));
        assert_eq!(messages.left_len(), 1);
        assert!(messages.has_gaps());
        assert!(messages.last_answer().is_some());
        let without = messages.without_messages();
        assert!(without.is_empty() && without.has_gaps());
        assert_eq!(without.left_len(), 1);
    }

    #[test]
    fn few_messages_and_those_of_the_last_answer_stay_as_they_are() {
        let mut few = conversation(40);
        assert!(!few.compress_before("e39"));
        let mut waiting = conversation(50);
        let humans = (0..100).map(|at| Arc::new(Message::human("more").with_id(format!("m{at}"))));
        waiting.extend(humans);
        assert!(waiting.compress_before("m90"));
        assert_eq!(waiting.earlier_len(), 199);
        assert!(waiting.recent()[0].is_ai());
    }
}
