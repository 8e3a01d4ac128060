//! Finds the messages of a list by their ids, for many changes of one list.

use std::collections::HashMap;
use std::sync::Arc;

use super::message::{Message, Role};
use super::message_list::MessageList;

/// The number of changes from which an index of the messages costs less than to search for each.
const LEAST_INDEXED: usize = 32;

/// The indexes of the messages of one list that are not compressed, by id. They are found when they are first needed, which is
/// after some changes for which the list was searched.
#[derive(Debug, Default)]
pub struct MessageIndex {
    by_id: Option<HashMap<String, usize>>,
    /// The number of searches.
    searches: usize,
}

impl MessageIndex {
    /// Does [`MessageList::put`] with each of these changes and the list of this index, which nothing else may have changed
    /// since the last time. The time is linear if removals follow each other.
    pub fn put_all(&mut self, messages: &mut MessageList, changes: &[Arc<Message>]) {
        let is_removal = |change: &Arc<Message>| change.role == Role::Remove;
        for part in changes.chunk_by(|one, other| is_removal(one) == is_removal(other)) {
            if part.first().is_some_and(is_removal) {
                messages.remove(part);
                self.by_id = None;
                continue;
            }
            for change in part {
                self.put(messages, Arc::clone(change));
            }
        }
    }

    /// Does [`MessageList::put`] with one message that is no removal.
    fn put(&mut self, messages: &mut MessageList, message: Arc<Message>) {
        if self.by_id.is_none() && self.searches < LEAST_INDEXED {
            self.searches += 1;
            messages.put(&message);
            return;
        }
        let id = message.id.as_deref();
        if id.is_some_and(|id| messages.has_left(id)) {
            return;
        }
        if id.is_some_and(|id| messages.may_have_compressed(id)) {
            // Rare, and it shifts the indexes of other messages.
            messages.put(&message);
            self.by_id = None;
            return;
        }
        let indexes = self.by_id.get_or_insert_with(|| indexes_by_id(messages));
        let known = id.and_then(|id| indexes.get(id).copied());
        if let Some(at) = known {
            let earlier = messages.earlier_len();
            messages.replace_recent(at, message);
            if messages.earlier_len() != earlier {
                self.by_id = None;
            }
            return;
        }
        if let Some(id) = id {
            indexes.insert(id.to_owned(), messages.recent().len());
        }
        messages.push(message);
    }
}

/// Does [`MessageList::put`] with each of these changes.
pub fn put_all(messages: &mut MessageList, changes: &[Arc<Message>]) {
    if changes.len() < LEAST_INDEXED {
        changes.iter().for_each(|change| messages.put(change));
        return;
    }
    MessageIndex::default().put_all(messages, changes);
}

fn indexes_by_id(messages: &MessageList) -> HashMap<String, usize> {
    let with_id = messages.recent().iter().enumerate();
    with_id
        .filter_map(|(at, message)| message.id.clone().map(|id| (id, at)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::domain::message::REMOVE_ALL;

    #[test]
    fn many_changes_have_the_result_of_single_ones() {
        let said = |id: usize, text: &str| Arc::new(Message::human(text).with_id(format!("m{id}")));
        let removal = |id: String| Arc::new(Message::new(Role::Remove, "").with_id(id));
        let mut changes: Vec<Arc<Message>> = (0..40).map(|id| said(id, "first")).collect();
        changes.extend((10..20).map(|id| said(id, "second")));
        changes.extend((5..15).map(|id| removal(format!("m{id}"))));
        changes.extend((0..10).map(|id| said(id, "third")));
        changes.push(Arc::new(Message::human("without an id")));
        let mut cleared = changes.clone();
        cleared.extend([
            removal("m30".to_owned()),
            removal(REMOVE_ALL.to_owned()),
            removal("m31".to_owned()),
        ]);
        cleared.extend((0..3).map(|id| said(id, "fourth")));
        for changes in [changes, cleared] {
            let mut single = MessageList::from(vec![said(3, "before"), said(100, "before")]);
            let mut many = single.clone();
            changes.iter().for_each(|change| single.put(change));
            put_all(&mut many, &changes);
            assert_eq!(many, single);
        }
    }

    #[test]
    fn many_removals_take_time_in_proportion_to_their_number() {
        let id = |number: usize| format!("m{number}");
        let said: Vec<Arc<Message>> = (0..100_000)
            .map(|number| Arc::new(Message::human("x").with_id(id(number))))
            .collect();
        let removals: Vec<Arc<Message>> = (0..99_999)
            .map(|number| Arc::new(Message::new(Role::Remove, "").with_id(id(number))))
            .collect();
        let mut messages = MessageList::from(said);
        let begun = Instant::now();
        put_all(&mut messages, &removals);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        assert_eq!(messages.len(), 1);
    }
}
