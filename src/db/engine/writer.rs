//! The writer tasks. Write operations wait in one queue.
//!
//! SQLite has one writer, so all waiting operations share one transaction: a commit costs the same for one operation as
//! for sixty. On Postgres several tasks take one operation each.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::{AssertSqlSafe, Connection, query_scalar, raw_sql};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::error::{DbError, DbResult};
use super::notifications::Listening;
use super::operation::DbOperation;
use super::queue::{CompletedOperation, OperationReceiver, QueuedOperation, next};
use super::row_security::RowAccess;
use super::settings::DbLimits;
use super::{EndError, FailedPart, FileLock, PlainStatements, PostgresPool, SqliteConn, Tx, TxParts, acquire};
use crate::sqlite::SqliteConnection;

/// The maximum number of operations that share a transaction.
const GROUP: usize = 64;
/// The time after a deletion at which SQLite's log is emptied, so that many deletions cost it once.
const PURGE_AFTER: Duration = Duration::from_secs(1);

/// The parts of a writer besides its connection.
pub(in crate::db) struct WriterParts {
    pub(in crate::db) inbox: OperationReceiver,
    pub(in crate::db) parts: TxParts,
    /// The parts of the listener of Postgres.
    pub(in crate::db) listening: Listening,
    pub(in crate::db) closing: CancellationToken,
    pub(in crate::db) limits: DbLimits,
}

/// Returns the writer of SQLite. `lock` is held until the writer has ended.
///
/// The writer closes its connection after the readers have closed theirs. SQLite moves the write-ahead log into the database file and
/// deletes it when the last connection is closed, but not when the last two are closed at once.
pub(in crate::db) fn on_sqlite(
    outfit: WriterParts,
    mut conn: SqliteConnection,
    lock: Option<FileLock>,
    readers: TaskTracker,
) -> BoxFuture<'static, ()> {
    let WriterParts {
        mut inbox,
        parts,
        closing,
        listening: _,
        limits,
    } = outfit;
    Box::pin(async move {
        let _lock = lock;
        let mut group = Vec::with_capacity(GROUP);
        // The time at which deleted values are to be removed from the log.
        let mut purge_at: Option<Instant> = None;
        loop {
            tokio::select! {
                taken = inbox.recv_many(&mut group, GROUP) => if taken == 0 { break },
                () = closing.cancelled(), if !inbox.is_closed() => inbox.close(),
                () = sleep_until(purge_at) => {
                    let is_done = empty_log(&mut conn, limits.statement).await;
                    purge_at = (!is_done).then(|| Instant::now() + PURGE_AFTER);
                }
            }
            if !group.is_empty() {
                write_group(&mut conn, &parts, &mut group).await;
            }
            if parts.has_erased.swap(false, Ordering::Relaxed) {
                purge_at.get_or_insert_with(|| Instant::now() + PURGE_AFTER);
            }
        }
        readers.close();
        readers.wait().await;
        if let Err(error) = conn.close().await {
            tracing::warn!(%error, "database not closed cleanly");
        }
    })
}

/// Waits until a time; without one, for ever.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Moves the write-ahead log of SQLite into the database file and empties it: it has copies of what was deleted. Returns
/// false if readers still need it.
async fn empty_log(conn: &mut SqliteConnection, busy_timeout: Duration) -> bool {
    // The writer must not wait for readers as long as a statement may take.
    let emptied = async {
        raw_sql("pragma busy_timeout = 20").execute(&mut *conn).await?;
        let busy: i64 = query_scalar("pragma wal_checkpoint(truncate)")
            .fetch_one(&mut *conn)
            .await?;
        let restored = format!("pragma busy_timeout = {}", busy_timeout.as_millis());
        raw_sql(AssertSqlSafe(restored)).execute(&mut *conn).await?;
        Ok::<_, sqlx::Error>(busy == 0)
    };
    emptied.await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the write-ahead log of the database was not emptied");
        false
    })
}

/// Runs the operations in one transaction and empties `group`.
async fn write_group(conn: &mut SqliteConnection, parts: &TxParts, group: &mut Vec<QueuedOperation>) {
    let mut done = Vec::with_capacity(group.len());
    let ended = parts.sealing.scope(run_group(conn, parts, group, &mut done)).await;
    if ended.is_err() {
        // The transaction may still be open or not. After the rollback it is closed.
        let _ = raw_sql("rollback").execute(&mut *conn).await;
    }
    for operation in done {
        operation.report(ended.clone());
    }
    // Operations are left in the group only if the transaction broke before they began.
    if let Err(error) = ended {
        group.drain(..).for_each(|operation| operation.refuse(error.clone()));
    }
}

/// The statements that begin the transaction.
const BEGIN: PlainStatements = PlainStatements::new("begin immediate", 1);
/// The statements that end the first operation of several, and another one that others follow.
const END_FIRST: PlainStatements = PlainStatements::new("savepoint operation", 1);
const END_NEXT: PlainStatements = PlainStatements::new("release operation; savepoint operation", 2);
/// The statement that ends the transaction.
const COMMIT: PlainStatements = PlainStatements::new("commit", 1);

