//! A conversation.

use serde_json::{Map, Value};

use super::id::ThreadId;
use super::machine::Failure;
use super::time::Timestamp;

/// A conversation: an identity with metadata. Its state and history are its checkpoints.
#[derive(Debug, Clone, PartialEq)]
pub struct Thread {
    /// Identifies it.
    pub id: ThreadId,
    /// What it is doing.
    pub status: ThreadStatus,
    /// The owner's own notes, searchable.
    pub metadata: Map<String, Value>,
    /// The settings of its last run.
    pub config: Map<String, Value>,
    /// Why its last run failed, when it did.
    pub error: Option<Failure>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When anything about it last changed.
    pub updated_at: Timestamp,
    /// When its state last changed.
    pub state_updated_at: Timestamp,
}

impl Thread {
    /// A thread that nothing has happened on.
    pub fn new(id: ThreadId, metadata: Map<String, Value>, now: Timestamp) -> Self {
        let (created_at, updated_at, state_updated_at) = (now, now, now);
        let (status, config, error) = (ThreadStatus::Idle, Map::new(), None);
        Self { id, status, metadata, config, error, created_at, updated_at, state_updated_at }
    }
}

/// What a thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ThreadStatus {
    /// Nothing.
    Idle,
    /// A run works on it or waits for its turn.
    Busy,
    /// It waits for a human, or was stopped before its end.
    Interrupted,
    /// Its last run failed.
    Error,
}

impl ThreadStatus {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Idle, Self::Busy, Self::Interrupted, Self::Error];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Interrupted => "interrupted",
            Self::Error => "error",
        }
    }

    /// The status of this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }
}
