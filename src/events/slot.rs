//! The events of a thread's log in memory, each with its number.

use std::sync::Arc;

use crate::domain::checkpoint::Lane;
use crate::domain::event::Event;

/// An event in memory, with its number.
pub(super) struct Slot {
    pub(super) seq: i64,
    pub(super) content: SlotContent,
}

/// The content of a slot.
pub(super) enum SlotContent {
    /// An event that is being stored.
    Reserved,
    /// An event that another process has stored: readers read it from the database. It may end the answers of an agent.
    Stored(Option<Lane>),
    /// A visible event.
    Visible(Arc<Event>),
}

impl Slot {
    /// Returns whether the event is being stored.
    pub(super) fn is_reserved(&self) -> bool {
        matches!(self.content, SlotContent::Reserved)
    }
}
