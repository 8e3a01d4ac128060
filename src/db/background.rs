//! Background tasks: who asked for which, and whether something may come of them that nobody was told.

use sqlx::{query, query_as, query_scalar};
use uuid::Uuid;

use super::engine::on_engine;
use super::json::{Cell, encode};
use super::{DbResult, Tx};
use crate::domain::background::TaskRecord;
use crate::domain::id::{AssistantId, RunId, ThreadId};
use crate::domain::time::Timestamp;

const TABLE: &str = "background_tasks";

macro_rules! select {
    () => {
        "select task_id, parent_thread, parent_run, parent_assistant, call_id, agent_name, graph_id, url, top_run, \
         ancestry, notify, watched, told_run, created_at from background_tasks"
    };
}

#[derive(sqlx::FromRow)]
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
}

impl TryFrom<TaskRow> for TaskRecord {
    type Error = super::DbError;

    fn try_from(row: TaskRow) -> DbResult<Self> {
        let ancestry = Cell { table: TABLE, column: "ancestry", id: &row.task_id }.decode(&row.ancestry)?;
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
            told: row.told_run.map(RunId),
            created_at: Timestamp(row.created_at),
        })
    }
}

/// Stores a new task.
pub async fn insert(tx: &mut Tx<'_>, task: &TaskRecord) -> DbResult<()> {
    const SQL: &str = "insert into background_tasks (task_id, parent_thread, parent_run, parent_assistant, call_id, \
        agent_name, graph_id, url, top_run, ancestry, notify, watched, told_run, created_at) \
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)";
    let ancestry = encode(&task.ancestry)?;
    on_engine!(tx, |conn| query(SQL)
        .bind(task.task.0)
        .bind(task.parent_thread.0)
        .bind(task.parent_run.0)
        .bind(task.parent_assistant.0)
        .bind(&task.call)
        .bind(&task.agent)
        .bind(&task.graph_id)
        .bind(&task.url)
        .bind(task.ancestry.top.0)
        .bind(ancestry)
        .bind(task.notify)
        .bind(task.watched)
        .bind(task.told.map(|run| run.0))
        .bind(task.created_at.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// The task of this id.
pub async fn find(tx: &mut Tx<'_>, task: ThreadId) -> DbResult<Option<TaskRecord>> {
    const SQL: &str = concat!(select!(), " where task_id = $1");
    let row: Option<TaskRow> = on_engine!(tx, |conn| query_as(SQL).bind(task.0).fetch_optional(conn).await)?;
    row.map(TaskRecord::try_from).transpose()
}

/// The tasks that were begun in the course of a run, the oldest first, up to `limit`.
pub async fn of_run(tx: &mut Tx<'_>, run: RunId, limit: i64) -> DbResult<Vec<TaskRecord>> {
    const SQL: &str = concat!(select!(), " where parent_run = $1 order by created_at, task_id limit $2");
    let rows: Vec<TaskRow> = on_engine!(tx, |conn| query_as(SQL).bind(run.0).bind(limit).fetch_all(conn).await)?;
    rows.into_iter().map(TaskRecord::try_from).collect()
}

/// The tasks of a thread of which something may come that its agent does not know, the oldest first.
pub async fn watched(tx: &mut Tx<'_>, parent: ThreadId) -> DbResult<Vec<TaskRecord>> {
    const SQL: &str = concat!(select!(), " where parent_thread = $1 and watched order by created_at, task_id");
    let rows: Vec<TaskRow> = on_engine!(tx, |conn| query_as(SQL).bind(parent.0).fetch_all(conn).await)?;
    rows.into_iter().map(TaskRecord::try_from).collect()
}

/// Whether a task on this server, which the row `t` names, is not over.
macro_rules! is_not_over {
    () => {
        "(exists (select 1 from runs r where r.thread_id = t.task_id and r.depth = 0 \
         and r.status in ('pending', 'running')) or exists (select 1 from interrupts i \
         where i.thread_id = t.task_id and i.status = 'pending') or (t.url is not null and t.watched))"
    };
}

/// How many tasks of a thread are not over; those that wait for a human are not.
pub async fn not_over(tx: &mut Tx<'_>, parent: ThreadId) -> DbResult<i64> {
    const SQL: &str =
        concat!("select count(*) from background_tasks t where t.parent_thread = $1 and ", is_not_over!());
    Ok(on_engine!(tx, |conn| query_scalar(SQL).bind(parent.0).fetch_one(conn).await)?)
}

/// How many tasks were begun in the tree under a run, at any depth, and how many of them are not over.
pub async fn in_tree(tx: &mut Tx<'_>, top: RunId) -> DbResult<(i64, i64)> {
    const SQL: &str = concat!(
        "select count(*), coalesce(sum(case when ",
        is_not_over!(),
        " then 1 else 0 end), 0) from background_tasks t where t.top_run = $1"
    );
    Ok(on_engine!(tx, |conn| query_as(SQL).bind(top.0).fetch_one(conn).await)?)
}

/// Lets nobody else begin a task in the tree under a run before the end of the transaction.
pub async fn lock_tree(tx: &mut Tx<'_>, top: RunId) -> DbResult<()> {
    const SQL: &str = "select run_id from runs where run_id = $1 for update";
    if tx.engine() == super::Engine::Postgres {
        on_engine!(tx, |conn| query(SQL).bind(top.0).execute(conn).await.map(drop))?;
    }
    Ok(())
}

/// Notes that something may come of a task that its parent does not know.
pub async fn watch(tx: &mut Tx<'_>, task: ThreadId) -> DbResult<()> {
    const SQL: &str = "update background_tasks set watched = true where task_id = $1";
    on_engine!(tx, |conn| query(SQL).bind(task.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Notes for which run of a task its parent was woken, or knew already, and whether more may come of it.
pub async fn told(tx: &mut Tx<'_>, task: ThreadId, run: Option<RunId>, watched: bool) -> DbResult<()> {
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

/// Whether there is any task of which something may come that its parent does not know.
pub async fn any_watched(tx: &mut Tx<'_>) -> DbResult<bool> {
    const SQL: &str = "select exists (select 1 from background_tasks where watched)";
    Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?)
}

/// Threads on which nothing is at work, and of whose tasks on this server something has come that their agent may not know.
pub async fn parents_to_wake(tx: &mut Tx<'_>, limit: i64) -> DbResult<Vec<ThreadId>> {
    const SQL: &str = "select distinct t.parent_thread from background_tasks t \
        join threads p on p.thread_id = t.parent_thread \
        where t.watched and t.url is null and p.status in ('idle', 'error') \
        and not exists (select 1 from runs r where r.thread_id = t.task_id and r.depth = 0 \
        and r.status in ('pending', 'running')) \
        and (t.told_run is null or t.told_run is distinct from (select r.run_id from runs r \
        where r.thread_id = t.task_id and r.depth = 0 order by r.created_at desc, r.run_id desc limit 1)) limit $1";
    let found: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(SQL).bind(limit).fetch_all(conn).await)?;
    Ok(found.into_iter().map(ThreadId).collect())
}
