//! Whether Postgres is in reach, as the connection that listens finds out.
//!
//! While it is not, every task that uses the database fails again and again. The cause is logged once, when the listener
//! cannot connect, and the failures of the others are details ([`warn_of`]).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::{PgConnection, Row, raw_sql};
use tokio::time::Instant;

use super::error::DbError;

/// The idle time after which a connection is checked before its next use.
const TRUSTED_IDLE: Duration = Duration::from_secs(30);

/// The time in which other servers connect again when the database is back: longer than the longest pause between two
/// tries of the pool.
const SETTLING: Duration = Duration::from_secs(4);

/// The reachability of the database, as the listener finds out. Shared with the pool.
#[derive(Debug)]
pub(super) struct Reachability(Mutex<ReachState>);

#[derive(Debug)]
struct ReachState {
    /// The time at which a connection of the listener was last made or lost.
    changed: Instant,
    /// The time since which no connection can be made.
    out_since: Option<Instant>,
    /// True if the connection of the listener was lost before.
    was_lost: bool,
}

impl Default for Reachability {
    fn default() -> Self {
        Self(Mutex::new(ReachState {
            changed: Instant::now(),
            out_since: None,
            was_lost: false,
        }))
    }
}

impl Reachability {
    /// Notes that the connection of the listener is lost: others that were idle meanwhile may be lost, too.
    pub(super) fn connection_is_lost(&self) {
        self.change(|state| {
            state.changed = Instant::now();
            state.was_lost = true;
        });
    }

    /// Notes that no connection can be made, and logs the cause if one could be before.
    pub(super) fn is_out(&self, error: &DbError) {
        let now = Instant::now();
        let is_news = self.change(|state| {
            let is_news = state.out_since.is_none();
            state.out_since.get_or_insert(now);
            is_news
        });
        if is_news {
            tracing::warn!(
                %error,
                "the database is out of reach: runs wait for it, and requests get the status 503"
            );
        }
    }

    /// Notes that a connection was made, and logs it if none could be before.
    pub(super) fn is_back(&self) {
        let now = Instant::now();
        let out_since = self.change(|state| {
            state.changed = now;
            state.out_since.take()
        });
        if let Some(since) = out_since {
            let seconds = (now - since).as_secs_f64();
            tracing::info!(seconds, "the database is in reach again");
        }
    }

    /// Returns whether a connection that was idle for so long is used without a check: the check costs a round trip.
    pub(super) fn trusts(&self, idle: Duration) -> bool {
        idle < self.change(|state| state.changed.elapsed()).min(TRUSTED_IDLE)
    }

    /// Returns whether the listener is connected for the first time, or has been for [`SETTLING`].
    pub(super) fn is_settled(&self) -> bool {
        self.change(|state| !state.was_lost || (state.out_since.is_none() && state.changed.elapsed() >= SETTLING))
    }

    fn change<T>(&self, change: impl FnOnce(&mut ReachState) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Checks that a new connection leads to a server that takes writes. During a failover an address may already lead to
/// the next server, which is still a standby, and a connection to it would stay in the pool.
///
/// # Errors
/// If the server is a standby, or the connection fails.
pub(super) async fn check_writable(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    // One message: behind a pooler the next one may reach another session.
    let row = raw_sql("select pg_is_in_recovery()").fetch_one(conn).await?;
    let is_standby: bool = row.try_get(0)?;
    match is_standby {
        true => Err(sqlx::Error::Io(std::io::Error::new(
            std::io::ErrorKind::ReadOnlyFilesystem,
            "this Postgres is a standby, which takes no writes",
        ))),
        false => Ok(()),
    }
}

/// Logs a warning about an error of the database. While the database is out of reach, which has a line of its own, the
/// level is DEBUG.
macro_rules! warn_of {
    ($error:expr, $($rest:tt)+) => {
        match $error.is_out_of_reach() {
            true => tracing::debug!(error = %$error, $($rest)+),
            false => tracing::warn!(error = %$error, $($rest)+),
        }
    };
}
pub(crate) use warn_of;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_from_before_a_loss_are_checked() {
        let reach = Reachability::default();
        tokio::time::advance(Duration::from_secs(20)).await;
        assert!(reach.trusts(Duration::from_secs(10)));
        reach.connection_is_lost();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!reach.trusts(Duration::from_secs(10)));
        assert!(reach.trusts(Duration::from_millis(500)));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(!reach.trusts(Duration::from_secs(31)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_absence_of_others_means_nothing_right_after_a_loss() {
        let reach = Reachability::default();
        assert!(reach.is_settled(), "the first connection");
        reach.connection_is_lost();
        reach.is_out(&DbError::late());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(!reach.is_settled(), "there is no connection");
        reach.is_back();
        assert!(!reach.is_settled());
        tokio::time::advance(SETTLING).await;
        assert!(reach.is_settled());
    }
}
