//! The claims of workers on runs. A claim carries a fence, a number that grows whenever a run changes hands: a worker
//! with an older fence can no longer write for the run.

use const_format::{concatcp, str_replace};
use sqlx::{QueryBuilder, query, query_as, query_scalar};
use uuid::Uuid;

use super::below::WITH_TREE;
use super::children::stop_children;
use super::turns::{MAY_BEGIN_ON_POSTGRES, MAY_BEGIN_ON_SQLITE};
use super::{COLUMNS, ReadRun, RunRow, SELECT, encode_error, encode_usage, read_all, restore};
use crate::db::access::{self, push_scope_of_thread};
use crate::db::engine::{Engine, LaterRows, Statement, on_engine};
use crate::db::row::from_row;
use crate::db::workers::{IS_ALIVE_POSTGRES, IS_ALIVE_SQLITE};
use crate::db::{DbError, DbResult, Notification, Tx, interrupts, notifications, threads};
use crate::domain::access::{AccessScope, Ownership};
use crate::domain::id::{RunId, ThreadId, WorkerId};
use crate::domain::limits::Usage;
use crate::domain::machine::Failure;
use crate::domain::run::{Run, RunStatus};
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;

/// A run claimed by a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The run, now running.
    pub run: Run,
    /// To whom its thread belongs.
    pub ownership: Ownership,
    /// The fence that the worker passes with every write.
    pub fence: i64,
    /// The number of server crashes during the run since it last made progress.
    pub crashes: u32,
}

/// The orphaned runs that a worker has taken over.
#[derive(Debug)]
pub struct AdoptedRuns {
    /// The claims, in the order in which the runs were created.
    pub claims: Vec<Claim>,
    /// The number of runs that could not be read and were ended instead.
    pub ended: usize,
}

/// The columns of a claimed run, with the ownership of its thread.
const CLAIMED: &str = concatcp!(
    COLUMNS,
    ", (select tenant from threads where threads.thread_id = runs.thread_id) as tenant, \
     (select owner from threads where threads.thread_id = runs.thread_id) as owner"
);

from_row! {
    struct ClaimRow {
        tenant: String,
        owner: String,
        ..run: RunRow,
    }
}

/// Returns the claim on a run's row. None for a run that cannot be read: the run is ended with an error instead.
async fn claim_row(
    tx: &mut Tx<'_>,
    mut row: ClaimRow,
    status_before: RunStatus,
    now: Timestamp,
) -> DbResult<Option<Claim>> {
    restore(tx, std::slice::from_mut(&mut row.run)).await?;
    let ownership = access::ownership(row.tenant, row.owner);
    let fence = row.run.fence;
    let crashes = u32::try_from(row.run.crashes).unwrap_or(0);
    match row.run.into() {
        ReadRun { run, corrupt: None } => Ok(Some(Claim {
            run,
            ownership,
            fence,
            crashes,
        })),
        // A server that lacks a key must not end the runs of those that have it.
        ReadRun {
            run: _,
            corrupt: Some(error),
        } if !error.is_corrupt() => Err(error),
        ReadRun {
            run,
            corrupt: Some(error),
        } => {
            end_unreadable(tx, &run, status_before, &error, now).await?;
            Ok(None)
        }
    }
}

