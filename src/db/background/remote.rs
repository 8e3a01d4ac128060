//! Background tasks that other servers do: which are to be looked at, and what was seen.

use sqlx::{query, query_as, query_scalar};
use uuid::Uuid;

use super::{TABLE, TaskRow};
use crate::db::engine::on_engine;
use crate::db::json::{Cell, encode, readable};
use crate::db::workers::is_alive;
use crate::db::{DbResult, Tx};
use crate::domain::background::{RemoteWork, TaskRecord};
use crate::domain::id::{ThreadId, WorkerId};
use crate::domain::limits::Usage;
use crate::domain::time::Timestamp;

/// Gives tasks that are due to `worker`, those first that have been so for longest. Nobody else is given them unless the
/// worker dies, and it is not given them again itself before `until`. On Postgres those that somebody else is about to take are passed over.
pub async fn claim(
    tx: &mut Tx<'_>,
    worker: WorkerId,
    now: Timestamp,
    until: Timestamp,
    limit: i64,
) -> DbResult<Vec<TaskRecord>> {
    macro_rules! claim {
        ($engine:ident, $lock:literal) => {
            concat!(
                "update background_tasks set worker = $1, fence = fence + 1, due_at = $3 \
                 where task_id in (select task_id from background_tasks where due_at is not null and due_at <= $2 \
                 and (worker is null or worker = $1 or not ",
                is_alive!($engine, "background_tasks.worker"),
                ") order by due_at, task_id limit $4",
                $lock,
                ") returning task_id"
            )
        };
    }
    const FIND: &str = concat!(select!(), " where task_id = $1");
    let sql = tx.either(claim!(sqlite, ""), claim!(postgres, " for update skip locked"));
    let claimed: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(sql)
        .bind(worker.0)
        .bind(now.0)
        .bind(until.0)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    let mut records = vec![];
    for task in claimed {
        let row: Option<TaskRow> = on_engine!(tx, |conn| query_as(FIND).bind(task).fetch_optional(conn).await)?;
        records.extend(readable(row)?);
    }
    Ok(records)
}

/// Makes those tasks due that are with a worker who broke its promise to be alive, and is not `worker`.
pub async fn free_orphans(tx: &mut Tx<'_>, worker: WorkerId, now: Timestamp) -> DbResult<()> {
    macro_rules! free {
        ($engine:ident) => {
            concat!(
                "update background_tasks set due_at = $2, worker = null \
                 where due_at is not null and worker is not null and worker <> $1 and not ",
                is_alive!($engine, "background_tasks.worker")
            )
        };
    }
    let sql = tx.either(free!(sqlite), free!(postgres));
    on_engine!(tx, |conn| query(sql)
        .bind(worker.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// When the next task is due, or became so.
pub async fn next_due(tx: &mut Tx<'_>) -> DbResult<Option<Timestamp>> {
    const SQL: &str = "select min(due_at) from background_tasks where due_at is not null";
    let at: Option<i64> = on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?;
    Ok(at.map(Timestamp))
}

/// The tasks that wait for a human, the oldest first.
pub async fn waiting(tx: &mut Tx<'_>, limit: i64) -> DbResult<Vec<TaskRecord>> {
    const SQL: &str = concat!(
        select!(),
        " where due_at is not null and seen_status = 'waiting' and not unwanted order by created_at, task_id limit $1"
    );
    let rows: Vec<TaskRow> = on_engine!(tx, |conn| query_as(SQL).bind(limit).fetch_all(conn).await)?;
    readable(rows)
}

/// Writes what is known of a task from now on. False if it was taken up since by somebody else than `fence` says, or is
/// gone; without a fence it is written in any case, and whoever has it writes nothing any more.
pub async fn note(tx: &mut Tx<'_>, task: ThreadId, work: &RemoteWork, fence: Option<i64>) -> DbResult<bool> {
    const SQL: &str = "update background_tasks set seen = $2, seen_status = $3, seen_run = $4, unwanted = $5, looks = $6, \
        lost_since = $7, due_at = $8, worker = null, fence = fence + 1 \
        where task_id = $1 and fence = coalesce(cast($9 as bigint), fence)";
    let seen = work.seen.as_ref().map(encode).transpose()?;
    let status = work.seen.as_ref().map(|seen| seen.status.word());
    let run = work.seen.as_ref().and_then(|seen| seen.run.parse::<Uuid>().ok());
    let changed = on_engine!(tx, |conn| query(SQL)
        .bind(task.0)
        .bind(seen)
        .bind(status)
        .bind(run)
        .bind(work.unwanted)
        .bind(i32::try_from(work.looks).unwrap_or(i32::MAX))
        .bind(work.lost_since.map(|at| at.0))
        .bind(work.due_at.map(|at| at.0))
        .bind(fence)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(changed == 1)
}

/// What a task is known to have used.
pub async fn used(tx: &mut Tx<'_>, task: ThreadId) -> DbResult<Usage> {
    const SQL: &str = "select used from background_tasks where task_id = $1";
    let found: Option<Option<String>> =
        on_engine!(tx, |conn| query_scalar(SQL).bind(task.0).fetch_optional(conn).await)?;
    let cell = Cell {
        table: TABLE,
        column: "used",
        id: &task.0,
    };
    Ok(found
        .flatten()
        .map(|used| cell.decode_or_default(&used))
        .unwrap_or_default())
}

/// Sets what a task is known to have used.
pub async fn set_used(tx: &mut Tx<'_>, task: ThreadId, used: &Usage) -> DbResult<()> {
    const SQL: &str = "update background_tasks set used = $2 where task_id = $1";
    let used = encode(used)?;
    on_engine!(tx, |conn| query(SQL)
        .bind(task.0)
        .bind(used)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Forgets a task that was never begun.
pub async fn forget(tx: &mut Tx<'_>, task: ThreadId) -> DbResult<()> {
    const SQL: &str = "delete from background_tasks where task_id = $1 and url is not null and seen is null";
    on_engine!(tx, |conn| query(SQL).bind(task.0).execute(conn).await.map(drop))?;
    Ok(())
}
