//! Work that other servers do for subagents whose runs wait for it, until it is known that nothing is left of it there. That of
//! background tasks: [`background`](super::background).

use sqlx::{query, query_as, query_scalar};
use uuid::Uuid;

use super::engine::on_engine;
use super::jobs::{self, JobOwner};
use super::{DbResult, Tx};
use crate::definition::Digest;
use crate::domain::id::RunId;
use crate::domain::job::JobKind;
use crate::domain::remote_run::RemoteRun;
use crate::domain::time::Timestamp;

#[derive(sqlx::FromRow)]
struct RemoteRunRow {
    remote_run_id: Uuid,
    parent_graph_id: Option<String>,
    parent_definition: Option<String>,
    agent_name: String,
    url: String,
    lost_since: Option<i64>,
}

impl From<RemoteRunRow> for RemoteRun {
    fn from(row: RemoteRunRow) -> Self {
        Self {
            run: RunId(row.remote_run_id),
            graph_id: row.parent_graph_id.unwrap_or_default(),
            definition: row.parent_definition.map(Digest),
            agent: row.agent_name,
            url: row.url,
            lost_since: row.lost_since.map(Timestamp),
        }
    }
}

/// Whether the run of the row `e` is over, and will not go on: it waits for nobody, and nothing is at work on its thread that
/// may take it up. A run that is gone is over.
macro_rules! is_over {
    ($statuses:literal) => {
        concat!(
            "not exists (select 1 from runs r where r.run_id = e.remote_run_id and (r.status not in ",
            $statuses,
            " or exists (select 1 from interrupts i where i.thread_id = r.thread_id and i.lane = e.remote_run_id \
             and i.status = 'pending') or (r.status <> 'error' and exists (select 1 from runs m \
             where m.thread_id = r.thread_id and m.depth = 0 and m.status in ('pending', 'running')))))"
        )
    };
}

/// Whether the run of the row `e` came to a good end.
macro_rules! has_succeeded {
    () => {
        concat!(
            "exists (select 1 from runs r where r.run_id = e.remote_run_id and r.status = 'success') and ",
            is_over!("('success')")
        )
    };
}

/// Whether nobody wants the work of the row `e` any more.
macro_rules! is_unwanted {
    () => {
        is_over!("('error', 'timeout', 'interrupted')")
    };
}

/// Whether the run of the row `e` waits for the answer to a question of its server, and nothing is at work on its thread.
macro_rules! waits {
    () => {
        "exists (select 1 from runs r join interrupts i on i.thread_id = r.thread_id and i.lane = e.remote_run_id \
         where r.run_id = e.remote_run_id and i.status = 'pending' and not exists (select 1 from runs m \
         where m.thread_id = r.thread_id and m.depth = 0 and m.status in ('pending', 'running')))"
    };
}

/// Whether the row `e` has no job of this kind.
macro_rules! has_no_job {
    ($kind:literal) => {
        concat!(
            "not exists (select 1 from jobs j where j.kind = '",
            $kind,
            "' and j.key = e.remote_run_id)"
        )
    };
}