/// Ends a run of the main agent that cannot be read, so that the thread is free for its next run.
async fn end_unreadable(
    tx: &mut Tx<'_>,
    run: &Run,
    status_before: RunStatus,
    error: &DbError,
    now: Timestamp,
) -> DbResult<()> {
    const SQL: &str = "update runs set status = 'error', error = $2, worker = null, updated_at = $3 where run_id = $1";
    tracing::error!(run = %run.id, thread = %run.thread, %error, "ended a run whose row cannot be read");
    let failure = super::unreadable(error);
    let error = encode_error(tx, run.id, Some(&failure)).await?;
    on_engine!(tx, |conn| query(SQL)
        .bind(run.id.0)
        .bind(error)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    if status_before == RunStatus::Pending {
        // The run never started, so its answers were not used: the interrupts are pending again.
        interrupts::restore(tx, run.thread, run.id).await?;
    } else {
        stop_children(tx, run.thread, Some(run.id), now).await?;
    }
    let left = threads::ThreadAfterRun {
        run: run.id,
        status: ThreadStatus::Error,
        error: Some(failure),
    };
    threads::leave(tx, run.thread, &left, now).await?;
    notifications::notify(tx, Notification::Ended(run.thread)).await
}

/// Claims a pending run of the main agent for `worker`, if its thread is free for it. A run that cannot be read is
/// ended with an error instead.
pub async fn claim(tx: &mut Tx<'_>, run: RunId, worker: WorkerId, now: Timestamp) -> DbResult<Option<Claim>> {
    const LOCK: &str = "select thread_id from threads \
        where thread_id = (select thread_id from runs where run_id = $1) for no key update";
    // With `depth = 0`, Postgres may look for the id in an index of all pending runs, in which ids come second.
    const BEGIN: &str = "update runs set status = 'running', worker = $2, fence = fence + 1, updated_at = $3 \
        where run_id = $1 and depth < 1 and status = 'pending' and ";
    const RETURNING: &str = concatcp!(" returning ", CLAIMED);
    const SQLITE: &str = concatcp!(BEGIN, MAY_BEGIN_ON_SQLITE, RETURNING);
    const POSTGRES: &str = concatcp!(BEGIN, MAY_BEGIN_ON_POSTGRES, RETURNING);
    if tx.engine() == Engine::Postgres {
        // Without the lock, two concurrent claims on one thread would not see each other's run.
        tx.statement(LOCK).bind(run.0).execute_later().await?;
    }
    let sql = tx.either(SQLITE, POSTGRES);
    let update = tx.statement(sql).bind(run.0).bind(worker.0).bind(now.0);
    let row: Option<ClaimRow> = update.fetch_optional().await?;
    match row {
        Some(row) => claim_row(tx, row, RunStatus::Pending, now).await,
        None => Ok(None),
    }
}

/// Returns the time at which the next pending run whose thread is free for it becomes, or became, due.
pub async fn next_due_at(tx: &mut Tx<'_>) -> DbResult<Option<Timestamp>> {
    const WAITING: &str = "select due_at from runs where depth = 0 and status = 'pending' and ";
    const FIRST: &str = " order by due_at, run_id limit 1";
    const SQLITE: &str = concatcp!(WAITING, MAY_BEGIN_ON_SQLITE, FIRST);
    const POSTGRES: &str = concatcp!(WAITING, MAY_BEGIN_ON_POSTGRES, FIRST);
    let sql = tx.either(SQLITE, POSTGRES);
    let at: Option<i64> = on_engine!(tx, |conn| query_scalar(sql).fetch_optional(conn).await)?;
    Ok(at.map(Timestamp))
}

/// Claims orphaned runs of the main agent for `worker`: running ones that no worker holds, or whose worker has no valid
/// lease. Each starts a new `attempt`. A run that its worker did not release counts as crashed, so its `crashes` grow.
/// Runs that cannot be read are ended with an error instead.
///
/// Runs of `worker` itself are never orphans, even if its lease has expired, as after a suspend: it still executes
/// them. On Postgres, runs on threads that another transaction has locked are left for the next call.
pub async fn adopt_orphans(tx: &mut Tx<'_>, worker: WorkerId, now: Timestamp, limit: i64) -> DbResult<AdoptedRuns> {
    const UPDATE: &str = "update runs set worker = $1, fence = fence + 1, attempt = attempt + 1, updated_at = $2, \
        crashes = crashes + case when worker is null then 0 else 1 end \
        where run_id in (select orphan.run_id from runs orphan ";
    // The end of an unreadable run changes its thread, too.
    const THREAD: &str = "join threads held on held.thread_id = orphan.thread_id ";
    const IS_ORPHAN: &str = "where orphan.depth = 0 and orphan.status = 'running' \
        and (orphan.worker is null or orphan.worker <> $1) and not ";
    const LIMIT: &str = " order by orphan.created_at, orphan.run_id limit $3";
    const LOCK: &str = " for no key update of held skip locked for update of orphan skip locked";
    const RETURNING: &str = concatcp!(") returning ", CLAIMED);
    const SQLITE: &str = concatcp!(
        UPDATE,
        IS_ORPHAN,
        str_replace!(IS_ALIVE_SQLITE, "{worker}", "orphan.worker"),
        LIMIT,
        RETURNING
    );
    const POSTGRES: &str = concatcp!(
        UPDATE,
        THREAD,
        IS_ORPHAN,
        str_replace!(IS_ALIVE_POSTGRES, "{worker}", "orphan.worker"),
        LIMIT,
        LOCK,
        RETURNING
    );
    let sql = tx.either(SQLITE, POSTGRES);
    let rows: Vec<ClaimRow> = on_engine!(tx, |conn| query_as(sql)
        .bind(worker.0)
        .bind(now.0)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    let found = rows.len();
    let mut claims = vec![];
    for row in rows {
        claims.extend(claim_row(tx, row, RunStatus::Running, now).await?);
    }
    claims.sort_by_key(|claim| (claim.run.created_at, claim.run.id));
    let ended = found - claims.len();
    Ok(AdoptedRuns { claims, ended })
}

/// A claim of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseHolder {
    /// The thread of the run.
    pub thread: ThreadId,
    /// The run.
    pub run: RunId,
    /// The worker that claimed it.
    pub worker: WorkerId,
    /// The fence of the claim.
    pub fence: i64,
}

/// The changes to a run's row that go with a write for the run.
#[derive(Debug, Clone, Copy)]
pub struct RunRowUpdate<'a> {
    /// The number of the first log entry that is written, if the row may not have that of an earlier one. The row keeps the
    /// first one of the run.
    pub seq: Option<i64>,
    /// The usage of the run so far, if it is to be stored.
    pub usage: Option<&'a Usage>,
    /// True when the write is progress, which resets the count of crashes.
    pub makes_progress: bool,
    /// The time of the write.
    pub at: Timestamp,
}

