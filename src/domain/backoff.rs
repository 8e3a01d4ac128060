//! How long to wait before something that failed, or has not changed, is tried again.

use std::time::Duration;

use uuid::Uuid;

/// Pauses that grow by a factor from one attempt to the next, up to the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure.
    pub first: Duration,
    /// By how much each further one is longer.
    pub factor: u32,
    /// The longest pause.
    pub longest: Duration,
}

impl Backoff {
    /// Pauses that double.
    pub const fn doubling(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            factor: 2,
            longest,
        }
    }

    /// The pause after so many failures, counted from one.
    pub fn pause(&self, failures: u32) -> Duration {
        let growth = self.factor.saturating_pow(failures.saturating_sub(1));
        self.first.saturating_mul(growth).min(self.longest)
    }
}

/// A pause of about this length, between three and five quarters of it: many that wait for one server shall not come back at
/// one moment. For one key it is always the same, so that a pause is known before it is made.
pub fn spread(pause: Duration, key: Uuid) -> Duration {
    let share = u32::from(key.as_bytes()[15]);
    pause * 3 / 4 + pause * share / 512
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let tripling = Backoff {
            first: SECOND,
            factor: 3,
            longest: 20 * SECOND,
        };
        let pauses: Vec<u64> = (0..=5).map(|failures| tripling.pause(failures).as_secs()).collect();
        assert_eq!(pauses, [1, 1, 3, 9, 20, 20]);
        let doubling = Backoff::doubling(SECOND, Duration::MAX);
        assert_eq!(doubling.pause(11), 1024 * SECOND);
        assert!(doubling.pause(u32::MAX) > doubling.pause(20));
    }

    #[test]
    fn pauses_are_spread_around_their_length() {
        let least = spread(SECOND, Uuid::nil());
        let most = spread(SECOND, Uuid::max());
        assert_eq!(least, SECOND * 3 / 4);
        assert!(most > SECOND && most < SECOND * 5 / 4, "{most:?}");
    }
}
