//! A bounded cache whose entries expire.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::domain::time::Timestamp;

/// A cache with at most `capacity` entries, each of which is valid until its time.
pub(super) struct ExpiringCache<K, V> {
    entries: Mutex<HashMap<K, CachedValue<V>>>,
    capacity: usize,
}

/// A value in a cache.
pub(super) struct CachedValue<V> {
    /// The value.
    pub(super) value: V,
    /// The time until which it is valid.
    pub(super) valid_until: Timestamp,
}

impl<K: Eq + Hash, V: Clone> ExpiringCache<K, V> {
    /// Creates an empty cache.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            entries: Mutex::default(),
            capacity,
        }
    }

    /// Returns the value under this key, unless it has expired.
    pub(super) fn get(&self, key: &K, now: Timestamp) -> Option<V> {
        let entries = self.entries();
        let entry = entries.get(key).filter(|entry| now < entry.valid_until);
        entry.map(|entry| entry.value.clone())
    }

    /// Stores a value, if `is_current` still holds. A [`ExpiringCache::remove`] of the same key comes either before
    /// that check or after the value was stored, never in between.
    ///
    /// A full cache first drops what has expired, and everything if that was nothing: values are looked up again.
    pub(super) fn insert_if(&self, key: K, entry: CachedValue<V>, now: Timestamp, is_current: impl FnOnce() -> bool) {
        let mut entries = self.entries();
        if !is_current() {
            return;
        }
        if entries.len() >= self.capacity {
            entries.retain(|_, entry| now < entry.valid_until);
        }
        if entries.len() >= self.capacity {
            entries.clear();
        }
        entries.insert(key, entry);
    }

    /// Removes the value under this key.
    pub(super) fn remove(&self, key: &K) {
        self.entries().remove(key);
    }

    /// Removes all values.
    pub(super) fn clear(&self) {
        self.entries().clear();
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<K, CachedValue<V>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(value: i32, time: i64) -> CachedValue<i32> {
        CachedValue {
            value,
            valid_until: Timestamp(time),
        }
    }

    #[test]
    fn an_entry_expires() {
        let cache = ExpiringCache::new(2);
        cache.insert_if("a", until(1, 10), Timestamp(0), || true);
        assert_eq!(cache.get(&"a", Timestamp(9)), Some(1));
        assert_eq!(cache.get(&"a", Timestamp(10)), None);
    }

    #[test]
    fn a_full_cache_takes_new_entries_and_does_not_grow() {
        let cache = ExpiringCache::new(3);
        for key in 0..100 {
            cache.insert_if(key, until(key, 1000), Timestamp(0), || true);
            assert_eq!(cache.get(&key, Timestamp(0)), Some(key));
            assert!(cache.entries().len() <= 3);
        }
    }

    #[test]
    fn what_is_no_longer_current_is_not_stored() {
        let cache = ExpiringCache::new(3);
        cache.insert_if("a", until(1, 10), Timestamp(0), || false);
        assert_eq!(cache.get(&"a", Timestamp(0)), None);
    }
}
