//! Running time of several runs together: time in which two of them run counts once.

use std::time::Duration;

use super::time::Timestamp;

/// The length of the union of time intervals, which are added in any order.
///
/// Only the last two intervals are kept. An interval that starts before the end of the last but one is cut there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BusyTime {
    /// The sum so far, in microseconds.
    pub micros: i64,
    /// The end of the last but one interval.
    pub before: Timestamp,
    /// The start of the last interval.
    pub from: Timestamp,
    /// The end of the last interval.
    pub until: Timestamp,
}

impl BusyTime {
    /// Adds the interval from `from` to `until`.
    pub fn add(&mut self, from: Timestamp, until: Timestamp) {
        let from = from.max(self.before);
        if until <= from {
            return;
        }
        let between = |earlier: Timestamp, later: Timestamp| later.0.saturating_sub(earlier.0).max(0);
        if from > self.until {
            self.micros = self.micros.saturating_add(between(from, until));
            self.before = self.until;
            self.from = from;
            self.until = until;
            return;
        }
        let head = between(from, self.from.min(until));
        self.micros = self
            .micros
            .saturating_add(head)
            .saturating_add(between(self.until, until));
        self.from = self.from.min(from);
        self.until = self.until.max(until);
    }

    /// Returns the sum in seconds.
    pub fn seconds(&self) -> f64 {
        Duration::from_micros(u64::try_from(self.micros).unwrap_or(0)).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(stretches: &[(i64, i64)]) -> i64 {
        let mut time = BusyTime::default();
        stretches
            .iter()
            .for_each(|(from, until)| time.add(Timestamp(*from), Timestamp(*until)));
        time.micros
    }

    #[test]
    fn overlapping_intervals_count_once() {
        assert_eq!(after(&[(10, 20), (15, 25)]), 15);
        assert_eq!(after(&[(15, 25), (10, 20)]), 15, "in any order");
        assert_eq!(
            after(&[(10, 30), (15, 25), (10, 30)]),
            20,
            "an interval added twice counts once"
        );
        assert_eq!(after(&[(15, 20), (10, 30)]), 20);
    }

    #[test]
    fn gaps_between_intervals_do_not_count() {
        assert_eq!(after(&[(10, 20), (50, 60)]), 20);
        assert_eq!(after(&[(10, 20), (50, 60), (45, 70)]), 35);
        assert_eq!(
            after(&[(10, 20), (50, 60), (5, 55)]),
            50,
            "cut where the stretch before ended"
        );
        assert_eq!(after(&[(20, 20), (30, 10)]), 0);
    }
}
