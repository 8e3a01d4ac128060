//! The sums of bytes that owners store, as they were measured last.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::domain::time::Timestamp;

/// The time after which a sum is measured again.
const STALE: Duration = Duration::from_secs(60);

/// The most owners whose sums are remembered. Beyond it, all are forgotten and measured again.
const MOST_OWNERS: usize = 16_384;

/// The measured sums, by the text with which accounts begin.
#[derive(Debug, Default)]
pub(in crate::runtime) struct StoredSums(Mutex<HashMap<String, StoredSum>>);

#[derive(Debug, Clone, Copy)]
struct StoredSum {
    /// `None` until it was measured for the first time.
    bytes: Option<u64>,
    /// The time at which measuring began.
    at: Timestamp,
    is_measured_now: bool,
}

impl StoredSums {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, StoredSum>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last sum, and whether the caller has to measure it again.
    pub(in crate::runtime) fn last_sum(&self, subject: &str, now: Timestamp) -> (Option<u64>, bool) {
        let mut sums = self.lock();
        if sums.len() >= MOST_OWNERS {
            sums.clear();
        }
        let sum = sums.entry(subject.to_owned()).or_insert(StoredSum {
            bytes: None,
            at: now,
            is_measured_now: false,
        });
        let is_due = !sum.is_measured_now && (sum.bytes.is_none() || now.since(sum.at) >= STALE);
        if is_due {
            sum.at = now;
            sum.is_measured_now = true;
        }
        (sum.bytes, is_due)
    }

    /// Records a measured sum; `None` if measuring failed.
    pub(in crate::runtime) fn record(&self, subject: &str, bytes: Option<u64>) {
        if let Some(sum) = self.lock().get_mut(subject) {
            sum.is_measured_now = false;
            sum.bytes = bytes.or(sum.bytes);
        }
    }
}
