//! An agent of a run in the v1 protocol, for one reader.

use std::sync::Arc;

use super::metadata::MessageSource;
use crate::domain::checkpoint::Entry;
use crate::domain::event::Origin;
use crate::domain::run::namespace_text;
use crate::domain::time::Timestamp;
use crate::events::AgentSnapshot;
use crate::http::stream::fold::AgentFold;
use crate::http::stream::frame::FrameName;

/// An agent and the frames that were sent about it.
pub(super) struct PresentedAgent {
    /// The agent after the events that were read.
    pub fold: AgentFold,
    /// The namespace as clients write it; `None` for the main agent.
    pub namespace: Option<Arc<str>>,
    /// True if the start of the current step's calls was sent.
    pub calls_started: bool,
    /// The number of times that the agent has started in the run up to the current step, where more than one are takeovers
    /// in that step.
    pub attempts: u32,
    /// A checkpoint whose next tasks are not known yet.
    pub pending: Option<PendingCheckpoint>,
}

/// The newest checkpoint, which is sent as soon as its next tasks are known.
pub(super) struct PendingCheckpoint {
    /// The step that created the checkpoint; `None` when an agent resumes from a checkpoint that was already sent, or jumps.
    pub entry: Option<Arc<Entry>>,
    /// The agent at that checkpoint, if it resumes from it.
    pub resumed: Option<AgentSnapshot>,
    /// True if a command makes the agent go on at a node of its choice, whatever the state implies.
    pub jumps: bool,
    /// The time of the checkpoint.
    pub at: Timestamp,
}

impl PresentedAgent {
    pub(super) fn new(origin: &Arc<Origin>) -> Self {
        let is_main = origin.namespace.is_empty();
        Self {
            fold: AgentFold::new(origin),
            namespace: (!is_main).then(|| Arc::from(namespace_text(&origin.namespace))),
            calls_started: false,
            attempts: 0,
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

    /// The source of messages from a task of this agent.
    pub(super) fn source<'a>(&'a self, node: &'a str, call: usize) -> MessageSource<'a> {
        MessageSource {
            origin: &self.fold.origin,
            node,
            task: self.fold.task(node, call),
            step: self.fold.next_step(),
            call,
            model: None,
        }
    }

    /// Applies the second half of a step.
    pub(super) fn advance(&mut self, entry: &Entry) {
        self.fold.advance(entry);
        self.calls_started = false;
        // Readers that joined later, and servers of earlier versions, count the next step like any other.
        self.attempts = 1;
    }
}
