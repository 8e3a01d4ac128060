//! Finds the messages of a list by their ids, for many changes of one list.

use std::collections::HashMap;
use std::sync::Arc;

use super::message::{Message, Role};
use super::message_list::MessageList;

/// The indexes of the messages of one list that are not compressed, by id. They are found when they are first needed.
#[derive(Debug, Default)]
pub struct MessageIndex(Option<HashMap<String, usize>>);

impl MessageIndex {
    /// Does [`MessageList::put`] with the list of this index, which nothing else may have changed since the last time.
    pub fn put(&mut self, messages: &mut MessageList, message: Arc<Message>) {
        let id = message.id.as_deref();
        if id.is_some_and(|id| messages.has_left(id)) {
            return;
        }
        let is_compressed = id.is_some_and(|id| messages.may_have_compressed(id));
        if message.role == Role::Remove || is_compressed {
            // Both are rare, and shift the indexes of other messages.
            messages.put(&message);
            self.0 = None;
            return;
        }
        let indexes = self.0.get_or_insert_with(|| indexes_by_id(messages));
        let known = id.and_then(|id| indexes.get(id).copied());
        if let Some(at) = known {
            let earlier = messages.earlier_len();
            messages.replace_recent(at, message);
            if messages.earlier_len() != earlier {
                self.0 = None;
            }
            return;
        }
        if let Some(id) = id {
            indexes.insert(id.to_owned(), messages.recent().len());
        }
        messages.push(message);
    }
}

fn indexes_by_id(messages: &MessageList) -> HashMap<String, usize> {
    let with_id = messages.recent().iter().enumerate();
    with_id
        .filter_map(|(at, message)| message.id.clone().map(|id| (id, at)))
        .collect()
}

#[cfg(test)]
mod tests {
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
        cleared.push(removal(REMOVE_ALL.to_owned()));
        cleared.extend((0..3).map(|id| said(id, "fourth")));
        for changes in [changes, cleared] {
            let mut single = MessageList::from(vec![said(3, "before"), said(100, "before")]);
            let mut many = single.clone();
            changes.iter().for_each(|change| single.put(change));
            many.put_all(&changes);
            assert_eq!(many, single);
        }
    }
}
