//! Copies of threads.

use sqlx::{QueryBuilder, query, query_as, query_scalar};
use uuid::Uuid;

use super::checkpoints::lane_id;
use super::engine::on_engine;
use super::json::{Cell, encode};
use super::{DbError, DbResult, Engine, Tx, checkpoints, threads};
use crate::domain::checkpoint::Lane;
use crate::domain::id::ThreadId;
use crate::domain::machine::{Phase, Position};
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::time::Timestamp;

/// Rows of one piece; databases limit how many values a statement may have.
const BATCH: i64 = 200;
/// Bytes of one piece, but for a single row that is larger: about what is written in ten milliseconds.
const PIECE_BYTES: i64 = 1 << 20;
/// How long a copy may go without a new piece before it counts as left behind by a crash, in microseconds: an hour.
const LEFT_BEHIND: i64 = 3_600_000_000;

/// A copy of a thread in the making: its metadata, and the history of its main agent. Its checkpoints have the ids of the
/// original's, so that an id that somebody stored names the same state in both.
///
/// It is made in pieces, each a transaction of its own, so that other writes go in between. Until [`finish`] no search finds
/// the thread, and nobody else knows its id.
///
/// Questions and the work of subagents belong to the original: where one of them was waited for, the copy asks or
/// delegates anew.
#[derive(Debug)]
pub struct Copy {
    from: ThreadId,
    /// The thread that is made.
    pub to: ThreadId,
    /// The number of the newest checkpoint when the copying began: what comes later is not copied.
    until: i64,
    /// The number of the newest checkpoint that was copied.
    last: i64,
    /// Whether something remains to be done after the newest one.
    remains: bool,
}

