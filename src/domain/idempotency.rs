//! Requests that a client may send again without anything being done twice.

use std::time::Duration;

use uuid::Uuid;

use super::Invalid;
use super::id::{RunId, ThreadId};

/// For how long a key is remembered.
pub const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

/// The most characters that a key may have.
pub const LONGEST_KEY: usize = 255;

/// The key under which a client sends a request, and which request it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Who wrote it, and what.
    name: String,
    /// Stands for the request. Another request under the same key has another fingerprint.
    fingerprint: Uuid,
}

impl Key {
    /// The key that `client` wrote as `text` for the request of these `parts` (method, path, body).
    ///
    /// # Errors
    /// If the text is empty, too long, or has characters that cannot be seen.
    pub fn new(client: &str, text: &str, parts: &[&[u8]]) -> Result<Self, Invalid> {
        const CLIENTS: Uuid = Uuid::from_u128(0x8d1c_7d0e_54a2_4c1f_a7a5_6f0b_9c3e_2b16);
        const REQUESTS: Uuid = Uuid::from_u128(0x5a1f_36c0_7c0e_4b53_9d1c_22b0_8f6e_71d4);
        if text.is_empty() || text.len() > LONGEST_KEY || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let reason = format!("must be 1 to {LONGEST_KEY} visible ASCII characters");
            return Err(Invalid::new("Idempotency-Key", reason));
        }
        // Each part is hashed for itself, so that none can pretend to be the end of another.
        let fingerprint = parts.iter().fold(REQUESTS, |sum, part| Uuid::new_v5(&sum, part));
        // Of fixed length, so that no client can write a key that looks like another one's.
        let client = Uuid::new_v5(&CLIENTS, client.as_bytes()).simple();
        Ok(Self {
            name: format!("{client}:{text}"),
            fingerprint,
        })
    }

    /// Under what it is stored: who wrote it, and what.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Stands for the request.
    pub fn fingerprint(&self) -> Uuid {
        self.fingerprint
    }
}

/// What a request under a key was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// This.
    Answer {
        /// The status of the answer.
        status: u16,
        /// Its body: JSON.
        body: String,
        /// Its `Content-Location`, if it had one.
        location: Option<String>,
    },
    /// What comes of a run. Whoever asks again follows the same run from its beginning.
    Run {
        /// The run's thread.
        thread: ThreadId,
        /// The run.
        run: RunId,
    },
}

/// What became of a request that came with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Once<T> {
    /// It was the first of its key: this was made.
    First(T),
    /// It had been granted before, and this was the answer.
    Again(Kept),
    /// The key belongs to another request.
    Reused,
}

impl<T> Once<T> {
    /// The same about something else.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Once<U> {
        match self {
            Self::First(made) => Once::First(change(made)),
            Self::Again(kept) => Once::Again(kept),
            Self::Reused => Once::Reused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(parts: &[&[u8]]) -> Uuid {
        Key::new("alice", "k", parts).expect("a key").fingerprint()
    }

    #[test]
    fn another_request_has_another_fingerprint() {
        let first = fingerprint(&[b"POST", b"/threads", b"{}"]);
        assert_eq!(first, fingerprint(&[b"POST", b"/threads", b"{}"]));
        assert_ne!(first, fingerprint(&[b"POST", b"/threads", b"{ }"]));
        assert_ne!(first, fingerprint(&[b"POST", b"/threads{", b"}"]));
    }

    #[test]
    fn a_key_of_one_client_is_none_of_another() {
        let name = |client: &str| Key::new(client, "k", &[]).expect("a key").name().to_owned();
        assert_eq!(name("192.0.2.1"), name("192.0.2.1"));
        assert_ne!(name("192.0.2.1"), name("192.0.2.2"));
    }

    #[test]
    fn keys_are_bounded() {
        for text in ["", "a b", "é", &"k".repeat(256)] {
            assert!(
                Key::new("alice", text, &[]).is_err_and(|error| error.field == "Idempotency-Key"),
                "{text}"
            );
        }
        assert!(Key::new("alice", &"k".repeat(255), &[]).is_ok());
    }
}
