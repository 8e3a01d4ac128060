//! Which worker may write for which run. A claim carries a fence: when a run changes hands its fence grows, and who
//! still holds the old one can no longer write.

use sqlx::{query, query_as, query_scalar};
use uuid::Uuid;

use super::below::with_tree;
use super::{ReadRun, RunRow, columns};
use crate::db::engine::{Engine, on_engine};
use crate::db::json::encode;
use crate::db::workers::is_alive;
use crate::db::{DbError, DbResult, Ring, Tx, interrupts, rings, threads};
use crate::domain::id::{RunId, ThreadId, WorkerId};
use crate::domain::limits::Usage;
use crate::domain::machine::Failure;
use crate::domain::run::{Run, RunStatus};
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;

/// Keeps the status that the run of a subagent had before a later run of the main agent changed it.
macro_rules! remember {
    ($by:literal) => {
        concat!(
            "before = case when root_id <> ",
            $by,
            " and touched_by is distinct from ",
            $by,
            " then status else before end, touched_by = case when root_id <> ",
            $by,
            " then ",
            $by,
            " else touched_by end"
        )
    };
}

/// A run that was given to a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The run, at work now.
    pub run: Run,
    /// What the worker has to show when it writes.
    pub fence: i64,
    /// How often a server has died at work on the run since the run last got on.
    pub crashes: u32,
}

/// The claim of a row that `worker` was given. None for one that cannot be read: it is ended instead.
async fn claimed(tx: &mut Tx<'_>, row: RunRow, was: RunStatus, now: Timestamp) -> DbResult<Option<Claim>> {
    let fence = row.fence;
    let crashes = u32::try_from(row.crashes).unwrap_or(0);
    match row.into() {
        ReadRun { run, trouble: None } => Ok(Some(Claim { run, fence, crashes })),
        ReadRun {
            run,
            trouble: Some(trouble),
        } => {
            end_unreadable(tx, (&run, was), &trouble, now).await?;
            Ok(None)
        }
    }
}

/// Ends a run of the main agent that cannot be read, so that its thread is free and others go on.
async fn end_unreadable(
    tx: &mut Tx<'_>,
    (run, was): (&Run, RunStatus),
    trouble: &DbError,
    now: Timestamp,
) -> DbResult<()> {
    const SQL: &str = "update runs set status = 'error', error = $2, worker = null, updated_at = $3 where run_id = $1";
    tracing::error!(run = %run.id, thread = %run.thread, error = %trouble, "a run that cannot be read was ended");
    let failure = super::unreadable(trouble);
    let error = encode(&failure)?;
    on_engine!(tx, |conn| query(SQL)
        .bind(run.id.0)
        .bind(error)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    if was == RunStatus::Pending {
        // Answers that it would have brought were not given.
        interrupts::restore(tx, run.thread, run.id).await?;
    } else {
        stop_children(tx, run.thread, run.id, now).await?;
    }
    let left = threads::Left {
        run: run.id,
        status: ThreadStatus::Error,
        error: Some(failure),
    };
    threads::leave(tx, run.thread, &left, now).await?;
    rings::ring(tx, Ring::Ended(run.thread)).await
}

/// Gives a waiting run of the main agent to `worker`, unless another one is at work on its thread. One that cannot be read
/// is ended instead.
pub async fn claim(tx: &mut Tx<'_>, run: RunId, worker: WorkerId, now: Timestamp) -> DbResult<Option<Claim>> {
    const LOCK: &str = "select thread_id from threads \
        where thread_id = (select thread_id from runs where run_id = $1) for update";
    const SQL: &str = concat!(
        "update runs set status = 'running', worker = $2, fence = fence + 1, updated_at = $3 \
         where run_id = $1 and depth = 0 and status = 'pending' and not exists (select 1 from runs other \
         where other.thread_id = runs.thread_id and other.depth = 0 and other.status = 'running') returning ",
        columns!()
    );
    if tx.engine() == Engine::Postgres {
        // Two runs of one thread that are claimed at the same time do not see each other without this.
        on_engine!(tx, |conn| query(LOCK).bind(run.0).execute(conn).await.map(drop))?;
    }
    let row: Option<RunRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(run.0)
        .bind(worker.0)
        .bind(now.0)
        .fetch_optional(conn)
        .await)?;
    match row {
        Some(row) => claimed(tx, row, RunStatus::Pending, now).await,
        None => Ok(None),
    }
}