impl RunRowUpdate<'_> {
    /// Returns a change of the time only.
    pub fn at(at: Timestamp) -> Self {
        Self {
            seq: None,
            usage: None,
            makes_progress: false,
            at,
        }
    }
}

/// The end of a run of the main agent, as its row says it.
#[derive(Debug, Clone, Copy)]
pub struct EndOfRun<'a> {
    /// The status.
    pub status: RunStatus,
    /// The failure, if it failed.
    pub error: Option<&'a Failure>,
    /// True if work is left, which another run may continue. Without any, nothing needs the definition that the run is
    /// pinned to, and the row names it no longer.
    pub waits: bool,
}

/// The condition that the worker `$2` holds the run `$1` by the claim `$3`.
const HELD: &str = " where run_id = $1 and worker = $2 and fence = $3";

/// The condition on a run that locks its thread `{thread}` until the end of the transaction, with the strength `{lock}`. A condition
/// holds before the row of the run is locked, so the two are locked [in their order](crate::db#the-order-of-locks) without a
/// statement more. Written as `=`, Postgres could look for the run among all runs of its thread, in the index of these: where most
/// threads have one run, that index seems to serve as well as the primary key.
const AND_THREAD_IS_LOCKED: &str = " and thread_id is not distinct from (select threads.thread_id from threads \
    where threads.thread_id = {thread} for {lock})";
/// The condition for a step, which lets others change the thread meanwhile, but not delete it.
const AND_THREAD_STAYS: &str = str_replace!(AND_THREAD_IS_LOCKED, "{lock}", "key share");
/// The condition for the end of a run, which changes the thread.
const AND_THREAD_IS_CHANGED: &str = str_replace!(AND_THREAD_IS_LOCKED, "{lock}", "no key update");

/// Returns whether the worker still holds the run. If so, no other worker can claim it, and nobody can delete its thread,
/// before the end of the transaction.
pub async fn check_fence(tx: &mut Tx<'_>, holder: LeaseHolder, at: Timestamp) -> DbResult<bool> {
    const CHANGE: &str = "update runs set updated_at = $4";
    const LOCKED: &str = concatcp!(HELD, str_replace!(AND_THREAD_STAYS, "{thread}", "$5"));
    let sql = tx.either(concatcp!(CHANGE, HELD), concatcp!(CHANGE, LOCKED));
    let engine = tx.engine();
    let update = tx
        .statement(sql)
        .bind(holder.run.0)
        .bind(holder.worker.0)
        .bind(holder.fence)
        .bind(at.0);
    Ok(bind_thread(update, holder, engine).execute().await? == 1)
}

