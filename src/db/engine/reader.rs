//! Connections for reads.
//!
//! On SQLite a few readers take operations from one queue and share their connections, since a pool exchanges more with the
//! thread of a connection than most reads do. Searches, which must end when the client is gone, and the reads of Postgres
//! have pooled connections and may be cancelled at any moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Postgres, Sqlite, SqliteConnection, SqlitePool, Transaction, query,
};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::{DbError, DbResult};
use super::postgres::give_back;
use super::queue::{OperationReceiver, QueuedOperation, next};
use super::{PlainStatements, PostgresPool, SqliteConn, Tx, TxParts, acquire};

/// The number of readers of SQLite.
const READERS: usize = 4;
/// The statements that begin and end a snapshot.
const BEGIN: PlainStatements = PlainStatements::new("begin", 1);
const END: &str = "rollback";

/// Returns readers of SQLite, which share a queue.
pub(in crate::db) fn on_sqlite(
    inbox: OperationReceiver,
    parts: &TxParts,
    options: &SqliteConnectOptions,
    closing: &CancellationToken,
) -> Vec<BoxFuture<'static, ()>> {
    let inbox = Arc::new(Mutex::new(inbox));
    let idle = IdleConnections::default();
    let reader = || {
        let inbox = Arc::clone(&inbox);
        let closing = closing.clone();
        let reader = SqliteReader {
            parts: parts.clone(),
            options: options.clone(),
            idle: idle.clone(),
        };
        let reading: BoxFuture<'static, ()> = Box::pin(async move {
            while let Some(operation) = next(&inbox, &closing).await {
                reader.read(operation).await;
            }
            while let Some(conn) = reader.idle.take() {
                let _ = conn.close().await;
            }
        });
        reading
    };
    (0..READERS).map(|_| reader()).collect()
}

/// The connections of the readers of SQLite that are not in use, the last used one last.
#[derive(Clone, Default)]
struct IdleConnections(Arc<std::sync::Mutex<Vec<SqliteConnection>>>);

impl IdleConnections {
    /// Takes the connection that was used last. Readers take turns, and with a connection each they would all read the schema
    /// and prepare the same statements, even if no two of them ever work at once.
    fn take(&self) -> Option<SqliteConnection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn put(&self, conn: SqliteConnection) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
    }
}

/// A reader of SQLite.
struct SqliteReader {
    parts: TxParts,
    options: SqliteConnectOptions,
    idle: IdleConnections,
}

impl SqliteReader {
    /// Runs an operation on one snapshot.
    async fn read(&self, operation: QueuedOperation) {
        let conn = match self.idle.take() {
            Some(conn) => Ok(conn),
            None => self.options.connect().await,
        };
        let mut conn = match conn {
            Ok(conn) => conn,
            Err(error) => return operation.refuse(error.into()),
        };
        let reading = read_in_snapshot(&mut conn, &self.parts, operation);
        // After an error it is not known whether the snapshot has ended.
        if self.parts.sealing.scope(reading).await.is_ok() {
            self.idle.put(conn);
        }
    }
}

async fn read_in_snapshot(
    conn: &mut SqliteConnection,
    parts: &TxParts,
    operation: QueuedOperation,
) -> sqlx::Result<()> {
    let access = operation.access.clone();
    let mut tx = Tx::sqlite(SqliteConn::opened(&mut *conn, BEGIN), parts, &access);
    // The connection is for other readers once the caller is gone.
    let done = operation.run_while_awaited(&mut tx).await;
    if let Some(error) = tx.take_opening_error() {
        if let Some(done) = done {
            done.report(Err(DbError::from(error)));
        }
        return Err(sqlx::Error::BeginFailed);
    }
    let has_begun = tx.unsent_opening().is_empty();
    let is_awaited = done.is_some();
    if let Some(done) = done {
        done.report(Ok(()));
    }
    if !has_begun {
        return Ok(());
    }
    let end = query(END).execute(&mut *conn);
    // The thread of the connection does what it is told in order, so the snapshot ends before the next one begins, and nobody waits
    // for that. The statement of a caller that is gone may run for long, and others must not wait for it.
    let ended = match is_awaited {
        true => end.now_or_never(),
        false => Some(end.await),
    };
    ended.transpose().map(drop)
}

/// A Postgres connection that returns to its pool only if no transaction can be open on it.
///
/// Dropping a transaction rolls it back. But if the future of its `begin` was dropped, the driver does not know of the
/// transaction: the next user of the connection would be in a read-only transaction.
pub(in crate::db) struct Reader {
    conn: PoolConnection<Postgres>,
    has_begun: bool,
    limit: Duration,
}

impl Reader {
    /// Acquires a connection. On return to the pool, the rollback of an open read may take up to `limit`.
    pub(in crate::db) async fn of(pool: &PostgresPool, limit: Duration) -> DbResult<Self> {
        Ok(Self {
            conn: acquire(pool).await?,
            has_begun: false,
            limit,
        })
    }

    /// Marks the connection as not answering, so that it is closed instead of returned to the pool.
    pub(in crate::db) fn is_stuck(&mut self) {
        self.has_begun = false;
    }

    /// Begins the read transaction with these statements.
    pub(in crate::db) async fn begin(&mut self, statements: PlainStatements) -> DbResult<Transaction<'_, Postgres>> {
        let statements = AssertSqlSafe(statements.text().to_owned());
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
pub(in crate::db) struct SearchReader {
    conn: PoolConnection<Sqlite>,
    is_over: Arc<AtomicBool>,
    is_finished: bool,
}

impl SearchReader {
    /// Acquires a connection whose statements may together take up to `limit`.
    pub(in crate::db) async fn of(pool: &SqlitePool, limit: Duration) -> DbResult<Self> {
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
    pub(in crate::db) async fn begin(&mut self) -> DbResult<Transaction<'_, Sqlite>> {
        Ok(self.conn.begin().await?)
    }

    /// Removes the limit, so that the connection returns to its pool on drop.
    pub(in crate::db) async fn finish(&mut self) -> DbResult<()> {
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

#[cfg(test)]
mod tests {
    use sqlx::{query_scalar, raw_sql};

    use super::*;

    async fn marked(mark: i32) -> SqliteConnection {
        let mut conn = SqliteConnection::connect("sqlite::memory:").await.expect("a database");
        let set = AssertSqlSafe(format!("pragma user_version = {mark}"));
        raw_sql(set).execute(&mut conn).await.expect("a pragma");
        conn
    }

    #[tokio::test]
    async fn the_connection_that_was_used_last_is_used_next() {
        let idle = IdleConnections::default();
        assert!(idle.take().is_none());
        idle.put(marked(1).await);
        idle.put(marked(2).await);
        let mut next = idle.take().expect("a connection");
        let mark: i64 = query_scalar("pragma user_version")
            .fetch_one(&mut next)
            .await
            .expect("a number");
        assert_eq!(mark, 2);
    }
}
