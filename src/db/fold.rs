//! Folds writes to a state. The result is that of repeated [`State::apply`], but made for thousands of writes: nothing
//! is copied, and messages are found by id in a hash map.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::message::{Message, Role};
use crate::domain::state::{State, Update};

/// A state under construction.
#[derive(Default)]
pub(super) struct StateFold {
    state: State,
    /// The indexes of messages in the state, by id.
    indexes: HashMap<String, usize>,
}

impl From<State> for StateFold {
    /// Starts with a state.
    fn from(state: State) -> Self {
        let indexes = indexes_by_id(&state.messages);
        Self { state, indexes }
    }
}

impl StateFold {
    /// Starts with an empty state, with room for this many messages.
    pub(super) fn with_capacity(messages: usize) -> Self {
        let state = State {
            messages: Vec::with_capacity(messages),
            ..State::default()
        };
        Self {
            state,
            indexes: HashMap::with_capacity(messages),
        }
    }

    /// Adds the writes of a step.
    pub(super) fn add(&mut self, writes: Vec<Update>) {
        for update in writes {
            for message in update.messages {
                self.put(message);
            }
            for (path, file) in update.files {
                match file {
                    Some(file) => self.state.files.insert(path, file),
                    None => self.state.files.remove(&path),
                };
            }
            self.state.write(update.fields, &update.rules);
        }
    }

    /// Returns the state so far.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Returns the state.
    pub(super) fn finish(self) -> State {
        self.state
    }

    fn put(&mut self, message: Arc<Message>) {
        if message.role == Role::Remove {
            // A removal is rare, and shifts the indexes of all later messages.
            self.state.apply(&Update {
                messages: vec![message],
                ..Update::default()
            });
            self.indexes = indexes_by_id(&self.state.messages);
            return;
        }
        let known = message.id.as_deref().and_then(|id| self.indexes.get(id).copied());
        if let Some(at) = known {
            self.state.messages[at] = message;
            return;
        }
        if let Some(id) = &message.id {
            self.indexes.insert(id.clone(), self.state.messages.len());
        }
        self.state.messages.push(message);
    }
}

fn indexes_by_id(messages: &[Arc<Message>]) -> HashMap<String, usize> {
    let with_id = messages.iter().enumerate();
    with_id
        .filter_map(|(at, message)| message.id.clone().map(|id| (id, at)))
        .collect()
}
