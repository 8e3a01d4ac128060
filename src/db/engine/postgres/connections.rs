//! Connections to Postgres. A pool would ask each whether it still answers when it is given back, and knows nothing of the statements
//! that are prepared on it. So the pool only makes them, and those that are not in use wait here for the next transaction.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{PgConnection, PgPool, Postgres};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::prepared::PreparedStatements;

/// The time after which a connection that nobody has used is closed.
const KEPT_IDLE: Duration = Duration::from_secs(10 * 60);
/// The age at which a connection is closed after its next use.
const LONGEST_LIFE: Duration = Duration::from_secs(30 * 60);

/// A connection of the pool, with the statements that are prepared on it. When it is dropped, it is closed: a transaction may be open
/// on it.
pub(in crate::db) struct PooledConnection {
    conn: PoolConnection<Postgres>,
    prepared: PreparedStatements,
    /// The time at which it was made.
    made: Instant,
    /// The time of the last use.
    used: Instant,
    /// The permission to use it; none while it is idle.
    permit: Option<OwnedSemaphorePermit>,
}

impl PooledConnection {
    /// Takes a connection that was just made.
    fn new(conn: PoolConnection<Postgres>, permit: OwnedSemaphorePermit) -> Self {
        let now = Instant::now();
        Self {
            conn,
            prepared: PreparedStatements::default(),
            made: now,
            used: now,
            permit: Some(permit),
        }
    }

    /// Returns the connection for use, with the permission for it.
    pub(in crate::db) fn with_permit(mut self, permit: OwnedSemaphorePermit) -> Self {
        self.permit = Some(permit);
        self
    }

    /// Returns the connection and its prepared statements.
    pub(in crate::db) fn parts(&mut self) -> (&mut PgConnection, &mut PreparedStatements) {
        (&mut self.conn, &mut self.prepared)
    }

    /// Returns the time since the connection was made.
    pub(in crate::db) fn age(&self) -> Duration {
        self.made.elapsed()
    }

    /// Returns the time since the last use.
    pub(in crate::db) fn idle_for(&self) -> Duration {
        self.used.elapsed()
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        match Handle::try_current() {
            Ok(_) => self.conn.close_on_drop(),
            // Without a runtime nobody can say good-bye to the database.
            Err(_) => drop(self.conn.return_to_pool()),
        }
    }
}

impl Deref for PooledConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.conn
    }
}

impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.conn
    }
}

/// The connections of a pool. As many may be in use at the same time as the pool may have.
#[derive(Clone)]
pub(in crate::db) struct Connections(Arc<ConnectionsState>);

struct ConnectionsState {
    pool: PgPool,
    /// The permissions to use a connection. Whoever has one finds an idle connection, or room in the pool.
    permits: Arc<Semaphore>,
    /// The connections that are not in use, the last used one last.
    idle: Mutex<Vec<PooledConnection>>,
}

impl Connections {
    /// Takes a pool that nobody else uses.
    pub(super) fn new(pool: PgPool) -> Self {
        let most = usize::try_from(pool.options().get_max_connections()).unwrap_or(1);
        Self(Arc::new(ConnectionsState {
            pool,
            permits: Arc::new(Semaphore::new(most)),
            idle: Mutex::default(),
        }))
    }

    /// Waits for the permission to use a connection. Who has waited longest is next.
    ///
    /// # Errors
    /// [`sqlx::Error::PoolClosed`] when the pool is closed.
    pub(in crate::db) async fn permit(&self) -> sqlx::Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.0.permits).acquire_owned().await;
        permit.map_err(|_| sqlx::Error::PoolClosed)
    }

    /// Takes the idle connection that was used last: more statements are prepared on it than on others.
    pub(in crate::db) fn take(&self) -> Option<PooledConnection> {
        self.idle().pop()
    }

    /// Makes a connection.
    ///
    /// # Errors
    /// Those of the pool.
    pub(in crate::db) async fn make(&self, permit: OwnedSemaphorePermit) -> sqlx::Result<PooledConnection> {
        // In a box, since every future that takes a connection would be larger.
        let conn = Box::pin(self.0.pool.acquire()).await?;
        Ok(PooledConnection::new(conn, permit))
    }

    /// Keeps a connection whose transaction has ended for the next one. One that is old, or was not used for long, is closed.
    pub(in crate::db) fn put(&self, mut conn: PooledConnection) {
        let permit = conn.permit.take();
        conn.used = Instant::now();
        let mut idle = self.idle();
        let is_over = self.0.permits.is_closed() || conn.age() >= LONGEST_LIFE;
        let closed = match is_over {
            true => Some(conn),
            false => {
                idle.push(conn);
                let is_unused = idle.first().is_some_and(|oldest| oldest.idle_for() >= KEPT_IDLE);
                is_unused.then(|| idle.remove(0))
            }
        };
        drop(idle);
        drop(closed);
        // Whoever waits for it finds the connection.
        drop(permit);
    }

    /// Has new connections be made with these options.
    pub(super) fn set_options(&self, options: PgConnectOptions) {
        self.0.pool.set_connect_options(options);
    }

    /// Closes the connections, once they are not in use any more.
    pub(super) async fn close(&self) {
        self.0.permits.close();
        let idle = std::mem::take(&mut *self.idle());
        drop(idle);
        self.0.pool.close().await;
    }

    fn idle(&self) -> MutexGuard<'_, Vec<PooledConnection>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
