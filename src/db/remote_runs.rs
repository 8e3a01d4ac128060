//! The table of remote runs: work of agents on other servers, kept until that server has nothing left of the work.
//! For background tasks see [`background`](super::background); here are those that were deleted with their conversation.

use const_format::{concatcp, str_replace};
use sqlx::{query, query_as, query_scalar};
use uuid::Uuid;

use super::engine::on_engine;
use super::jobs::{self, JobOwner};
use super::of_thread::{of_thread_on_postgres, of_thread_on_sqlite};
use super::row::from_row;
use super::{DbResult, Tx};
use crate::definition::DefinitionDigest;
use crate::domain::id::RunId;
use crate::domain::job::JobKind;
use crate::domain::remote_run::RemoteRun;
use crate::domain::time::Timestamp;

from_row! {
    struct RemoteRunRow {
        remote_run_id: Uuid,
        first_run: Option<Uuid>,
        parent_graph_id: Option<String>,
        parent_definition: Option<String>,
        agent_name: String,
        url: String,
        unwanted: bool,
        lost_since: Option<i64>,
        seen_status: Option<String>,
    }
}

/// The status of a remote run that the last attempt to cancel it did not find. It has no other status.
const MISSED: &str = "missed";

impl From<RemoteRunRow> for RemoteRun {
    fn from(row: RemoteRunRow) -> Self {
        Self {
            run: RunId(row.remote_run_id),
            first: RunId(row.first_run.unwrap_or(row.remote_run_id)),
            graph_id: row.parent_graph_id.unwrap_or_default(),
            definition: row.parent_definition.map(DefinitionDigest),
            agent: row.agent_name,
            url: row.url,
            of_deleted_task: row.unwanted,
            lost_since: row.lost_since.map(Timestamp),
            was_missed: row.seen_status.as_deref() == Some(MISSED),
        }
    }
}

/// The SQL condition that interrupt `i` was raised by the run `r`. Those of main agents are in the main lane.
const IS_RAISED_BY_IT: &str = "(i.lane = r.run_id or (i.run_id = r.run_id and r.depth = 0))";

/// The SQL condition that the run of row `e` is over, with one of the statuses `{statuses}`: it does not wait, and no run is
/// at work on its thread that may continue it. A deleted run is over. The condition is a
/// [question about a thread](super::of_thread), and so are those below. `offset 0` keeps Postgres from answering them for all runs
/// and threads.
const IS_OVER: &str = concatcp!(
    "not exists (select 1 from runs r where r.run_id = e.remote_run_id and (r.status not in {statuses} \
     or exists (select 1 from interrupts i where i.thread_id = r.thread_id and i.status = 'pending' and ",
    IS_RAISED_BY_IT,
    " limit 1 offset 0) or (r.status <> 'error' and (exists (select 1 from runs m \
     where m.thread_id = r.thread_id and m.depth = 0 and {pending} limit 1 offset 0) or exists (select 1 from runs m \
     where m.thread_id = r.thread_id and m.depth = 0 and {running} limit 1 offset 0)))) limit 1 offset 0)"
);

/// The SQL condition that the run of row `e` is one of a main agent, and its question was dropped.
const IS_ABANDONED: &str = "exists (select 1 from runs o where o.run_id = e.remote_run_id and o.depth < 1 \
    and exists (select 1 from interrupts i where i.thread_id = o.thread_id and i.run_id = o.run_id and i.status = 'dropped' \
    limit 1 offset 0) limit 1 offset 0)";

/// The SQL condition that the run of row `e` has succeeded.
const HAS_SUCCEEDED: &str = concatcp!(
    "not ",
    IS_ABANDONED,
    " and exists (select 1 from runs r where r.run_id = e.remote_run_id and r.status = 'success' limit 1 offset 0) and ",
    str_replace!(IS_OVER, "{statuses}", "('success')")
);

/// The SQL condition that the work of row `e` is to be cancelled.
const IS_UNWANTED: &str = concatcp!(
    "(",
    str_replace!(IS_OVER, "{statuses}", "('error', 'timeout', 'interrupted')"),
    " or ",
    IS_ABANDONED,
    ")"
);

/// The SQL condition that the run of row `e` waits for an answer, and no run is at work on its thread, or brings one.
const WAITS: &str = concatcp!(
    "exists (select 1 from runs r where r.run_id = e.remote_run_id \
     and exists (select 1 from interrupts i where i.thread_id = r.thread_id and i.status = 'pending' and ",
    IS_RAISED_BY_IT,
    " limit 1 offset 0) \
     and not exists (select 1 from runs m where m.thread_id = r.thread_id and m.depth = 0 and {running} limit 1 offset 0) \
     and not exists (select 1 from runs m where m.thread_id = r.thread_id and m.depth = 0 and {pending} \
     and m.turn = 'answer' limit 1 offset 0) limit 1 offset 0)"
);

