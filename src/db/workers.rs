//! The table of workers (server processes) and their leases.
//!
//! Leases are measured by the clock of the database. The clocks of servers differ: a server whose clock is ahead would
//! claim the runs of others.

use std::time::Duration;

use const_format::concatcp;
use sqlx::{query, query_scalar};

use super::engine::on_engine;
use super::{DbResult, Tx};
use crate::domain::id::WorkerId;
use crate::domain::time::Timestamp;

/// The SQL expression for the current time of the database, in microseconds since 1970.
macro_rules! database_now {
    (sqlite) => {
        "cast(unixepoch('subsec') * 1000000 as bigint)"
    };
    (postgres) => {
        // Not `now()`, which is the start of the transaction: it may have waited for a lock since.
        "cast(extract(epoch from clock_timestamp()) * 1000000 as bigint)"
    };
}

/// The SQL condition that the worker in this column has a valid lease.
macro_rules! is_alive {
    ($engine:ident, $column:literal) => {
        concat!(
            "exists (select 1 from workers where workers.worker_id = ",
            $column,
            " and workers.alive_until > ",
            $crate::db::workers::database_now!($engine),
            ")"
        )
    };
}

pub(super) use {database_now, is_alive};

/// Renews the lease of `worker` for the time `lease`. Without a valid lease its runs are orphans, and others claim
/// them.
pub async fn beat(tx: &mut Tx<'_>, worker: WorkerId, lease: Duration) -> DbResult<()> {
    const INSERT: &str = "insert into workers (worker_id, alive_until) values ($1, ";
    const OR_UPDATE: &str = " + $2) on conflict (worker_id) do update set alive_until = excluded.alive_until";
    const SQLITE: &str = concatcp!(INSERT, database_now!(sqlite), OR_UPDATE);
    const POSTGRES: &str = concatcp!(INSERT, database_now!(postgres), OR_UPDATE);
    let sql = tx.either(SQLITE, POSTGRES);
    let lease = i64::try_from(lease.as_micros()).unwrap_or(i64::MAX / 2);
    on_engine!(tx, |conn| query(sql)
        .bind(worker.0)
        .bind(lease)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Returns whether another worker than `worker` has a valid lease.
pub async fn has_company(tx: &mut Tx<'_>, worker: WorkerId) -> DbResult<bool> {
    const OTHERS: &str = "select exists (select 1 from workers where worker_id <> $1 and alive_until > ";
    const SQLITE: &str = concatcp!(OTHERS, database_now!(sqlite), ")");
    const POSTGRES: &str = concatcp!(OTHERS, database_now!(postgres), ")");
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

/// Writes a row to check that the database accepts writes.
pub async fn probe(tx: &mut Tx<'_>, now: Timestamp) -> DbResult<()> {
    const SQL: &str = "insert into probes (probe, written_at) values (1, $1) \
        on conflict (probe) do update set written_at = excluded.written_at";
    on_engine!(tx, |conn| query(SQL).bind(now.0).execute(conn).await.map(drop))?;
    Ok(())
}
