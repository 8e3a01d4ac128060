//! The rates of requests: of accounts, by their quotas, and of failed authentications, by client address.
//!
//! They are counted in this process. `/ok`, `/ready` and the pages of the document are never limited.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use governor::clock::Clock as GovernorClock;
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};

use super::client::ClientId;
use super::error::ApiError;
use crate::domain::account::Account;
use crate::domain::identity::Identity;
use crate::domain::quota::{QuotaKind, Quotas};
use crate::domain::time::{Clock, Timestamp};

/// The most accounts, and the most addresses, that are remembered at the same time.
const MAX_KEYS: usize = 65_536;

/// The pause between two times at which idle accounts and addresses are forgotten.
const CLEANING: Duration = Duration::from_secs(60);

/// The pause between two such times while the memory is full.
const CLEANING_WHEN_FULL: Duration = Duration::from_secs(1);

/// The wait of a request for which there is no memory.
const FULL_WAIT: Duration = Duration::from_secs(1);

/// The clock of the server, as the limiters read it.
#[derive(Clone)]
struct LimiterClock(Arc<dyn Clock>);

impl GovernorClock for LimiterClock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.now().since(Timestamp(0))
    }
}

/// A limiter with one state for each key, which forgets idle keys.
struct KeyedLimiter<K: Hash + Eq + Clone> {
    limiter: RateLimiter<K, HashMapStateStore<K>, LimiterClock, NoOpMiddleware<Duration>>,
    clock: LimiterClock,
    max_keys: usize,
    cleaned: Mutex<Duration>,
}

impl<K: Hash + Eq + Clone> KeyedLimiter<K> {
    fn new(quota: Quota, clock: LimiterClock, max_keys: usize) -> Self {
        Self {
            limiter: RateLimiter::hashmap_with_clock(quota, clock.clone()),
            cleaned: Mutex::new(clock.now()),
            clock,
            max_keys,
        }
    }

    /// Counts one event of `key`. Returns the time to wait if there were too many.
    fn count(&self, key: &K) -> Result<(), Duration> {
        let now = self.clock.now();
        let is_full = self.limiter.len() >= self.max_keys;
        self.forget_idle(now, if is_full { CLEANING_WHEN_FULL } else { CLEANING });
        if is_full && self.limiter.len() >= self.max_keys {
            return Err(FULL_WAIT);
        }
        self.limiter
            .check_key(key)
            .map_err(|refused| refused.wait_time_from(now))
    }

    /// Forgets the keys whose state equals that of a new key, unless that was done within the last `pause`.
    fn forget_idle(&self, now: Duration, pause: Duration) {
        {
            let mut cleaned = self.cleaned.lock().unwrap_or_else(PoisonError::into_inner);
            if now.saturating_sub(*cleaned) < pause {
                return;
            }
            *cleaned = now;
        }
        self.limiter.retain_recent();
        self.limiter.shrink_to_fit();
    }
}

/// The rates of requests.
pub(super) struct RateLimits {
    quotas: Arc<Quotas>,
    clock: Arc<dyn Clock>,
    /// One limiter for each rate that a rule allows. The key is the text with which accounts begin.
    by_rate: BTreeMap<NonZeroU32, KeyedLimiter<String>>,
    failures: Option<KeyedLimiter<ClientId>>,
    /// The addresses for which the hook is not asked before this time.
    blocked: Mutex<HashMap<ClientId, Timestamp>>,
}

impl RateLimits {
    /// Creates the limits of these quotas.
    pub(super) fn new(quotas: Arc<Quotas>, clock: Arc<dyn Clock>) -> Self {
        let limiter_clock = LimiterClock(Arc::clone(&clock));
        let levels = [&quotas.per_key, &quotas.per_user, &quotas.per_tenant];
        let by_rate = levels
            .into_iter()
            .chain(quotas.tenants.values())
            .filter_map(|rule| rule.requests_per_second)
            .map(|rate| {
                let limiter = KeyedLimiter::new(Quota::per_second(rate), limiter_clock.clone(), MAX_KEYS);
                (rate, limiter)
            });
        let failures = quotas
            .failed_authentications_per_minute
            .map(|rate| KeyedLimiter::new(Quota::per_minute(rate), limiter_clock.clone(), MAX_KEYS));
        Self {
            by_rate: by_rate.collect(),
            failures,
            blocked: Mutex::default(),
            clock,
            quotas,
        }
    }

