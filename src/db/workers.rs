//! The table of workers (server processes) and their leases.
//!
//! Leases are measured by the clock of the database. The clocks of servers differ: a server whose clock is ahead would
//! claim the runs of others.
//!
//! On Postgres a worker also holds an advisory lock, which the database releases as soon as the process has ended. So the
//! others need not wait for the end of the lease. See [`SessionLock`].

use std::time::Duration;

use const_format::{concatcp, str_replace};
use sqlx::{query, query_scalar};

use super::engine::session_lock::{IS_HELD, SessionLock};
use super::engine::{Conn, NOW_POSTGRES, NOW_SQLITE, on_engine};
use super::{DbResult, Tx};
use crate::domain::id::WorkerId;
use crate::domain::time::Timestamp;

/// The SQL condition that the worker `{worker}` has a lease that is valid at the time `{now}`.
const IS_ALIVE: &str =
    "exists (select 1 from workers where workers.worker_id = {worker} and workers.alive_until > {now})";
/// The SQL condition that the worker `{worker}` has a valid lease.
pub(super) const IS_ALIVE_SQLITE: &str = str_replace!(IS_ALIVE, "{now}", NOW_SQLITE);
/// The same on Postgres.
pub(super) const IS_ALIVE_POSTGRES: &str = str_replace!(IS_ALIVE, "{now}", NOW_POSTGRES);

/// The time for which the lock of a worker has to be missing, in microseconds. A worker that has only lost the
/// connection with its lock says so meanwhile.
const GRACE_US: i64 = 400_000;

/// Renews the lease of `worker` for the time `lease`. Without a valid lease its runs are orphans, and others claim
/// them. With a `session_lock` the lease also ends when this lock is released.
pub async fn renew_lease(
    tx: &mut Tx<'_>,
    worker: WorkerId,
    lease: Duration,
    session_lock: Option<SessionLock>,
) -> DbResult<()> {
    const INSERT: &str = "insert into workers (worker_id, session_lock, alive_until) values ($1, $3, ";
    const OR_UPDATE: &str = " + $2) on conflict (worker_id) do update set alive_until = excluded.alive_until, \
        session_lock = excluded.session_lock, missed_at = null";
    const SQLITE: &str = concatcp!(INSERT, NOW_SQLITE, OR_UPDATE);
    const POSTGRES: &str = concatcp!(INSERT, NOW_POSTGRES, OR_UPDATE);
    let sql = tx.either(SQLITE, POSTGRES);
    let lease = i64::try_from(lease.as_micros()).unwrap_or(i64::MAX / 2);
    tx.statement(sql)
        .bind(worker.0)
        .bind(lease)
        .bind(session_lock.map(|lock| lock.0))
        .execute_later()
        .await
}

/// Findings about the workers whose processes have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LostWorkers {
    /// True if a lock is missing, so that the lease of its worker ends soon.
    pub is_missed: bool,
    /// True if a lease has ended.
    pub has_ended: bool,
}

/// Ends the leases of the workers other than `worker` that hold their locks no more. SQLite has one worker.
pub async fn end_lost(tx: &mut Tx<'_>, worker: WorkerId) -> DbResult<LostWorkers> {
    const IS_LOST: &str = concatcp!(
        " where worker_id <> $1 and session_lock is not null and not ",
        str_replace!(IS_HELD, "{lock}", "workers.session_lock")
    );
    const MISSED: &str = concatcp!(
        "update workers set missed_at = ",
        NOW_POSTGRES,
        IS_LOST,
        " and missed_at is null"
    );
    const ENDED: &str = concatcp!(
        "delete from workers",
        IS_LOST,
        " and missed_at < ",
        NOW_POSTGRES,
        " - $2"
    );
    match &mut tx.conn {
        Conn::Sqlite(_) => Ok(LostWorkers::default()),
        Conn::Postgres(conn) => {
            let ended = query(ENDED).bind(worker.0).bind(GRACE_US).execute(&mut *conn).await?;
            let missed = query(MISSED).bind(worker.0).execute(&mut *conn).await?;
            Ok(LostWorkers {
                is_missed: missed.rows_affected() > 0,
                has_ended: ended.rows_affected() > 0,
            })
        }
    }
}

/// Returns whether another worker than `worker` has a valid lease.
pub async fn has_other_workers(tx: &mut Tx<'_>, worker: WorkerId) -> DbResult<bool> {
    const OTHERS: &str = "select exists (select 1 from workers where worker_id <> $1 and alive_until > ";
    const SQLITE: &str = concatcp!(OTHERS, NOW_SQLITE, ")");
    const POSTGRES: &str = concatcp!(OTHERS, NOW_POSTGRES, ")");
    let sql = tx.either(SQLITE, POSTGRES);
    let found: Option<(bool,)> = tx.statement(sql).bind(worker.0).fetch_optional().await?;
    Ok(found.is_some_and(|(has_other_workers,)| has_other_workers))
}

/// Returns whether `worker` has a valid lease.
pub async fn has_lease(tx: &mut Tx<'_>, worker: WorkerId) -> DbResult<bool> {
    const SQLITE: &str = concatcp!("select ", str_replace!(IS_ALIVE_SQLITE, "{worker}", "$1"));
    const POSTGRES: &str = concatcp!("select ", str_replace!(IS_ALIVE_POSTGRES, "{worker}", "$1"));
    let sql = tx.either(SQLITE, POSTGRES);
    Ok(on_engine!(tx, |conn| query_scalar(sql)
        .bind(worker.0)
        .fetch_one(conn)
        .await)?)
}

/// Ends the lease of `worker`, so that others can claim its runs at once.
pub async fn retire(tx: &mut Tx<'_>, worker: WorkerId) -> DbResult<()> {
    const SQL: &str = "delete from workers where worker_id = $1";
    on_engine!(tx, |conn| query(SQL).bind(worker.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Ends all leases. Call it only at the start of the one server of a database, when no other server is alive.
pub async fn retire_all(tx: &mut Tx<'_>) -> DbResult<()> {
    const SQL: &str = "delete from workers";
    on_engine!(tx, |conn| query(SQL).execute(conn).await.map(drop))?;
    Ok(())
}

/// Reads nothing, to check that the database answers.
pub async fn ping(tx: &mut Tx<'_>) -> DbResult<()> {
    let _: (i32,) = tx.statement("select 1").fetch_one().await?;
    Ok(())
}

/// Writes a row to check that the database accepts writes.
pub async fn probe(tx: &mut Tx<'_>, now: Timestamp) -> DbResult<()> {
    const SQL: &str = "insert into probes (probe, written_at) values (1, $1) \
        on conflict (probe) do update set written_at = excluded.written_at";
    on_engine!(tx, |conn| query(SQL).bind(now.0).execute(conn).await.map(drop))?;
    Ok(())
}
