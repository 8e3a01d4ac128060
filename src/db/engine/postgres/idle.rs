//! Connections to Postgres that writes have used and use again. A pool would ask each whether it still answers when it is given back,
//! and knows nothing of the statements that are prepared on it.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres};
use tokio::time::Instant;

use super::prepared::PreparedStatements;

/// The time after which a connection that no write has used is for others.
const KEPT_IDLE: Duration = Duration::from_secs(60);
/// The time after which a connection is given back to its pool, which closes old ones.
const KEPT_IN_USE: Duration = Duration::from_secs(10 * 60);

/// A connection of the pool, with the statements that are prepared on it. When it is dropped, it is closed if a transaction may be open
/// on it, and given back to the pool otherwise.
pub(in crate::db) struct WriteConnection {
    conn: PoolConnection<Postgres>,
    prepared: PreparedStatements,
    /// The time at which it was taken from the pool.
    acquired: Instant,
    /// The time of the last use.
    used: Instant,
    /// True while a write uses it.
    is_in_use: bool,
    /// The longest time for which the pool may check a connection that is given back.
    limit: Duration,
}

impl WriteConnection {
    /// Takes a connection that has just come from the pool.
    pub(in crate::db) fn new(conn: PoolConnection<Postgres>, limit: Duration) -> Self {
        let now = Instant::now();
        Self {
            conn,
            prepared: PreparedStatements::default(),
            acquired: now,
            used: now,
            is_in_use: true,
            limit,
        }
    }

    /// Returns the connection and its prepared statements.
    pub(in crate::db) fn parts(&mut self) -> (&mut PgConnection, &mut PreparedStatements) {
        (&mut self.conn, &mut self.prepared)
    }

    /// Returns the time since the connection was taken from the pool.
    pub(in crate::db) fn age(&self) -> Duration {
        self.acquired.elapsed()
    }

    /// Returns the time since the last use.
    pub(in crate::db) fn idle_for(&self) -> Duration {
        self.used.elapsed()
    }
}

impl Drop for WriteConnection {
    fn drop(&mut self) {
        match self.is_in_use {
            true => self.conn.close_on_drop(),
            false => give_back(&mut self.conn, self.limit),
        }
    }
}

impl Deref for WriteConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.conn
    }
}

impl DerefMut for WriteConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.conn
    }
}

/// Returns a connection to its pool, which first checks that the connection answers. A connection that does not answer
/// within `limit` is closed; the pool itself would wait for it without a limit.
pub(in crate::db) fn give_back(conn: &mut PoolConnection<Postgres>, limit: Duration) {
    let returned = tokio::time::timeout(limit, conn.return_to_pool());
    // Without a runtime the connection is closed.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    // Not a tracked task: it ends by itself, and closing the pool waits for it.
    drop(runtime.spawn(returned));
}

/// The connections that are not in use, the last used one last.
#[derive(Clone, Default)]
pub(in crate::db) struct IdleConnections(Arc<Mutex<IdleState>>);

#[derive(Default)]
struct IdleState {
    connections: Vec<WriteConnection>,
    is_closed: bool,
}

impl IdleConnections {
    /// Takes the connection that was used last: more statements are prepared on it than on others.
    pub(in crate::db) fn take(&self) -> Option<WriteConnection> {
        let mut conn = self.state().connections.pop()?;
        conn.is_in_use = true;
        Some(conn)
    }

    /// Keeps a connection whose transaction has ended for the next write. A connection that was not used for long, or is in use for
    /// very long, goes back to the pool.
    pub(in crate::db) fn put(&self, mut conn: WriteConnection) {
        conn.used = Instant::now();
        conn.is_in_use = false;
        let mut state = self.state();
        if state.is_closed || conn.age() >= KEPT_IN_USE {
            drop(state);
            drop(conn);
            return;
        }
        state.connections.push(conn);
        let oldest = state.connections.first();
        let unused = oldest
            .is_some_and(|oldest| oldest.idle_for() >= KEPT_IDLE)
            .then(|| state.connections.remove(0));
        drop(state);
        drop(unused);
    }

    /// Gives the connections back to the pool, and keeps none from now on.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let connections = std::mem::take(&mut state.connections);
        drop(state);
        drop(connections);
    }

    fn state(&self) -> MutexGuard<'_, IdleState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
