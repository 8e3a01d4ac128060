//! Connections for reads.
//!
//! On SQLite a few readers, each with a thread of its own, take operations from one queue and share their connections. Searches, which
//! may be slow, have others. The reads of Postgres share connections with writes. A read ends when its caller is gone.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::{Connection, raw_sql};
use tokio::sync::{Mutex, OwnedSemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::{DbError, DbResult};
use super::operation::DbOperation;
use super::queue::{OperationReceiver, QueuedOperation, next};
use super::row_security::RowAccess;
use super::{PlainStatements, PooledConnection, PostgresPool, SqliteConn, Tx, TxParts, acquire_to_read};
use crate::sqlite::{SqliteConnectOptions, SqliteConnection};

/// The number of readers of SQLite, and that of its readers for searches.
pub(in crate::db) const SQLITE_READERS: u32 = 4;
/// The number of instructions of SQLite's virtual machine between two questions whether a read is over: about a millisecond.
const INSTRUCTIONS: i32 = 50_000;
/// The statements that begin and end a snapshot.
const BEGIN: PlainStatements = PlainStatements::new("begin", 1);
const END: &str = "rollback";

/// The parts of the readers of SQLite.
pub(in crate::db) struct SqliteReaders<'a> {
    pub(in crate::db) inbox: OperationReceiver,
    pub(in crate::db) parts: &'a TxParts,
    pub(in crate::db) options: &'a SqliteConnectOptions,
    /// The longest time of a read. None if only its caller ends it.
    pub(in crate::db) limit: Option<Duration>,
    pub(in crate::db) closing: &'a CancellationToken,
}

/// Returns readers of SQLite, which share a queue.
pub(in crate::db) fn on_sqlite(readers: SqliteReaders<'_>) -> Vec<BoxFuture<'static, ()>> {
    let inbox = Arc::new(Mutex::new(readers.inbox));
    let idle = IdleConnections::default();
    let reader = || {
        let inbox = Arc::clone(&inbox);
        let closing = readers.closing.clone();
        let reader = SqliteReader {
            parts: readers.parts.clone(),
            options: readers.options.clone(),
            idle: idle.clone(),
            limit: readers.limit,
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
    (0..SQLITE_READERS).map(|_| reader()).collect()
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
    limit: Option<Duration>,
}

impl SqliteReader {
    /// Runs an operation on one snapshot. Its statements are interrupted when its caller is gone, and after the limit.
    async fn read(&self, operation: QueuedOperation) {
        let conn = match self.idle.take() {
            Some(conn) => Ok(conn),
            None => self.options.open(),
        };
        let mut conn = match conn {
            Ok(conn) => conn,
            Err(error) => return operation.refuse(error.into()),
        };
        let caller = operation.caller.clone();
        let end = self.limit.map(|limit| Instant::now() + limit);
        let is_over = move || caller.is_cancelled() || end.is_some_and(|end| Instant::now() >= end);
        if let Err(error) = conn.interrupt_when(INSTRUCTIONS, is_over) {
            return operation.refuse(error.into());
        }
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
    // The reader is for others once the caller is gone.
    let done = operation.run_while_awaited(&mut tx).await;
    if let Some(error) = tx.take_opening_error() {
        if let Some(done) = done {
            done.report(Err(DbError::from(error)));
        }
        return Err(sqlx::Error::BeginFailed);
    }
    let has_begun = tx.unsent_opening().is_empty();
    if let Some(done) = done {
        done.report(Ok(()));
    }
    match has_begun {
        true => raw_sql(END).execute(conn).await.map(drop),
        false => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use sqlx::{AssertSqlSafe, query_scalar};

    use super::*;

    async fn marked(mark: i32) -> SqliteConnection {
        let mut conn = SqliteConnectOptions::in_memory().open().expect("a database");
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
