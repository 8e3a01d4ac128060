//! One agent as one reader of a thread is shown it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::frame_writer::FrameSource;
use super::messages::MessageStream;
use crate::domain::event::Origin;
use crate::domain::id::InterruptId;
use crate::http::stream::fold::AgentFold;

/// One agent, with what was shown of it.
pub(super) struct TrackedAgent {
    /// The agent as far as the log was read.
    pub fold: AgentFold,
    /// How frames name it.
    pub source: FrameSource,
    /// Whether it is at work, as far as clients were told.
    pub is_running: bool,
    /// The calls that were made, with the index in their step, and have no result yet.
    pub open_calls: BTreeMap<String, usize>,
    /// The questions in this run that were shown as the reason why a task does not end. A crash does not repeat them.
    pub parked_on: HashSet<InterruptId>,
    /// The answers of its model.
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
