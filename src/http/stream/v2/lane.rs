//! What a reader knows of one agent while reading.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::messages::Speech;
use super::outlet::Place;
use crate::domain::checkpoint::Entry;
use crate::domain::event::Origin;
use crate::domain::id::{CheckpointId, InterruptId};
use crate::domain::state::State;

/// One agent as far as it was read.
pub(super) struct LaneView {
    /// Who it is.
    pub place: Place,
    /// Its state, when that is known.
    pub state: Option<State>,
    /// Its newest checkpoint.
    pub head: Option<CheckpointId>,
    /// Whether it is at work, as far as clients were told.
    pub open: bool,
    /// The calls that were made, with the index in their step, and have no result yet.
    pub made: BTreeMap<String, usize>,
    /// The calls of the step under way that were shown one by one.
    pub answered: Vec<usize>,
    /// The questions that were shown as what keeps its tasks from ending.
    pub asked: HashSet<InterruptId>,
    /// What its model is saying.
    pub speech: Speech,
}

impl LaneView {
    pub(super) fn new(origin: &Arc<Origin>) -> Self {
        Self {
            place: Place::of(origin),
            state: None,
            head: None,
            open: false,
            made: BTreeMap::new(),
            answered: vec![],
            asked: HashSet::new(),
            speech: Speech::default(),
        }
    }

    /// Whether it is the main agent.
    pub(super) fn is_main(&self) -> bool {
        self.place.segments.is_empty()
    }

    /// Takes note of a step.
    pub(super) fn advance(&mut self, entry: &Entry) {
        if let Some(state) = &mut self.state {
            entry.writes.iter().for_each(|update| state.apply(update));
        }
        self.head = Some(entry.id);
        self.answered.clear();
    }
}
