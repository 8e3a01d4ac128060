//! Idempotency keys: repeated requests get the response of the first one.

use std::time::Duration;

use uuid::Uuid;

use super::Invalid;
use super::id::{RunId, ThreadId};

/// The time for which a key is stored.
pub const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

/// The maximum length of a key, in characters.
pub const MAX_KEY_LENGTH: usize = 255;

/// An idempotency key, with a fingerprint of its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The digest of the client, followed by the client's key.
    name: String,
    /// A digest of the request, which differs for another request with the same key.
    fingerprint: Uuid,
}

impl IdempotencyKey {
    /// Creates the key that `client` wrote as `text` for a request of these `parts` (method, path, body).
    ///
    /// # Errors
    /// Returns an error if the text is empty, too long, or contains characters that are not visible.
    pub fn new(client: &str, text: &str, parts: &[&[u8]]) -> Result<Self, Invalid> {
        const REQUEST_NAMESPACE: Uuid = Uuid::from_u128(0x5a1f_36c0_7c0e_4b53_9d1c_22b0_8f6e_71d4);
        if text.is_empty() || text.len() > MAX_KEY_LENGTH || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let reason = format!("must be 1 to {MAX_KEY_LENGTH} visible ASCII characters");
            return Err(Invalid::new("Idempotency-Key", reason));
        }
        // Each part is hashed for itself, so that parts cannot be confused by moving their boundary.
        let fingerprint = parts
            .iter()
            .fold(REQUEST_NAMESPACE, |sum, part| Uuid::new_v5(&sum, part));
        Ok(Self {
            name: format!("{}{text}", Self::prefix_of(client)),
            fingerprint,
        })
    }

    /// Returns the beginning of the names of a client's keys, which ends with a colon.
    pub fn prefix_of(client: &str) -> String {
        const CLIENT_NAMESPACE: Uuid = Uuid::from_u128(0x8d1c_7d0e_54a2_4c1f_a7a5_6f0b_9c3e_2b16);
        // The digest has a fixed length, so that one client's keys cannot collide with another's.
        let client = Uuid::new_v5(&CLIENT_NAMESPACE, client.as_bytes()).simple();
        format!("{client}:")
    }

    /// Returns the name under which the key is stored: the client and the client's key.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the fingerprint of the request.
    pub fn fingerprint(&self) -> Uuid {
        self.fingerprint
    }
}

/// The stored response to a request with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredResponse {
    /// A response.
    Answer {
        /// The HTTP status.
        status: u16,
        /// The JSON body.
        body: String,
        /// The `Content-Location` header, if there was one.
        location: Option<String>,
        /// The thread that the answer is about, if any. With the thread, the answer is deleted.
        thread: Option<ThreadId>,
    },
    /// A run. A repeated request follows the same run from its start.
    Run {
        /// The thread of the run.
        thread: ThreadId,
        /// The run.
        run: RunId,
    },
}

/// The outcome of a request with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdempotentOutcome<T> {
    /// The first request with its key, with its result.
    First(T),
    /// A repeated request, with the stored response.
    Replayed(StoredResponse),
    /// A key that belongs to another request.
    KeyReused,
}

impl<T> IdempotentOutcome<T> {
    /// Returns the same outcome with another result.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> IdempotentOutcome<U> {
        match self {
            Self::First(made) => IdempotentOutcome::First(change(made)),
            Self::Replayed(kept) => IdempotentOutcome::Replayed(kept),
            Self::KeyReused => IdempotentOutcome::KeyReused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(parts: &[&[u8]]) -> Uuid {
        IdempotencyKey::new("alice", "k", parts).expect("a key").fingerprint()
    }

    #[test]
    fn another_request_has_another_fingerprint() {
        let first = fingerprint(&[b"POST", b"/threads", b"{}"]);
        assert_eq!(first, fingerprint(&[b"POST", b"/threads", b"{}"]));
        assert_ne!(first, fingerprint(&[b"POST", b"/threads", b"{ }"]));
        assert_ne!(first, fingerprint(&[b"POST", b"/threads{", b"}"]));
    }

    #[test]
    fn keys_of_different_clients_are_different() {
        let name = |client: &str| IdempotencyKey::new(client, "k", &[]).expect("a key").name().to_owned();
        assert_eq!(name("192.0.2.1"), name("192.0.2.1"));
        assert_ne!(name("192.0.2.1"), name("192.0.2.2"));
    }

    #[test]
    fn keys_have_a_maximum_length() {
        for text in ["", "a b", "é", &"k".repeat(256)] {
            assert!(
                IdempotencyKey::new("alice", text, &[]).is_err_and(|error| error.field == "Idempotency-Key"),
                "{text}"
            );
        }
        assert!(IdempotencyKey::new("alice", &"k".repeat(255), &[]).is_ok());
    }
}
