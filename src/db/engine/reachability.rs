//! The reachability of Postgres, as the connection that listens finds out, and whether the disk of SQLite takes writes.
//!
//! While Postgres is out of reach, every task that uses the database fails again and again. The cause is logged once, when the listener
//! cannot connect, and the failures of the others are details ([`warn_of`]).
//!
//! A disk that takes no writes is found out by the writes themselves. This server writes at least its lease, again and again, so it
//! also finds out when the disk takes writes again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::{PgConnection, Row, raw_sql};
use tokio::sync::watch;
use tokio::time::Instant;

use super::error::DbError;
use crate::domain::postgres_url::TargetSessionAttrs;

/// The idle time after which a connection is checked before its next use.
const IDLE_CHECK_AFTER: Duration = Duration::from_secs(30);

/// The time in which other servers connect again when the database is back: longer than the longest pause between two
/// tries of the pool.
const RECONNECT_TIME: Duration = Duration::from_secs(4);

/// The shortest time between two looks of a listener that is connected.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The time without a failed write after which the disk counts as one that takes writes. A short write may fit where a longer one
/// does not.
const DISK_SETTLE_TIME: Duration = Duration::from_secs(5);

/// The longest time for which a caller waits for a look of the listener.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// The reachability of the database, as the listener finds out. Shared with the pool.
#[derive(Debug, Default)]
pub(in crate::db) struct Reachability {
    state: Mutex<ReachState>,
    looks: watch::Sender<HostLookups>,
}

/// The looks of the listener for the host that takes writes.
#[derive(Debug, Default)]
struct HostLookups {
    /// True if another look is wanted.
    is_wanted: bool,
    /// The number of looks so far.
    count: u64,
    /// The time at which the last one ended.
    last: Option<Instant>,
}

#[derive(Debug)]
struct ReachState {
    /// The time at which a connection of the listener was last made or lost.
    changed: Instant,
    /// The time since which no connection can be made.
    out_since: Option<Instant>,
    /// True if the connection of the listener was lost before.
    was_lost: bool,
    /// The time at which the disk of SQLite last refused a write; none if it takes writes.
    refused_by_disk: Option<Instant>,
}

impl Default for ReachState {
    fn default() -> Self {
        Self {
            changed: Instant::now(),
            out_since: None,
            was_lost: false,
            refused_by_disk: None,
        }
    }
}

impl Reachability {
    /// Notes that the connection of the listener is lost: others that were idle meanwhile may be lost, too.
    pub(in crate::db) fn connection_is_lost(&self) {
        self.change(|state| {
            state.changed = Instant::now();
            state.was_lost = true;
        });
    }

    /// Notes that a server has refused a write since it is read-only. Its other connections are checked before their next
    /// use, and the listener looks for the server that takes writes.
    pub(in crate::db) fn writes_are_refused(&self) {
        self.change(|state| state.changed = Instant::now());
        self.want_look();
    }

    /// Has the listener look for the server that takes writes.
    pub(in crate::db) fn want_look(&self) {
        self.looks.send_modify(|looks| looks.is_wanted = true);
    }

    /// Has the listener look for the server that takes writes, and waits until it has, but not for ever.
    pub(in crate::db) async fn wait_for_look(&self) {
        let mut looks = self.looks.subscribe();
        let count = looks.borrow().count;
        self.want_look();
        // The listener may wait for a server that is silent, or have ended.
        let looking = looks.wait_for(|looks| looks.count > count);
        let _ = tokio::time::timeout(LOOK_TIMEOUT, looking).await;
    }

    /// Waits until another look is wanted and the last one is some time ago. If the wait is cancelled, the look stays
    /// wanted.
    pub(in crate::db) async fn look_is_wanted(&self) {
        let mut looks = self.looks.subscribe();
        let wanted = looks.wait_for(|looks| looks.is_wanted);
        // It could fail only without a sender, and `self` has it.
        let last = wanted.await.ok().and_then(|looks| looks.last);
        if let Some(last) = last {
            tokio::time::sleep_until(last + LOOK_INTERVAL).await;
        }
    }

    /// Notes that the listener has looked for the server that takes writes.
    pub(in crate::db) fn record_host_lookup(&self) {
        self.looks.send_modify(|looks| {
            *looks = HostLookups {
                is_wanted: false,
                count: looks.count + 1,
                last: Some(Instant::now()),
            }
        });
    }

