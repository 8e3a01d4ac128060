//! Pooled connections for reads that may be cancelled at any moment, as when a client disconnects from a stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection, Postgres, Sqlite, SqlitePool, Transaction};
use tokio::time::Instant;

use super::engine::{PostgresPool, acquire};
use super::error::DbResult;

/// Returns a connection to its pool, which first checks that the connection answers. A connection that does not answer
/// within `limit` is closed; the pool itself would wait for it without a limit.
pub(super) fn give_back(conn: &mut PoolConnection<Postgres>, limit: Duration) {
    let returned = tokio::time::timeout(limit, conn.return_to_pool());
    // Without a runtime the connection is closed.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    // Not a tracked task: it ends by itself, and closing the pool waits for it.
    drop(runtime.spawn(returned));
}

/// A Postgres connection that returns to its pool only if no transaction can be open on it.
///
/// Dropping a transaction rolls it back. But if the future of its `begin` was dropped, the driver does not know of the
/// transaction: the next user of the connection would be in a read-only transaction.
pub(super) struct Reader {
    conn: PoolConnection<Postgres>,
    has_begun: bool,
    limit: Duration,
}

impl Reader {
    /// Acquires a connection. On return to the pool, the rollback of an open read may take up to `limit`.
    pub(super) async fn of(pool: &PostgresPool, limit: Duration) -> DbResult<Self> {
        Ok(Self {
            conn: acquire(pool).await?,
            has_begun: false,
            limit,
        })
    }

    /// Marks the connection as not answering, so that it is closed instead of returned to the pool.
    pub(super) fn is_stuck(&mut self) {
        self.has_begun = false;
    }

    /// Begins the read transaction with these statements.
    pub(super) async fn begin(&mut self, statements: AssertSqlSafe<String>) -> DbResult<Transaction<'_, Postgres>> {
        let transaction = self.conn.begin_with(statements).await?;
        self.has_begun = true;
        Ok(transaction)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        match self.has_begun {
            true => give_back(&mut self.conn, self.limit),
            false => self.conn.close_on_drop(),
        }
    }
}

/// The number of virtual machine instructions between two calls of SQLite's progress handler: about a millisecond.
const PROGRESS_INTERVAL: i32 = 50_000;

/// A SQLite connection whose statements can be interrupted.
pub(super) struct SearchReader {
    conn: PoolConnection<Sqlite>,
    is_over: Arc<AtomicBool>,
    is_finished: bool,
}

impl SearchReader {
    /// Acquires a connection whose statements may together take up to `limit`.
    pub(super) async fn of(pool: &SqlitePool, limit: Duration) -> DbResult<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let end = Instant::now() + limit;
        let mut reader = Self {
            conn: pool.acquire().await?,
            is_over: Arc::clone(&is_over),
            is_finished: false,
        };
        let may_continue = move || !is_over.load(Ordering::Relaxed) && Instant::now() < end;
        reader
            .conn
            .lock_handle()
            .await?
            .set_progress_handler(PROGRESS_INTERVAL, may_continue);
        Ok(reader)
    }

    /// Begins the read transaction.
    pub(super) async fn begin(&mut self) -> DbResult<Transaction<'_, Sqlite>> {
        Ok(self.conn.begin().await?)
    }

    /// Removes the limit, so that the connection returns to its pool on drop.
    pub(super) async fn finish(&mut self) -> DbResult<()> {
        self.conn.lock_handle().await?.remove_progress_handler();
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for SearchReader {
    fn drop(&mut self) {
        if !self.is_finished {
            self.is_over.store(true, Ordering::Relaxed);
            self.conn.close_on_drop();
        }
    }
}
