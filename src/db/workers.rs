//! The server processes, and until when each promised to be alive.

use sqlx::{query, query_scalar};

use super::engine::on_engine;
use super::{DbResult, Tx};
use crate::domain::id::WorkerId;
use crate::domain::time::Timestamp;

/// Promises that `worker` is alive until then. Without such a promise its runs count as left behind.
pub async fn beat(tx: &mut Tx<'_>, worker: WorkerId, until: Timestamp) -> DbResult<()> {
    const SQL: &str = "insert into workers (worker_id, alive_until) values ($1, $2) \
        on conflict (worker_id) do update set alive_until = excluded.alive_until";
    on_engine!(tx, |conn| query(SQL).bind(worker.0).bind(until.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Whether another process than `worker` promised to be alive at the moment `now`.
pub async fn has_company(tx: &mut Tx<'_>, worker: WorkerId, now: Timestamp) -> DbResult<bool> {
    const SQL: &str = "select exists (select 1 from workers where worker_id <> $1 and alive_until >= $2)";
    Ok(on_engine!(tx, |conn| query_scalar(SQL).bind(worker.0).bind(now.0).fetch_one(conn).await)?)
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
