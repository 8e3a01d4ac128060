//! Copies of threads, made in pieces.

mod waiting;

use serde_json::{Map, Value};
use sqlx::{QueryBuilder, query, query_as, query_scalar};
use uuid::Uuid;

use super::checkpoints::{cell, with_parents};
use super::codec::blobs::{self, BlobReferrer, Packer, StoredText};
use super::engine::{IdColumn, on_engine};
use super::row::from_row;
use super::{DbError, DbResult, Engine, Tx, checkpoints, threads};
use crate::domain::access::Ownership;
use crate::domain::checkpoint::Lane;
use crate::domain::id::ThreadId;
use crate::domain::identity::Identity;
use crate::domain::machine::{Phase, Position};
use crate::domain::run_config::configurable_mut;
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::time::Timestamp;
use waiting::WaitingSteps;

/// The maximum number of rows in one piece; databases limit the number of bound values.
const MAX_ROWS: i64 = 200;
/// The maximum size of one piece in bytes, unless its only row is larger. Writing it takes about ten milliseconds.
const MAX_PIECE_BYTES: i64 = 1 << 20;
/// The time without a new piece after which a copy counts as abandoned by a crashed server: an hour, in microseconds.
const ABANDONED_AFTER: i64 = 3_600_000_000;

/// An unfinished copy of a thread: its metadata and the history of its main agent. The checkpoints have the same ids as
/// in the original, so that an id that a client stored names the same state in both.
///
/// The copy is made in pieces, each in a transaction of its own, so that other writes can run in between. Until
/// [`finish`], searches do not find the thread, and no client knows its id.
///
/// What waits at the newest checkpoint for an answer goes on in the copy, if both threads belong to one tenant: the interrupts,
/// and the histories of the subagents that wait. Elsewhere the copy asks or delegates again.
#[derive(Debug)]
pub struct Copy {
    from: ThreadId,
    /// The new thread.
    pub to: ThreadId,
    /// The histories to copy.
    spans: Vec<LaneSpan>,
    /// The index of the history that is being copied.
    at: usize,
    /// The number of the last of its checkpoints that is copied.
    last: i64,
    /// True when the main agent has pending tasks after its newest checkpoint.
    remains: bool,
    /// The steps that go on in the copy.
    waiting: Option<Box<WaitingSteps>>,
    /// The configuration of the run that waits, with which its work goes on.
    config: Map<String, Value>,
}

/// A history to copy.
#[derive(Debug, Clone, Copy)]
struct LaneSpan {
    from: Lane,
    /// The history of the copy.
    to: Lane,
    /// The number of the newest checkpoint when the copy began; later ones are not copied.
    until: i64,
}

