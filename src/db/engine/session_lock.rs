//! The advisory lock that a process holds on Postgres as long as it lives.
//!
//! The lock belongs to the connection that listens for notifications. The database releases it as soon as that connection
//! is closed, which the operating system does when the process ends. So other processes know that this one has ended, and
//! take over its runs before its lease is over. If only the connection breaks, the process renews its lease without a lock
//! at once, and its runs stay with it.

use const_format::{concatcp, str_replace};
use sqlx::postgres::PgListener;
use sqlx::{Connection, PgConnection, PgExecutor, query, query_scalar};
use tokio::sync::watch;

use super::error::{DbError, DbResult};
use crate::domain::id::RunId;

/// The SQL condition that a connection to the current database holds the advisory lock with the number `{lock}`.
pub(in crate::db) const IS_HELD: &str = "exists (select 1 from pg_locks \
    where locktype = 'advisory' and granted and objsubid = 1 \
    and database = (select oid from pg_database where datname = current_database()) \
    and (classid::bigint << 32) | objid::bigint = {lock})";

/// The number of an advisory lock, which is a new one for each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLock(pub(in crate::db) i64);

impl SessionLock {
    /// Takes a new lock on a connection.
    async fn take(conn: impl PgExecutor<'_>) -> Result<Self, sqlx::Error> {
        // This half of the id of a run is random.
        let bits = RunId::mint().0.as_u64_pair().1;
        let lock = Self(i64::from_ne_bytes(bits.to_ne_bytes()));
        query("select pg_advisory_lock($1)").bind(lock.0).execute(conn).await?;
        Ok(lock)
    }
}

/// Checks that a direct connection and one through a pooler lead to the same database: that a lock of the one is seen by the other.
/// Otherwise all processes would take each other for ended.
///
/// # Errors
/// [`DbError::CannotOpen`] if they do not, and if the database fails.
pub(in crate::db) async fn check_same_database(direct: &mut PgConnection, pooled: &mut PgConnection) -> DbResult<()> {
    const SQL: &str = concatcp!("select ", str_replace!(IS_HELD, "{lock}", "$1"));
    let lock = SessionLock::take(direct).await?;
    let mut transaction = pooled.begin().await?;
    let seen = query_scalar(SQL).bind(lock.0).persistent(false);
    let is_seen: bool = seen.fetch_one(&mut *transaction).await?;
    transaction.rollback().await?;
    match is_seen {
        true => Ok(()),
        false => Err(DbError::CannotOpen(
            "`url` and `direct_url` of [storage] lead to different databases: both must lead to the same one, the first \
             through the pooler"
                .to_owned(),
        )),
    }
}

/// A lock that is held. Dropping it says that it is lost.
pub(in crate::db) struct HeldLock<'a>(&'a watch::Sender<Option<SessionLock>>);

impl<'a> HeldLock<'a> {
    /// Takes a lock on the connection of a listener, and shows it to the receivers of `shown`.
    ///
    /// # Errors
    /// If the database fails.
    pub(in crate::db) async fn take(
        listener: &mut PgListener,
        shown: &'a watch::Sender<Option<SessionLock>>,
    ) -> Result<Self, sqlx::Error> {
        let lock = SessionLock::take(listener).await?;
        shown.send_replace(Some(lock));
        Ok(Self(shown))
    }
}

impl Drop for HeldLock<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}
