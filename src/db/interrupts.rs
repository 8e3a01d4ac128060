//! Questions to humans, and what became of them. They outlive the runs that asked.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::types::Json;
use sqlx::{QueryBuilder, query, query_as};
use uuid::Uuid;

use super::checkpoints::{lane_id, lane_of};
use super::engine::on_engine;
use super::json::{Cell, encode, readable, unless_corrupt};
use super::{DbError, DbResult, Tx};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{InterruptId, RunId, ThreadId};
use crate::domain::interrupt::Interrupt;
use crate::domain::time::Timestamp;

const TABLE: &str = "interrupts";

/// A question that was asked, by whom, and what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// The question.
    pub interrupt: Interrupt,
    /// The thread.
    pub thread: ThreadId,
    /// The run of the main agent in whose course it was asked.
    pub run: RunId,
    /// The history of the agent that asked.
    pub lane: Lane,
    /// The name of the agent that asked.
    pub agent: String,
    /// The names from the main agent down to it.
    pub path: Vec<String>,
    /// The tool call by which the agent was delegated to; none for the main agent.
    pub task_call_id: Option<String>,
    /// Its place among the questions of the thread; grows from one to the next.
    pub seq: i64,
    /// What became of it.
    pub status: AskedStatus,
    /// The answer.
    pub resolution: Option<Value>,
    /// The run that brought the answer.
    pub resumed_by: Option<RunId>,
    /// When it was asked.
    pub created_at: Timestamp,
    /// When it ceased to be open.
    pub resolved_at: Option<Timestamp>,
}

/// What became of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AskedStatus {
    /// It waits for an answer.
    Pending,
    /// It was answered.
    Resolved,
    /// Nobody answered in time.
    Expired,
    /// It no longer matters: the thread went on without an answer.
    Dropped,
}

impl AskedStatus {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Resolved, Self::Expired, Self::Dropped];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Resolved => "resolved",
            Self::Expired => "expired",
            Self::Dropped => "dropped",
        }
    }

    /// The status of this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }
}

macro_rules! select {
    () => {
        "select interrupt_id, thread_id, run_id, lane, agent_name, cast(path as text) as path, task_call_id, status, \
         interrupt, resolution, resumed_by, created_at, resolved_at, seq from interrupts"
    };
}

#[derive(sqlx::FromRow)]
struct AskedRow {
    interrupt_id: String,
    thread_id: Uuid,
    run_id: Uuid,
    lane: Uuid,
    agent_name: String,
    path: String,
    task_call_id: Option<String>,
    status: String,
    interrupt: String,
    resolution: Option<String>,
    resumed_by: Option<Uuid>,
    created_at: i64,
    resolved_at: Option<i64>,
    seq: i64,
}

impl TryFrom<AskedRow> for Asked {
    type Error = DbError;

    fn try_from(row: AskedRow) -> DbResult<Self> {
        let at = |column| Cell {
            table: TABLE,
            column,
            id: &row.interrupt_id,
        };
        Ok(Self {
            interrupt: at("interrupt").decode(&row.interrupt)?,
            thread: ThreadId(row.thread_id),
            run: RunId(row.run_id),
            lane: lane_of(row.lane),
            path: at("path").decode(&row.path)?,
            seq: row.seq,
            status: AskedStatus::from_word(&row.status).ok_or_else(|| at("status").corrupt())?,
            resolution: row
                .resolution
                .as_deref()
                .map(|answer| at("resolution").decode(answer))
                .transpose()?,
            resumed_by: row.resumed_by.map(RunId),
            created_at: Timestamp(row.created_at),
            resolved_at: row.resolved_at.map(Timestamp),
            agent: row.agent_name,
            task_call_id: row.task_call_id,
        })
    }
}

