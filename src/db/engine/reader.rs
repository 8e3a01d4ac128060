//! Connections for reads.
//!
//! On SQLite a few readers take operations from one queue and share their connections, since a pool exchanges more with the
//! thread of a connection than most reads do. Searches, which must end when the client is gone, have pooled connections. The reads of
//! Postgres share connections with writes. Both may be cancelled at any moment.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Sqlite, SqliteConnection, SqlitePool, Transaction, query, raw_sql};
use tokio::sync::{Mutex, OwnedSemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::{DbError, DbResult};
use super::operation::DbOperation;
use super::queue::{OperationReceiver, QueuedOperation, next};
use super::row_security::RowAccess;
use super::{PlainStatements, PooledConnection, PostgresPool, SqliteConn, Tx, TxParts, acquire_to_read};

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

/// A connection to Postgres for one read.
///
/// The read may be dropped at any moment, also while the statements that begin its transaction are sent. Then, as when the read has
/// ended, nobody waits for the end of the transaction, and the connection is used again once the database has confirmed it.
pub(in crate::db) struct PostgresReader<'p> {
    pool: &'p PostgresPool,
    /// None once it does not answer.
    conn: Option<PooledConnection>,
    /// The turn of the read; none once it has ended.
    turn: Option<OwnedSemaphorePermit>,
    /// The turn of the search, if it is one.
    search: Option<OwnedSemaphorePermit>,
    /// True if a transaction may be open.
    may_have_begun: bool,
    /// The longest time for the end of the transaction, and the statement before it.
    limit: Duration,
}

impl<'p> PostgresReader<'p> {
    /// Takes a connection. The end of the read may take up to `limit`. The turn of a search ends when the connection is free: the
    /// statement of a caller that is gone may run for long.
    pub(in crate::db) async fn of(
        pool: &'p PostgresPool,
        limit: Duration,
        search: Option<OwnedSemaphorePermit>,
    ) -> DbResult<Self> {
        let (conn, turn) = acquire_to_read(pool).await?;
        Ok(Self {
            pool,
            conn: Some(conn),
            turn: Some(turn),
            search,
            may_have_begun: false,
            limit,
        })
    }

    /// Runs an operation on one snapshot. What begins the transaction is sent with its first statement.
    pub(in crate::db) async fn read(
        &mut self,
        parts: &TxParts,
        access: &RowAccess,
        operation: DbOperation,
    ) -> DbResult<()> {
        let Some(conn) = &mut self.conn else {
            return Err(DbError::Closed);
        };
        self.may_have_begun = true;
        let mut tx = Tx::read_on_postgres(conn, self.pool, parts, access);
        let done = match parts.sealing.refresh(&mut tx).await {
            Ok(()) => operation.run(&mut tx).await.map(drop),
            Err(error) => Err(error),
        };
        self.may_have_begun = tx.unsent_opening().is_empty();
        match tx.take_opening_error() {
            Some(error) => Err(error.into()),
            None => done,
        }
    }

    /// Closes the connection, since it does not answer.
    pub(in crate::db) fn discard_connection(&mut self) {
        self.conn = None;
    }
}

impl Drop for PostgresReader<'_> {
    fn drop(&mut self) {
        let Some(mut conn) = self.conn.take() else { return };
        let connections = self.pool.connections.clone();
        if !self.may_have_begun {
            connections.put(conn);
            return;
        }
        // Without a runtime the connection is closed.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let limit = self.limit;
        let turn = self.turn.take();
        let search = self.search.take();
        // Not a tracked task: it ends by itself, and closing the pool waits for it.
        drop(runtime.spawn(async move {
            let ended = tokio::time::timeout(limit, raw_sql(END).execute(&mut *conn)).await;
            if matches!(ended, Ok(Ok(_))) {
                connections.put(conn);
            }
            drop(turn);
            drop(search);
        }));
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
    use sqlx::{AssertSqlSafe, query_scalar};

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