/// Stores work that is about to begin.
pub async fn insert(tx: &mut Tx<'_>, work: &RemoteRun) -> DbResult<()> {
    const SQL: &str = "insert into remote_runs (remote_run_id, url, agent_name, parent_graph_id, parent_definition, \
        unwanted, attempts, version) values ($1, $2, $3, $4, $5, false, 0, 0) on conflict (remote_run_id) do nothing";
    on_engine!(tx, |conn| query(SQL)
        .bind(work.run.0)
        .bind(&work.url)
        .bind(&work.agent)
        .bind(&work.graph_id)
        .bind(work.definition.as_ref().map(|digest| digest.0.as_str()))
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// The work that is done for the run of a subagent.
pub async fn find(tx: &mut Tx<'_>, run: RunId) -> DbResult<Option<RemoteRun>> {
    const SQL: &str = "select remote_run_id, parent_graph_id, parent_definition, agent_name, url, lost_since \
        from remote_runs where remote_run_id = $1 and task_id is null";
    let row: Option<RemoteRunRow> = on_engine!(tx, |conn| query_as(SQL).bind(run.0).fetch_optional(conn).await)?;
    Ok(row.map(RemoteRun::from))
}

/// Whether there is work that is done, or that nobody wants any more and that has no job which cancels it.
pub async fn any_over(tx: &mut Tx<'_>) -> DbResult<bool> {
    const SQL: &str = concat!(
        "select exists (select 1 from remote_runs e where e.task_id is null and ",
        has_no_job!("cancel_remote"),
        " and ",
        is_over!("('success', 'error', 'timeout', 'interrupted')"),
        ")"
    );
    Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?)
}

/// Deletes some of the work whose runs came to a good end.
pub async fn delete_done(tx: &mut Tx<'_>, limit: i64) -> DbResult<()> {
    const SQL: &str = concat!(
        "delete from remote_runs where remote_run_id in (select e.remote_run_id from remote_runs e where e.task_id is null and ",
        has_succeeded!(),
        " order by e.remote_run_id limit $1)"
    );
    on_engine!(tx, |conn| query(SQL).bind(limit).execute(conn).await.map(drop))?;
    Ok(())
}

/// Gives some of the work that nobody wants any more a job that cancels it.
pub async fn schedule_cancelling(tx: &mut Tx<'_>, now: Timestamp, limit: i64) -> DbResult<()> {
    const SQL: &str = concat!(
        "select e.remote_run_id from remote_runs e where e.task_id is null and ",
        has_no_job!("cancel_remote"),
        " and ",
        is_unwanted!(),
        " order by e.remote_run_id limit $1"
    );
    schedule(tx, SQL, JobKind::CancelRemote, now, limit).await
}

/// Whether nobody wants this work any more.
pub async fn is_unwanted(tx: &mut Tx<'_>, run: RunId) -> DbResult<bool> {
    const SQL: &str = concat!(
        "select exists (select 1 from remote_runs e where e.remote_run_id = $1 and e.task_id is null and ",
        is_unwanted!(),
        ")"
    );
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(run.0)
        .fetch_one(conn)
        .await)?)
}

/// Whether there is work that waits for the answer to a question and that no job watches.
pub async fn any_unwatched(tx: &mut Tx<'_>) -> DbResult<bool> {
    const SQL: &str = concat!(
        "select exists (select 1 from remote_runs e where e.task_id is null and ",
        has_no_job!("watch_interrupt"),
        " and ",
        waits!(),
        ")"
    );
    Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?)
}

/// Gives some of the work that waits for the answer to a question a job that watches it.
pub async fn schedule_watching(tx: &mut Tx<'_>, now: Timestamp, limit: i64) -> DbResult<()> {
    const SQL: &str = concat!(
        "select e.remote_run_id from remote_runs e where e.task_id is null and ",
        has_no_job!("watch_interrupt"),
        " and ",
        waits!(),
        " order by e.remote_run_id limit $1"
    );
    schedule(tx, SQL, JobKind::WatchInterrupt, now, limit).await
}

async fn schedule(tx: &mut Tx<'_>, sql: &'static str, kind: JobKind, now: Timestamp, limit: i64) -> DbResult<()> {
    let found: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(sql).bind(limit).fetch_all(conn).await)?;
    for run in found {
        jobs::ensure(tx, kind, run, JobOwner::default(), now).await?;
    }
    Ok(())
}

/// Whether this work waits for the answer to a question, and nothing is at work on the thread of its run.
pub async fn waits(tx: &mut Tx<'_>, run: RunId) -> DbResult<bool> {
    const SQL: &str = concat!(
        "select exists (select 1 from remote_runs e where e.remote_run_id = $1 and e.task_id is null and ",
        waits!(),
        ")"
    );
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(run.0)
        .fetch_one(conn)
        .await)?)
}

/// Notes since when the server of some work is out of reach.
pub async fn set_lost(tx: &mut Tx<'_>, run: RunId, since: Timestamp) -> DbResult<()> {
    const SQL: &str = "update remote_runs set lost_since = $2 where remote_run_id = $1";
    on_engine!(tx, |conn| query(SQL)
        .bind(run.0)
        .bind(since.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Deletes work of which nothing is left.
pub async fn delete(tx: &mut Tx<'_>, run: RunId) -> DbResult<()> {
    const SQL: &str = "delete from remote_runs where remote_run_id = $1";
    on_engine!(tx, |conn| query(SQL).bind(run.0).execute(conn).await.map(drop))?;
    Ok(())
}
