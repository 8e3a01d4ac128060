//! Threads: a conversation's identity, status, metadata and time to live.

use std::time::Duration;

use serde_json::{Map, Value};

use super::access::Ownership;
use super::failure::Failure;
use super::id::ThreadId;
use super::time::Timestamp;

/// A conversation: an identity with metadata. Its state and history are its checkpoints.
#[derive(Debug, Clone, PartialEq)]
pub struct Thread {
    /// The id.
    pub id: ThreadId,
    /// The owner and the tenant.
    pub ownership: Ownership,
    /// The status.
    pub status: ThreadStatus,
    /// The client's metadata, searchable.
    pub metadata: Map<String, Value>,
    /// The configuration of the last run.
    pub config: Map<String, Value>,
    /// The failure of the last run, if it failed.
    pub error: Option<Failure>,
    /// The time of creation.
    pub created_at: Timestamp,
    /// The time of the last change of any kind.
    pub updated_at: Timestamp,
    /// The time of the last change of the state.
    pub state_updated_at: Timestamp,
    /// The time to live; none for a thread that is kept until it is deleted.
    pub ttl: Option<Ttl>,
    /// The time at which the thread expires, unless it changes before.
    pub expires_at: Option<Timestamp>,
}

impl Thread {
    /// Creates a thread without runs.
    pub fn new(id: ThreadId, ownership: Ownership, metadata: Map<String, Value>, now: Timestamp) -> Self {
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
            ownership,
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

    /// Returns the thread with this time to live, counted from its last change.
    #[must_use]
    pub fn with_ttl(self, ttl: Option<Ttl>) -> Self {
        let expires_at = ttl.map(|ttl| self.updated_at.plus(ttl.after));
        Self {
            ttl,
            expires_at,
            ..self
        }
    }
}

/// The time to live of a thread, and what the server does when it expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ttl {
    /// The time from the last change of the thread until it expires.
    pub after: Duration,
    /// The action taken when the thread expires.
    pub strategy: TtlStrategy,
}

/// The action taken when a thread expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TtlStrategy {
    /// Delete the thread.
    #[default]
    Delete,
    /// Delete the history and keep the thread with its newest state.
    KeepLatest,
}

impl TtlStrategy {
    /// Returns the word that clients use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::KeepLatest => "keep_latest",
        }
    }

    /// Parses the word that clients use.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Delete, Self::KeepLatest]
            .into_iter()
            .find(|strategy| strategy.word() == word)
    }
}

/// The status of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ThreadStatus {
    /// No run is running or queued.
    Idle,
    /// A run is running or queued.
    Busy,
    /// The last run waits for a human, or was stopped before its end.
    Interrupted,
    /// The last run failed.
    Error,
}

impl ThreadStatus {
    /// All statuses.
    pub const ALL: [Self; 4] = [Self::Idle, Self::Busy, Self::Interrupted, Self::Error];

    /// Returns the word that clients and the database use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Interrupted => "interrupted",
            Self::Error => "error",
        }
    }

    /// Parses the word that clients and the database use.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }
}