/// Begins to copy the thread `from`. None if there is no such thread.
///
/// # Errors
/// [`super::DbError::Conflict`] when there is a thread `to` already.
pub async fn begin(tx: &mut Tx<'_>, from: ThreadId, to: ThreadId, now: Timestamp) -> DbResult<Option<Copy>> {
    const SQL: &str = "insert into unfinished_copies (thread_id, touched_at) values ($1, $2)";
    let Some(original) = threads::lock(tx, from).await? else {
        return Ok(None);
    };
    let copy = Thread::new(to, original.metadata, now).kept_for(original.ttl);
    threads::insert_unindexed(tx, &copy).await?;
    on_engine!(tx, |conn| query(SQL)
        .bind(to.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    let until = checkpoints::head(tx, from, Lane::Main)
        .await?
        .map_or(i64::MIN, |head| head.seq);
    Ok(Some(Copy {
        from,
        to,
        until,
        last: i64::MIN,
        remains: false,
    }))
}

/// A part of a copy, ready to be stored.
pub struct Piece {
    to: ThreadId,
    rows: Vec<Row>,
}

impl Copy {
    /// Reads the next piece; none when all is copied. The original may change meanwhile.
    pub async fn next(&mut self, tx: &mut Tx<'_>) -> DbResult<Option<Piece>> {
        let mut rows = rows(tx, self).await?;
        let Some(end) = rows.last() else { return Ok(None) };
        self.last = end.seq;
        for row in &mut rows {
            let cell = Cell {
                table: "checkpoints",
                column: "position",
                id: &row.checkpoint_id,
            };
            let position = cell.decode::<Position>(&row.position)?.detached();
            self.remains = position.phase != Phase::Ended;
            row.position = encode(&position)?;
        }
        Ok(Some(Piece { to: self.to, rows }))
    }
}

/// Stores a piece.
///
/// # Errors
/// [`super::DbError::Conflict`] when the copy is not there any more.
pub async fn store(tx: &mut Tx<'_>, piece: Piece, now: Timestamp) -> DbResult<()> {
    const SQL: &str = "update unfinished_copies set touched_at = $2 where thread_id = $1";
    on_engine!(tx, |conn| query(SQL)
        .bind(piece.to.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    insert(tx, piece.to, piece.rows).await
}

/// Makes the copy a thread like any other.
///
/// # Errors
/// [`super::DbError::Conflict`] when it is not there any more.
pub async fn finish(tx: &mut Tx<'_>, to: ThreadId, remains: bool, now: Timestamp) -> DbResult<Thread> {
    const SQL: &str = "delete from unfinished_copies where thread_id = $1";
    let gone = || DbError::Conflict(format!("the unfinished copy {to} is gone"));
    let finished = on_engine!(tx, |conn| query(SQL)
        .bind(to.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    let thread = threads::lock(tx, to)
        .await?
        .filter(|_| finished == 1)
        .ok_or_else(gone)?;
    let status = if remains {
        ThreadStatus::Interrupted
    } else {
        thread.status
    };
    // The metadata is the same; its terms are written now.
    let change = threads::ThreadChange {
        status: Some(status),
        metadata: Some(thread.metadata.clone()),
        ..threads::ThreadChange::default()
    };
    threads::set(tx, to, change, now).await?;
    threads::find(tx, to).await?.ok_or_else(gone)
}

impl Copy {
    /// Whether something remains to be done after the end of what was copied so far.
    pub fn remains(&self) -> bool {
        self.remains
    }
}

/// Takes an unfinished copy away.
pub async fn abandon(tx: &mut Tx<'_>, to: ThreadId) -> DbResult<()> {
    const SQL: &str =
        "delete from threads where thread_id = $1 and thread_id in (select thread_id from unfinished_copies)";
    on_engine!(tx, |conn| query(SQL).bind(to.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// The copies that are in the making, or were when a server crashed.
pub async fn unfinished(tx: &mut Tx<'_>) -> DbResult<Vec<ThreadId>> {
    const SQL: &str = "select thread_id from unfinished_copies";
    let found: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(SQL).fetch_all(conn).await)?;
    Ok(found.into_iter().map(ThreadId).collect())
}

/// Takes away a copy that was left behind by a crash: on SQLite, of which only one server is at work, `at_start` any;
/// else one that was not touched for an hour. Returns whether there was one.
pub async fn sweep(tx: &mut Tx<'_>, at_start: bool, now: Timestamp) -> DbResult<bool> {
    const SQL: &str = "select thread_id from unfinished_copies where touched_at <= $1 limit 1";
    let until = match tx.engine() {
        Engine::Sqlite if at_start => i64::MAX,
        Engine::Sqlite | Engine::Postgres => now.0.saturating_sub(LEFT_BEHIND),
    };
    let found: Option<Uuid> = on_engine!(tx, |conn| query_scalar(SQL).bind(until).fetch_optional(conn).await)?;
    let Some(found) = found else { return Ok(false) };
    abandon(tx, ThreadId(found)).await?;
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

/// The next rows of the history of the main agent, as many as make a piece.
async fn rows(tx: &mut Tx<'_>, copy: &Copy) -> DbResult<Vec<Row>> {
    const SIZES: &str = "select seq, cast(octet_length(writes) + octet_length(position) as bigint) from checkpoints \
        where thread_id = $1 and lane = $2 and seq > $3 and seq <= $4 order by seq limit $5";
    const SQL: &str = "select checkpoint_id, seq, segment, parent_id, step, source, node, run_id, writes, shown, \
        position, created_at from checkpoints where thread_id = $1 and lane = $2 and seq > $3 and seq <= $4 order by seq";
    let lane = lane_id(Lane::Main);
    let sizes: Vec<(i64, i64)> = on_engine!(tx, |conn| query_as(SIZES)
        .bind(copy.from.0)
        .bind(lane)
        .bind(copy.last)
        .bind(copy.until)
        .bind(BATCH)
        .fetch_all(conn)
        .await)?;
    let mut bytes = 0;
    let fitting = sizes.iter().enumerate().take_while(|(at, (_, size))| {
        bytes += size;
        *at == 0 || bytes <= PIECE_BYTES
    });
    let Some((_, (end, _))) = fitting.last() else {
        return Ok(vec![]);
    };
    Ok(on_engine!(tx, |conn| query_as(SQL)
        .bind(copy.from.0)
        .bind(lane)
        .bind(copy.last)
        .bind(*end)
        .fetch_all(conn)
        .await)?)
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
