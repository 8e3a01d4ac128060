//! Pauses between attempts.
//!
//! A [`Backoff`] describes the pauses of every kind of attempt, and gives them in two ways. Attempts that are counted
//! elsewhere, maybe in the database, ask for the [pause](Backoff::pause) after a number of failures. Attempts that one
//! future makes take one pause after the other from [`Pauses`], which never end: `take` limits the number of retries.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use uuid::Uuid;

/// The pauses of one series of attempts, in their order and without an end.
pub type Pauses = ExponentialBackoff;

/// Pauses that grow by a factor with each attempt, up to a maximum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// The pause after the first failure.
    pub first: Duration,
    /// The growth factor, at least one.
    pub factor: f32,
    /// The maximum pause.
    pub longest: Duration,
}

impl Backoff {
    /// Creates pauses that double.
    pub const fn doubling(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            factor: 2.0,
            longest,
        }
    }

    /// Returns the pause after this number of failures, counted from one.
    pub fn pause(&self, failures: u32) -> Duration {
        let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        // An infinite growth times a first pause of zero would not be a number.
        let growth = f64::from(self.factor).powi(exponent).min(f64::MAX);
        Duration::try_from_secs_f64(self.first.as_secs_f64() * growth)
            .unwrap_or(Duration::MAX)
            .min(self.longest)
    }

    /// Returns the pause after this number of failures, spread by a key, see [`spread`].
    pub fn spread_pause(&self, failures: u32, key: Uuid) -> Duration {
        spread(self.pause(failures), key)
    }

    /// Returns the pauses of one series of attempts.
    pub fn pauses(&self) -> Pauses {
        self.builder().build()
    }

    /// Returns the pauses of one series of attempts, each with a random part of up to its own length, so that many that
    /// failed at the same time do not try again at the same time. With it, a pause can exceed the maximum.
    pub fn pauses_with_jitter(&self) -> Pauses {
        self.builder().with_jitter().build()
    }

    fn builder(&self) -> ExponentialBuilder {
        ExponentialBuilder::new()
            .with_min_delay(self.first.min(self.longest))
            .with_factor(self.factor)
            .with_max_delay(self.longest)
            .without_max_times()
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
    const TRIPLING: Backoff = Backoff {
        first: SECOND,
        factor: 3.0,
        longest: Duration::from_secs(20),
    };

    #[test]
    fn the_first_pause_of_a_series_is_no_longer_than_the_maximum() {
        let backoff = Backoff {
            longest: SECOND / 2,
            ..TRIPLING
        };
        assert_eq!(backoff.pauses().next(), Some(SECOND / 2));
        assert_eq!(backoff.pause(1), SECOND / 2);
    }

    #[test]
    fn pauses_grow_up_to_the_maximum() {
        let pauses: Vec<u64> = (0..=5).map(|failures| TRIPLING.pause(failures).as_secs()).collect();
        assert_eq!(pauses, [1, 1, 3, 9, 20, 20]);
        let doubling = Backoff::doubling(SECOND, Duration::MAX);
        assert_eq!(doubling.pause(11), 1024 * SECOND);
        assert!(doubling.pause(u32::MAX) > doubling.pause(20));
        let none = Backoff::doubling(Duration::ZERO, SECOND);
        assert_eq!(none.pause(u32::MAX), Duration::ZERO);
    }

    #[test]
    fn a_series_has_the_pauses_that_are_given_for_its_failures() {
        let given: Vec<Duration> = (1..=6).map(|failures| TRIPLING.pause(failures)).collect();
        let series: Vec<Duration> = TRIPLING.pauses().take(6).collect();
        assert_eq!(series, given);
    }

    #[test]
    fn a_random_part_is_no_longer_than_its_pause() {
        for (pause, given) in TRIPLING.pauses_with_jitter().zip(TRIPLING.pauses()).take(6) {
            assert!((given..=2 * given).contains(&pause), "{pause:?}, {given:?}");
        }
    }

    #[test]
    fn series_that_begin_together_have_different_random_parts() {
        let first: Vec<Duration> = TRIPLING.pauses_with_jitter().take(6).collect();
        let second: Vec<Duration> = TRIPLING.pauses_with_jitter().take(6).collect();
        assert_ne!(first, second);
    }

    #[test]
    fn pauses_are_spread_around_their_length() {
        let least = spread(SECOND, Uuid::nil());
        let most = spread(SECOND, Uuid::max());
        assert_eq!(least, SECOND * 3 / 4);
        assert!(most > SECOND && most < SECOND * 5 / 4, "{most:?}");
        assert_eq!(TRIPLING.spread_pause(3, Uuid::nil()), 9 * SECOND * 3 / 4);
    }
}
