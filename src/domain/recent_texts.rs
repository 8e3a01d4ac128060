//! Messages that were encoded a short time ago. An agent sends its conversation with each step, and clients read the messages of
//! a thread with each of its states: both are those from before, and a few more.
//!
//! A message is known by its address, since it never changes while it is shared.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde_json::value::RawValue;

use super::message::Message;

/// The least messages of a list that is kept. To find a shorter one would take as long as to encode it.
const LEAST_MESSAGES: usize = 4;
/// The most lists of messages that are kept.
const MAX_LISTS: usize = 128;
/// The most memory that these take, in bytes. A longer list is not kept.
const MAX_BYTES: usize = 4 << 20;
/// The memory that a message takes besides its text, in bytes.
const MESSAGE_BYTES: usize = size_of::<Message>() + 64;

/// The lists of messages that were encoded last, each with the texts of its messages.
#[derive(Debug, Default)]
pub struct RecentTexts(Mutex<KeptLists>);

#[derive(Debug, Default)]
struct KeptLists {
    /// The lists, the last one first.
    all: VecDeque<KeptList>,
    /// The memory that they take, in bytes.
    bytes: usize,
}

#[derive(Debug, Default)]
struct KeptList {
    /// The messages. They are freed with the states that have them, but no other message gets the address of one meanwhile.
    messages: Vec<Weak<Message>>,
    texts: Vec<Arc<RawValue>>,
    /// The memory that it takes, in bytes.
    bytes: usize,
}

impl KeptList {
    /// Returns whether this message has this index.
    fn has_at(&self, at: usize, message: &Arc<Message>) -> bool {
        let known = self.messages.get(at);
        known.is_some_and(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(message)))
    }

    fn push(&mut self, message: &Arc<Message>, text: Box<RawValue>) {
        self.bytes += text.get().len() + MESSAGE_BYTES;
        self.messages.push(Arc::downgrade(message));
        self.texts.push(text.into());
    }

    /// Removes the messages after the first ones.
    fn truncate(&mut self, count: usize) {
        while self.texts.len() > count {
            self.messages.pop();
            let removed = self.texts.pop();
            self.bytes -= removed.map_or(0, |text| text.get().len() + MESSAGE_BYTES);
        }
    }
}

impl RecentTexts {
    /// Returns the texts of messages; none if one has none. `encode` returns the text of the message with an index. It is asked for
    /// the first message that is not known, and for those after it.
    pub fn of(
        &self,
        messages: &[Arc<Message>],
        encode: impl Fn(usize) -> Option<Box<RawValue>>,
    ) -> Option<Vec<Arc<RawValue>>> {
        let first = messages.first().filter(|_| messages.len() >= LEAST_MESSAGES);
        let Some(first) = first else {
            return (0..messages.len()).map(|at| encode(at).map(Arc::from)).collect();
        };
        let mut list = self.take(first);
        let numbered = messages.iter().enumerate();
        let known = numbered.take_while(|(at, message)| list.has_at(*at, message));
        let count = known.count();
        list.truncate(count);
        for (at, message) in messages.iter().enumerate().skip(count) {
            list.push(message, encode(at)?);
        }
        let texts = list.texts.clone();
        self.keep(list);
        Some(texts)
    }

    /// Returns the list that begins with this message, or an empty one. It is not kept any more.
    fn take(&self, first: &Arc<Message>) -> KeptList {
        let mut kept = self.lock();
        let at = kept.all.iter().position(|known| known.has_at(0, first));
        let taken = at.and_then(|at| kept.all.remove(at)).unwrap_or_default();
        kept.bytes -= taken.bytes;
        taken
    }

