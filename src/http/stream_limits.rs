//! Limits of open streams per thread and per client.
//!
//! Streams of runs and threads, waiting requests and WebSockets all count.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::response::Response;

use super::body_guard::hold_until_sent;
use super::client::ClientId;
use super::error::ApiError;
use crate::domain::id::ThreadId;

/// Counts the open streams. Cloning copies a pointer.
#[derive(Clone)]
pub struct StreamLimiter {
    counts: Arc<Mutex<HashMap<LimitKey, usize>>>,
    limits: StreamLimits,
}

/// The limits of open streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    /// The limit per thread.
    pub per_thread: usize,
    /// The limit per client.
    pub per_client: usize,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self {
            per_thread: 256,
            per_client: 4096,
        }
    }
}

/// The key under which streams are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum LimitKey {
    Thread(ThreadId),
    Client(ClientId),
}

impl StreamLimiter {
    /// Creates a limiter without open streams.
    pub fn new(limits: StreamLimits) -> Self {
        Self {
            counts: Arc::default(),
            limits,
        }
    }

    /// Counts one more stream of `client`, and of `thread` if it is known, for as long as the permit is held.
    ///
    /// # Errors
    /// 429 if the thread or the client has reached its limit.
    pub fn acquire(&self, thread: Option<ThreadId>, client: ClientId) -> Result<StreamPermit, ApiError> {
        let client = LimitKey::Client(client);
        let thread = thread.map(LimitKey::Thread);
        let mut counts = self.counts();
        let open = |key: &LimitKey| counts.get(key).copied().unwrap_or(0);
        if thread.is_some_and(|thread| open(&thread) >= self.limits.per_thread) {
            return Err(ApiError::too_many_streams("thread", self.limits.per_thread));
        }
        if open(&client) >= self.limits.per_client {
            return Err(ApiError::too_many_streams("client", self.limits.per_client));
        }
        for key in thread.iter().chain([&client]) {
            *counts.entry(*key).or_default() += 1;
        }
        drop(counts);
        Ok(StreamPermit {
            limiter: self.clone(),
            client,
            thread,
        })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<LimitKey, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A counted open stream.
pub struct StreamPermit {
    limiter: StreamLimiter,
    client: LimitKey,
    thread: Option<LimitKey>,
}

impl StreamPermit {
    /// Holds the permit until the response ends.
    pub(super) fn hold(self, response: Response) -> Response {
        hold_until_sent(response, self)
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut counts = self.limiter.counts();
        for key in self.thread.iter().chain([&self.client]) {
            if let Some(count) = counts.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_counts_only_while_it_is_open() {
        let limiter = StreamLimiter::new(StreamLimits {
            per_thread: 2,
            per_client: 3,
        });
        let client = |address: &str| ClientId::at(address.parse().unwrap());
        let alice = client("192.0.2.1");
        let bob = client("192.0.2.2");
        let here = Some(ThreadId::mint());
        let first = limiter.acquire(here, alice).unwrap();
        let second = limiter.acquire(here, alice).unwrap();
        let refused = limiter.acquire(here, bob).err().unwrap();
        assert_eq!(
            refused.message(),
            "This thread has 2 open streams, and more are not allowed. Close one first."
        );
        let third = limiter.acquire(None, alice).unwrap();
        let refused = limiter.acquire(Some(ThreadId::mint()), alice).err().unwrap();
        assert_eq!(
            refused.message(),
            "This client has 3 open streams, and more are not allowed. Close one first."
        );
        drop(first);
        let last = limiter.acquire(here, bob);
        assert!(last.is_ok());
        drop((last, second, third));
        assert!(limiter.counts().is_empty());
    }
}
