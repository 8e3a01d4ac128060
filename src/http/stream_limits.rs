//! Limits of open streams per thread and per client.
//!
//! Streams of runs and threads, waiting requests and WebSockets all count.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::response::Response;

use super::body_guard::hold_until_sent;
use super::client::ClientId;
use super::error::ApiError;
use crate::domain::account::Account;
use crate::domain::id::ThreadId;
use crate::domain::identity::Identity;
use crate::domain::quota::{QuotaKind, Quotas};

/// Counts the open streams. Cloning copies a pointer.
#[derive(Clone)]
pub struct StreamLimiter {
    counts: Arc<Mutex<HashMap<LimitKey, usize>>>,
    limits: StreamLimits,
    quotas: Arc<Quotas>,
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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum LimitKey {
    Thread(ThreadId),
    Client(ClientId),
    /// The accounts that begin with this text.
    Accounts(String),
}

impl StreamLimiter {
    /// Creates a limiter without open streams.
    pub fn new(limits: StreamLimits, quotas: Arc<Quotas>) -> Self {
        Self {
            counts: Arc::default(),
            limits,
            quotas,
        }
    }

    /// Counts one more stream of `client`, which is this caller, and of `thread` if it is known, for as long as the
    /// permit is held.
    ///
    /// # Errors
    /// 429 if the thread, the client, or the caller's key, user or tenant has reached its limit.
    pub fn acquire(
        &self,
        thread: Option<ThreadId>,
        client: ClientId,
        caller: &Identity,
    ) -> Result<StreamPermit, ApiError> {
        let is_limited = self.quotas.has_limit(|rule| rule.open_streams.is_some());
        let account = is_limited.then(|| Account::of(caller));
        let client = LimitKey::Client(client);
        let thread = thread.map(LimitKey::Thread);
        let mut counts = self.counts();
        let open = |key: &LimitKey| counts.get(key).copied().unwrap_or(0);
        if thread
            .as_ref()
            .is_some_and(|thread| open(thread) >= self.limits.per_thread)
        {
            return Err(ApiError::too_many_streams("thread", self.limits.per_thread));
        }
        if open(&client) >= self.limits.per_client {
            return Err(ApiError::too_many_streams("client", self.limits.per_client));
        }
        let mut keys: Vec<LimitKey> = thread.into_iter().chain([client]).collect();
        let rules = account.iter().flat_map(|account| self.quotas.rules_for(account));
        for applied in rules.filter(|applied| applied.rule.open_streams.is_some()) {
            let key = LimitKey::Accounts(applied.subject.to_owned());
            let count = u64::try_from(open(&key)).unwrap_or(u64::MAX);
            let checked = applied.check_count(QuotaKind::OpenStreams, count);
            checked.map_err(|reached| ApiError::quota_reached(&reached))?;
            keys.push(key);
        }
        for key in &keys {
            *counts.entry(key.clone()).or_default() += 1;
        }
        drop(counts);
        Ok(StreamPermit {
            limiter: self.clone(),
            keys,
        })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<LimitKey, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A counted open stream.
pub struct StreamPermit {
    limiter: StreamLimiter,
    /// Under which it is counted.
    keys: Vec<LimitKey>,
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
        for key in &self.keys {
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
    use crate::domain::identity::Tenant;
    use crate::domain::quota::QuotaRule;

    #[test]
    fn a_stream_counts_only_while_it_is_open() {
        let limits = StreamLimits {
            per_thread: 2,
            per_client: 3,
        };
        let limiter = StreamLimiter::new(limits, Arc::default());
        let caller = Identity::unauthenticated();
        let client = |address: &str| ClientId::at(address.parse().unwrap());
        let alice = client("192.0.2.1");
        let bob = client("192.0.2.2");
        let here = Some(ThreadId::mint());
        let first = limiter.acquire(here, alice, &caller).unwrap();
        let second = limiter.acquire(here, alice, &caller).unwrap();
        let refused = limiter.acquire(here, bob, &caller).err().unwrap();
        assert_eq!(
            refused.message(),
            "This thread has 2 open streams, and more are not allowed. Close one first."
        );
        let third = limiter.acquire(None, alice, &caller).unwrap();
        let refused = limiter.acquire(Some(ThreadId::mint()), alice, &caller).err().unwrap();
        assert_eq!(
            refused.message(),
            "This client has 3 open streams, and more are not allowed. Close one first."
        );
        drop(first);
        let last = limiter.acquire(here, bob, &caller);
        assert!(last.is_ok());
        drop((last, second, third));
        assert!(limiter.counts().is_empty());
    }

    #[test]
    fn the_streams_of_a_tenant_are_counted_together() {
        let quotas = Quotas {
            per_tenant: QuotaRule {
                open_streams: Some(1),
                ..QuotaRule::default()
            },
            ..Quotas::default()
        };
        let limiter = StreamLimiter::new(StreamLimits::default(), Arc::new(quotas));
        let of = |tenant: &str| Identity {
            tenant: Tenant::stored(tenant.to_owned()),
            ..Identity::unauthenticated()
        };
        let open = |address: &str, tenant: &str| {
            let client = ClientId::at(address.parse().unwrap());
            limiter.acquire(None, client, &of(tenant))
        };
        let first = open("192.0.2.1", "acme").unwrap();
        let refused = open("192.0.2.2", "acme").err().unwrap();
        assert_eq!(refused.code(), "quota_exceeded");
        assert!(open("192.0.2.2", "other").is_ok());
        drop(first);
        assert!(open("192.0.2.2", "acme").is_ok());
        assert!(limiter.counts().is_empty());
    }
}
