//! For how long several were at work together: time at which two of them were counts once.

use std::time::Duration;

use super::time::Timestamp;

/// Time at which somebody was at work, put together from stretches that are told in any order.
///
/// Two stretches are remembered apart: one that reaches further back than the gap before the last one is cut there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BusyTime {
    /// Microseconds at work so far.
    pub micros: i64,
    /// Where the stretch before the last one ended.
    pub before: Timestamp,
    /// Where the last one began.
    pub from: Timestamp,
    /// Up to when it goes.
    pub until: Timestamp,
}

impl BusyTime {
    /// Notes that somebody was at work all the time from `from` until `until`.
    pub fn covers(&mut self, from: Timestamp, until: Timestamp) {
        let from = from.max(self.before);
        if until <= from {
            return;
        }
        let between = |earlier: Timestamp, later: Timestamp| later.0.saturating_sub(earlier.0).max(0);
        if from > self.until {
            self.micros = self.micros.saturating_add(between(from, until));
            (self.before, self.from, self.until) = (self.until, from, until);
            return;
        }
        let head = between(from, self.from.min(until));
        self.micros = self
            .micros
            .saturating_add(head)
            .saturating_add(between(self.until, until));
        (self.from, self.until) = (self.from.min(from), self.until.max(until));
    }

    /// The time as seconds.
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
            .for_each(|(from, until)| time.covers(Timestamp(*from), Timestamp(*until)));
        time.micros
    }

    #[test]
    fn time_that_two_spend_at_work_counts_once() {
        assert_eq!(after(&[(10, 20), (15, 25)]), 15);
        assert_eq!(after(&[(15, 25), (10, 20)]), 15, "in any order");
        assert_eq!(
            after(&[(10, 30), (15, 25), (10, 30)]),
            20,
            "nor twice when it is told twice"
        );
        assert_eq!(after(&[(15, 20), (10, 30)]), 20);
    }

    #[test]
    fn time_in_which_nobody_is_at_work_does_not_count() {
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
