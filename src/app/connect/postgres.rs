//! The checks of a Postgres server beyond its tables: the clock, the connections, and whether sessions are kept.

use std::time::Duration;

use super::{CheckOutcome, PlannedCheck};
use crate::app::{database_address, database_limits};
use crate::config::{Config, DatabaseUrl};
use crate::db::postgres_checks::{ClockDifference, check_address, clock_difference, count_connections, keeps_sessions};
use crate::db::{DbAddress, DbError, DbLimits};
use crate::domain::time::SystemClock;

/// The difference of clocks up to which nothing goes wrong.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(1);

/// Plans the checks of a Postgres server beyond its tables.
pub(super) fn plan(config: &Config) -> Vec<PlannedCheck> {
    let storage = &config.storage;
    if !storage.url.is_postgres() {
        return vec![];
    }
    let limits = database_limits(storage);
    let url = storage.session_url();
    // One connection listens for notifications, and one renews the lease. Those of a pooler are its own.
    let pooled = storage.direct_url.as_ref().map(|_| storage.url.to_string());
    let needed = if pooled.is_some() {
        1
    } else {
        i64::from(storage.connections) + 2
    };
    let name = url.to_string();
    let pooler = pooled.map(|name| {
        let address = database_address(storage);
        PlannedCheck::new("database_pooler", name, check_pooler(address, limits))
    });
    let mut checks = vec![
        PlannedCheck::new("database_clock", name.clone(), check_clock(url.clone(), limits)),
        PlannedCheck::new(
            "database_connections",
            name.clone(),
            check_connections(url.clone(), limits, needed),
        ),
        PlannedCheck::new("database_sessions", name, check_sessions(url.clone(), limits)),
    ];
    checks.extend(pooler);
    checks
}

async fn check_pooler(address: DbAddress, limits: DbLimits) -> CheckOutcome {
    match check_address(&address, limits).await {
        Ok(()) => CheckOutcome::ok("the pooler leads to the same database as `direct_url`"),
        Err(error) => CheckOutcome::fail(
            error.to_string(),
            "set `url` in [storage] to the pooler, and `direct_url` to the Postgres behind it",
        ),
    }
}

async fn check_clock(url: DatabaseUrl, limits: DbLimits) -> CheckOutcome {
    match clock_difference(url.expose(), limits, &SystemClock).await {
        Ok(difference) => describe_clock(difference),
        Err(error) => not_looked_at(&error),
    }
}

fn describe_clock(difference: ClockDifference) -> CheckOutcome {
    let seconds = difference.size.as_secs_f64();
    let direction = if difference.is_ahead { "ahead of" } else { "behind" };
    let message = format!("the clock of the database is {seconds:.3} s {direction} the clock of this machine");
    if difference.size <= MAX_CLOCK_DIFFERENCE + difference.round_trip {
        return CheckOutcome::ok(message);
    }
    CheckOutcome::warn(
        message,
        "synchronise both clocks (NTP): crons, jobs and the expiry of tokens follow the clock of this machine",
    )
}

async fn check_connections(url: DatabaseUrl, limits: DbLimits, needed: i64) -> CheckOutcome {
    match count_connections(url.expose(), limits).await {
        Ok(count) if count.free >= needed => CheckOutcome::ok(format!(
            "{} of {} are free; this server takes up to {needed}",
            count.free, count.maximum
        )),
        Ok(count) => CheckOutcome::warn(
            format!(
                "{} of {} are free, but this server takes up to {needed}",
                count.free, count.maximum
            ),
            "fine if the server is running; otherwise lower `connections` in [storage], or raise `max_connections` of Postgres",
        ),
        Err(error) => not_looked_at(&error),
    }
}

async fn check_sessions(url: DatabaseUrl, limits: DbLimits) -> CheckOutcome {
    match keeps_sessions(url.expose(), limits).await {
        Ok(true) => CheckOutcome::ok("a notification arrives: sessions are kept"),
        Ok(false) => CheckOutcome::warn(
            "no notification arrives",
            "set `direct_url` in [storage] to Postgres itself: a pooler that shares sessions between transactions is in between",
        ),
        Err(error) => not_looked_at(&error),
    }
}

/// Returns the finding for what the check of the database reports already.
fn not_looked_at(error: &DbError) -> CheckOutcome {
    CheckOutcome::warn(
        format!("could not be looked at: {error}"),
        "correct what the check of the database says",
    )
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::*;

    fn found(millis: u64, round_trip: u64) -> CheckOutcome {
        describe_clock(ClockDifference {
            size: Duration::from_millis(millis),
            is_ahead: false,
            round_trip: Duration::from_millis(round_trip),
        })
    }

    #[test]
    fn clocks_that_differ_by_more_than_a_second_are_odd_unless_the_database_is_slow() {
        assert_eq!(found(900, 1).status, CheckStatus::Ok);
        assert_eq!(found(1_500, 600).status, CheckStatus::Ok);
        let odd = found(1_500, 1);
        assert_eq!(odd.status, CheckStatus::Warn);
        assert!(odd.message.contains("1.500 s behind"), "{}", odd.message);
    }
}
