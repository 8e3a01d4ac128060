//! What a reader knows of one agent while reading.

use std::collections::HashSet;
use std::sync::Arc;

use crate::domain::checkpoint::Entry;
use crate::domain::event::Origin;
use crate::domain::id::{CheckpointId, InterruptId};
use crate::domain::run::namespace_text;
use crate::domain::state::State;
use crate::domain::time::Timestamp;
use crate::events::Standing;
use crate::http::stream::frame::Name;

/// One agent as far as it was read.
pub(super) struct LaneView {
    /// Who it is.
    pub origin: Arc<Origin>,
    /// Its namespace as clients write it; none for the main agent.
    pub namespace: Option<Arc<str>>,
    /// Whether its beginning was read; false for who joined in the middle.
    pub whole: bool,
    /// Its state, when that is known.
    pub state: Option<State>,
    /// Its newest checkpoint.
    pub head: Option<CheckpointId>,
    /// The number of that checkpoint.
    pub step: Option<i64>,
    /// The calls of the step under way that were shown one by one.
    pub answered: Vec<usize>,
    /// Whether the calls of the step under way were shown to begin.
    pub calls_begun: bool,
    /// The questions that were shown.
    pub asked: HashSet<InterruptId>,
    /// A checkpoint of which it is not yet known what follows.
    pub ahead: Option<Ahead>,
}

/// The newest checkpoint, to be shown as soon as it is known what follows it.
pub(super) struct Ahead {
    /// The step that left it; none when an agent goes on from an old one that was shown before.
    pub entry: Option<Arc<Entry>>,
    /// How the agent stood there, when it is an old one.
    pub before: Option<Standing>,
    /// When it was made.
    pub at: Timestamp,
}

impl LaneView {
    pub(super) fn new(origin: &Arc<Origin>) -> Self {
        let is_main = origin.namespace.is_empty();
        Self {
            origin: Arc::clone(origin),
            namespace: (!is_main).then(|| Arc::from(namespace_text(&origin.namespace))),
            whole: false,
            state: None,
            head: None,
            step: None,
            answered: vec![],
            calls_begun: false,
            asked: HashSet::new(),
            ahead: None,
        }
    }

    /// The name of a frame about this agent.
    pub(super) fn name(&self, word: &'static str) -> Name {
        Name {
            word,
            namespace: self.namespace.clone(),
        }
    }

    /// The number of the step under way.
    pub(super) fn next_step(&self) -> Option<i64> {
        self.step.map(|step| step + 1)
    }

    /// Whether it is the main agent.
    pub(super) fn is_main(&self) -> bool {
        self.namespace.is_none()
    }

    /// Takes note of a step.
    pub(super) fn advance(&mut self, entry: &Entry) {
        if let Some(state) = &mut self.state {
            entry.writes.iter().for_each(|update| state.apply(update));
        }
        self.head = Some(entry.id);
        self.step = Some(entry.step);
        self.answered.clear();
        self.calls_begun = false;
    }
}