    /// Notes that no connection can be made, and logs the cause if one could be before.
    pub(in crate::db) fn record_unreachable(&self, error: &DbError) {
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

    /// Returns whether no connection can be made.
    pub(in crate::db) fn is_out_of_reach(&self) -> bool {
        self.change(|state| state.out_since.is_some())
    }

    /// Notes that a connection was made, and logs it if none could be before.
    pub(in crate::db) fn record_reachable(&self) {
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

    /// Notes that the disk of SQLite has refused a write, and logs the cause if it took those before.
    pub(in crate::db) fn disk_has_refused_a_write(&self, error: &DbError) {
        let is_news = self.change(|state| state.refused_by_disk.replace(Instant::now()).is_none());
        if is_news {
            tracing::warn!(
                %error,
                "the disk of the database takes no writes: runs wait for it, and requests that write get the status 503"
            );
        }
    }

    /// Notes that a row was written.
    pub(in crate::db) fn row_was_written(&self) {
        let is_settled = |refused: &mut Instant| refused.elapsed() >= DISK_SETTLE_TIME;
        let is_news = self.change(|state| state.refused_by_disk.take_if(is_settled).is_some());
        if is_news {
            tracing::info!("the disk of the database takes writes again");
        }
    }

    /// Returns whether the disk takes writes, as far as is known.
    pub(in crate::db) fn disk_takes_writes(&self) -> bool {
        self.change(|state| state.refused_by_disk.is_none())
    }

    /// Returns whether a connection that was idle for so long is used without a check: the check costs a round trip.
    pub(in crate::db) fn needs_no_check(&self, idle: Duration) -> bool {
        idle < self.change(|state| state.changed.elapsed()).min(IDLE_CHECK_AFTER)
    }

    /// Returns whether the listener is connected for the first time, or has been for [`RECONNECT_TIME`].
    pub(in crate::db) fn is_settled(&self) -> bool {
        self.change(|state| !state.was_lost || (state.out_since.is_none() && state.changed.elapsed() >= RECONNECT_TIME))
    }

    fn change<T>(&self, change: impl FnOnce(&mut ReachState) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Checks that a connection leads to a server that takes writes. During a failover an address may already lead to the next
/// server, which is still a standby, and a connection to it would stay in the pool.
///
/// # Errors
/// If the server does not meet the demand, or the connection fails.
pub(in crate::db) async fn check_writable(
    conn: &mut PgConnection,
    target: TargetSessionAttrs,
) -> Result<(), sqlx::Error> {
    // One message: behind a pooler the next one may reach another session.
    const SQL: &str = "select pg_is_in_recovery(), current_setting('transaction_read_only') = 'on'";
    let row = raw_sql(SQL).fetch_one(conn).await?;
    let is_standby: bool = row.try_get(0)?;
    let is_read_only: bool = row.try_get(1)?;
    let reason = if is_standby {
        "this Postgres is a standby, which takes no writes"
    } else if is_read_only && target == TargetSessionAttrs::ReadWrite {
        "the sessions of this Postgres are read-only by default, and `target_session_attrs` wants one that takes writes"
    } else {
        return Ok(());
    };
    Err(sqlx::Error::Io(std::io::Error::new(
        std::io::ErrorKind::ReadOnlyFilesystem,
        reason,
    )))
}

/// Logs a warning about an error of the database. While the database is out of reach, which has a line of its own, the
/// level is DEBUG. A macro, since the level and the fields of a line are constants.
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
        assert!(reach.needs_no_check(Duration::from_secs(10)));
        reach.connection_is_lost();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!reach.needs_no_check(Duration::from_secs(10)));
        assert!(reach.needs_no_check(Duration::from_millis(500)));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(!reach.needs_no_check(Duration::from_secs(31)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_takes_writes_again_when_none_has_failed_for_a_while() {
        let reach = Reachability::default();
        reach.row_was_written();
        assert!(reach.disk_takes_writes());
        for _ in 0..2 {
            reach.disk_has_refused_a_write(&DbError::Busy);
            tokio::time::advance(DISK_SETTLE_TIME / 2).await;
            reach.row_was_written();
            assert!(!reach.disk_takes_writes());
        }
        tokio::time::advance(DISK_SETTLE_TIME).await;
        assert!(!reach.disk_takes_writes(), "nothing was written since");
        reach.row_was_written();
        assert!(reach.disk_takes_writes());
    }

    #[tokio::test(start_paused = true)]
    async fn who_wants_a_look_waits_for_its_end() {
        let reach = Reachability::default();
        let listener = async {
            reach.look_is_wanted().await;
            reach.record_host_lookup();
        };
        tokio::join!(reach.wait_for_look(), listener);
        let begun = Instant::now();
        // The next look waits, whoever wants it, and stays wanted if the wait is cancelled.
        reach.writes_are_refused();
        let cancelled = tokio::time::timeout(LOOK_INTERVAL / 2, reach.look_is_wanted()).await;
        assert!(cancelled.is_err());
        reach.look_is_wanted().await;
        assert!(begun.elapsed() >= LOOK_INTERVAL);
        reach.record_host_lookup();
        let unwanted = tokio::time::timeout(LOOK_INTERVAL * 2, reach.look_is_wanted()).await;
        assert!(unwanted.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_does_not_come_is_not_waited_for_without_an_end() {
        let reach = Reachability::default();
        let begun = Instant::now();
        reach.wait_for_look().await;
        assert!(begun.elapsed() >= LOOK_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_from_before_a_refused_write_are_checked() {
        let reach = Reachability::default();
        tokio::time::advance(Duration::from_secs(20)).await;
        assert!(reach.needs_no_check(Duration::from_secs(10)));
        reach.writes_are_refused();
        assert!(!reach.needs_no_check(Duration::from_secs(10)));
        assert!(reach.is_settled(), "the connection of the listener is not lost");
    }

    #[tokio::test(start_paused = true)]
    async fn the_absence_of_others_means_nothing_right_after_a_loss() {
        let reach = Reachability::default();
        assert!(reach.is_settled(), "the first connection");
        reach.connection_is_lost();
        reach.record_unreachable(&DbError::late());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(!reach.is_settled(), "there is no connection");
        reach.record_reachable();
        assert!(!reach.is_settled());
        tokio::time::advance(RECONNECT_TIME).await;
        assert!(reach.is_settled());
    }
}
