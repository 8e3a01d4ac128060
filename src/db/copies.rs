//! Copies of threads.

use std::collections::HashMap;

use sqlx::{QueryBuilder, query_as};
use uuid::Uuid;

use super::checkpoints::lane_id;
use super::engine::on_engine;
use super::json::{Cell, encode};
use super::{DbResult, Tx, threads};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{CheckpointId, ThreadId};
use crate::domain::machine::{Phase, Position};
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::time::Timestamp;

/// Rows of one statement; databases limit how many values it may have.
const BATCH: i64 = 200;

/// Stores the thread `to` as a copy of `from`: its metadata, and the history of its main agent, under new ids. False if
/// there is no thread `from`.
///
/// Questions and the work of subagents belong to the original: where one of them was waited for, the copy asks or
/// delegates anew.
///
/// # Errors
/// [`super::DbError::Conflict`] when there is a thread `to` already and both have a history.
pub async fn copy_thread(tx: &mut Tx<'_>, from: ThreadId, to: ThreadId, now: Timestamp) -> DbResult<bool> {
    let Some(original) = threads::lock(tx, from).await? else {
        return Ok(false);
    };
    let copy = Thread::new(to, original.metadata, now).kept_for(original.ttl);
    threads::insert(tx, &copy).await?;
    if copy_history(tx, from, to).await? {
        let status = Some(ThreadStatus::Interrupted);
        threads::set(tx, to, threads::ThreadChange { status, ..Default::default() }, now).await?;
    }
    Ok(true)
}

#[derive(sqlx::FromRow)]
struct Row {
    checkpoint_id: Uuid,
    seq: i64,
    segment: i64,
    parent_id: Option<Uuid>,
    step: i64,
    source: String,
    node: String,
    run_id: Option<Uuid>,
    writes: String,
    shown: Option<String>,
    position: String,
    created_at: i64,
}

/// Copies the history of the main agent. Returns whether something remains to be done after its end.
async fn copy_history(tx: &mut Tx<'_>, from: ThreadId, to: ThreadId) -> DbResult<bool> {
    const SQL: &str = "select checkpoint_id, seq, segment, parent_id, step, source, node, run_id, writes, shown, \
        position, created_at from checkpoints where thread_id = $1 and lane = $2 and seq > $3 order by seq limit $4";
    let lane = lane_id(Lane::Main);
    let mut ids: HashMap<Uuid, Uuid> = HashMap::new();
    let (mut last, mut remains) = (i64::MIN, false);
    loop {
        let mut rows: Vec<Row> =
            on_engine!(tx, |conn| query_as(SQL).bind(from.0).bind(lane).bind(last).bind(BATCH).fetch_all(conn).await)?;
        let Some(end) = rows.last() else { return Ok(remains) };
        last = end.seq;
        for row in &mut rows {
            let cell = Cell { table: "checkpoints", column: "position", id: &row.checkpoint_id };
            let position = cell.decode::<Position>(&row.position)?.detached();
            remains = position.phase != Phase::Ended;
            row.position = encode(&position)?;
            let id = CheckpointId::mint().0;
            ids.insert(row.checkpoint_id, id);
            row.checkpoint_id = id;
            row.parent_id = row.parent_id.and_then(|parent| ids.get(&parent).copied());
        }
        insert(tx, to, rows).await?;
    }
}

async fn insert(tx: &mut Tx<'_>, thread: ThreadId, rows: Vec<Row>) -> DbResult<()> {
    const SQL: &str = "insert into checkpoints (checkpoint_id, thread_id, lane, seq, segment, parent_id, step, source, \
        node, run_id, writes, shown, position, created_at) ";
    let lane = lane_id(Lane::Main);
    on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(SQL);
        sql.push_values(rows, |mut values, row| {
            values
                .push_bind(row.checkpoint_id)
                .push_bind(thread.0)
                .push_bind(lane)
                .push_bind(row.seq)
                .push_bind(row.segment)
                .push_bind(row.parent_id)
                .push_bind(row.step)
                .push_bind(row.source)
                .push_bind(row.node)
                .push_bind(row.run_id)
                .push_bind(row.writes)
                .push_bind(row.shown)
                .push_bind(row.position)
                .push_bind(row.created_at);
        });
        sql.build().execute(conn).await.map(drop)
    })?;
    Ok(())
}