/// Runs the operations, each but the first within a savepoint, so that one operation can fail alone. The first that stores
/// something needs none: the whole transaction is rolled back with it, and begins again. An operation begins with its first
/// statement: one without statements costs nothing.
async fn run_group(
    conn: &mut SqliteConnection,
    parts: &TxParts,
    group: &mut Vec<QueuedOperation>,
    done: &mut Vec<CompletedOperation>,
) -> DbResult<()> {
    let mut tx = Tx::sqlite(SqliteConn::opened(&mut *conn, BEGIN), parts, &RowAccess::Server);
    let refreshed = parts.sealing.refresh_to_write(&mut tx).await;
    let mut opening = begun(&mut tx)?;
    refreshed?;
    // True while the transaction has nothing of earlier operations.
    let mut is_first = true;
    // Operations are taken from the end, so that the operations that did not begin stay in the group when the
    // transaction breaks.
    group.reverse();
    while let Some(operation) = group.pop() {
        let is_last = group.is_empty();
        let access = operation.access.clone();
        let mut tx = Tx::sqlite(SqliteConn::opened(&mut *conn, opening), parts, &access);
        let mut operation = operation.run(&mut tx).await;
        let end = match (is_last, is_first) {
            (true, _) => COMMIT,
            (false, true) => END_FIRST,
            (false, false) => END_NEXT,
        };
        let ended = match operation.is_kept() {
            true => end_operation(&mut tx, &mut operation, &end).await,
            false => Ok(()),
        };
        let begun = begun(&mut tx);
        let is_kept = operation.is_kept();
        done.push(operation);
        ended?;
        opening = begun?;
        // Of an operation that was not begun there is nothing to roll back.
        if !opening.is_empty() {
            continue;
        }
        if is_kept {
            is_first = false;
            continue;
        }
        let rollback = match (is_first, is_last) {
            (true, _) => "rollback",
            (false, true) => "rollback to operation; commit",
            (false, false) => "rollback to operation",
        };
        raw_sql(rollback).execute(&mut *conn).await?;
        if is_first {
            opening = BEGIN;
        }
    }
    Ok(())
}

/// Returns the opening that is still to be sent.
///
/// # Errors
/// When it was sent and failed.
fn begun(tx: &mut Tx<'_>) -> DbResult<PlainStatements> {
    match tx.take_opening_error() {
        Some(error) => Err(error.into()),
        None => Ok(tx.unsent_opening().clone()),
    }
}

/// Ends an operation that has succeeded so far. If one of its statements that are sent now fails, the operation has failed.
///
/// # Errors
/// When the transaction has failed.
async fn end_operation(tx: &mut Tx<'_>, operation: &mut CompletedOperation, end: &PlainStatements) -> DbResult<()> {
    let Err(EndError { part, error }) = tx.end_operation(end).await else {
        return Ok(());
    };
    match part {
        FailedPart::Operation => {
            operation.kept = Err(error.into());
            Ok(())
        }
        FailedPart::Opening | FailedPart::End => Err(error.into()),
    }
}

/// Returns the writers of Postgres.
pub(in crate::db) fn on_postgres(
    outfit: WriterParts,
    pool: &PostgresPool,
    count: usize,
) -> Vec<BoxFuture<'static, ()>> {
    let WriterParts {
        inbox,
        parts,
        closing,
        listening: _,
        limits,
    } = outfit;
    let inbox = Arc::new(Mutex::new(inbox));
    let writer = || {
        let inbox = Arc::clone(&inbox);
        let pool = pool.clone();
        let parts = parts.clone();
        let closing = closing.clone();
        let writer: BoxFuture<'static, ()> = Box::pin(async move {
            while let Some(operation) = next(&inbox, &closing).await {
                write_in_time(&pool, &parts, operation, limits.transaction()).await;
            }
        });
        writer
    };
    (0..count).map(|_| writer()).collect()
}

/// Runs an operation on the connection that is kept for the lease, whatever waits in the queue and for the pool.
///
/// # Errors
/// Those of the operation, and [`DbError::Unavailable`] when it took longer than `limit`.
pub(in crate::db) async fn write_for_lease(
    pool: &PostgresPool,
    parts: &TxParts,
    access: RowAccess,
    operation: DbOperation,
    limit: Duration,
) -> DbResult<()> {
    let (queued, outcome) = QueuedOperation::new(access, operation);
    write_in_time(&pool.of_lease(), parts, queued, limit).await;
    // The operation was dropped at the timeout, and its answer with it.
    outcome.await.unwrap_or_else(|_| Err(DbError::late()))
}

/// Runs an operation in a transaction of its own. At the timeout the operation is dropped: a database that does not answer must not
/// block its writer for ever.
async fn write_in_time(pool: &PostgresPool, parts: &TxParts, operation: QueuedOperation, limit: Duration) {
    let write = parts.sealing.scope(write_one(pool, parts, operation));
    let _ = tokio::time::timeout(limit, Box::pin(write)).await;
}

async fn write_one(pool: &PostgresPool, parts: &TxParts, operation: QueuedOperation) {
    let mut conn = match acquire(pool).await {
        Ok(conn) => conn,
        Err(error) => return operation.refuse(error),
    };
    let access = operation.access.clone();
    let mut tx = Tx::write_on_postgres(&mut conn, pool, parts, &access);
    if let Err(error) = parts.sealing.refresh_to_write(&mut tx).await {
        return operation.refuse(tx.take_opening_error().map_or(error, DbError::from));
    }
    let done = operation.run(&mut tx).await;
    let ended = match done.is_kept() {
        true => tx.end_operation(&COMMIT).await.map_err(|failed| failed.error),
        // The writes are not kept, and the operation has already returned the reason.
        false => tx.take_opening_error().map_or(Ok(()), Err),
    };
    let is_refused = tx.is_refused();
    let has_begun = tx.unsent_opening().is_empty();
    let is_committed = done.is_kept() && ended.is_ok();
    drop(tx);
    let has_ended = is_committed || !has_begun || raw_sql("rollback").execute(&mut *conn).await.is_ok();
    if is_refused {
        pool.reach.writes_are_refused();
    }
    // A connection to a server that takes no writes any more is not used again.
    if has_ended && !is_refused {
        pool.connections.put(conn);
    }
    done.report(ended.map_err(DbError::from));
}
