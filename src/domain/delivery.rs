//! Reports of runs that ended, on their way to those who asked for them.

use super::id::{DeliveryId, RunId, ThreadId};
use super::time::Timestamp;

/// A report of a run that ended, on its way to the address that the request for the run named.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// Identifies it; the same however often it is tried.
    pub id: DeliveryId,
    /// The run.
    pub run: RunId,
    /// The thread of the run.
    pub thread: ThreadId,
    /// Where it goes.
    pub url: String,
    /// What is sent: JSON.
    pub body: String,
    /// How it stands.
    pub status: DeliveryStatus,
    /// How often it was tried since it was made or asked for again.
    pub attempts: u32,
    /// The status with which the address answered the last attempt, if it answered.
    pub answer: Option<u16>,
    /// Why the last attempt failed, if it did; it names no address.
    pub error: Option<String>,
    /// When it is tried next; none when it is not, or is being tried now.
    pub next_attempt_at: Option<Timestamp>,
    /// When the run ended.
    pub created_at: Timestamp,
    /// When it arrived or was given up.
    pub finished_at: Option<Timestamp>,
}

impl Delivery {
    /// The report `body` about a run, to be sent to `url` at once.
    pub fn new(run: RunId, thread: ThreadId, url: &str, body: String, now: Timestamp) -> Self {
        Self {
            id: DeliveryId::mint(),
            run,
            thread,
            url: url.to_owned(),
            body,
            status: DeliveryStatus::Pending,
            attempts: 0,
            answer: None,
            error: None,
            next_attempt_at: Some(now),
            created_at: now,
            finished_at: None,
        }
    }
}

/// How a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryStatus {
    /// It is tried, or will be.
    Pending,
    /// It has arrived.
    Delivered,
    /// It was given up.
    Dead,
}

impl DeliveryStatus {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pending, Self::Delivered, Self::Dead];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }

    /// The status of this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }
}
