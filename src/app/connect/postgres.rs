//! The checks of a Postgres server beyond its tables: the clock, the connections, and whether sessions are kept.

use std::time::Duration;

use super::{Finding, PlannedCheck};
use crate::app::database_limits;
use crate::config::{Config, DatabaseUrl};
use crate::db::postgres_checks::{ClockDifference, clock_difference, count_connections, is_postgres, keeps_sessions};
use crate::db::{DbError, DbLimits};
use crate::domain::time::SystemClock;

/// The difference of clocks up to which nothing goes wrong.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(1);

/// Plans the checks of a Postgres server beyond its tables.
pub(super) fn plan(config: &Config) -> Vec<PlannedCheck> {
    let url = &config.storage.url;
    if !is_postgres(url.expose()) {
        return vec![];
    }
    let limits = database_limits(&config.storage);
    // One more connection listens for notifications.
    let needed = i64::from(config.storage.connections) + 1;
    let name = url.to_string();
    vec![
        PlannedCheck::new("database_clock", name.clone(), check_clock(url.clone(), limits)),
        PlannedCheck::new(
            "database_connections",
            name.clone(),
            check_connections(url.clone(), limits, needed),
        ),
        PlannedCheck::new("database_sessions", name, check_sessions(url.clone(), limits)),
    ]
}

async fn check_clock(url: DatabaseUrl, limits: DbLimits) -> Finding {
    match clock_difference(url.expose(), limits, &SystemClock).await {
        Ok(difference) => describe_clock(difference),
        Err(error) => not_looked_at(&error),
    }
}

fn describe_clock(difference: ClockDifference) -> Finding {
    let seconds = difference.size.as_secs_f64();
    let direction = if difference.is_ahead { "ahead of" } else { "behind" };
    let message = format!("the clock of the database is {seconds:.3} s {direction} the clock of this machine");
    if difference.size <= MAX_CLOCK_DIFFERENCE + difference.round_trip {
        return Finding::ok(message);
    }
    Finding::warn(
        message,
        "synchronise both clocks (NTP): crons, jobs and the expiry of tokens follow the clock of this machine",
    )
}

async fn check_connections(url: DatabaseUrl, limits: DbLimits, needed: i64) -> Finding {
    match count_connections(url.expose(), limits).await {
        Ok(count) if count.free >= needed => Finding::ok(format!(
            "{} of {} are free; this server takes up to {needed}",
            count.free, count.maximum
        )),
        Ok(count) => Finding::warn(
            format!(
                "{} of {} are free, but this server takes up to {needed}",
                count.free, count.maximum
            ),
            "fine if the server is running; otherwise lower `connections` in [storage], or raise `max_connections` of Postgres",
        ),
        Err(error) => not_looked_at(&error),
    }
}

async fn check_sessions(url: DatabaseUrl, limits: DbLimits) -> Finding {
    match keeps_sessions(url.expose(), limits).await {
        Ok(true) => Finding::ok("a notification arrives: sessions are kept"),
        Ok(false) => Finding::warn(
            "no notification arrives",
            "let the server reach Postgres itself, or a pooler that keeps sessions: others share them between transactions",
        ),
        Err(error) => not_looked_at(&error),
    }
}

/// Returns the finding for what the check of the database reports already.
fn not_looked_at(error: &DbError) -> Finding {
    Finding::warn(
        format!("could not be looked at: {error}"),
        "correct what the check of the database says",
    )
}
