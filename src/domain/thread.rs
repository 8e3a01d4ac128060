//! A conversation.

use std::time::Duration;

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
    /// How long it is kept; for good when none.
    pub ttl: Option<Ttl>,
    /// When its time is over, unless something changes about it before.
    pub expires_at: Option<Timestamp>,
}

impl Thread {
    /// A thread that nothing has happened on.
    pub fn new(id: ThreadId, metadata: Map<String, Value>, now: Timestamp) -> Self {
        let created_at = now;
        let updated_at = now;
        let state_updated_at = now;
        let status = ThreadStatus::Idle;
        let config = Map::new();
        let error = None;
        let ttl = None;
        let expires_at = None;
        Self {
            id,
            status,
            metadata,
            config,
            error,
            created_at,
            updated_at,
            state_updated_at,
            ttl,
            expires_at,
        }
    }

    /// The same, kept for so long after its last change.
    #[must_use]
    pub fn kept_for(self, ttl: Option<Ttl>) -> Self {
        let expires_at = ttl.map(|ttl| self.updated_at.plus(ttl.after));
        Self {
            ttl,
            expires_at,
            ..self
        }
    }
}

/// How long a thread is kept after anything about it last changed, and what becomes of it then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ttl {
    /// How long.
    pub after: Duration,
    /// What becomes of it.
    pub strategy: TtlStrategy,
}

/// What becomes of a thread whose time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TtlStrategy {
    /// It is deleted.
    #[default]
    Delete,
    /// Its history is taken away; the thread stays, with its newest state.
    KeepLatest,
}

impl TtlStrategy {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::KeepLatest => "keep_latest",
        }
    }

    /// The strategy of this word.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Delete, Self::KeepLatest]
            .into_iter()
            .find(|strategy| strategy.word() == word)
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
