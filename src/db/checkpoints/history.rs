//! Reads checkpoints with their positions and writes: one, a part of a history, or the newest of a lane.

use std::collections::HashSet;
use std::sync::Arc;

use const_format::concatcp;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, query_as};
use uuid::Uuid;

use super::state::state_at;
#[cfg(test)]
use super::summary::load_summaries;
use super::summary::{CheckpointSummary, SummaryRow};
use super::{EntryColumns, Span, cell, with_parents};
use crate::db::codec::blobs::{self, StoredText};
use crate::db::engine::{IdColumn, LaterRows, on_engine};
use crate::db::fold::StateFold;
use crate::db::row::from_row;
use crate::db::{DbResult, Tx};
use crate::domain::checkpoint::{Checkpoint, Entry, Lane};
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::machine::Position;
use crate::domain::state::State;
use crate::domain::time::Timestamp;
use crate::sqlite::SqliteRow;

from_row! {
    struct CheckpointRow {
        lane: IdColumn<Lane>,
        node: String,
        writes: String,
        shown: Option<String>,
        position: String,
        carried_from: Option<Uuid>,
        ..summary: SummaryRow,
    }
}

impl CheckpointRow {
    /// Decodes the checkpoint, with an empty state.
    fn read(self, thread: ThreadId) -> DbResult<Checkpoint> {
        let summary = self.summary;
        let position: Position = cell("position", &summary.checkpoint_id).decode(&self.position)?;
        let entry = Entry::try_from(EntryColumns {
            checkpoint_id: summary.checkpoint_id,
            parent_id: summary.parent_id,
            step: summary.step,
            source: summary.source,
            node: self.node,
            writes: self.writes,
            shown: self.shown,
            carried_from: self.carried_from,
        })?;
        Ok(Checkpoint {
            entry,
            thread,
            lane: self.lane.0,
            run: summary.run_id.map(RunId),
            seq: summary.seq,
            forks: summary.segment == summary.seq && summary.parent_id.is_some(),
            position,
            state: State::default(),
            created_at: Timestamp(summary.created_at),
        })
    }
}

/// Puts the blobs of checkpoints back.
async fn restore(tx: &mut Tx<'_>, thread: ThreadId, rows: &mut [CheckpointRow]) -> DbResult<()> {
    let mut texts = Vec::with_capacity(rows.len() * 2);
    for row in rows {
        texts.push(StoredText {
            cell: cell("writes", &row.summary.checkpoint_id),
            text: &mut row.writes,
        });
        texts.push(StoredText {
            cell: cell("position", &row.summary.checkpoint_id),
            text: &mut row.position,
        });
    }
    blobs::restore(tx, thread, texts).await
}

const SELECT: &str = "select checkpoint_id, lane, seq, segment, {parent} as parent_id, step, source, node, run_id, writes, \
    shown, position, created_at, carried_from from checkpoints";

/// Returns a checkpoint of a thread without its state, of any lane.
pub async fn find(tx: &mut Tx<'_>, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Option<Checkpoint>> {
    const SQL: &str = concatcp!(SELECT, " where checkpoint_id = $1 and thread_id = $2");
    let sql = with_parents!(tx, SQL);
    let statement = tx.statement(sql).bind(checkpoint.0).bind(thread.0);
    let row: Option<CheckpointRow> = statement.fetch_optional().await?;
    let Some(mut row) = row else {
        return Ok(None);
    };
    restore(tx, thread, std::slice::from_mut(&mut row)).await?;
    row.read(thread).map(Some)
}

/// Returns a checkpoint of a thread with its state, of any lane.
#[cfg(test)]
pub async fn get(tx: &mut Tx<'_>, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Option<Checkpoint>> {
    let Some(mut found) = find(tx, thread, checkpoint).await? else {
        return Ok(None);
    };
    found.state = State::clone(&*state_at(tx, thread, found.lane, checkpoint).await?);
    Ok(Some(found))
}

/// Returns the first step of a lane after number `seq` of the log.
pub async fn next_after(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, seq: i64) -> DbResult<Option<Entry>> {
    const SQL: &str = concatcp!(
        SELECT,
        " where thread_id = $1 and lane = $2 and seq > $3 order by seq limit 1"
    );
    let sql = with_parents!(tx, SQL);
    let statement = tx.statement(sql).bind(thread.0).bind(IdColumn(lane)).bind(seq);
    let row: Option<CheckpointRow> = statement.fetch_optional().await?;
    let Some(mut row) = row else {
        return Ok(None);
    };
    restore(tx, thread, std::slice::from_mut(&mut row)).await?;
    row.read(thread).map(|checkpoint| Some(checkpoint.entry))
}

