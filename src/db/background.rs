//! The table of background tasks: the run that started each, and whether its agent is still to be notified.

use const_format::{concatcp, str_replace};
use sqlx::{query, query_as, query_scalar};
use uuid::Uuid;

use super::codec::json::{ColumnRef, encode, readable, unless_corrupt};
use super::engine::{LaterRows, on_engine};
use super::interrupts::NO_QUESTION;
use super::of_thread::{of_thread_on_postgres, of_thread_on_sqlite};
use super::row::from_row;
use super::runs::{LAST_ENDED_ON_POSTGRES, LAST_ENDED_ON_SQLITE};
use super::{DbResult, Tx};
use crate::domain::background::{RemoteWork, TaskLineage, TaskRecord};
use crate::domain::id::{AssistantId, RunId, ThreadId};
use crate::domain::time::Timestamp;
use crate::domain::visibility::Visibility;

const TABLE: &str = "background_tasks";

const SELECT: &str = "\
    select t.task_id, t.parent_thread, t.parent_run, t.parent_assistant, t.call_id, t.agent_name, t.graph_id, w.url, \
    t.ancestry, t.notify, t.watched, t.told_run, t.created_at, w.seen, w.unwanted, w.attempts, w.lost_since, w.version \
    from background_tasks t left join remote_runs w on w.remote_run_id = t.task_id";

pub mod remote;

from_row! {
    struct TaskRow {
        task_id: Uuid,
        parent_thread: Uuid,
        parent_run: Uuid,
        parent_assistant: Uuid,
        call_id: String,
        agent_name: String,
        graph_id: String,
        url: Option<String>,
        ancestry: String,
        notify: bool,
        watched: bool,
        told_run: Option<Uuid>,
        created_at: i64,
        seen: Option<String>,
        unwanted: Option<bool>,
        attempts: Option<i32>,
        lost_since: Option<i64>,
        version: Option<i64>,
    }
}

impl TryFrom<TaskRow> for TaskRecord {
    type Error = super::DbError;

    fn try_from(row: TaskRow) -> DbResult<Self> {
        let at = |column| ColumnRef {
            table: TABLE,
            column,
            id: &row.task_id,
        };
        let ancestry = at("ancestry").decode(&row.ancestry)?;
        let remote = RemoteWork {
            seen: row.seen.as_deref().map(|seen| at("seen").decode(seen)).transpose()?,
            cancel_requested: row.unwanted.unwrap_or_default(),
            attempts: u32::try_from(row.attempts.unwrap_or_default()).map_err(|_| at("attempts").corrupt())?,
            lost_since: row.lost_since.map(Timestamp),
            due_at: None,
            version: row.version.unwrap_or_default(),
        };
        Ok(Self {
            task: ThreadId(row.task_id),
            parent_thread: ThreadId(row.parent_thread),
            parent_run: RunId(row.parent_run),
            parent_assistant: AssistantId(row.parent_assistant),
            call: row.call_id,
            agent: row.agent_name,
            graph_id: row.graph_id,
            url: row.url,
            ancestry,
            notify: row.notify,
            watched: row.watched,
            reported_run: row.told_run.map(RunId),
            created_at: Timestamp(row.created_at),
            remote,
        })
    }
}

/// Stores a new task; for one on another server, also its remote run.
pub async fn insert(tx: &mut Tx<'_>, task: &TaskRecord) -> DbResult<()> {
    const SQL: &str = "insert into background_tasks (task_id, parent_thread, parent_run, parent_assistant, call_id, \
        agent_name, graph_id, top_run, ancestry, notify, watched, told_run, created_at) \
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
    let ancestry = encode(&task.ancestry)?;
    on_engine!(tx, |conn| query(SQL)
        .bind(task.task.0)
        .bind(task.parent_thread.0)
        .bind(task.parent_run.0)
        .bind(task.parent_assistant.0)
        .bind(&task.call)
        .bind(&task.agent)
        .bind(&task.graph_id)
        .bind(task.ancestry.top.0)
        .bind(ancestry)
        .bind(task.notify)
        .bind(task.watched)
        .bind(task.reported_run.map(|run| run.0))
        .bind(task.created_at.0)
        .execute(conn)
        .await
        .map(drop))?;
    match &task.url {
        Some(url) => remote::insert(tx, task, url).await,
        None => Ok(()),
    }
}

