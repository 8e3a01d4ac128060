//! The remote runs of background tasks: their last polled state and the next poll.

use const_format::concatcp;
use sqlx::{QueryBuilder, query, query_as, query_scalar};
use uuid::Uuid;

use super::{SELECT, TABLE, TaskRow};
use crate::db::access::push_scope_of_thread;
use crate::db::codec::json::{ColumnRef, encode, readable};
use crate::db::engine::on_engine;
use crate::db::jobs::{self, JobOwner};
use crate::db::{DbResult, Tx};
use crate::definition::DefinitionDigest;
use crate::domain::access::AccessScope;
use crate::domain::background::{RemoteWork, TaskRecord};
use crate::domain::id::ThreadId;
use crate::domain::job::JobKind;
use crate::domain::limits::Usage;
use crate::domain::run::AssignedAgent;
use crate::domain::time::Timestamp;

/// Stores the remote run of a new task, with the job that polls it.
pub(super) async fn insert(tx: &mut Tx<'_>, task: &TaskRecord, url: &str) -> DbResult<()> {
    const SQL: &str = "insert into remote_runs (remote_run_id, task_id, url, agent_name, unwanted, attempts, version) \
        values ($1, $1, $2, $3, false, 0, 0)";
    on_engine!(tx, |conn| query(SQL)
        .bind(task.task.0)
        .bind(url)
        .bind(&task.agent)
        .execute(conn)
        .await
        .map(drop))?;
    poll_at(tx, task, task.remote.due_at).await
}

/// Schedules the next poll of a task, or ends polling. A worker that is polling it loses the claim.
async fn poll_at(tx: &mut Tx<'_>, task: &TaskRecord, due_at: Option<Timestamp>) -> DbResult<()> {
    let owner = JobOwner {
        thread: Some(task.parent_thread),
        assistant: None,
    };
    match due_at {
        Some(due_at) => jobs::schedule(tx, JobKind::PollRemote, task.task.0, owner, due_at).await,
        None => jobs::delete(tx, JobKind::PollRemote, task.task.0).await,
    }
}

/// Returns the tasks that wait for an answer, oldest first, among those that agents on threads in a scope have started.
pub async fn waiting(tx: &mut Tx<'_>, scope: &AccessScope, limit: i64) -> DbResult<Vec<TaskRecord>> {
    const SQL: &str = concatcp!(
        SELECT,
        " where w.seen_status = 'waiting' and not w.unwanted and exists (select 1 from jobs j where j.kind = 'poll_remote' \
         and j.key = t.task_id)"
    );
    let rows: Vec<TaskRow> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(SQL);
        push_scope_of_thread(&mut sql, scope, "t.parent_thread")?;
        sql.push(" order by t.created_at, t.task_id limit ").push_bind(limit);
        sql.build_query_as().fetch_all(conn).await
    })?;
    readable(rows)
}

/// Returns the tasks of a thread of which work may go on on their servers, or may begin there: those that are polled.
pub async fn polled(tx: &mut Tx<'_>, parent: ThreadId) -> DbResult<Vec<TaskRecord>> {
    const SQL: &str = concatcp!(
        SELECT,
        " where t.parent_thread = $1 and w.url is not null and exists (select 1 from jobs j where j.kind = 'poll_remote' \
         and j.key = t.task_id)"
    );
    let rows: Vec<TaskRow> = on_engine!(tx, |conn| query_as(SQL).bind(parent.0).fetch_all(conn).await)?;
    readable(rows)
}

/// The condition under which the state of a task is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkCondition {
    /// None: the state is stored in any case.
    Always,
    /// The task is not to be cancelled, and was not since the last message to it.
    IsWanted,
    /// The state has this version.
    HasVersion(i64),
}