/// The waiting run of the main agent that became due first and whose thread is free. On Postgres one that somebody else
/// is about to claim is passed over.
pub async fn next_due(tx: &mut Tx<'_>, now: Timestamp) -> DbResult<Option<RunId>> {
    macro_rules! next_due {
        ($lock:literal) => {
            concat!(
                "select run_id from runs where depth = 0 and status = 'pending' and due_at <= $1 \
                 and not exists (select 1 from runs other where other.thread_id = runs.thread_id \
                 and other.depth = 0 and other.status = 'running') order by due_at, run_id limit 1",
                $lock
            )
        };
    }
    let sql = tx.either(next_due!(""), next_due!(" for update skip locked"));
    let id: Option<Uuid> = on_engine!(tx, |conn| query_scalar(sql).bind(now.0).fetch_optional(conn).await)?;
    Ok(id.map(RunId))
}

/// Whether any run of the main agent waits for its turn, due or not.
pub async fn any_pending(tx: &mut Tx<'_>) -> DbResult<bool> {
    const SQL: &str = "select exists (select 1 from runs where depth = 0 and status = 'pending')";
    Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?)
}

/// When the next waiting run whose thread is free becomes due, or became so.
pub async fn next_due_at(tx: &mut Tx<'_>) -> DbResult<Option<Timestamp>> {
    const SQL: &str = "select due_at from runs where depth = 0 and status = 'pending' \
        and not exists (select 1 from runs other where other.thread_id = runs.thread_id \
        and other.depth = 0 and other.status = 'running') order by due_at, run_id limit 1";
    let at: Option<i64> = on_engine!(tx, |conn| query_scalar(SQL).fetch_optional(conn).await)?;
    Ok(at.map(Timestamp))
}

/// Gives runs of the main agent that were left behind to `worker`: those at work whose worker is none, is unknown, or
/// broke its promise to be alive. Each is begun anew, so its `attempt` grows; where the worker before had not given the run
/// back, it is taken to have died, and so do the `crashes`. Those that
/// cannot be read are ended instead.
///
/// Its own runs are not among them, even if it broke its promise itself, as after a sleep: it is still at work on them.
pub async fn adopt_orphans(tx: &mut Tx<'_>, worker: WorkerId, now: Timestamp, limit: i64) -> DbResult<Vec<Claim>> {
    macro_rules! adopt {
        ($engine:ident, $lock:literal) => {
            concat!(
                "update runs set worker = $1, fence = fence + 1, attempt = attempt + 1, updated_at = $2, \
                 crashes = crashes + case when worker is null then 0 else 1 end \
                 where run_id in (select run_id from runs orphan where depth = 0 and status = 'running' \
                 and (worker is null or worker <> $1) and not ",
                is_alive!($engine, "orphan.worker"),
                " order by created_at, run_id limit $3",
                $lock,
                ") returning ",
                columns!()
            )
        };
    }
    let sql = tx.either(adopt!(sqlite, ""), adopt!(postgres, " for update skip locked"));
    let rows: Vec<RunRow> = on_engine!(tx, |conn| query_as(sql)
        .bind(worker.0)
        .bind(now.0)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    let mut claims = vec![];
    for row in rows {
        claims.extend(claimed(tx, row, RunStatus::Running, now).await?);
    }
    claims.sort_by_key(|claim| (claim.run.created_at, claim.run.id));
    Ok(claims)
}

/// Who writes for a run: the run, the worker that was given it, and the fence it was given with it.
pub type Holder = (RunId, WorkerId, i64);

/// What the row of a run keeps of a write for it.
#[derive(Debug, Clone, Copy)]
pub struct Trace<'a> {
    /// The number of what is written into the log, if anything is; the first one of a run is kept.
    pub seq: Option<i64>,
    /// What the run has used by now, if that is to be stored.
    pub usage: Option<&'a Usage>,
    /// Whether the run gets on by it, so that how often a server died at work on it is counted from zero again.
    pub gets_on: bool,
    /// When.
    pub at: Timestamp,
}

impl Trace<'_> {
    /// A write that leaves nothing but its time.
    pub fn at(at: Timestamp) -> Self {
        Self {
            seq: None,
            usage: None,
            gets_on: false,
            at,
        }
    }
}