/// Begins to copy the thread `from` for `ownership`, to whom the copy belongs; none if it does not exist.
///
/// # Errors
/// [`super::DbError::Conflict`] when the id `to` is taken.
pub async fn begin(
    tx: &mut Tx<'_>,
    from: ThreadId,
    to: ThreadId,
    ownership: Ownership,
    now: Timestamp,
) -> DbResult<Option<Copy>> {
    const SQL: &str = "insert into unfinished_copies (thread_id, touched_at) values ($1, $2)";
    let Some(original) = threads::lock(tx, from).await? else {
        return Ok(None);
    };
    let is_of_tenant = original.ownership.tenant == ownership.tenant;
    let copy = Thread::new(to, ownership, original.metadata, now).with_ttl(original.ttl);
    threads::insert_unindexed(tx, &copy).await?;
    on_engine!(tx, |conn| query(SQL)
        .bind(to.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    let head = checkpoints::head(tx, from, Lane::Main).await?;
    let mut spans = vec![LaneSpan {
        from: Lane::Main,
        to: Lane::Main,
        until: head.as_ref().map_or(i64::MIN, |head| head.seq),
    }];
    let waiting = match head.filter(|_| is_of_tenant) {
        Some(head) => Box::pin(WaitingSteps::of(tx, from, to, head, now)).await?.map(Box::new),
        None => None,
    };
    let subagents = waiting.iter().flat_map(|waiting| waiting.lanes());
    spans.extend(subagents.map(|(from, to, until)| LaneSpan { from, to, until }));
    Ok(Some(Copy {
        from,
        to,
        spans,
        at: 0,
        last: i64::MIN,
        remains: false,
        waiting,
        config: original.config,
    }))
}

/// A part of a copy, ready to be stored.
pub struct Piece {
    from: ThreadId,
    to: ThreadId,
    /// The history of the copy.
    lane: Lane,
    rows: Vec<CopiedRow>,
}

/// A row of the copy. Its writes stay packed.
struct CopiedRow {
    row: Row,
    position: Position,
}

impl Copy {
    /// Assigns the work that goes on in the copy to this caller, to whom the copy belongs.
    pub fn assign_to(&mut self, caller: &Identity) {
        if let Some(waiting) = &mut self.waiting {
            waiting.assign_to(caller);
        }
    }

    /// Removes an entry from the context with which the work goes on in the copy.
    pub fn remove_from_context(&mut self, name: &str) {
        if let Some(context) = configurable_mut(&mut self.config) {
            context.remove(name);
        }
    }

    /// Returns the histories that the copy has.
    pub fn lanes(&self) -> Vec<Lane> {
        self.spans.iter().map(|span| span.to).collect()
    }

    /// Reads the next piece; none when the copy is complete. The original may change meanwhile.
    pub async fn next(&mut self, tx: &mut Tx<'_>) -> DbResult<Option<Piece>> {
        let Some((span, mut rows)) = self.next_rows(tx).await? else {
            return Ok(None);
        };
        let positions = rows.iter_mut().map(|row| StoredText {
            cell: cell("position", &row.checkpoint_id),
            text: &mut row.position,
        });
        blobs::restore(tx, self.from, positions.collect()).await?;
        // The copy may belong to another tenant. It is sealed when it is stored.
        let mut copied = Vec::with_capacity(rows.len());
        for mut row in rows {
            let id = row.checkpoint_id;
            let at = |column| cell(column, &id);
            let position = at("position").decode::<Position>(&row.position)?.for_copy();
            if span.to == Lane::Main {
                self.remains = position.phase != Phase::Ended;
            }
            let shown = row.shown.take().map(|shown| at("shown").open_owned(shown));
            row.shown = shown.transpose()?;
            row.writes = at("writes").open_owned(std::mem::take(&mut row.writes))?;
            copied.push(CopiedRow { row, position });
        }
        Ok(Some(Piece {
            from: self.from,
            to: self.to,
            lane: span.to,
            rows: copied,
        }))
    }

    /// Reads the next rows, with the history to which they belong; none when all are read.
    async fn next_rows(&mut self, tx: &mut Tx<'_>) -> DbResult<Option<(LaneSpan, Vec<Row>)>> {
        while let Some(span) = self.spans.get(self.at).copied() {
            let rows = rows(tx, self.from, span, self.last).await?;
            if let Some(end) = rows.last() {
                self.last = end.seq;
                return Ok(Some((span, rows)));
            }
            self.at += 1;
            self.last = i64::MIN;
        }
        Ok(None)
    }
}

/// Stores a piece.
///
/// # Errors
/// [`super::DbError::Conflict`] when the copy was deleted.
pub async fn store(tx: &mut Tx<'_>, piece: Piece, now: Timestamp) -> DbResult<()> {
    const SQL: &str = "update unfinished_copies set touched_at = $2 where thread_id = $1";
    if !threads::lock_to_add(tx, piece.to).await? {
        return Err(gone_error(piece.to));
    }
    on_engine!(tx, |conn| query(SQL)
        .bind(piece.to.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    let mut rows = Vec::with_capacity(piece.rows.len());
    for CopiedRow { mut row, position } in piece.rows {
        let referrer = BlobReferrer::Entry {
            thread: piece.to,
            seq: row.seq,
        };
        blobs::copy(tx, piece.from, referrer, blobs::refs_of(&row.writes)).await?;
        let mut packer = Packer::of_thread(tx, piece.to).await?;
        row.position = packer.encode(&cell("position", &row.checkpoint_id), &position)?;
        let shown = row
            .shown
            .take()
            .map(|shown| packer.seal(&cell("shown", &row.checkpoint_id), shown));
        row.shown = shown.transpose()?;
        row.writes = packer.seal(&cell("writes", &row.checkpoint_id), std::mem::take(&mut row.writes))?;
        packer.store(tx, referrer).await?;
        rows.push(row);
    }
    insert(tx, piece.to, piece.lane, rows).await
}

/// Returns the error about a copy that was deleted.
fn gone_error(to: ThreadId) -> DbError {
    DbError::Conflict(format!("the unfinished copy {to} does not exist"))
}

/// Finishes a copy: it becomes a normal thread, and what waits goes on in it.
///
/// # Errors
/// [`super::DbError::Conflict`] when the copy was deleted.
pub async fn finish(tx: &mut Tx<'_>, copy: Copy, now: Timestamp) -> DbResult<Thread> {
    const SQL: &str = "delete from unfinished_copies where thread_id = $1";
    let Copy {
        to,
        remains,
        waiting,
        config,
        ..
    } = copy;
    let config = waiting.is_some().then_some(config);
    let not_found = || gone_error(to);
    let finished = on_engine!(tx, |conn| query(SQL)
        .bind(to.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    let thread = threads::lock(tx, to)
        .await?
        .filter(|_| finished == 1)
        .ok_or_else(not_found)?;
    if let Some(waiting) = waiting {
        waiting.store(tx, to, now).await?;
    }
    let status = if remains {
        ThreadStatus::Interrupted
    } else {
        thread.status
    };
    // Setting the unchanged metadata writes its terms, so that searches find the thread.
    let change = threads::ThreadChange {
        status: Some(status),
        config,
        metadata: Some(thread.metadata.clone()),
        ..threads::ThreadChange::default()
    };
    threads::set(tx, to, change, now).await?;
    threads::find(tx, to).await?.ok_or_else(not_found)
}

/// Deletes an unfinished copy.
pub async fn abandon(tx: &mut Tx<'_>, to: ThreadId) -> DbResult<()> {
    const SQL: &str =
        "delete from threads where thread_id = $1 and thread_id in (select thread_id from unfinished_copies)";
    threads::lock_to_delete(tx, to).await?;
    let blobs = blobs::of_thread(tx, to).await?;
    on_engine!(tx, |conn| query(SQL).bind(to.0).execute(conn).await.map(drop))?;
    blobs::delete_unreferenced(tx, blobs).await
}

/// Returns the unfinished copies, including those of crashed servers.
pub async fn unfinished(tx: &mut Tx<'_>) -> DbResult<Vec<ThreadId>> {
    const SQL: &str = "select thread_id from unfinished_copies";
    let found: Vec<Uuid> = on_engine!(tx, |conn| query_scalar(SQL).fetch_all(conn).await)?;
    Ok(found.into_iter().map(ThreadId).collect())
}

/// Deletes one copy that a crashed server left: on SQLite `at_start` any, since no other server is running; else one
/// without a new piece for an hour. Returns whether there was one.
pub async fn sweep(tx: &mut Tx<'_>, at_start: bool, now: Timestamp) -> DbResult<bool> {
    const SQL: &str = "select thread_id from unfinished_copies where touched_at <= $1 limit 1";
    let until = match tx.engine() {
        Engine::Sqlite if at_start => i64::MAX,
        Engine::Sqlite | Engine::Postgres => now.0.saturating_sub(ABANDONED_AFTER),
    };
    let found: Option<Uuid> = on_engine!(tx, |conn| query_scalar(SQL).bind(until).fetch_optional(conn).await)?;
    let Some(found) = found else { return Ok(false) };
    abandon(tx, ThreadId(found)).await?;
    Ok(true)
}

from_row! {
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
        carried_from: Option<Uuid>,
    }
}

/// Returns the next rows of a history of a thread, after the number `last`, up to the size of a piece.
async fn rows(tx: &mut Tx<'_>, thread: ThreadId, span: LaneSpan, last: i64) -> DbResult<Vec<Row>> {
    const SIZES: &str = "select seq, cast(octet_length(writes) + octet_length(position) \
        + (select coalesce(sum(held.chars), 0) from entry_blobs held where held.thread_id = checkpoints.thread_id \
        and held.seq = checkpoints.seq) as bigint) from checkpoints \
        where thread_id = $1 and lane = $2 and seq > $3 and seq <= $4 order by seq limit $5";
    // A copy has no events, those without rows included.
    const SQL: &str = "select checkpoint_id, seq, segment, {parent} as parent_id, step, \
        case source when 'begin' then 'input' else source end as source, node, run_id, writes, shown, \
        position, created_at, carried_from from checkpoints \
        where thread_id = $1 and lane = $2 and seq > $3 and seq <= $4 order by seq";
    let lane = IdColumn(span.from);
    let sizes: Vec<(i64, i64)> = on_engine!(tx, |conn| query_as(SIZES)
        .bind(thread.0)
        .bind(lane)
        .bind(last)
        .bind(span.until)
        .bind(MAX_ROWS)
        .fetch_all(conn)
        .await)?;
    let mut bytes = 0;
    let fitting = sizes.iter().enumerate().take_while(|(at, (_, size))| {
        bytes += size;
        *at == 0 || bytes <= MAX_PIECE_BYTES
    });
    let Some((_, (end, _))) = fitting.last() else {
        return Ok(vec![]);
    };
    let sql = with_parents!(tx, SQL);
    Ok(on_engine!(tx, |conn| query_as(sql)
        .bind(thread.0)
        .bind(lane)
        .bind(last)
        .bind(*end)
        .fetch_all(conn)
        .await)?)
}

async fn insert(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, rows: Vec<Row>) -> DbResult<()> {
    const SQL: &str = "insert into checkpoints (checkpoint_id, thread_id, lane, seq, segment, parent_id, step, source, \
        node, run_id, writes, shown, position, created_at, carried_from) ";
    let lane = IdColumn(lane);
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
                .push_bind(row.created_at)
                .push_bind(row.carried_from);
        });
        sql.build().execute(conn).await.map(drop)
    })?;
    Ok(())
}