/// Stores a question. One that is asked again, as when a client goes back to the checkpoint before it, is what it is
/// now: an earlier answer is forgotten, unless the run that asks is undone.
///
/// # Errors
/// [`DbError::Conflict`] when the thread is gone.
pub async fn insert(tx: &mut Tx<'_>, asked: &Asked) -> DbResult<()> {
    const SQL: &str = "insert into interrupts (interrupt_id, thread_id, run_id, lane, agent_name, path, task_id, \
        task_call_id, status, interrupt, resolution, resumed_by, created_at, resolved_at, seq) \
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) \
        on conflict (thread_id, interrupt_id) do update set run_id = excluded.run_id, lane = excluded.lane, \
        agent_name = excluded.agent_name, path = excluded.path, task_id = excluded.task_id, \
        task_call_id = excluded.task_call_id, status = excluded.status, interrupt = excluded.interrupt, \
        resolution = excluded.resolution, resumed_by = excluded.resumed_by, created_at = excluded.created_at, \
        resolved_at = excluded.resolved_at, seq = excluded.seq";
    let id = &asked.interrupt.id;
    // One that cannot be read is replaced by what is known now.
    let earlier = unless_corrupt(find(tx, asked.thread, id).await)?.flatten();
    remember(tx, earlier.as_slice(), asked.run).await?;
    let interrupt = encode(&asked.interrupt)?;
    let resolution = asked.resolution.as_ref().map(encode).transpose()?;
    on_engine!(tx, |conn| query(SQL)
        .bind(id.0.as_str())
        .bind(asked.thread.0)
        .bind(asked.run.0)
        .bind(lane_id(asked.lane))
        .bind(asked.agent.as_str())
        .bind(Json(&asked.path))
        .bind(asked.interrupt.task.0)
        .bind(asked.task_call_id.as_deref())
        .bind(asked.status.word())
        .bind(interrupt)
        .bind(resolution)
        .bind(asked.resumed_by.map(|run| run.0))
        .bind(asked.created_at.0)
        .bind(asked.resolved_at.map(|at| at.0))
        .bind(asked.seq)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// The question of this id on this thread.
pub async fn find(tx: &mut Tx<'_>, thread: ThreadId, id: &InterruptId) -> DbResult<Option<Asked>> {
    const SQL: &str = concat!(select!(), " where thread_id = $1 and interrupt_id = $2");
    let row: Option<AskedRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(thread.0)
        .bind(id.0.as_str())
        .fetch_optional(conn)
        .await)?;
    row.map(Asked::try_from).transpose()
}

/// The question of this id on whichever thread; the one asked last, should there be several.
pub async fn find_by_id(tx: &mut Tx<'_>, id: &InterruptId) -> DbResult<Option<Asked>> {
    const SQL: &str = concat!(select!(), " where interrupt_id = $1 order by created_at desc limit 1");
    let row: Option<AskedRow> = on_engine!(tx, |conn| query_as(SQL).bind(id.0.as_str()).fetch_optional(conn).await)?;
    row.map(Asked::try_from).transpose()
}

/// The questions of a thread in the order of asking; only those of one status, when one is given.
pub async fn of_thread(tx: &mut Tx<'_>, thread: ThreadId, status: Option<AskedStatus>) -> DbResult<Vec<Asked>> {
    const ALL: &str = concat!(select!(), " where thread_id = $1 order by seq, interrupt_id");
    const SOME: &str = concat!(
        select!(),
        " where thread_id = $1 and status = $2 order by seq, interrupt_id"
    );
    let rows: Vec<AskedRow> = on_engine!(tx, |conn| match status {
        Some(status) => query_as(SOME).bind(thread.0).bind(status.word()).fetch_all(conn).await,
        None => query_as(ALL).bind(thread.0).fetch_all(conn).await,
    })?;
    readable(rows)
}

/// Which runs of a thread went on with answers, each with a run that had asked.
pub async fn resumed(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<HashMap<RunId, RunId>> {
    const SQL: &str = "select resumed_by, run_id from interrupts where thread_id = $1 and resumed_by is not null \
        order by seq";
    let rows: Vec<(Uuid, Uuid)> = on_engine!(tx, |conn| query_as(SQL).bind(thread.0).fetch_all(conn).await)?;
    Ok(rows.into_iter().map(|(by, asked)| (RunId(by), RunId(asked))).collect())
}

/// The open questions of all threads, the oldest first.
pub async fn pending(tx: &mut Tx<'_>, limit: i64, offset: i64) -> DbResult<Vec<Asked>> {
    const SQL: &str = concat!(
        select!(),
        " where status = 'pending' order by created_at, seq, interrupt_id limit $1 offset $2"
    );
    let rows: Vec<AskedRow> = on_engine!(tx, |conn| query_as(SQL).bind(limit).bind(offset).fetch_all(conn).await)?;
    readable(rows)
}

/// Stores the answer that run `by` brings to an open question. Returns false when there is no such open question.
pub async fn resolve(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    id: &InterruptId,
    answer: &Value,
    by: RunId,
    now: Timestamp,
) -> DbResult<bool> {
    const SQL: &str = "update interrupts set status = 'resolved', resolution = $3, resumed_by = $4, resolved_at = $5 \
        where thread_id = $1 and interrupt_id = $2 and status = 'pending'";
    let open = find(tx, thread, id)
        .await?
        .filter(|asked| asked.status == AskedStatus::Pending);
    remember(tx, open.as_slice(), by).await?;
    let answer = encode(answer)?;
    let resolved = on_engine!(tx, |conn| query(SQL)
        .bind(thread.0)
        .bind(id.0.as_str())
        .bind(answer)
        .bind(by.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(resolved == 1)
}

/// Closes the open questions of a thread for run `by` of the main agent, which leaves them behind: those of the given
/// lanes, or all.
pub async fn abandon(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    lanes: Option<&[Lane]>,
    by: RunId,
    now: Timestamp,
) -> DbResult<()> {
    let mut open = of_thread(tx, thread, Some(AskedStatus::Pending)).await?;
    open.retain(|asked| lanes.is_none_or(|lanes| lanes.contains(&asked.lane)));
    remember(tx, &open, by).await?;
    drop_pending(tx, thread, lanes, now).await.map(drop)
}

/// Notes that run `by` goes on where the dropped questions of these lanes had stopped it.
pub async fn goes_on_by(tx: &mut Tx<'_>, thread: ThreadId, lanes: &[Lane], by: RunId) -> DbResult<()> {
    const SQL: &str = "update interrupts set resumed_by = $3 where thread_id = $1 and lane = $2 \
        and status = 'dropped' and resumed_by is null";
    for lane in lanes {
        let lane = lane_id(*lane);
        on_engine!(tx, |conn| query(SQL)
            .bind(thread.0)
            .bind(lane)
            .bind(by.0)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// What a question was before a run changed it.
#[derive(Serialize, Deserialize)]
struct Before {
    run: RunId,
    status: String,
    resolution: Option<Value>,
    resumed_by: Option<RunId>,
    created_at: Timestamp,
    resolved_at: Option<Timestamp>,
    seq: i64,
}

/// Keeps what questions are before run `by` changes them, unless it has asked or changed them itself.
async fn remember(tx: &mut Tx<'_>, all: &[Asked], by: RunId) -> DbResult<()> {
    const SQL: &str = "update interrupts set before = $3, touched_by = $4 \
        where thread_id = $1 and interrupt_id = $2 and touched_by is distinct from $4";
    for asked in all.iter().filter(|asked| asked.run != by) {
        let before = encode(&Before {
            run: asked.run,
            status: asked.status.word().to_owned(),
            resolution: asked.resolution.clone(),
            resumed_by: asked.resumed_by,
            created_at: asked.created_at,
            resolved_at: asked.resolved_at,
            seq: asked.seq,
        })?;
        let thread = asked.thread.0;
        let id = asked.interrupt.id.0.as_str();
        on_engine!(tx, |conn| query(SQL)
            .bind(thread)
            .bind(id)
            .bind(before)
            .bind(by.0)
            .execute(conn)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// Takes back what run `by` of the main agent did to the questions of a thread: its own are gone, others are what they
/// were before it.
pub async fn restore(tx: &mut Tx<'_>, thread: ThreadId, by: RunId) -> DbResult<()> {
    const FIND: &str = "select interrupt_id, before from interrupts where thread_id = $1 and touched_by = $2";
    const RESTORE: &str = "update interrupts set run_id = $3, status = $4, resolution = $5, resumed_by = $6, \
        created_at = $7, resolved_at = $8, seq = $9, before = null, touched_by = null \
        where thread_id = $1 and interrupt_id = $2";
    const DELETE: &str = "delete from interrupts where thread_id = $1 and run_id = $2";
    let touched: Vec<(String, String)> = on_engine!(tx, |conn| query_as(FIND)
        .bind(thread.0)
        .bind(by.0)
        .fetch_all(conn)
        .await)?;
    for (id, before) in touched {
        let cell = Cell {
            table: TABLE,
            column: "before",
            id: &id,
        };
        let Some(before) = unless_corrupt(cell.decode::<Before>(&before))? else {
            continue;
        };
        let resolution = before.resolution.as_ref().map(encode).transpose()?;
        on_engine!(tx, |conn| query(RESTORE)
            .bind(thread.0)
            .bind(id.as_str())
            .bind(before.run.0)
            .bind(before.status)
            .bind(resolution)
            .bind(before.resumed_by.map(|run| run.0))
            .bind(before.created_at.0)
            .bind(before.resolved_at.map(|at| at.0))
            .bind(before.seq)
            .execute(conn)
            .await
            .map(drop))?;
    }
    on_engine!(tx, |conn| query(DELETE)
        .bind(thread.0)
        .bind(by.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Closes the open questions of a thread that nobody will answer any more: those of the given lanes, or all. Returns how
/// many there were.
pub async fn drop_pending(tx: &mut Tx<'_>, thread: ThreadId, lanes: Option<&[Lane]>, now: Timestamp) -> DbResult<u64> {
    if lanes.is_some_and(<[Lane]>::is_empty) {
        return Ok(0);
    }
    let dropped = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("update interrupts set status = 'dropped', resolved_at = ");
        sql.push_bind(now.0)
            .push(" where status = 'pending' and thread_id = ")
            .push_bind(thread.0);
        if let Some(lanes) = lanes {
            sql.push(" and lane in (");
            let mut list = sql.separated(", ");
            for lane in lanes {
                list.push_bind(lane_id(*lane));
            }
            sql.push(")");
        }
        sql.build().execute(conn).await.map(|done| done.rows_affected())
    })?;
    Ok(dropped)
}
