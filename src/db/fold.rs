//! Sums up writes. The same as [`State::apply`] one after another, made for thousands of them: nothing is copied, and
//! messages are found by their id without looking through those before.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::message::{Message, Role};
use crate::domain::state::{State, Update};

/// A state under construction.
#[derive(Default)]
pub(super) struct Fold {
    state: State,
    /// Where in the state the message of an id is.
    places: HashMap<String, usize>,
}

impl From<State> for Fold {
    /// Begins with a sum.
    fn from(state: State) -> Self {
        let places = places(&state.messages);
        Self { state, places }
    }
}

impl Fold {
    /// Begins with nothing, and room for this many messages.
    pub(super) fn with_capacity(messages: usize) -> Self {
        let state = State {
            messages: Vec::with_capacity(messages),
            ..State::default()
        };
        Self {
            state,
            places: HashMap::with_capacity(messages),
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

    /// The sum so far.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// The sum.
    pub(super) fn finish(self) -> State {
        self.state
    }

    fn put(&mut self, message: Arc<Message>) {
        if message.role == Role::Remove {
            // Rare, and it moves the messages after it.
            self.state.apply(&Update {
                messages: vec![message],
                ..Update::default()
            });
            self.places = places(&self.state.messages);
            return;
        }
        let known = message.id.as_deref().and_then(|id| self.places.get(id).copied());
        if let Some(at) = known {
            self.state.messages[at] = message;
            return;
        }
        if let Some(id) = &message.id {
            self.places.insert(id.clone(), self.state.messages.len());
        }
        self.state.messages.push(message);
    }
}

fn places(messages: &[Arc<Message>]) -> HashMap<String, usize> {
    let with_id = messages.iter().enumerate();
    with_id
        .filter_map(|(at, message)| message.id.clone().map(|id| (id, at)))
        .collect()
}
