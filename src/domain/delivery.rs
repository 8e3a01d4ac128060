//! Deliveries: webhook requests that report the end of a run.

use super::access::Ownership;
use super::id::{DeliveryId, RunId, ThreadId};
use super::time::Timestamp;

/// A report of the end of a run, for the webhook URL of the run's request.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// The id, the same for all attempts.
    pub id: DeliveryId,
    /// The run.
    pub run: RunId,
    /// The thread of the run.
    pub thread: ThreadId,
    /// To whom the thread belonged when the run ended.
    pub ownership: Ownership,
    /// The webhook URL.
    pub url: String,
    /// The JSON body.
    pub body: String,
    /// The status.
    pub status: DeliveryStatus,
    /// The number of attempts since the delivery was created or requested again.
    pub attempts: u32,
    /// The HTTP status of the last response, if there was one.
    pub answer: Option<u16>,
    /// The error of the last attempt, if it failed. Contains no URL.
    pub error: Option<String>,
    /// The time of the next attempt; none if there is none, or if an attempt is being made now.
    pub next_attempt_at: Option<Timestamp>,
    /// The time at which the run ended.
    pub created_at: Timestamp,
    /// The time of success or of the last failed attempt.
    pub finished_at: Option<Timestamp>,
}

impl Delivery {
    /// Creates a delivery of `body` to `url` that is due at once.
    pub fn new(run: RunId, thread: ThreadId, ownership: Ownership, url: &str, body: String, now: Timestamp) -> Self {
        Self {
            id: DeliveryId::mint(),
            run,
            thread,
            ownership,
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

/// The status of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryStatus {
    /// The delivery waits for an attempt, or one is running.
    Pending,
    /// The receiver accepted the report.
    Delivered,
    /// All attempts failed.
    Dead,
}

impl DeliveryStatus {
    /// All statuses.
    pub const ALL: [Self; 3] = [Self::Pending, Self::Delivered, Self::Dead];

    /// Returns the word that clients and the database use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }

    /// Parses the word that clients and the database use.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }
}
