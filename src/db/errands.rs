//! Errands: work of subagents that is done on other servers, until it is known that nothing is left of it there.

use sqlx::{query, query_as, query_scalar};
use uuid::Uuid;

use super::engine::on_engine;
use super::{DbResult, Tx};
use crate::definition::Digest;
use crate::domain::errand::RemoteErrand;
use crate::domain::id::RunId;
use crate::domain::time::Timestamp;

#[derive(sqlx::FromRow)]
struct ErrandRow {
    run_id: Uuid,
    graph_id: String,
    definition: Option<String>,
    agent_name: String,
    url: String,
    looks: i32,
    lost_since: Option<i64>,
}

impl From<ErrandRow> for RemoteErrand {
    fn from(row: ErrandRow) -> Self {
        Self {
            run: RunId(row.run_id),
            graph_id: row.graph_id,
            definition: row.definition.map(Digest),
            agent: row.agent_name,
            url: row.url,
            looks: u32::try_from(row.looks).unwrap_or(0),
            lost_since: row.lost_since.map(Timestamp),
        }
    }
}

/// Whether the run of the row `e` is over, and will not go on: it waits for nobody, and nothing is at work on its thread that
/// may take it up. A run that is gone is over.
macro_rules! is_over {
    ($statuses:literal) => {
        concat!(
            "not exists (select 1 from runs r where r.run_id = e.run_id and (r.status not in ",
            $statuses,
            " or exists (select 1 from interrupts i where i.thread_id = r.thread_id and i.lane = e.run_id \
             and i.status = 'pending') or (r.status <> 'error' and exists (select 1 from runs m \
             where m.thread_id = r.thread_id and m.depth = 0 and m.status in ('pending', 'running')))))"
        )
    };
}

/// Stores an errand that is about to begin.
pub async fn insert(tx: &mut Tx<'_>, errand: &RemoteErrand, now: Timestamp) -> DbResult<()> {
    const SQL: &str = "insert into errands (run_id, graph_id, definition, agent_name, url, due_at, looks, lost_since, \
        look_at) values ($1, $2, $3, $4, $5, $6, 0, null, 0) on conflict (run_id) do nothing";
    on_engine!(tx, |conn| query(SQL)
        .bind(errand.run.0)
        .bind(&errand.graph_id)
        .bind(errand.definition.as_ref().map(|digest| digest.0.as_str()))
        .bind(&errand.agent)
        .bind(&errand.url)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Whether there are any to settle or to claim.
pub async fn any_due(tx: &mut Tx<'_>, now: Timestamp) -> DbResult<bool> {
    const SQL: &str = concat!(
        "select exists (select 1 from errands e where e.due_at <= $1 and ",
        is_over!("('success', 'error', 'timeout', 'interrupted')"),
        ")"
    );
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(now.0)
        .fetch_one(conn)
        .await)?)
}

/// Forgets some of those whose runs came to a good end.
pub async fn settle(tx: &mut Tx<'_>, limit: i64) -> DbResult<()> {
    const SQL: &str = concat!(
        "delete from errands where run_id in (select e.run_id from errands e \
         where exists (select 1 from runs r where r.run_id = e.run_id and r.status = 'success') and ",
        is_over!("('success')"),
        " order by e.due_at, e.run_id limit $1)"
    );
    on_engine!(tx, |conn| query(SQL).bind(limit).execute(conn).await.map(drop))?;
    Ok(())
}

/// Takes up some of those that nobody wants any more: nobody else does so until `until`.
pub async fn claim(tx: &mut Tx<'_>, now: Timestamp, until: Timestamp, limit: i64) -> DbResult<Vec<RemoteErrand>> {
    macro_rules! claim {
        ($lock:literal) => {
            concat!(
                "update errands set due_at = $2 where run_id in (select e.run_id from errands e where e.due_at <= $1 and ",
                is_over!("('error', 'timeout', 'interrupted')"),
                " order by e.due_at, e.run_id limit $3",
                $lock,
                ") returning run_id, graph_id, definition, agent_name, url, looks, lost_since"
            )
        };
    }
    let sql = tx.either(claim!(""), claim!(" for update skip locked"));
    let rows: Vec<ErrandRow> = on_engine!(tx, |conn| query_as(sql)
        .bind(now.0)
        .bind(until.0)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    Ok(rows.into_iter().map(RemoteErrand::from).collect())
}

/// Notes that the server of an errand was out of reach, and when it is tried again.
pub async fn put_off(tx: &mut Tx<'_>, errand: &RemoteErrand, due_at: Timestamp) -> DbResult<()> {
    const SQL: &str = "update errands set due_at = $2, looks = $3, lost_since = $4 where run_id = $1";
    on_engine!(tx, |conn| query(SQL)
        .bind(errand.run.0)
        .bind(due_at.0)
        .bind(i32::try_from(errand.looks).unwrap_or(i32::MAX))
        .bind(errand.lost_since.map(|at| at.0))
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Whether the run of the row `e` waits for the answer to a question of its server, and nothing is at work on its thread.
macro_rules! waits {
    () => {
        "exists (select 1 from runs r join interrupts i on i.thread_id = r.thread_id and i.lane = e.run_id \
         where r.run_id = e.run_id and i.status = 'pending' and not exists (select 1 from runs m \
         where m.thread_id = r.thread_id and m.depth = 0 and m.status in ('pending', 'running')))"
    };
}

/// When the next of those may be looked at that wait for the answer to a question; none if none waits.
pub async fn next_look(tx: &mut Tx<'_>) -> DbResult<Option<Timestamp>> {
    const SQL: &str = concat!("select min(e.look_at) from errands e where ", waits!());
    let at: Option<i64> = on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?;
    Ok(at.map(Timestamp))
}

/// Takes up some of those that wait for the answer to a question: nobody else looks at them until `until`.
pub async fn claim_waiting(
    tx: &mut Tx<'_>,
    now: Timestamp,
    until: Timestamp,
    limit: i64,
) -> DbResult<Vec<RemoteErrand>> {
    macro_rules! claim {
        ($lock:literal) => {
            concat!(
                "update errands set look_at = $2 where run_id in (select e.run_id from errands e where e.look_at <= $1 and ",
                waits!(),
                " order by e.look_at, e.run_id limit $3",
                $lock,
                ") returning run_id, graph_id, definition, agent_name, url, looks, lost_since"
            )
        };
    }
    let sql = tx.either(claim!(""), claim!(" for update skip locked"));
    let rows: Vec<ErrandRow> = on_engine!(tx, |conn| query_as(sql)
        .bind(now.0)
        .bind(until.0)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    Ok(rows.into_iter().map(RemoteErrand::from).collect())
}

/// Notes when one that waits may be looked at again.
pub async fn look_later(tx: &mut Tx<'_>, run: RunId, look_at: Timestamp) -> DbResult<()> {
    const SQL: &str = "update errands set look_at = $2 where run_id = $1";
    on_engine!(tx, |conn| query(SQL)
        .bind(run.0)
        .bind(look_at.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Forgets an errand of which nothing is left.
pub async fn forget(tx: &mut Tx<'_>, run: RunId) -> DbResult<()> {
    const SQL: &str = "delete from errands where run_id = $1";
    on_engine!(tx, |conn| query(SQL).bind(run.0).execute(conn).await.map(drop))?;
    Ok(())
}
