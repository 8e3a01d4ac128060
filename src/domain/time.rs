//! Time: instants as they are stored, and the clock.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, NaiveDateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

/// An instant: microseconds since 1970-01-01 UTC. An integer, since texts do not sort reliably in every database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Returns the instant `after` later.
    pub fn plus(self, after: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(after.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// Returns the instant `before` earlier.
    pub fn minus(self, before: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(i64::try_from(before.as_micros()).unwrap_or(i64::MAX)),
        )
    }

    /// Returns the time from `earlier` to this instant; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Parses an ISO 8601 text; without an offset it is in UTC.
    pub fn read(text: &str) -> Option<Self> {
        let with_offset = DateTime::parse_from_rfc3339(text).map(|instant| instant.to_utc());
        let instant = with_offset
            .or_else(|_| NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M:%S%.f").map(|instant| instant.and_utc()));
        instant.ok().map(|instant| Self(instant.timestamp_micros()))
    }

    /// Returns ISO 8601 in UTC to the second, as in `2026-11-21T08:40:26Z`.
    pub fn to_second(self) -> String {
        let instant = DateTime::<Utc>::from_timestamp_micros(self.0).unwrap_or_default();
        instant.to_rfc3339_opts(SecondsFormat::Secs, true)
    }

    /// Parses an HTTP date, such as `Sat, 21 Nov 2026 08:40:26 GMT`.
    pub fn read_http(text: &str) -> Option<Self> {
        let instant = DateTime::parse_from_rfc2822(text).ok()?;
        Some(Self(instant.timestamp_micros()))
    }

    /// Returns the milliseconds since 1970.
    pub fn millis(self) -> i64 {
        self.0 / 1000
    }
}

impl fmt::Display for Timestamp {
    /// Writes ISO 8601 with microseconds and offset, as in `2026-11-21T08:40:26.062942+00:00`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instant = DateTime::<Utc>::from_timestamp_micros(self.0).unwrap_or_default();
        f.write_str(&instant.to_rfc3339_opts(SecondsFormat::Micros, false))
    }
}

/// A function that is called when a clock is moved.
pub type ClockListener = Box<dyn Fn() + Send + Sync>;

/// A source of the current time.
pub trait Clock: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Timestamp;

    /// Has a function called whenever the clock is moved by hand. Those who sleep until a time of the clock have to look at
    /// it again. By default nobody moves the clock.
    fn when_moved(&self, _listener: ClockListener) {}
}

/// The system clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the machine's clock is read"
    )]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }
}

/// A clock for tests, which advances only on request.
#[derive(Clone, Default)]
pub struct ManualClock(Arc<ManualTime>);

#[derive(Default)]
struct ManualTime {
    micros: AtomicI64,
    listeners: Mutex<Vec<ClockListener>>,
}

impl ManualClock {
    /// Creates a clock that shows `start`.
    pub fn starting_at(start: Timestamp) -> Self {
        Self(Arc::new(ManualTime {
            micros: AtomicI64::new(start.0),
            ..ManualTime::default()
        }))
    }

    /// Advances the clock.
    pub fn advance(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        self.0.micros.fetch_add(micros, Ordering::SeqCst);
        let listeners = self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().for_each(|listener| listener());
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualClock").field(&self.now()).finish()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.micros.load(Ordering::SeqCst))
    }

    fn when_moved(&self, listener: ClockListener) {
        let mut listeners = self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.push(listener);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_dates_have_a_weekday_and_gmt() {
        assert_eq!(
            Timestamp::read_http("Sat, 21 Nov 2026 08:40:26 GMT"),
            Some(Timestamp(1_795_250_426_000_000))
        );
        assert_eq!(Timestamp::read_http("yesterday"), None);
    }

    #[test]
    fn whoever_listens_to_a_clock_is_told_after_each_move() {
        let clock = ManualClock::starting_at(Timestamp(5));
        let seen = Arc::new(Mutex::new(vec![]));
        let told = Arc::clone(&seen);
        let same = clock.clone();
        clock.when_moved(Box::new(move || told.lock().unwrap().push(same.now().0)));
        clock.advance(Duration::from_micros(2));
        clock.clone().advance(Duration::from_micros(3));
        assert_eq!(*seen.lock().unwrap(), [7, 10]);
    }

    #[test]
    fn an_instant_is_parsed_with_and_without_an_offset() {
        let noon = Some(Timestamp(1_795_262_400_000_000));
        for text in [
            "2026-11-21T12:00:00Z",
            "2026-11-21T13:00:00+01:00",
            "2026-11-21T12:00:00",
            "2026-11-21T12:00:00.000",
        ] {
            assert_eq!(Timestamp::read(text), noon, "{text}");
        }
        assert_eq!(
            noon.map(|noon| noon.to_string()).as_deref(),
            Some("2026-11-21T12:00:00.000000+00:00")
        );
        for text in ["", "tomorrow", "2026-13-01T00:00:00Z", "2026-11-21"] {
            assert_eq!(Timestamp::read(text), None, "{text}");
        }
    }
}