/// Stores the polled state of a task and its next poll. Returns false if the condition does not hold, or the task is gone.
/// A worker that is polling the task meanwhile stores nothing. A task that is not wanted any more is polled once more, since
/// work that has begun there in the meantime is to be cancelled, too.
pub async fn note(tx: &mut Tx<'_>, task: &TaskRecord, work: &RemoteWork, condition: WorkCondition) -> DbResult<bool> {
    const SQL: &str = "update remote_runs set seen = $2, seen_status = $3, seen_run = $4, unwanted = $5, attempts = $6, \
        lost_since = $7, version = version + 1 where remote_run_id = $1 and version = coalesce(cast($8 as bigint), version) \
        and not (unwanted and $9)";
    let version = match condition {
        WorkCondition::HasVersion(version) => Some(version),
        WorkCondition::Always | WorkCondition::IsWanted => None,
    };
    let sealer = tx.sealer_of_thread(task.parent_thread).await?;
    let cell = ColumnRef {
        table: TABLE,
        column: "seen",
        id: &task.task,
    };
    let seen = work.seen.as_ref().map(|seen| sealer.encode(&cell, seen)).transpose()?;
    let status = work.seen.as_ref().map(|seen| seen.status.word());
    let run = work.seen.as_ref().and_then(|seen| seen.run.parse::<Uuid>().ok());
    let changed = on_engine!(tx, |conn| query(SQL)
        .bind(task.task.0)
        .bind(seen)
        .bind(status)
        .bind(run)
        .bind(work.cancel_requested)
        .bind(i32::try_from(work.attempts).unwrap_or(i32::MAX))
        .bind(work.lost_since.map(|at| at.0))
        .bind(version)
        .bind(condition == WorkCondition::IsWanted)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    if changed == 1 {
        poll_at(tx, task, work.due_at).await?;
    } else if condition == WorkCondition::IsWanted {
        poll_again(tx, task.task, work.due_at).await?;
    }
    Ok(changed == 1)
}

/// Schedules a further poll of a task whose state stays as it is, unless the task is gone. A worker that is polling it
/// meanwhile stores nothing.
async fn poll_again(tx: &mut Tx<'_>, task: ThreadId, due_at: Option<Timestamp>) -> DbResult<()> {
    const SQL: &str = "update remote_runs set version = version + 1 where remote_run_id = $1";
    // It may have moved to another thread.
    let Some(record) = super::find(tx, task).await?.filter(|_| due_at.is_some()) else {
        return Ok(());
    };
    on_engine!(tx, |conn| query(SQL).bind(task.0).execute(conn).await.map(drop))?;
    poll_at(tx, &record, due_at).await
}

/// Returns the known usage of a task.
pub async fn used(tx: &mut Tx<'_>, task: ThreadId) -> DbResult<Usage> {
    const SQL: &str = "select used from remote_runs where remote_run_id = $1";
    let found: Option<Option<String>> =
        on_engine!(tx, |conn| query_scalar(SQL).bind(task.0).fetch_optional(conn).await)?;
    let cell = ColumnRef {
        table: "remote_runs",
        column: "used",
        id: &task.0,
    };
    Ok(found
        .flatten()
        .map(|used| cell.decode_or_default(&used))
        .unwrap_or_default())
}

/// Sets the known usage of a task.
pub async fn set_used(tx: &mut Tx<'_>, task: ThreadId, used: &Usage) -> DbResult<()> {
    const SQL: &str = "update remote_runs set used = $2 where remote_run_id = $1";
    let used = encode(used)?;
    on_engine!(tx, |conn| query(SQL)
        .bind(task.0)
        .bind(used)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Deletes a task that was never started.
pub async fn forget(tx: &mut Tx<'_>, task: ThreadId) -> DbResult<()> {
    const SQL: &str = "delete from background_tasks where task_id = $1 and exists (select 1 from remote_runs w \
        where w.remote_run_id = background_tasks.task_id and w.seen is null)";
    let deleted = on_engine!(tx, |conn| query(SQL)
        .bind(task.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    if deleted == 1 {
        jobs::delete(tx, JobKind::PollRemote, task.0).await?;
    }
    Ok(())
}

/// Separates a task from the run that started it, since that run is undone: no agent is notified any more, and
/// `described` is the agent in whose definition the agent of the task is described. The task moves to the thread in the
/// record. Its job is deleted.
pub async fn detach(tx: &mut Tx<'_>, task: &TaskRecord, described: Option<&AssignedAgent>) -> DbResult<()> {
    const MOVE: &str =
        "update background_tasks set parent_thread = $2, notify = false, watched = false where task_id = $1";
    const DESCRIBE: &str =
        "update remote_runs set parent_graph_id = $2, parent_definition = $3 where remote_run_id = $1";
    on_engine!(tx, |conn| query(MOVE)
        .bind(task.task.0)
        .bind(task.parent_thread.0)
        .execute(conn)
        .await
        .map(drop))?;
    let graph_id = described.map_or("", |agent| agent.graph_id.as_str());
    let digest = described.and_then(|agent| agent.definition.as_ref());
    on_engine!(tx, |conn| query(DESCRIBE)
        .bind(task.task.0)
        .bind(graph_id)
        .bind(digest.map(|digest| digest.0.as_str()))
        .execute(conn)
        .await
        .map(drop))?;
    // It belongs to the thread on which the task was started, which may be deleted.
    jobs::delete(tx, JobKind::PollRemote, task.task.0).await
}

/// Returns the agent in whose definition the agent of a detached task is described: its `graph_id`, and the digest of the
/// definition.
pub async fn described_in(tx: &mut Tx<'_>, task: ThreadId) -> DbResult<Option<(String, Option<DefinitionDigest>)>> {
    const SQL: &str = "select parent_graph_id, parent_definition from remote_runs \
        where remote_run_id = $1 and parent_graph_id is not null";
    let found: Option<(String, Option<String>)> =
        on_engine!(tx, |conn| query_as(SQL).bind(task.0).fetch_optional(conn).await)?;
    Ok(found.map(|(graph_id, digest)| (graph_id, digest.map(DefinitionDigest))))
}

/// Deletes a task if it is detached. Call it when nothing of the task is left on the other server.
pub async fn forget_detached(tx: &mut Tx<'_>, task: ThreadId) -> DbResult<()> {
    const SQL: &str = "delete from background_tasks where task_id = $1 and exists (select 1 from remote_runs w \
        where w.remote_run_id = background_tasks.task_id and w.parent_graph_id is not null)";
    on_engine!(tx, |conn| query(SQL).bind(task.0).execute(conn).await.map(drop))?;
    Ok(())
}