    /// Counts a request of a caller.
    ///
    /// # Errors
    /// 429 if the caller's key, user or tenant has sent too many.
    pub(super) fn count_request(&self, caller: &Identity) -> Result<(), ApiError> {
        if self.by_rate.is_empty() {
            return Ok(());
        }
        let account = Account::of(caller);
        for applied in self.quotas.rules_for(&account) {
            let limiter = applied
                .rule
                .requests_per_second
                .and_then(|rate| self.by_rate.get_key_value(&rate));
            let Some((rate, limiter)) = limiter else { continue };
            limiter
                .count(&applied.subject.to_owned())
                .map_err(|wait| ApiError::quota_reached(&applied.reached(QuotaKind::Requests, rate, wait)))?;
        }
        Ok(())
    }

    /// Returns the time for which the hook is not asked about a client, if too many of its authentications have failed.
    pub(super) fn wait_after_failures(&self, client: ClientId) -> Option<Duration> {
        self.failures.as_ref()?;
        let now = self.clock.now();
        let until = self.blocked().get(&client).copied()?;
        (now < until).then(|| until.since(now))
    }

    /// Counts a failed authentication of a client.
    ///
    /// # Errors
    /// 429 if there were too many. The hook is not asked about the client for some time then.
    pub(super) fn count_failure(&self, client: ClientId) -> Result<(), ApiError> {
        let Some(failures) = &self.failures else { return Ok(()) };
        let Err(wait) = failures.count(&client) else {
            return Ok(());
        };
        let now = self.clock.now();
        let mut blocked = self.blocked();
        if blocked.len() >= MAX_KEYS {
            blocked.retain(|_, until| now < *until);
        }
        if blocked.len() < MAX_KEYS {
            blocked.insert(client, now.plus(wait));
        }
        Err(ApiError::too_many_failed_authentications(wait))
    }

    fn blocked(&self) -> MutexGuard<'_, HashMap<ClientId, Timestamp>> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::time::ManualClock;

    fn rate(number: u32) -> NonZeroU32 {
        NonZeroU32::new(number).expect("not zero")
    }

    fn clock() -> (ManualClock, LimiterClock) {
        let clock = ManualClock::starting_at(Timestamp(1_000_000_000_000_000));
        (clock.clone(), LimiterClock(Arc::new(clock)))
    }

    #[test]
    fn a_key_that_sends_too_much_waits_and_others_do_not() {
        let (manual, clock) = clock();
        let limiter = KeyedLimiter::new(Quota::per_second(rate(2)), clock, 10);
        assert_eq!(limiter.count(&"a"), Ok(()));
        assert_eq!(limiter.count(&"a"), Ok(()));
        assert_eq!(limiter.count(&"a"), Err(Duration::from_millis(500)));
        assert_eq!(limiter.count(&"b"), Ok(()));
        manual.advance(Duration::from_millis(500));
        assert_eq!(limiter.count(&"a"), Ok(()));
        assert!(limiter.count(&"a").is_err());
    }

    #[test]
    fn idle_keys_are_forgotten_and_the_number_of_keys_is_bounded() {
        let (manual, clock) = clock();
        let limiter = KeyedLimiter::new(Quota::per_minute(rate(1)), clock, 3);
        for key in 0..3 {
            assert_eq!(limiter.count(&key), Ok(()));
        }
        assert_eq!(limiter.count(&3), Err(FULL_WAIT));
        assert_eq!(limiter.limiter.len(), 3);
        manual.advance(Duration::from_secs(121));
        assert_eq!(limiter.count(&3), Ok(()));
        assert_eq!(limiter.limiter.len(), 1);
    }
}