/// Whether the worker may still write for the run. When it may, nobody takes the run from it before the end of the
/// transaction.
pub async fn check_fence(tx: &mut Tx<'_>, (run, worker, fence): Holder, trace: Trace<'_>) -> DbResult<bool> {
    const SQL: &str = "update runs set updated_at = $4, first_seq = coalesce(first_seq, $5), usage = coalesce($6, usage), \
        crashes = case when $7 then 0 else crashes end where run_id = $1 and worker = $2 and fence = $3";
    let usage = trace.usage.map(encode).transpose()?;
    let held = on_engine!(tx, |conn| query(SQL)
        .bind(run.0)
        .bind(worker.0)
        .bind(fence)
        .bind(trace.at.0)
        .bind(trace.seq)
        .bind(usage)
        .bind(trace.gets_on)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(held == 1)
}

/// As [`check_fence`], and writes down in the same breath how the run ended.
pub async fn end_fenced(
    tx: &mut Tx<'_>,
    (run, worker, fence): Holder,
    (status, error): (RunStatus, Option<&Failure>),
    trace: Trace<'_>,
) -> DbResult<bool> {
    const SQL: &str = "update runs set updated_at = $4, status = $5, error = $6, first_seq = coalesce(first_seq, $7), \
        usage = coalesce($8, usage) where run_id = $1 and worker = $2 and fence = $3";
    let error = error.map(encode).transpose()?;
    let usage = trace.usage.map(encode).transpose()?;
    let held = on_engine!(tx, |conn| query(SQL)
        .bind(run.0)
        .bind(worker.0)
        .bind(fence)
        .bind(trace.at.0)
        .bind(status.word())
        .bind(error)
        .bind(trace.seq)
        .bind(usage)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(held == 1)
}

/// The number from which on the events of a run lie in the log of its thread; none if it has no events yet, or is gone.
pub async fn first_seq(tx: &mut Tx<'_>, run: RunId) -> DbResult<Option<i64>> {
    const SQL: &str = "select first_seq from runs where run_id = $1";
    let found: Option<Option<i64>> = on_engine!(tx, |conn| query_scalar(SQL).bind(run.0).fetch_optional(conn).await)?;
    Ok(found.flatten())
}

/// Some runs of the main agent that wait for their turn since `until` at the latest, those that become due first.
pub async fn some_pending(tx: &mut Tx<'_>, until: Timestamp, limit: i64) -> DbResult<Vec<Run>> {
    const SQL: &str = concat!(
        "select ",
        columns!(),
        " from runs where depth = 0 and status = 'pending' and created_at <= $1 order by due_at, run_id limit $2"
    );
    let rows: Vec<RunRow> = on_engine!(tx, |conn| query_as(SQL).bind(until.0).bind(limit).fetch_all(conn).await)?;
    Ok(rows.into_iter().map(Run::from).collect())
}

/// Runs of the main agent at work, with their threads, in the order of the threads and behind `after`.
pub async fn some_running(tx: &mut Tx<'_>, after: Option<ThreadId>, limit: i64) -> DbResult<Vec<(ThreadId, RunId)>> {
    const SQL: &str = "select thread_id, run_id from runs where depth = 0 and status = 'running' and thread_id > $1 \
        order by thread_id limit $2";
    let after = after.map_or(Uuid::nil(), |after| after.0);
    let rows: Vec<(Uuid, Uuid)> = on_engine!(tx, |conn| query_as(SQL).bind(after).bind(limit).fetch_all(conn).await)?;
    Ok(rows
        .into_iter()
        .map(|(thread, run)| (ThreadId(thread), RunId(run)))
        .collect())
}

/// Asks the worker of a run that is not over yet to stop it: `interrupt` keeps what it did, `rollback` undoes it.
/// Returns whether there is such a run.
pub async fn request_cancel(tx: &mut Tx<'_>, run: RunId, action: &str) -> DbResult<bool> {
    const SQL: &str = "update runs set cancel = $2 where run_id = $1 and status in ('pending', 'running')";
    let asked = on_engine!(tx, |conn| query(SQL)
        .bind(run.0)
        .bind(action)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    rings::ring(tx, Ring::Cancel(run)).await?;
    Ok(asked == 1)
}

/// The runs at work that `worker` shall stop, and how: those it was given, and those of subagents below them.
pub async fn cancels_of(tx: &mut Tx<'_>, worker: WorkerId) -> DbResult<Vec<(RunId, String)>> {
    const SQL: &str = "select run_id, cancel from runs \
        where depth = 0 and status = 'running' and worker = $1 and cancel is not null \
        union all select child.run_id, child.cancel from runs main join runs child on child.thread_id = main.thread_id \
        where main.depth = 0 and main.status = 'running' and main.worker = $1 \
        and child.depth > 0 and child.status = 'running' and child.cancel is not null";
    let rows: Vec<(Uuid, String)> = on_engine!(tx, |conn| query_as(SQL).bind(worker.0).fetch_all(conn).await)?;
    Ok(rows.into_iter().map(|(run, action)| (RunId(run), action)).collect())
}

/// Notes that the caller of a subagent that waited is still to be told that it is over.
pub async fn give_up(tx: &mut Tx<'_>, child: RunId) -> DbResult<()> {
    const SQL: &str = "update runs set cancel = 'interrupt' where run_id = $1 and depth > 0";
    on_engine!(tx, |conn| query(SQL).bind(child.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Notes that the caller of a subagent knows, or is about to, that it was cancelled.
pub async fn caller_told(tx: &mut Tx<'_>, child: RunId) -> DbResult<()> {
    const SQL: &str = "update runs set cancel = null where run_id = $1 and cancel is not null";
    on_engine!(tx, |conn| query(SQL).bind(child.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// The runs of subagents on a thread that were cancelled, and whose callers may not have been told.
pub async fn given_up(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<RunId>> {
    const SQL: &str = "select run_id from runs where thread_id = $1 \
        and depth > 0 and status = 'interrupted' and cancel is not null order by run_id";
    let ids: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(SQL).bind(thread.0).fetch_all(conn).await)?;
    Ok(ids.into_iter().map(RunId).collect())
}

/// Whether the caller of a run, or of one below it, is still to be told that it was cancelled.
pub async fn is_given_up(tx: &mut Tx<'_>, top: RunId) -> DbResult<bool> {
    const SQL: &str = concat!(
        with_tree!(),
        "select exists (select 1 from runs where run_id in (select member from tree) \
         and depth > 0 and status = 'interrupted' and cancel is not null)"
    );
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(top.0)
        .fetch_one(conn)
        .await)?)
}

/// Whether somebody has asked that the run stop.
pub async fn is_to_stop(tx: &mut Tx<'_>, run: RunId) -> DbResult<bool> {
    const SQL: &str = "select exists (select 1 from runs where run_id = $1 and cancel is not null)";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(run.0)
        .fetch_one(conn)
        .await)?)
}

/// Gives a run back that is not over: whoever looks next goes on with it.
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

/// Gives back all runs of `worker` that are not over. For a server that stops, and is not at work on any of them any more.
pub async fn release_all(tx: &mut Tx<'_>, worker: WorkerId) -> DbResult<()> {
    const SQL: &str = "update runs set worker = null where depth = 0 and status = 'running' and worker = $1";
    on_engine!(tx, |conn| query(SQL).bind(worker.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Sets, in the course of run `by` of the main agent, what the run of a subagent is doing, and why it failed, when it did.
pub async fn set_child_status(
    tx: &mut Tx<'_>,
    child: RunId,
    (status, error): (RunStatus, Option<&Failure>),
    by: RunId,
    now: Timestamp,
) -> DbResult<()> {
    const SQL: &str = concat!(
        "update runs set status = $2, error = $3, updated_at = $5, ",
        remember!("$4"),
        " where run_id = $1 and depth > 0"
    );
    let error = error.map(encode).transpose()?;
    on_engine!(tx, |conn| query(SQL)
        .bind(child.0)
        .bind(status.word())
        .bind(error)
        .bind(by.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Notes, in the course of run `by` of the main agent, that nobody waits any more for the subagents of a thread that are
/// not done.
pub async fn stop_children(tx: &mut Tx<'_>, thread: ThreadId, by: RunId, now: Timestamp) -> DbResult<()> {
    const SQL: &str = concat!(
        "update runs set status = 'interrupted', updated_at = $3, ",
        remember!("$2"),
        " where thread_id = $1 and depth > 0 and status = 'running'"
    );
    on_engine!(tx, |conn| query(SQL)
        .bind(thread.0)
        .bind(by.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Notes, in the course of run `by` of the main agent, that the runs below a subagent's are not at work any more, since it
/// is not.
pub async fn stop_below(tx: &mut Tx<'_>, child: RunId, by: RunId, now: Timestamp) -> DbResult<()> {
    const SQL: &str = concat!(
        with_tree!(),
        "update runs set status = 'interrupted', updated_at = $3, ",
        remember!("$2"),
        " where run_id in (select member from tree) and run_id <> $1 and status = 'running'"
    );
    on_engine!(tx, |conn| query(SQL)
        .bind(child.0)
        .bind(by.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Lets the runs of subagents that do not belong to run `by` do again what they did before it.
pub async fn restore_children(tx: &mut Tx<'_>, by: RunId) -> DbResult<()> {
    const SQL: &str = "update runs set status = coalesce(before, status), error = null, before = null, \
        cancel = null, touched_by = null where touched_by = $1";
    on_engine!(tx, |conn| query(SQL).bind(by.0).execute(conn).await.map(drop))?;
    Ok(())
}