/// Binds the thread of a run for the condition that [locks](AND_THREAD_IS_LOCKED) it, which a statement of SQLite does not have.
fn bind_thread<'t, 'c>(update: Statement<'t, 'c>, holder: LeaseHolder, engine: Engine) -> Statement<'t, 'c> {
    match engine {
        Engine::Sqlite => update,
        Engine::Postgres => update.bind(holder.thread.0),
    }
}

/// Executes the change of a run's row, which fails if the worker does not hold the run any more.
///
/// On Postgres it is sent at once. The row has to be locked before the turn of the commit is over. And a commit that arrives
/// late, after its connection was given up, must find its transaction rolled back: in one message with the writes, it could store
/// them behind their own repetition. The number of changed rows is known then, so the statement need not fail by itself.
async fn change_held(update: Statement<'_, '_>, engine: Engine) -> DbResult<()> {
    match engine {
        Engine::Sqlite => update.change_later().await,
        Engine::Postgres => match update.execute().await? {
            0 => Err(DbError::NoRow),
            _ => Ok(()),
        },
    }
}

/// Stores the changes to a run's row that go with a write for it, as [`check_fence`] does with the time. The rest of the write
/// follows in the transaction, which fails if the worker does not hold the run any more.
///
/// # Errors
/// [`DbError::NoRow`] if the worker does not hold the run: on SQLite by the end of the transaction, see
/// [`Statement::change_later`].
pub async fn store_fenced(tx: &mut Tx<'_>, holder: LeaseHolder, trace: RunRowUpdate<'_>) -> DbResult<()> {
    const CHANGE: &str =
        "update runs set updated_at = $4, usage = coalesce($5, usage), crashes = case when $6 then 0 else crashes end";
    const BEGIN: &str = concatcp!(CHANGE, ", first_seq = coalesce(first_seq, $7)");
    const LOCKED: &str = concatcp!(CHANGE, HELD, str_replace!(AND_THREAD_STAYS, "{thread}", "$7"));
    const BEGIN_LOCKED: &str = concatcp!(BEGIN, HELD, str_replace!(AND_THREAD_STAYS, "{thread}", "$8"));
    // SQLite writes the indexes of all columns that are set, also of those that keep their values.
    let sql = match trace.seq {
        Some(_) => tx.either(concatcp!(BEGIN, HELD), BEGIN_LOCKED),
        None => tx.either(concatcp!(CHANGE, HELD), LOCKED),
    };
    let usage = trace.usage.map(|usage| encode_usage(tx, usage)).transpose()?;
    let engine = tx.engine();
    let mut update = tx
        .statement(sql)
        .bind(holder.run.0)
        .bind(holder.worker.0)
        .bind(holder.fence)
        .bind(trace.at.0)
        .bind(usage)
        .bind(trace.makes_progress);
    if let Some(seq) = trace.seq {
        update = update.bind(seq);
    }
    change_held(bind_thread(update, holder, engine), engine).await
}

/// Stores the end of a run like [`store_fenced`]. The thread is locked as by [`threads::lock`], since the end of a run changes it.
///
/// # Errors
/// As [`store_fenced`].
pub async fn end_fenced(
    tx: &mut Tx<'_>,
    holder: LeaseHolder,
    end: EndOfRun<'_>,
    trace: RunRowUpdate<'_>,
) -> DbResult<()> {
    const CHANGE: &str = "update runs set updated_at = $4, status = $5, error = $6, usage = coalesce($7, usage), \
        definition = case when $8 then definition end";
    const BEGIN: &str = concatcp!(CHANGE, ", first_seq = coalesce(first_seq, $9)");
    const LOCKED: &str = concatcp!(CHANGE, HELD, str_replace!(AND_THREAD_IS_CHANGED, "{thread}", "$9"));
    const BEGIN_LOCKED: &str = concatcp!(BEGIN, HELD, str_replace!(AND_THREAD_IS_CHANGED, "{thread}", "$10"));
    // As in [`store_fenced`].
    let sql = match trace.seq {
        Some(_) => tx.either(concatcp!(BEGIN, HELD), BEGIN_LOCKED),
        None => tx.either(concatcp!(CHANGE, HELD), LOCKED),
    };
    let error = encode_error(tx, holder.run, end.error).await?;
    let usage = trace.usage.map(|usage| encode_usage(tx, usage)).transpose()?;
    let engine = tx.engine();
    let mut update = tx
        .statement(sql)
        .bind(holder.run.0)
        .bind(holder.worker.0)
        .bind(holder.fence)
        .bind(trace.at.0)
        .bind(end.status.word())
        .bind(error)
        .bind(usage)
        .bind(end.waits);
    if let Some(seq) = trace.seq {
        update = update.bind(seq);
    }
    change_held(bind_thread(update, holder, engine), engine).await
}