    /// Keeps a list, and forgets the oldest ones if there are too many.
    fn keep(&self, list: KeptList) {
        if list.bytes > MAX_BYTES {
            return;
        }
        let mut kept = self.lock();
        kept.bytes += list.bytes;
        kept.all.push_front(list);
        while kept.all.len() > MAX_LISTS || kept.bytes > MAX_BYTES {
            let forgotten = kept.all.pop_back().unwrap_or_default();
            kept.bytes -= forgotten.bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, KeptLists> {
        // A panic while the lock was held can at worst leave a list that is not kept.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;

    use super::*;

    fn said(texts: impl IntoIterator<Item = String>) -> Vec<Arc<Message>> {
        texts.into_iter().map(|text| Arc::new(Message::human(text))).collect()
    }

    fn encode(recent: &RecentTexts, messages: &[Arc<Message>]) -> Vec<Arc<RawValue>> {
        let encoded = recent.of(messages, |at| to_raw_value(messages[at].as_ref()).ok());
        encoded.expect("messages are JSON")
    }

    #[test]
    fn only_the_messages_of_a_list_that_are_new_are_encoded() {
        let recent = RecentTexts::default();
        let encode_again = |messages: &[Arc<Message>]| {
            let encoded = encode(&recent, messages);
            let anew = encode(&RecentTexts::default(), messages);
            let texts = |of: &[Arc<RawValue>]| of.iter().map(|text| text.get().to_owned()).collect::<Vec<_>>();
            assert_eq!(texts(&encoded), texts(&anew));
            let kept: usize = recent.lock().all.iter().map(|list| list.bytes).sum();
            assert_eq!(recent.lock().bytes, kept);
            encoded
        };
        let mut messages = said(["a", "b", "c", "d"].map(str::to_owned));
        let first = encode_again(&messages);
        messages.extend(said(["e", "f"].map(str::to_owned)));
        let second = encode_again(&messages);
        assert!((0..4).all(|at| Arc::ptr_eq(&first[at], &second[at])));
        messages[2] = Arc::new(Message::human("changed"));
        let third = encode_again(&messages);
        assert!((0..2).all(|at| Arc::ptr_eq(&first[at], &third[at])));
        assert!((2..6).all(|at| !Arc::ptr_eq(&second[at], &third[at])));
        messages.truncate(4);
        assert_eq!(encode_again(&messages).len(), 4);
        assert_eq!(recent.lock().all.len(), 1);
        drop(messages);
        encode_again(&said(["a", "b", "c", "d"].map(str::to_owned)));
        assert_eq!(recent.lock().all.len(), 2, "a message that is freed is no other one");
    }

    #[test]
    fn a_short_list_is_encoded_each_time() {
        let recent = RecentTexts::default();
        let messages = said(["a", "b", "c"].map(str::to_owned));
        let first = encode(&recent, &messages);
        let second = encode(&recent, &messages);
        assert_eq!(first.len(), 3);
        assert!((0..3).all(|at| !Arc::ptr_eq(&first[at], &second[at])));
        assert!(encode(&recent, &[]).is_empty());
        assert_eq!(recent.lock().all.len(), 0);
    }

    #[test]
    fn nothing_is_kept_of_messages_of_which_one_has_no_text() {
        let recent = RecentTexts::default();
        let messages = said(["a", "b", "c", "d"].map(str::to_owned));
        for count in [2, 4] {
            let encoded = recent.of(&messages[..count], |at| match at {
                0 => to_raw_value(messages[at].as_ref()).ok(),
                _ => None,
            });
            assert!(encoded.is_none());
        }
        assert_eq!(recent.lock().all.len(), 0);
        assert_eq!(recent.lock().bytes, 0);
    }

    #[test]
    fn the_number_of_kept_lists_and_their_memory_are_bounded() {
        let recent = RecentTexts::default();
        let beginning_with = |first: String| said([first, "b".to_owned(), "c".to_owned(), "d".to_owned()]);
        let lists = (0..=MAX_LISTS).map(|at| beginning_with(format!("hello {at}")));
        let lists: Vec<Vec<Arc<Message>>> = lists.collect();
        let encoded: Vec<Vec<Arc<RawValue>>> = lists.iter().map(|list| encode(&recent, list)).collect();
        assert_eq!(recent.lock().all.len(), MAX_LISTS);
        let is_kept = |at: usize| Arc::ptr_eq(&encoded[at][0], &encode(&recent, &lists[at])[0]);
        assert!(is_kept(1));
        assert!(!is_kept(0), "it was the oldest");
        encode(&recent, &beginning_with("a".repeat(MAX_BYTES)));
        assert_eq!(recent.lock().all.len(), MAX_LISTS, "it is too long");
        for _ in 0..3 {
            encode(&recent, &beginning_with("a".repeat(MAX_BYTES / 2)));
        }
        assert_eq!(recent.lock().all.len(), 1);
        assert!(recent.lock().bytes <= MAX_BYTES);
    }
}
