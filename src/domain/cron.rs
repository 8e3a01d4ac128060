//! Crons: schedules that start runs, and the calculation of due times.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::Tz;
use croner::parser::{CronParser, Seconds, Year};
use serde_json::{Map, Value};

use super::Invalid;
use super::access::Ownership;
use super::id::{AssistantId, CronId, ThreadId};
use super::run::RunRequest;
use super::time::Timestamp;

/// A schedule that starts runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Cron {
    /// The id.
    pub id: CronId,
    /// The owner and the tenant of the cron and of the threads that it creates.
    pub ownership: Ownership,
    /// The assistant to run.
    pub assistant: AssistantId,
    /// The thread of the runs; none to give every run a new thread.
    pub thread: Option<ThreadId>,
    /// The schedule.
    pub schedule: Schedule,
    /// The time after which no run is started.
    pub end: Option<Timestamp>,
    /// True if runs are started at all.
    pub enabled: bool,
    /// True if a thread that was created for a run is kept when the run ends.
    pub keep_threads: bool,
    /// The time of the next run; none if there is none.
    pub due_at: Option<Timestamp>,
    /// The request for each run.
    pub request: RunRequest,
    /// The request for the cron as the client wrote it, for responses.
    pub payload: Map<String, Value>,
    /// The client's metadata, searchable and copied to each run.
    pub metadata: Map<String, Value>,
    /// The time of creation.
    pub created_at: Timestamp,
    /// The time of the last change by a client.
    pub updated_at: Timestamp,
}

impl Cron {
    /// Returns the first due time after `now`, unless it is later than `end`.
    pub fn next_after(&self, now: Timestamp) -> Option<Timestamp> {
        self.schedule
            .next_after(now)
            .filter(|next| self.end.is_none_or(|end| *next <= end))
    }
}

/// The maximum length of a schedule, in bytes.
const MAX_SCHEDULE_BYTES: usize = 256;

/// The nicknames of schedules, each with the fields for which it stands.
const NICKNAMES: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];

/// Returns the fields of a schedule, which may be a nickname.
fn fields_of(text: &str) -> &str {
    let named = NICKNAMES
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(text.trim()))
        .map(|(_, fields)| *fields);
    named.unwrap_or(text)
}

/// A cron expression of five fields (minute, hour, day of the month, month, day of the week) in a time zone, or a
/// nickname of one (`@daily`).
///
/// A sixth field is refused. It holds the seconds, and expressions are written with the seconds first as well as last:
/// `0 0 9 * * *` is due once a day, or every second of the first minute of the ninth of each month.
///
/// When the clocks of the zone go forward, a fixed time that is skipped becomes due right after the skipped hour; when
/// they go back, a fixed time that occurs twice is due once, the first time. A schedule that repeats within an hour or
/// a day (`*/5 * * * *`) follows elapsed time.
#[derive(Clone)]
pub struct Schedule {
    text: String,
    zone: Option<Tz>,
    pattern: croner::Cron,
}

impl Schedule {
    /// Parses a schedule in the time zone with this IANA name, or in UTC.
    ///
    /// # Errors
    /// Returns an error if the text is no cron expression or is never due, or if there is no such time zone.
    pub fn read(text: &str, zone: Option<&str>) -> Result<Self, Invalid> {
        let zone = zone.map(Tz::from_str).transpose().map_err(|_| {
            let reason = "must be the IANA name of a time zone, as in 'America/New_York'";
            Invalid::new("timezone", reason)
        })?;
        let invalid = |reason: String| {
            let form = "five fields (minute hour day_of_month month day_of_week), as in '*/5 * * * *', or a nickname \
                such as '@daily'";
            Invalid::new("schedule", format!("must be {form}: {reason}"))
        };
        if text.len() > MAX_SCHEDULE_BYTES {
            return Err(invalid(format!("this is longer than {MAX_SCHEDULE_BYTES} bytes")));
        }
        let fields = fields_of(text);
        if fields.split_whitespace().count() != 5 {
            return Err(invalid(format!("{text:?} does not have five")));
        }
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        let pattern = parser
            .parse(fields)
            .map_err(|error| invalid(format!("{text:?} is invalid: {error}")))?;
        let schedule = Self {
            text: text.to_owned(),
            zone,
            pattern,
        };
        // Any start will do: an expression that is never due after this time is never due.
        if schedule.next_after(Timestamp(0)).is_none() {
            return Err(invalid(format!("{text:?} is never due")));
        }
        Ok(schedule)
    }

    /// Returns the expression as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the IANA name of the time zone; none for UTC.
    pub fn zone(&self) -> Option<&'static str> {
        self.zone.map(Tz::name)
    }

    /// Returns the first due time after `now`.
    pub fn next_after(&self, now: Timestamp) -> Option<Timestamp> {
        let zone = self.zone.unwrap_or(Tz::UTC);
        let mut from = DateTime::<Utc>::from_timestamp_micros(now.0)?;
        // When clocks go back, local times repeat, and the result may not be after `now` until the overlap has passed.
        for _ in 0..MAX_OVERLAP_HOURS {
            let found = self
                .pattern
                .find_next_occurrence(&from.with_timezone(&zone), false)
                .ok()?;
            let next = Timestamp(found.timestamp_micros());
            if next > now {
                return Some(next);
            }
            from = from.checked_add_signed(TimeDelta::hours(1))?;
        }
        None
    }
}

/// The number of hours to try. No time zone ever moved its clocks by more than a day.
const MAX_OVERLAP_HOURS: u32 = 25;

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.zone == other.zone
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {}", self.text, self.zone().unwrap_or("UTC"))
    }
}

#[cfg(test)]
mod tests;
