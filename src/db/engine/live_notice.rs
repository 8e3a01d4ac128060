//! The notices that the servers on one Postgres send each other besides [notifications](super::notifications), and the channels
//! on which they come. `db/live.rs` sends them.

use uuid::Uuid;

use crate::domain::id::WorkerId;

/// The name of the channel that all processes listen to, and the beginning of the names of their own channels.
pub(in crate::db) const LIVE_CHANNEL: &str = "adjutant_live";
/// The number of notices buffered for a slow receiver; beyond it, the receiver loses the oldest.
pub(in crate::db) const LIVE_CAPACITY: usize = 4096;

/// The address of a process for notices and messages, which is a new one for each opened database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LiveAddress(pub Uuid);

impl LiveAddress {
    pub(in crate::db) fn mint() -> Self {
        Self(WorkerId::mint().0)
    }

    /// Returns the name of the process's own channel.
    pub(in crate::db) fn channel(self) -> String {
        format!("{LIVE_CHANNEL}_{}", self.0.simple())
    }

    /// Returns the names of the channels to which the process listens.
    pub(in crate::db) fn channels(self) -> [String; 2] {
        [LIVE_CHANNEL.to_owned(), self.channel()]
    }
}

/// A notice that a process has received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveNotice {
    /// The connection is new: notices may have been missed.
    Connected,
    /// A text for all processes.
    ForAll(String),
    /// A text for this process.
    ForThis(String),
}

impl LiveNotice {
    /// Returns the notice of a notification; none if its channel has none.
    pub(in crate::db) fn of(channel: &str, payload: &str) -> Option<Self> {
        match channel.strip_prefix(LIVE_CHANNEL)? {
            "" => Some(Self::ForAll(payload.to_owned())),
            _ => Some(Self::ForThis(payload.to_owned())),
        }
    }
}
