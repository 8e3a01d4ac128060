//! One agent as one reader is shown it.

use std::sync::Arc;

use super::metadata::MessageSource;
use crate::domain::checkpoint::Entry;
use crate::domain::event::Origin;
use crate::domain::id::TaskId;
use crate::domain::run::namespace_text;
use crate::domain::time::Timestamp;
use crate::events::AgentSnapshot;
use crate::http::stream::fold::AgentFold;
use crate::http::stream::frame::FrameName;

/// One agent, with what was shown of it.
pub(super) struct PresentedAgent {
    /// The agent as far as the log was read.
    pub fold: AgentFold,
    /// Its namespace as clients write it; none for the main agent.
    pub namespace: Option<Arc<str>>,
    /// Whether the calls of the step under way were shown to begin.
    pub calls_started: bool,
    /// A checkpoint of which it is not yet known what follows.
    pub pending: Option<PendingCheckpoint>,
}

/// The newest checkpoint, to be shown as soon as it is known what follows it.
pub(super) struct PendingCheckpoint {
    /// The step that left it; none when an agent goes on from an old one that was shown before.
    pub entry: Option<Arc<Entry>>,
    /// How the agent stood there, when it is an old one.
    pub resumed: Option<AgentSnapshot>,
    /// When it was made.
    pub at: Timestamp,
}

impl PresentedAgent {
    pub(super) fn new(origin: &Arc<Origin>) -> Self {
        let is_main = origin.namespace.is_empty();
        Self {
            fold: AgentFold::new(origin),
            namespace: (!is_main).then(|| Arc::from(namespace_text(&origin.namespace))),
            calls_started: false,
            pending: None,
        }
    }

    /// The name of a frame about this agent.
    pub(super) fn name(&self, word: &'static str) -> FrameName {
        FrameName {
            word,
            namespace: self.namespace.clone(),
        }
    }

    /// The source of what a task of this agent says.
    pub(super) fn source<'a>(&'a self, node: &'a str, call: usize) -> MessageSource<'a> {
        let task = TaskId::of_step(self.fold.head, node, call);
        MessageSource {
            origin: &self.fold.origin,
            node,
            task,
            step: self.fold.next_step(),
            call,
            model: None,
        }
    }

    /// Takes the second half of a step.
    pub(super) fn advance(&mut self, entry: &Entry) {
        self.fold.advance(entry);
        self.calls_started = false;
    }
}
