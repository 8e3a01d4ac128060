//! The order of the runs of the main agent on a thread, by their first event in the thread's log.

use sqlx::query_as;
use uuid::Uuid;

use super::get_by_id;
use crate::db::engine::on_engine;
use crate::db::{DbResult, Tx};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::Run;

/// Returns the first run whose events begin after number `seq` of the log, and the number of its first event.
pub async fn begun_after(tx: &mut Tx<'_>, thread: ThreadId, seq: i64) -> DbResult<Option<(Run, i64)>> {
    const SQL: &str = "select run_id, first_seq from runs where thread_id = $1 and depth = 0 and first_seq > $2 \
        order by first_seq limit 1";
    find_by_seq(tx, SQL, thread, seq).await
}

/// Returns the last run whose events begin at or before number `seq` of the log, and the number of its first event.
pub async fn begun_by(tx: &mut Tx<'_>, thread: ThreadId, seq: i64) -> DbResult<Option<(Run, i64)>> {
    const SQL: &str = "select run_id, first_seq from runs where thread_id = $1 and depth = 0 and first_seq <= $2 \
        order by first_seq desc limit 1";
    find_by_seq(tx, SQL, thread, seq).await
}

async fn find_by_seq(tx: &mut Tx<'_>, sql: &'static str, thread: ThreadId, seq: i64) -> DbResult<Option<(Run, i64)>> {
    let found: Option<(Uuid, i64)> = on_engine!(tx, |conn| query_as(sql)
        .bind(thread.0)
        .bind(seq)
        .fetch_optional(conn)
        .await)?;
    let Some((id, first)) = found else { return Ok(None) };
    Ok(get_by_id(tx, RunId(id)).await?.map(|run| (run, first)))
}
