//! The server processes, and until when each promised to be alive.
//!
//! That is told by the clock of the database, which is the same for all of them. The clocks of servers differ: one that is
//! ahead would take what others are still at work on.

use std::time::Duration;

use sqlx::{query, query_scalar};

use super::engine::on_engine;
use super::{DbResult, Tx};
use crate::domain::id::WorkerId;
use crate::domain::time::Timestamp;

/// The present instant by the clock of the database, in SQL: microseconds since 1970.
macro_rules! database_now {
    (sqlite) => {
        "cast(unixepoch('subsec') * 1000000 as bigint)"
    };
    (postgres) => {
        // Not `now()`: that is when the transaction began, which may have waited for a lock.
        "cast(extract(epoch from clock_timestamp()) * 1000000 as bigint)"
    };
}

/// The condition, in SQL, that the worker in this column keeps its promise to be alive.
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

/// Promises that `worker` is alive for as long as this. Without such a promise its runs count as left behind.
pub async fn beat(tx: &mut Tx<'_>, worker: WorkerId, lease: Duration) -> DbResult<()> {
    macro_rules! beat {
        ($engine:ident) => {
            concat!(
                "insert into workers (worker_id, alive_until) values ($1, ",
                database_now!($engine),
                " + $2) on conflict (worker_id) do update set alive_until = excluded.alive_until"
            )
        };
    }
    let sql = tx.either(beat!(sqlite), beat!(postgres));
    let lease = i64::try_from(lease.as_micros()).unwrap_or(i64::MAX / 2);
    on_engine!(tx, |conn| query(sql)
        .bind(worker.0)
        .bind(lease)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Whether another process than `worker` promised to be alive now.
pub async fn has_company(tx: &mut Tx<'_>, worker: WorkerId) -> DbResult<bool> {
    macro_rules! has_company {
        ($engine:ident) => {
            concat!(
                "select exists (select 1 from workers where worker_id <> $1 and alive_until > ",
                database_now!($engine),
                ")"
            )
        };
    }
    let sql = tx.either(has_company!(sqlite), has_company!(postgres));
    Ok(on_engine!(tx, |conn| query_scalar(sql)
        .bind(worker.0)
        .fetch_one(conn)
        .await)?)
}

/// Takes the promise of `worker` back: its runs may be taken over at once.
pub async fn retire(tx: &mut Tx<'_>, worker: WorkerId) -> DbResult<()> {
    const SQL: &str = "delete from workers where worker_id = $1";
    on_engine!(tx, |conn| query(SQL).bind(worker.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Takes all promises back. For a database that only one process uses: when it begins, no other is alive.
pub async fn retire_all(tx: &mut Tx<'_>) -> DbResult<()> {
    const SQL: &str = "delete from workers";
    on_engine!(tx, |conn| query(SQL).execute(conn).await.map(drop))?;
    Ok(())
}

/// Writes a row for no other purpose than to see that rows can be written.
pub async fn probe(tx: &mut Tx<'_>, now: Timestamp) -> DbResult<()> {
    const SQL: &str = "insert into probes (probe, written_at) values (1, $1) \
        on conflict (probe) do update set written_at = excluded.written_at";
    on_engine!(tx, |conn| query(SQL).bind(now.0).execute(conn).await.map(drop))?;
    Ok(())
}