/// The SQL condition that no job will cancel the work of row `e`.
const HAS_NO_CANCELLATION: &str =
    "not exists (select 1 from jobs j where j.kind = 'cancel_remote' and j.key = e.remote_run_id)";
/// The SQL condition that no job polls the question of row `e`.
const HAS_NO_WATCH: &str =
    "not exists (select 1 from jobs j where j.kind = 'watch_interrupt' and j.key = e.remote_run_id)";

/// Stores a remote run before it begins.
pub async fn insert(tx: &mut Tx<'_>, work: &RemoteRun) -> DbResult<()> {
    const SQL: &str = "insert into remote_runs (remote_run_id, url, agent_name, parent_graph_id, parent_definition, \
        first_run, unwanted, attempts, version) values ($1, $2, $3, $4, $5, $6, false, 0, 0) on conflict (remote_run_id) do nothing";
    on_engine!(tx, |conn| query(SQL)
        .bind(work.run.0)
        .bind(&work.url)
        .bind(&work.agent)
        .bind(&work.graph_id)
        .bind(work.definition.as_ref().map(|digest| digest.0.as_str()))
        .bind(work.first.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Stores what a background task may have left on its server, once the task is deleted, with the job that cancels it at
/// `due_at`. A tenant can store that, but not read it.
pub async fn insert_of_deleted_task(tx: &mut Tx<'_>, work: &RemoteRun, due_at: Timestamp) -> DbResult<()> {
    // Without `on conflict`, for which Postgres would have to read the row.
    const SQL: &str = "insert into remote_runs (remote_run_id, url, agent_name, parent_graph_id, parent_definition, \
        unwanted, attempts, version) values ($1, $2, $3, $4, $5, true, 0, 0)";
    on_engine!(tx, |conn| query(SQL)
        .bind(work.run.0)
        .bind(&work.url)
        .bind(&work.agent)
        .bind(&work.graph_id)
        .bind(work.definition.as_ref().map(|digest| digest.0.as_str()))
        .execute(conn)
        .await
        .map(drop))?;
    jobs::ensure(tx, JobKind::CancelRemote, work.run.0, JobOwner::default(), due_at).await
}

/// Returns the remote run of a run, or of a deleted task.
pub async fn find(tx: &mut Tx<'_>, run: RunId) -> DbResult<Option<RemoteRun>> {
    const SQL: &str = "select remote_run_id, first_run, parent_graph_id, parent_definition, agent_name, url, unwanted, \
        lost_since, seen_status from remote_runs where remote_run_id = $1 and task_id is null";
    let row: Option<RemoteRunRow> = on_engine!(tx, |conn| query_as(SQL).bind(run.0).fetch_optional(conn).await)?;
    Ok(row.map(RemoteRun::from))
}

/// Returns whether there are remote runs for which an agent of this server waits, or has waited.
pub async fn any_awaited(tx: &mut Tx<'_>) -> DbResult<bool> {
    const SQL: &str = "select exists (select 1 from remote_runs where task_id is null)";
    Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?)
}

/// Returns whether there are remote runs that are done, or remote runs that are to be cancelled and have no job for
/// that.
pub async fn any_over(tx: &mut Tx<'_>) -> DbResult<bool> {
    const SQL: &str = concatcp!(
        "select exists (select 1 from remote_runs e where e.task_id is null and ",
        HAS_NO_CANCELLATION,
        " and ",
        str_replace!(IS_OVER, "{statuses}", "('success', 'error', 'timeout', 'interrupted')"),
        ")"
    );
    let sql = tx.either(of_thread_on_sqlite!(SQL), of_thread_on_postgres!(SQL));
    Ok(on_engine!(tx, |conn| query_scalar(sql).fetch_one(conn).await)?)
}

/// Deletes some remote runs that have succeeded.
pub async fn delete_done(tx: &mut Tx<'_>, limit: i64) -> DbResult<()> {
    const SQL: &str = concatcp!(
        "delete from remote_runs where remote_run_id in (select e.remote_run_id from remote_runs e where e.task_id is null and ",
        HAS_SUCCEEDED,
        " order by e.remote_run_id limit $1)"
    );
    let sql = tx.either(of_thread_on_sqlite!(SQL), of_thread_on_postgres!(SQL));
    on_engine!(tx, |conn| query(sql).bind(limit).execute(conn).await.map(drop))?;
    Ok(())
}

/// Schedules the cancellation of some remote runs.
pub async fn schedule_cancelling(tx: &mut Tx<'_>, now: Timestamp, limit: i64) -> DbResult<()> {
    const SQL: &str = concatcp!(
        "select e.remote_run_id from remote_runs e where e.task_id is null and ",
        HAS_NO_CANCELLATION,
        " and ",
        IS_UNWANTED,
        " order by e.remote_run_id limit $1"
    );
    let sql = tx.either(of_thread_on_sqlite!(SQL), of_thread_on_postgres!(SQL));
    schedule(tx, sql, JobKind::CancelRemote, now, limit).await
}

/// Returns whether a remote run is to be cancelled.
pub async fn is_unwanted(tx: &mut Tx<'_>, run: RunId) -> DbResult<bool> {
    const SQL: &str = concatcp!(
        "select exists (select 1 from remote_runs e where e.remote_run_id = $1 and e.task_id is null and ",
        IS_UNWANTED,
        ")"
    );
    let sql = tx.either(of_thread_on_sqlite!(SQL), of_thread_on_postgres!(SQL));
    Ok(on_engine!(tx, |conn| query_scalar(sql)
        .bind(run.0)
        .fetch_one(conn)
        .await)?)
}

/// Returns whether there are remote runs that wait for an answer and have no job that polls them.
pub async fn any_unwatched(tx: &mut Tx<'_>) -> DbResult<bool> {
    const SQL: &str = concatcp!(
        "select exists (select 1 from remote_runs e where e.task_id is null and ",
        HAS_NO_WATCH,
        " and ",
        WAITS,
        ")"
    );
    let sql = tx.either(of_thread_on_sqlite!(SQL), of_thread_on_postgres!(SQL));
    Ok(on_engine!(tx, |conn| query_scalar(sql).fetch_one(conn).await)?)
}

/// Schedules polling of some remote runs that wait for an answer.
pub async fn schedule_watching(tx: &mut Tx<'_>, now: Timestamp, limit: i64) -> DbResult<()> {
    const SQL: &str = concatcp!(
        "select e.remote_run_id from remote_runs e where e.task_id is null and ",
        HAS_NO_WATCH,
        " and ",
        WAITS,
        " order by e.remote_run_id limit $1"
    );
    let sql = tx.either(of_thread_on_sqlite!(SQL), of_thread_on_postgres!(SQL));
    schedule(tx, sql, JobKind::WatchInterrupt, now, limit).await
}

async fn schedule(tx: &mut Tx<'_>, sql: &'static str, kind: JobKind, now: Timestamp, limit: i64) -> DbResult<()> {
    let found: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(sql).bind(limit).fetch_all(conn).await)?;
    for run in found {
        jobs::ensure(tx, kind, run, JobOwner::default(), now).await?;
    }
    Ok(())
}

/// Returns whether a remote run waits for an answer, and no run is at work on its thread.
pub async fn waits(tx: &mut Tx<'_>, run: RunId) -> DbResult<bool> {
    const SQL: &str = concatcp!(
        "select exists (select 1 from remote_runs e where e.remote_run_id = $1 and e.task_id is null and ",
        WAITS,
        ")"
    );
    let sql = tx.either(of_thread_on_sqlite!(SQL), of_thread_on_postgres!(SQL));
    Ok(on_engine!(tx, |conn| query_scalar(sql)
        .bind(run.0)
        .fetch_one(conn)
        .await)?)
}

/// Stores the time since which attempts to cancel a remote run have not ended it, and whether the last one did not find it on
/// its server.
pub async fn set_lost(tx: &mut Tx<'_>, run: RunId, since: Timestamp, was_missed: bool) -> DbResult<()> {
    const SQL: &str = "update remote_runs set lost_since = $2, seen_status = $3 where remote_run_id = $1";
    on_engine!(tx, |conn| query(SQL)
        .bind(run.0)
        .bind(since.0)
        .bind(was_missed.then_some(MISSED))
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Deletes a remote run.
pub async fn delete(tx: &mut Tx<'_>, run: RunId) -> DbResult<()> {
    const SQL: &str = "delete from remote_runs where remote_run_id = $1";
    on_engine!(tx, |conn| query(SQL).bind(run.0).execute(conn).await.map(drop))?;
    Ok(())
}
