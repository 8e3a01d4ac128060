//! The advisory lock that a process holds on Postgres as long as it lives.
//!
//! The lock belongs to the connection that listens for notifications. The database releases it as soon as that connection
//! is closed, which the operating system does when the process ends. So other processes know that this one has ended, and
//! take over its runs before its lease is over. If only the connection breaks, the process renews its lease without a lock
//! at once, and its runs stay with it.

use sqlx::postgres::PgListener;
use sqlx::query;
use tokio::sync::watch;

use crate::domain::id::WorkerId;

/// The number of an advisory lock, which is a new one for each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLock(pub(super) i64);

/// A lock that is held. Dropping it says that it is lost.
pub(super) struct HeldLock<'a>(&'a watch::Sender<Option<SessionLock>>);

impl<'a> HeldLock<'a> {
    /// Takes a lock on the connection of a listener, and shows it to the receivers of `shown`.
    ///
    /// # Errors
    /// If the database fails.
    pub(super) async fn take(
        listener: &mut PgListener,
        shown: &'a watch::Sender<Option<SessionLock>>,
    ) -> Result<Self, sqlx::Error> {
        // This half of an id is random.
        let bits = WorkerId::mint().0.as_u64_pair().1;
        let lock = SessionLock(i64::from_ne_bytes(bits.to_ne_bytes()));
        query("select pg_advisory_lock($1)")
            .bind(lock.0)
            .execute(listener)
            .await?;
        shown.send_replace(Some(lock));
        Ok(Self(shown))
    }
}

impl Drop for HeldLock<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}
