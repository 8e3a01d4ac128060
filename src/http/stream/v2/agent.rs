//! An agent of a thread in the v2 protocol, for one reader.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::frame_writer::FrameSource;
use super::messages::MessageStream;
use crate::domain::event::Origin;
use crate::domain::id::InterruptId;
use crate::http::stream::fold::AgentFold;

/// An agent and the frames that were sent about it.
pub(super) struct TrackedAgent {
    /// The agent after the events that were read.
    pub fold: AgentFold,
    /// The agent's name and namespace in frames.
    pub source: FrameSource,
    /// Whether clients were told that the agent is running.
    pub is_running: bool,
    /// The calls without a result, with their index in the step.
    pub open_calls: BTreeMap<String, usize>,
    /// The interrupts of this run that were sent as the reason why a task is open. They are not repeated after a crash.
    pub parked_on: HashSet<InterruptId>,
    /// The messages of the agent's model.
    pub messages: MessageStream,
}

impl TrackedAgent {
    pub(super) fn new(origin: &Arc<Origin>) -> Self {
        Self {
            fold: AgentFold::new(origin),
            source: FrameSource::of(origin),
            is_running: false,
            open_calls: BTreeMap::new(),
            parked_on: HashSet::new(),
            messages: MessageStream::default(),
        }
    }
}
