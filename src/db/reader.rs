//! A connection to Postgres for one read, which may be given up at any moment: whoever reads a stream may leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Connection, PgPool, Postgres, Sqlite, SqlitePool, Transaction};
use tokio::time::Instant;

use super::error::DbResult;

/// Begins a read that sees one moment of the database in all its statements.
const BEGIN: &str = "begin isolation level repeatable read read only";

/// Gives a connection back to its pool, which first sees to it that the connection answers. One that does not within
/// `limit` is closed: the pool itself would wait for it without end, and have one connection less meanwhile.
pub(super) fn give_back(conn: &mut PoolConnection<Postgres>, limit: Duration) {
    let given_back = tokio::time::timeout(limit, conn.return_to_pool());
    // Without a runtime the connection is closed.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    // No task of the server's own: it ends by itself, and whoever closes the pool waits for it.
    drop(runtime.spawn(given_back));
}

/// A connection that goes back to its pool only if nothing is left open on it.
///
/// Dropping a transaction rolls it back, but one whose beginning was not waited for to its end is not known to the driver:
/// the next user of the connection would find themselves in it, and could not write.
pub(super) struct Reader {
    conn: PoolConnection<Postgres>,
    has_begun: bool,
    limit: Duration,
}

impl Reader {
    /// Takes a connection out of the pool. What a read leaves behind on it has to end within `limit`.
    pub(super) async fn of(pool: &PgPool, limit: Duration) -> DbResult<Self> {
        Ok(Self {
            conn: pool.acquire().await?,
            has_begun: false,
            limit,
        })
    }

    /// The connection does not answer: it does not go back to the pool.
    pub(super) fn is_stuck(&mut self) {
        self.has_begun = false;
    }

    /// Begins the read.
    pub(super) async fn begin(&mut self) -> DbResult<Transaction<'_, Postgres>> {
        let transaction = self.conn.begin_with(BEGIN).await?;
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

/// After how many instructions of its virtual machine SQLite asks whether to go on: about every millisecond.
const INSTRUCTIONS: i32 = 50_000;

/// A connection to SQLite whose statements can be broken off.
pub(super) struct SearchReader {
    conn: PoolConnection<Sqlite>,
    is_over: Arc<AtomicBool>,
    is_finished: bool,
}

impl SearchReader {
    /// Takes a connection out of the pool, for statements of this length together.
    pub(super) async fn of(pool: &SqlitePool, limit: Duration) -> DbResult<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let end = Instant::now() + limit;
        let mut reader = Self {
            conn: pool.acquire().await?,
            is_over: Arc::clone(&is_over),
            is_finished: false,
        };
        let goes_on = move || !is_over.load(Ordering::Relaxed) && Instant::now() < end;
        reader
            .conn
            .lock_handle()
            .await?
            .set_progress_handler(INSTRUCTIONS, goes_on);
        Ok(reader)
    }

    /// Begins the read.
    pub(super) async fn begin(&mut self) -> DbResult<Transaction<'_, Sqlite>> {
        Ok(self.conn.begin().await?)
    }

    /// Lets the connection go back to its pool.
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