/// Returns the task with this id.
pub async fn find(tx: &mut Tx<'_>, task: ThreadId) -> DbResult<Option<TaskRecord>> {
    const SQL: &str = concatcp!(SELECT, " where t.task_id = $1");
    let row: Option<TaskRow> = tx.statement(SQL).bind(task.0).fetch_optional().await?;
    row.map(TaskRecord::try_from).transpose()
}

/// Returns the visibility of the events of a thread for clients: all, unless it is the thread of a task. A task whose
/// record cannot be read is hidden.
pub async fn visibility(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Visibility> {
    visibility_later(tx, thread).await?.read(tx).await
}

/// The visibility of a thread that is read later in its transaction.
pub struct LaterVisibility {
    thread: ThreadId,
    rows: LaterRows<(String,)>,
}

/// Returns the [`visibility`] of a thread, to be read later in the transaction, which must not change it meanwhile. It
/// is read together with other rows.
pub async fn visibility_later(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<LaterVisibility> {
    const SQL: &str = "select ancestry from background_tasks where task_id = $1";
    let rows = tx.statement(SQL).bind(thread.0).fetch_later().await?;
    Ok(LaterVisibility { thread, rows })
}

impl LaterVisibility {
    /// Reads the visibility.
    pub async fn read(self, tx: &mut Tx<'_>) -> DbResult<Visibility> {
        let Self { thread, rows } = self;
        let Some((text,)) = rows.fetch_optional(tx).await? else {
            return Ok(Visibility::default());
        };
        let cell = ColumnRef {
            table: TABLE,
            column: "ancestry",
            id: &thread.0,
        };
        let ancestry = unless_corrupt(cell.decode::<TaskLineage>(&text))?;
        Ok(ancestry.map_or(Visibility::Hidden, |ancestry| ancestry.visibility))
    }
}

/// Returns the tasks that a run has started, oldest first, up to `limit`.
pub async fn of_run(tx: &mut Tx<'_>, run: RunId, limit: i64) -> DbResult<Vec<TaskRecord>> {
    const SQL: &str = concatcp!(
        SELECT,
        " where t.parent_run = $1 order by t.created_at, t.task_id limit $2"
    );
    let rows: Vec<TaskRow> = on_engine!(tx, |conn| query_as(SQL).bind(run.0).bind(limit).fetch_all(conn).await)?;
    readable(rows)
}

/// Returns the tasks that a run has started, and those that were started on the threads of these, at any depth.
pub async fn begun_below(tx: &mut Tx<'_>, run: RunId) -> DbResult<Vec<ThreadId>> {
    const SQL: &str = "with recursive begun(task) as (select task_id from background_tasks where parent_run = $1 \
        union select t.task_id from begun join background_tasks t on t.parent_thread = begun.task) \
        select task from begun";
    let found: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(SQL).bind(run.0).fetch_all(conn).await)?;
    Ok(found.into_iter().map(ThreadId).collect())
}

/// Deletes a task. Its thread stays.
pub async fn delete(tx: &mut Tx<'_>, task: ThreadId) -> DbResult<()> {
    const SQL: &str = "delete from background_tasks where task_id = $1";
    on_engine!(tx, |conn| query(SQL).bind(task.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Returns the tasks of a thread whose outcome its agent may not know, oldest first.
pub async fn watched(tx: &mut Tx<'_>, parent: ThreadId) -> DbResult<Vec<TaskRecord>> {
    const SQL: &str = concatcp!(
        SELECT,
        " where t.parent_thread = $1 and t.watched order by t.created_at, t.task_id"
    );
    let rows: Vec<TaskRow> = on_engine!(tx, |conn| query_as(SQL).bind(parent.0).fetch_all(conn).await)?;
    readable(rows)
}

/// The SQL condition that the task of row `t` is not over, as far as this server knows: a
/// [question about a thread](super::of_thread). `offset 0` keeps Postgres from answering it for all threads.
const IS_NOT_OVER: &str = "(exists (select 1 from runs r where r.thread_id = t.task_id and r.depth = 0 and {pending} \
    limit 1 offset 0) or exists (select 1 from runs r where r.thread_id = t.task_id and r.depth = 0 and {running} \
    limit 1 offset 0) or exists (select 1 from interrupts i where i.thread_id = t.task_id and i.status = 'pending' \
    limit 1 offset 0) or exists (select 1 from remote_runs w where w.remote_run_id = t.task_id \
    and coalesce(w.seen_status, 'running') in ('pending', 'running', 'waiting') limit 1 offset 0))";

/// Counts the unfinished tasks of a thread, including those that wait for an answer.
pub async fn not_over(tx: &mut Tx<'_>, parent: ThreadId) -> DbResult<i64> {
    const SQL: &str = concatcp!(
        "select count(*) from background_tasks t where t.parent_thread = $1 and ",
        IS_NOT_OVER
    );
    let sql = tx.either(of_thread_on_sqlite!(SQL), of_thread_on_postgres!(SQL));
    Ok(on_engine!(tx, |conn| query_scalar(sql)
        .bind(parent.0)
        .fetch_one(conn)
        .await)?)
}

/// Counts the unfinished tasks of a tree.
pub async fn not_over_in_tree(tx: &mut Tx<'_>, tree: RunId) -> DbResult<i64> {
    const SQL: &str = concatcp!(
        "select count(*) from background_tasks t where t.task_id in (select thread_id from tree_shares where tree_id = $1) and ",
        IS_NOT_OVER
    );
    let sql = tx.either(of_thread_on_sqlite!(SQL), of_thread_on_postgres!(SQL));
    Ok(on_engine!(tx, |conn| query_scalar(sql)
        .bind(tree.0)
        .fetch_one(conn)
        .await)?)
}

/// Marks a task whose outcome its parent may not know.
pub async fn watch(tx: &mut Tx<'_>, task: ThreadId) -> DbResult<()> {
    const SQL: &str = "update background_tasks set watched = true where task_id = $1";
    on_engine!(tx, |conn| query(SQL).bind(task.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Stores the run of a task of which the parent was notified, or knew, and whether another outcome may follow.
pub async fn set_notified(tx: &mut Tx<'_>, task: ThreadId, run: Option<RunId>, watched: bool) -> DbResult<()> {
    const SQL: &str = "update background_tasks set told_run = $2, watched = $3 where task_id = $1";
    on_engine!(tx, |conn| query(SQL)
        .bind(task.0)
        .bind(run.map(|run| run.0))
        .bind(watched)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Ends the notifications to the agent of a thread whose state cannot be read.
pub async fn unwatch_all(tx: &mut Tx<'_>, parent: ThreadId) -> DbResult<()> {
    const SQL: &str = "update background_tasks set watched = false where parent_thread = $1";
    on_engine!(tx, |conn| query(SQL).bind(parent.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Returns whether there is a task whose outcome its parent may not know.
pub async fn any_watched(tx: &mut Tx<'_>) -> DbResult<bool> {
    const SQL: &str = "select exists (select 1 from background_tasks where watched)";
    Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?)
}

/// Returns idle threads whose agent may not know the outcome of a task, without the threads for which a notification is
/// scheduled. So notifications that are retried do not use up the limit.
pub async fn parents_to_wake(tx: &mut Tx<'_>, limit: i64) -> DbResult<Vec<ThreadId>> {
    // From the few tasks that are watched to their parents: Postgres could begin with all threads that are idle.
    const IDLE: &str = concatcp!(
        "select distinct t.parent_thread from background_tasks t left join remote_runs w on w.remote_run_id = t.task_id \
         where t.watched and (select p.status from threads p where p.thread_id = t.parent_thread) in ('idle', 'error') \
         and not exists (select 1 from jobs j \
         where j.kind = 'notify_parent' and j.key = t.parent_thread) and case when w.url is null then \
         not exists (select 1 from runs r where r.thread_id = t.task_id and r.depth = 0 and {running} limit 1 offset 0) \
         and not exists (select 1 from runs r where r.thread_id = t.task_id and r.depth = 0 and {pending} and ",
        str_replace!(NO_QUESTION, "{run}", "r"),
        " limit 1 offset 0) and (t.told_run is null or t.told_run is distinct from ("
    );
    const REMOTE: &str = ")) else w.seen_status in ('waiting', 'success', 'error', 'timeout', 'cancelled') \
        and (t.told_run is null or t.told_run is distinct from w.seen_run) end limit $1";
    const SQLITE: &str = concatcp!(
        of_thread_on_sqlite!(IDLE),
        str_replace!(LAST_ENDED_ON_SQLITE, "{thread}", "t.task_id"),
        REMOTE
    );
    const POSTGRES: &str = concatcp!(
        of_thread_on_postgres!(IDLE),
        str_replace!(LAST_ENDED_ON_POSTGRES, "{thread}", "t.task_id"),
        REMOTE
    );
    let sql = tx.either(SQLITE, POSTGRES);
    let found: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(sql).bind(limit).fetch_all(conn).await)?;
    Ok(found.into_iter().map(ThreadId).collect())
}