/// Returns the number of a run's first event in the log of its thread; none if it has no events yet or was deleted.
pub async fn first_seq(tx: &mut Tx<'_>, run: RunId) -> DbResult<Option<i64>> {
    const SQL: &str = "select first_seq from runs where run_id = $1";
    let found: Option<(Option<i64>,)> = tx.statement(SQL).bind(run.0).fetch_optional().await?;
    Ok(found.and_then(|(first,)| first))
}

/// Returns up to `limit` pending runs of main agents created at or before `until`, on the threads in a scope, in the
/// order in which they are due.
pub async fn some_pending(tx: &mut Tx<'_>, scope: &AccessScope, until: Timestamp, limit: i64) -> DbResult<Vec<Run>> {
    const SQL: &str = concatcp!(SELECT, " where depth = 0 and status = 'pending' and created_at <= ");
    let rows: Vec<RunRow> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(SQL);
        sql.push_bind(until.0);
        push_scope_of_thread(&mut sql, scope, "runs.thread_id")?;
        sql.push(" order by due_at, run_id limit ").push_bind(limit);
        sql.build_query_as().fetch_all(conn).await
    })?;
    read_all(tx, rows).await
}

/// Returns up to `limit` running runs of main agents with their threads, which are in a scope, ordered by thread id,
/// after thread `after`.
pub async fn some_running(
    tx: &mut Tx<'_>,
    scope: &AccessScope,
    after: Option<ThreadId>,
    limit: i64,
) -> DbResult<Vec<(ThreadId, RunId)>> {
    const SQL: &str = "select thread_id, run_id from runs where depth = 0 and status = 'running' and thread_id > ";
    let after = after.map_or(Uuid::nil(), |after| after.0);
    let rows: Vec<(Uuid, Uuid)> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(SQL);
        sql.push_bind(after);
        push_scope_of_thread(&mut sql, scope, "runs.thread_id")?;
        sql.push(" order by thread_id limit ").push_bind(limit);
        sql.build_query_as().fetch_all(conn).await
    })?;
    Ok(rows
        .into_iter()
        .map(|(thread, run)| (ThreadId(thread), RunId(run)))
        .collect())
}

