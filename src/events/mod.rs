//! The log of a thread, and who is listening.
//!
//! Live streams, joins and replays are one thing: a [`Tail`] that reads the log from a position.

use std::sync::Arc;

use crate::db::{Db, DbResult};
use crate::domain::event::Event;
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::state::State;

/// From where a reader reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// From the run's first event.
    Start,
    /// From the event after this number.
    Seq(i64),
    /// Only what comes from now on.
    Now,
}

/// The logs of all threads.
#[derive(Clone)]
pub struct Events {}

#[allow(unused_variables)]
impl Events {
    /// Reads the events of a run of the main agent, those of its children included.
    pub fn tail(&self, thread: ThreadId, run: RunId, after: After) -> Tail {
        todo!()
    }
    /// The state at a checkpoint, from memory if possible.
    pub async fn state_at(&self, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Arc<State>> {
        todo!()
    }
}

/// A reader of the log.
pub struct Tail {}

impl Tail {
    /// Waits for the next event. `None` after the event that ends the run ([`crate::domain::event::Fact::Ended`] in the
    /// main lane); at once if the run is over and everything was read.
    pub async fn next(&mut self) -> DbResult<Option<Arc<Event>>> {
        todo!()
    }
}
