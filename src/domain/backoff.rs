//! Pauses between attempts.

use std::time::Duration;

use uuid::Uuid;

/// Pauses that grow by a factor with each attempt, up to a maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure.
    pub first: Duration,
    /// The growth factor.
    pub factor: u32,
    /// The maximum pause.
    pub longest: Duration,
}

impl Backoff {
    /// Creates pauses that double.
    pub const fn doubling(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            factor: 2,
            longest,
        }
    }

    /// Returns the pause after this number of failures, counted from one.
    pub fn pause(&self, failures: u32) -> Duration {
        let growth = self.factor.saturating_pow(failures.saturating_sub(1));
        self.first.saturating_mul(growth).min(self.longest)
    }
}

/// Returns a pause between three and five quarters of `pause`, so that many clients of one server do not return at
/// the same time. The result is the same for the same key, so that it can be computed in advance.
pub fn spread(pause: Duration, key: Uuid) -> Duration {
    let share = u32::from(key.as_bytes()[15]);
    pause * 3 / 4 + pause * share / 512
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_grow_up_to_the_maximum() {
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
