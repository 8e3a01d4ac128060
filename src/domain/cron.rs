//! Runs that are started by the clock, again and again.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::Tz;
use croner::parser::{CronParser, Seconds, Year};
use serde_json::{Map, Value};

use super::Invalid;
use super::id::{AssistantId, CronId, ThreadId};
use super::run::RunRequest;
use super::time::Timestamp;

/// A wish for runs that are started by the clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Cron {
    /// Identifies it.
    pub id: CronId,
    /// Who shall run.
    pub assistant: AssistantId,
    /// Where; none gives every run a thread of its own.
    pub thread: Option<ThreadId>,
    /// When.
    pub schedule: Schedule,
    /// After this instant no run is started any more.
    pub end: Option<Timestamp>,
    /// Whether runs are started at all.
    pub enabled: bool,
    /// Whether a thread of a run's own stays when the run is over.
    pub keep_threads: bool,
    /// When the next run is due; none when there will not be one.
    pub due_at: Option<Timestamp>,
    /// What each run is asked to do.
    pub request: RunRequest,
    /// The wish as the client wrote it, for clients.
    pub payload: Map<String, Value>,
    /// The requester's notes, searchable; each run has them too.
    pub metadata: Map<String, Value>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When a client last changed it.
    pub updated_at: Timestamp,
}

impl Cron {
    /// The first due time behind `now`, unless it lies behind the end.
    pub fn next_after(&self, now: Timestamp) -> Option<Timestamp> {
        self.schedule
            .next_after(now)
            .filter(|next| self.end.is_none_or(|end| *next <= end))
    }
}

/// The longest schedule that is read, in bytes.
const LONGEST: usize = 256;

/// Five fields (minute, hour, day of the month, month, day of the week) and the time zone in which they are meant.
///
/// When a zone moves its clocks forward, a fixed time that the jump leaves out comes right after the jump; when it moves
/// them back, a fixed time that comes twice counts once, the first time. What comes at every step of an hour or of a day
/// (`*/5 * * * *`) follows the time that really passes.
#[derive(Clone)]
pub struct Schedule {
    text: String,
    zone: Option<Tz>,
    pattern: croner::Cron,
}

impl Schedule {
    /// The schedule `text`, meant in the time zone of this IANA name, or in UTC.
    ///
    /// # Errors
    /// If it is none, if it never comes due, or if there is no such time zone.
    pub fn read(text: &str, zone: Option<&str>) -> Result<Self, Invalid> {
        let zone = zone.map(Tz::from_str).transpose().map_err(|_| {
            let reason = "must be the IANA name of a time zone, as in 'America/New_York'";
            Invalid::new("timezone", reason)
        })?;
        let wrong = |reason: String| {
            let form = "five fields (minute hour day_of_month month day_of_week), as in '*/5 * * * *'";
            Invalid::new("schedule", format!("must be {form}: {reason}"))
        };
        if text.len() > LONGEST {
            return Err(wrong(format!("this is longer than {LONGEST} bytes")));
        }
        if text.split_whitespace().count() != 5 {
            return Err(wrong(format!("{text:?} has another number of them")));
        }
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        let pattern = parser
            .parse(text)
            .map_err(|error| wrong(format!("{text:?} is not: {error}")))?;
        let schedule = Self {
            text: text.to_owned(),
            zone,
            pattern,
        };
        // Any instant will do: what never comes after this one never comes.
        if schedule.next_after(Timestamp(0)).is_none() {
            return Err(wrong(format!("{text:?} never comes")));
        }
        Ok(schedule)
    }

    /// The schedule as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The IANA name of its time zone; none for UTC.
    pub fn zone(&self) -> Option<&'static str> {
        self.zone.map(Tz::name)
    }

    /// The first due time behind `now`.
    pub fn next_after(&self, now: Timestamp) -> Option<Timestamp> {
        let zone = self.zone.unwrap_or(Tz::UTC);
        let mut from = DateTime::<Utc>::from_timestamp_micros(now.0)?;
        // Where clocks are moved back the same time comes twice; what is found is behind `now` at the latest beyond that.
        for _ in 0..LONGEST_OVERLAP_H {
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

/// No zone ever moved its clocks by more than a day.
const LONGEST_OVERLAP_H: u32 = 25;

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