/// Requests the cancellation of a pending or running run: `interrupt` keeps its checkpoints, `rollback` deletes them.
/// Returns whether there is such a run.
pub async fn request_cancel(tx: &mut Tx<'_>, run: RunId, action: &str) -> DbResult<bool> {
    const SQL: &str = "update runs set cancel = $2 where run_id = $1 and status in ('pending', 'running')";
    let asked = on_engine!(tx, |conn| query(SQL)
        .bind(run.0)
        .bind(action)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    notifications::notify(tx, Notification::Cancel(run)).await?;
    Ok(asked == 1)
}

/// Returns the running runs that `worker` shall cancel, each with the action: its claimed runs and their subagents'
/// runs.
pub async fn cancels_of(tx: &mut Tx<'_>, worker: WorkerId) -> DbResult<Vec<(RunId, String)>> {
    const SQL: &str = "select run_id, cancel from runs \
        where depth = 0 and status = 'running' and worker = $1 and cancel is not null \
        union all select child.run_id, child.cancel from runs main join runs child on child.thread_id = main.thread_id \
        where main.depth = 0 and main.status = 'running' and main.worker = $1 \
        and child.depth > 0 and child.status = 'running' and child.cancel is not null";
    let rows: Vec<(Uuid, String)> = tx.statement(SQL).bind(worker.0).fetch_all().await?;
    Ok(rows.into_iter().map(|(run, action)| (RunId(run), action)).collect())
}

/// Marks a waiting subagent's run whose caller is still to be notified of its cancellation.
pub async fn mark_unreported(tx: &mut Tx<'_>, child: RunId) -> DbResult<()> {
    const SQL: &str = "update runs set cancel = 'interrupt' where run_id = $1 and depth > 0";
    on_engine!(tx, |conn| query(SQL).bind(child.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Clears the marks of [`mark_unreported`] of a subagent's run that has ended and of the runs below it: its caller is notified
/// of its end, and nobody waits for those below it any more.
pub async fn mark_reported(tx: &mut Tx<'_>, child: RunId) -> DbResult<()> {
    const SQL: &str = concatcp!(
        WITH_TREE,
        "update runs set cancel = null where run_id in (select member from tree) and cancel is not null"
    );
    on_engine!(tx, |conn| query(SQL).bind(child.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Returns the cancelled runs of subagents on a thread whose callers may not have been notified.
#[cfg(test)]
pub async fn unreported(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<RunId>> {
    unreported_later(tx, thread).await?.read(tx).await
}

/// Cancelled runs of subagents, to be read later in their transaction.
pub struct LaterUnreported(LaterRows<(Uuid,)>);

/// Returns the cancelled runs of subagents on a thread whose callers may not have been notified, to be read later in the
/// transaction, which must cancel none meanwhile. They are read together with other rows.
pub async fn unreported_later(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<LaterUnreported> {
    const SQL: &str = "select run_id from runs where thread_id = $1 \
        and depth > 0 and status = 'interrupted' and cancel is not null order by run_id";
    let statement = tx.statement(SQL).bind(thread.0);
    statement.fetch_later().await.map(LaterUnreported)
}

impl LaterUnreported {
    /// Reads the runs.
    pub async fn read(self, tx: &mut Tx<'_>) -> DbResult<Vec<RunId>> {
        let rows = self.0.fetch_all(tx).await?;
        Ok(rows.into_iter().map(|(id,)| RunId(id)).collect())
    }
}

/// Returns whether the caller of a run, or of one below it, is still to be notified of its cancellation.
pub async fn is_cancelled_while_waiting(tx: &mut Tx<'_>, top: RunId) -> DbResult<bool> {
    const SQL: &str = concatcp!(
        WITH_TREE,
        "select exists (select 1 from runs where run_id in (select member from tree) \
         and depth > 0 and status = 'interrupted' and cancel is not null)"
    );
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(top.0)
        .fetch_one(conn)
        .await)?)
}

/// Returns whether the cancellation of the run was requested.
pub async fn is_to_stop(tx: &mut Tx<'_>, run: RunId) -> DbResult<bool> {
    const SQL: &str = "select exists (select 1 from runs where run_id = $1 and cancel is not null)";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(run.0)
        .fetch_one(conn)
        .await)?)
}

/// Returns the claims of `worker` on running runs.
pub async fn held_by(tx: &mut Tx<'_>, worker: WorkerId) -> DbResult<Vec<LeaseHolder>> {
    const SQL: &str =
        "select thread_id, run_id, fence from runs where depth = 0 and status = 'running' and worker = $1";
    let rows: Vec<(Uuid, Uuid, i64)> = on_engine!(tx, |conn| query_as(SQL).bind(worker.0).fetch_all(conn).await)?;
    let holders = rows.into_iter().map(|(thread, run, fence)| LeaseHolder {
        thread: ThreadId(thread),
        run: RunId(run),
        worker,
        fence,
    });
    Ok(holders.collect())
}

/// Releases a run that has not ended, so that any worker can claim it.
pub async fn release(tx: &mut Tx<'_>, run: RunId, worker: WorkerId, fence: i64) -> DbResult<()> {
    const SQL: &str = "update runs set worker = null where run_id = $1 and worker = $2 and fence = $3";
    on_engine!(tx, |conn| query(SQL)
        .bind(run.0)
        .bind(worker.0)
        .bind(fence)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Releases all running runs of `worker`. Call it at shutdown, when the server no longer executes any of them.
pub async fn release_all(tx: &mut Tx<'_>, worker: WorkerId) -> DbResult<()> {
    const SQL: &str = "update runs set worker = null where depth = 0 and status = 'running' and worker = $1";
    on_engine!(tx, |conn| query(SQL).bind(worker.0).execute(conn).await.map(drop))?;
    Ok(())
}
