//! How many streams are open, so that no thread and no client has more than its share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::ApiError;
use crate::domain::id::ThreadId;

/// The open streams of threads. Cloning copies a pointer.
#[derive(Clone)]
pub struct Openings {
    counts: Arc<Mutex<HashMap<Whose, usize>>>,
    limits: OpeningLimits,
}

/// How many streams of threads may be open at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpeningLimits {
    /// Of one thread.
    pub per_thread: usize,
    /// Of one client: who shows the same key, or without one, who calls from the same address.
    pub per_client: usize,
}

impl Default for OpeningLimits {
    fn default() -> Self {
        Self { per_thread: 256, per_client: 4096 }
    }
}

/// Whose streams are counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Whose {
    Thread(ThreadId),
    Client(Arc<str>),
}

impl Openings {
    /// No stream is open.
    pub fn new(limits: OpeningLimits) -> Self {
        Self { counts: Arc::default(), limits }
    }

    /// Counts one more stream of `client` on `thread`, for as long as the ticket is kept.
    ///
    /// # Errors
    /// 429 when the thread or the client has as many as it may.
    pub fn admit(&self, thread: ThreadId, client: &str) -> Result<Ticket, ApiError> {
        let (thread, client) = (Whose::Thread(thread), Whose::Client(client.into()));
        let mut counts = self.counts();
        let open = |whose: &Whose| counts.get(whose).copied().unwrap_or(0);
        if open(&thread) >= self.limits.per_thread {
            return Err(ApiError::too_many_streams("thread", self.limits.per_thread));
        }
        if open(&client) >= self.limits.per_client {
            return Err(ApiError::too_many_streams("client", self.limits.per_client));
        }
        for whose in [&thread, &client] {
            *counts.entry(whose.clone()).or_default() += 1;
        }
        drop(counts);
        Ok(Ticket { openings: self.clone(), whose: [thread, client] })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Whose, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands for an open stream.
pub struct Ticket {
    openings: Openings,
    whose: [Whose; 2],
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut counts = self.openings.counts();
        for whose in &self.whose {
            if let Some(count) = counts.get_mut(whose) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(whose);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_counts_while_it_is_open_and_not_longer() {
        let openings = Openings::new(OpeningLimits { per_thread: 2, per_client: 3 });
        let (here, there) = (ThreadId::mint(), ThreadId::mint());
        let first = openings.admit(here, "alice").unwrap();
        let _second = openings.admit(here, "alice").unwrap();
        let refused = openings.admit(here, "bob").err().unwrap();
        assert_eq!(refused.message(), "This thread has 2 open streams, and more are not allowed. Close one first.");
        let _third = openings.admit(there, "alice").unwrap();
        let refused = openings.admit(there, "alice").err().unwrap();
        assert_eq!(refused.message(), "This client has 3 open streams, and more are not allowed. Close one first.");
        drop(first);
        let last = openings.admit(here, "bob");
        assert!(last.is_ok());
        drop((last, _second, _third));
        assert!(openings.counts().is_empty());
    }
}