/// A query for a part of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryQuery {
    /// The maximum number of checkpoints.
    pub limit: i64,
    /// Only checkpoints older than this one. An unknown checkpoint has none.
    pub before: Option<CheckpointId>,
}

/// A visitor of checkpoints, oldest first.
pub trait Visit: Send {
    /// Receives the next checkpoint, without its state.
    fn step(&mut self, checkpoint: &Checkpoint);

    /// Receives the state at that checkpoint; none when states are not read.
    fn state(&mut self, state: Option<&State>);
}

from_row! {
    /// The size of a row, read before its content.
    struct RowSize {
        checkpoint_id: Uuid,
        parent_id: Option<Uuid>,
        seq: i64,
        bytes: i64,
    }
}

/// The maximum size of the rows read at once, in bytes. A larger row is read alone.
const MAX_CHUNK_BYTES: i64 = 1 << 20;

/// Passes the checkpoints of a part of a lane to a visitor, oldest first. Only one state and one chunk of rows are in
/// memory at a time: the state before the oldest checkpoint is folded from the beginning of the lane, the others from
/// the one before.
pub async fn walk<V: Visit>(tx: &mut Tx<'_>, span: Span, with_states: bool, visitor: &mut V) -> DbResult<()> {
    if span.first == span.last {
        return visit_only(tx, span, with_states, visitor).await;
    }
    let sizes = sizes(tx, span).await?;
    // The states of parents of branches are needed again, so they go into the cache, which is bounded.
    let branch_starts = sizes
        .windows(2)
        .filter(|pair| pair[1].parent_id != Some(pair[0].checkpoint_id));
    let branch_parents: HashSet<Uuid> = branch_starts.filter_map(|pair| pair[1].parent_id).collect();
    let mut current: Option<(CheckpointId, StateFold)> = None;
    let mut rest = sizes.as_slice();
    while let Some(last) = rest.get(chunk_len(rest).saturating_sub(1)) {
        let mut rows = rows_between(
            tx,
            Span {
                first: rest[0].seq,
                last: last.seq,
                ..span
            },
        )
        .await?;
        rest = &rest[chunk_len(rest)..];
        restore(tx, span.thread, &mut rows).await?;
        for row in rows {
            let mut checkpoint = row.read(span.thread)?;
            visitor.step(&checkpoint);
            let id = checkpoint.entry.id;
            if !with_states {
                visitor.state(None);
            } else {
                let mut fold = match (checkpoint.entry.parent, current.take()) {
                    (Some(parent), Some((newest, fold))) if newest == parent => fold,
                    (Some(parent), _) => {
                        StateFold::from(State::clone(&*state_at(tx, span.thread, span.lane, parent).await?))
                    }
                    (None, _) => StateFold::default(),
                };
                fold.add(std::mem::take(&mut checkpoint.entry.writes));
                if branch_parents.contains(&id.0) {
                    tx.states.put(id, Arc::new(fold.state().clone()));
                }
                visitor.state(Some(fold.state()));
                current = Some((id, fold));
            }
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Passes the checkpoint of a span of one number to a visitor, if there is one. Its size does not matter: it is read alone.
async fn visit_only<V: Visit>(tx: &mut Tx<'_>, span: Span, with_states: bool, visitor: &mut V) -> DbResult<()> {
    for row in rows_between(tx, span).await? {
        visit_row(tx, span.thread, row, with_states, visitor).await?;
    }
    Ok(())
}

/// Passes one checkpoint to a visitor.
async fn visit_row<V: Visit>(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    mut row: CheckpointRow,
    with_states: bool,
    visitor: &mut V,
) -> DbResult<()> {
    restore(tx, thread, std::slice::from_mut(&mut row)).await?;
    let checkpoint = row.read(thread)?;
    visitor.step(&checkpoint);
    if with_states {
        let state = state_at(tx, thread, checkpoint.lane, checkpoint.entry.id).await?;
        visitor.state(Some(&*state));
    } else {
        visitor.state(None);
    }
    Ok(())
}

/// The newest checkpoint of a lane that is read later in its transaction.
pub struct LaterNewest {
    thread: ThreadId,
    rows: LaterRows<CheckpointRow>,
}

/// The newest checkpoint of a lane, as it is stored.
pub struct NewestCheckpoint {
    thread: ThreadId,
    row: CheckpointRow,
    /// Its metadata.
    pub summary: CheckpointSummary,
}

/// Returns the newest checkpoint of a lane, to be read later in the transaction, which must store nothing in the lane meanwhile. It
/// is read together with other rows.
pub async fn newest_later(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<LaterNewest> {
    const SQL: &str = concatcp!(SELECT, " where thread_id = $1 and lane = $2 order by seq desc limit 1");
    let sql = with_parents!(tx, SQL);
    let rows = tx
        .statement(sql)
        .bind(thread.0)
        .bind(IdColumn(lane))
        .fetch_later()
        .await?;
    Ok(LaterNewest { thread, rows })
}

impl LaterNewest {
    /// Reads the checkpoint.
    pub async fn read(self, tx: &mut Tx<'_>) -> DbResult<Option<NewestCheckpoint>> {
        let Self { thread, rows } = self;
        let Some(row) = rows.fetch_optional(tx).await? else {
            return Ok(None);
        };
        let summary = CheckpointSummary::try_from(&row.summary)?;
        Ok(Some(NewestCheckpoint { thread, row, summary }))
    }
}

impl NewestCheckpoint {
    /// Passes the checkpoint to a visitor, like [`walk`].
    pub async fn visit<V: Visit>(self, tx: &mut Tx<'_>, with_states: bool, visitor: &mut V) -> DbResult<()> {
        visit_row(tx, self.thread, self.row, with_states, visitor).await
    }
}

/// Returns the number of rows in the next chunk: at least one, if there are any.
fn chunk_len(rows: &[RowSize]) -> usize {
    let mut bytes = 0;
    let fitting = rows.iter().take_while(|row| {
        bytes += row.bytes;
        bytes <= MAX_CHUNK_BYTES
    });
    fitting.count().max(1).min(rows.len())
}

async fn sizes(tx: &mut Tx<'_>, span: Span) -> DbResult<Vec<RowSize>> {
    const SQL: &str = "select checkpoint_id, {parent} as parent_id, seq, \
        cast(octet_length(writes) + octet_length(position) + (select coalesce(sum(held.chars), 0) from entry_blobs held \
        where held.thread_id = checkpoints.thread_id and held.seq = checkpoints.seq) as bigint) as bytes from checkpoints \
        where thread_id = $1 and lane = $2 and seq >= $3 and seq <= $4 order by seq";
    let sql = with_parents!(tx, SQL);
    select_span(tx, sql, span).await
}

async fn rows_between(tx: &mut Tx<'_>, span: Span) -> DbResult<Vec<CheckpointRow>> {
    const SQL: &str = concatcp!(
        SELECT,
        " where thread_id = $1 and lane = $2 and seq >= $3 and seq <= $4 order by seq"
    );
    let sql = with_parents!(tx, SQL);
    select_span(tx, sql, span).await
}

/// Runs `sql` with the parameters of a span: the thread, the lane, and the first and the last number.
async fn select_span<R>(tx: &mut Tx<'_>, sql: &'static str, span: Span) -> DbResult<Vec<R>>
where
    R: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    Ok(on_engine!(tx, |conn| query_as(sql)
        .bind(span.thread.0)
        .bind(IdColumn(span.lane))
        .bind(span.first)
        .bind(span.last)
        .fetch_all(conn)
        .await)?)
}

/// Returns the checkpoints of a lane with their states, of all branches, newest first.
#[cfg(test)]
pub async fn history(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, wanted: HistoryQuery) -> DbResult<Vec<Checkpoint>> {
    struct Collected(Vec<Checkpoint>);
    impl Visit for Collected {
        fn step(&mut self, checkpoint: &Checkpoint) {
            self.0.push(checkpoint.clone());
        }
        fn state(&mut self, state: Option<&State>) {
            if let Some(last) = self.0.last_mut()
                && let Some(state) = state
            {
                last.state = state.clone();
            }
        }
    }
    let before = match wanted.before {
        Some(before) => super::find_head(tx, thread, before)
            .await?
            .map_or(i64::MIN, |head| head.seq),
        None => i64::MAX,
    };
    let found = load_summaries(tx, thread, lane, before, wanted.limit).await?;
    let mut all = Collected(vec![]);
    if let Some(newest) = found.first()
        && let Some(oldest) = found.last()
    {
        walk(
            tx,
            Span {
                thread,
                lane,
                first: oldest.seq,
                last: newest.seq,
            },
            true,
            &mut all,
        )
        .await?;
    }
    all.0.reverse();
    Ok(all.0)
}
