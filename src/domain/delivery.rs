//! Deliveries: webhook requests that report the end of a run.

use url::Url;

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

/// The text in place of what is not shown of an address.
const MASK: &str = "***";

/// Returns the address of a webhook as it is shown. Its user and its query may be secrets, and runs, deliveries and definitions
/// are read by more people than have named it.
pub fn shown_address(address: &str) -> String {
    let Ok(mut url) = Url::parse(address) else {
        return MASK.to_owned();
    };
    let has_user = !url.username().is_empty() || url.password().is_some();
    if !has_user && url.query().is_none() {
        return address.to_owned();
    }
    if has_user && (url.set_username(MASK).is_err() || url.set_password(None).is_err()) {
        return MASK.to_owned();
    }
    if url.query().is_some() {
        url.set_query(Some(MASK));
    }
    url.to_string()
}

/// The problem of an address that [is masked](is_masked).
pub const MASKED_ADDRESS: &str = "is shown here without its user or its query: give the whole address";

/// Returns whether an address is a [shown](shown_address) one, with parts missing.
pub fn is_masked(address: &str) -> bool {
    Url::parse(address).map_or(address == MASK, |url| {
        url.username() == MASK || url.query() == Some(MASK)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_what_may_be_a_secret() {
        for (address, shown) in [
            ("https://a.example.org", "https://a.example.org"),
            ("https://a.example.org/x#y", "https://a.example.org/x#y"),
            ("https://a.example.org/x?token=secret", "https://a.example.org/x?***"),
            ("https://ann:secret@a.example.org/x", "https://***@a.example.org/x"),
            (
                "https://:secret@a.example.org/?secret",
                "https://***@a.example.org/?***",
            ),
            ("no secret address", "***"),
        ] {
            assert_eq!(shown_address(address), shown);
            assert_eq!(is_masked(shown), address != shown, "{shown}");
        }
    }
}
