//! Folds the writes of checkpoints to states, and reads histories.

use std::collections::HashSet;
use std::sync::Arc;

use const_format::concatcp;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, query_as};
use uuid::Uuid;

use super::{EntryColumns, Head, TABLE, cell, missing_ancestor, source_of};
use crate::db::blobs::{self, StoredText};
use crate::db::engine::{LaneColumn, on_engine};
use crate::db::fold::StateFold;
use crate::db::json::ColumnRef;
use crate::db::row::from_row;
use crate::db::statement::LaterRows;
use crate::db::{DbResult, Tx};
use crate::domain::checkpoint::{Checkpoint, CheckpointSource, Entry, Lane};
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::machine::Position;
use crate::domain::state::State;
use crate::domain::time::Timestamp;

/// Returns the state at `head`: the sum of its own writes and those of its ancestors.
///
/// # Errors
/// [`crate::db::DbError::Corrupt`] when an ancestor is missing.
pub async fn load_state(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, head: &Head) -> DbResult<State> {
    Ok(State::clone(&*state_at(tx, thread, lane, head.id).await?))
}

/// Returns the newest state of a lane, shared with the cache; none if the lane has no checkpoint.
///
/// # Errors
/// As [`load_state`].
pub async fn newest_state(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<Option<Arc<State>>> {
    let Some(newest) = super::newest_id(tx, thread, lane).await? else {
        return Ok(None);
    };
    state_at(tx, thread, lane, newest).await.map(Some)
}

from_row! {
    /// A step to be folded.
    struct StepRow {
        checkpoint_id: Uuid,
        parent_id: Option<Uuid>,
        seq: i64,
        segment: i64,
        writes: String,
    }
}

from_row! {
    /// A step whose writes are not read yet.
    struct StepId {
        checkpoint_id: Uuid,
        parent_id: Option<Uuid>,
        seq: i64,
    }
}

/// Steps of one segment to be folded.
enum Steps {
    /// Some steps, oldest first.
    Read(Vec<StepRow>),
    /// Steps whose writes are not read yet.
    Unread(UnreadSteps),
}

/// The steps of a segment in a part of a lane.
#[derive(Clone, Copy)]
struct UnreadSteps {
    segment: i64,
    span: Span,
    count: usize,
}

/// The maximum number of steps whose writes, or ids, are in memory at once.
const MAX_STEPS: i64 = 256;
/// The maximum size of the texts of steps with their blobs in memory at once, in bytes. A larger text is read alone.
const MAX_RESTORED_BYTES: usize = 4 << 20;

/// Returns the state at a checkpoint from the cache, or folds and caches it.
async fn state_at(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, checkpoint: CheckpointId) -> DbResult<Arc<State>> {
    if let Some(state) = tx.states.get(checkpoint) {
        return Ok(state);
    }
    let (base, parts) = steps_to(tx, thread, lane, checkpoint).await?;
    let mut fold = base.map_or_else(StateFold::default, |state| StateFold::from(State::clone(&state)));
    for steps in parts {
        match steps {
            Steps::Read(rows) => add_steps(tx, thread, &mut fold, rows).await?,
            Steps::Unread(steps) => {
                if !add_unread(tx, &mut fold, steps).await? {
                    return Err(missing_ancestor(checkpoint));
                }
            }
        }
    }
    let state = Arc::new(fold.finish());
    tx.states.put(checkpoint, Arc::clone(&state));
    Ok(state)
}

/// Adds the writes of steps. Of their blobs, only some are in memory at once.
async fn add_steps(tx: &mut Tx<'_>, thread: ThreadId, fold: &mut StateFold, mut rows: Vec<StepRow>) -> DbResult<()> {
    for row in &mut rows {
        blobs::open(&cell("writes", &row.checkpoint_id), &mut row.writes);
    }
    while !rows.is_empty() {
        let later = rows.split_off(steps_at_once(&rows));
        let texts = rows.iter_mut().map(|row| StoredText {
            cell: cell("writes", &row.checkpoint_id),
            text: &mut row.writes,
        });
        blobs::restore(tx, thread, texts.collect()).await?;
        for row in std::mem::replace(&mut rows, later) {
            fold.add(cell("writes", &row.checkpoint_id).decode(&row.writes)?);
        }
    }
    Ok(())
}

/// Returns the number of the first of these steps whose blobs are put back at once: at least one.
fn steps_at_once(rows: &[StepRow]) -> usize {
    let mut bytes = 0_usize;
    let fitting = rows.iter().take_while(|row| {
        bytes = bytes.saturating_add(blobs::restored_len(&row.writes));
        bytes <= MAX_RESTORED_BYTES
    });
    fitting.count().max(1)
}

/// Adds the writes of steps that are not read yet, some at a time. Returns whether all of them were found: unlike a read, a
/// transaction that writes may see that one was deleted meanwhile.
async fn add_unread(tx: &mut Tx<'_>, fold: &mut StateFold, steps: UnreadSteps) -> DbResult<bool> {
    let mut left = steps;
    while left.count > 0 {
        let rows = first_of(tx, left).await?;
        let Some(newest) = rows.last() else { return Ok(false) };
        left.span.first = newest.seq + 1;
        left.count = left.count.saturating_sub(rows.len());
        add_steps(tx, left.span.thread, fold, rows).await?;
    }
    Ok(true)
}

/// Returns the state of the nearest cached ancestor of a checkpoint, and the steps from there to the checkpoint, oldest
/// first. Without a cached ancestor there is no state, and the steps begin with the first of the lane.
async fn steps_to(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    lane: Lane,
    checkpoint: CheckpointId,
) -> DbResult<(Option<Arc<State>>, Vec<Steps>)> {
    let mut parts: Vec<Steps> = vec![];
    let mut base = None;
    let mut last = Some(checkpoint);
    while let Some(id) = last {
        let mut rows = newest_steps(tx, thread, lane, id).await?;
        let Some(first) = rows.first() else {
            return Err(missing_ancestor(id));
        };
        let segment = first.segment;
        let seq = first.seq;
        last = first.parent_id.map(CheckpointId);
        let is_full = rows.len() >= usize::try_from(MAX_STEPS).unwrap_or(usize::MAX);
        base = nearest_state(tx, &rows, |row| row.checkpoint_id).map(|(at, state)| {
            rows.drain(..=at);
            state
        });
        parts.push(Steps::Read(rows));
        if base.is_none() && is_full {
            let before = Span {
                thread,
                lane,
                first: segment,
                last: seq - 1,
            };
            let older = older_steps(tx, before).await?;
            if older.is_any {
                last = older.parent;
            }
            base = older.base;
            parts.extend(older.unread.map(Steps::Unread));
        }
        if base.is_some() {
            break;
        }
    }
    parts.reverse();
    Ok((base, parts))
}

/// Returns the newest of these steps, oldest first, whose state is cached: its index and the state.
fn nearest_state<T>(tx: &Tx<'_>, steps: &[T], id_of: impl Fn(&T) -> Uuid) -> Option<(usize, Arc<State>)> {
    let mut newest_first = steps.iter().enumerate().rev();
    newest_first.find_map(|(at, step)| Some((at, tx.states.get(CheckpointId(id_of(step)))?)))
}

/// Returns a checkpoint and the steps of its segment before it, oldest first: the newest ones, if they are many.
async fn newest_steps(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    lane: Lane,
    checkpoint: CheckpointId,
) -> DbResult<Vec<StepRow>> {
    // Subqueries instead of a join: Postgres could begin the join with the steps, and look for the checkpoint among all
    // steps for each of them.
    const OF_CHECKPOINT: &str = " from checkpoints upto where upto.thread_id = $2 and upto.checkpoint_id = $1 \
        and upto.lane = $3)";
    const SQL: &str = concatcp!(
        "select step.checkpoint_id, step.parent_id, step.seq, step.segment, step.writes from checkpoints step \
         where step.thread_id = $2 and step.lane = $3 and step.seq >= (select upto.segment",
        OF_CHECKPOINT,
        " and step.seq <= (select upto.seq",
        OF_CHECKPOINT,
        " and step.segment = (select upto.segment",
        OF_CHECKPOINT,
        " order by step.seq desc limit $4"
    );
    let mut rows: Vec<StepRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(checkpoint.0)
        .bind(thread.0)
        .bind(LaneColumn(lane))
        .bind(MAX_STEPS)
        .fetch_all(conn)
        .await)?;
    rows.reverse();
    Ok(rows)
}

/// The steps of a segment before those that were read.
#[derive(Default)]
struct OlderSteps {
    /// True if there are any.
    is_any: bool,
    /// The checkpoint before the oldest of them that was looked at.
    parent: Option<CheckpointId>,
    /// The nearest state in the cache.
    base: Option<Arc<State>>,
    /// The steps after that state, or all.
    unread: Option<UnreadSteps>,
}

/// Returns the steps in a part of a lane that belong to the segment with which the part begins, back to the nearest state in
/// the cache. A lane may have tens of thousands of steps, so only some of their ids are in memory at once.
async fn older_steps(tx: &mut Tx<'_>, span: Span) -> DbResult<OlderSteps> {
    let mut older = OlderSteps::default();
    let mut left = span;
    loop {
        let mut ids = newest_ids(tx, left).await?;
        let Some(oldest) = ids.first() else { break };
        older.is_any = true;
        older.parent = oldest.parent_id.map(CheckpointId);
        left.last = oldest.seq - 1;
        let is_full = ids.len() >= usize::try_from(MAX_STEPS).unwrap_or(usize::MAX);
        older.base = nearest_state(tx, &ids, |row| row.checkpoint_id).map(|(at, state)| {
            ids.drain(..=at);
            state
        });
        if let (Some(oldest), Some(newest)) = (ids.first(), ids.last()) {
            let unread = older.unread.get_or_insert(UnreadSteps {
                segment: span.first,
                span: Span {
                    last: newest.seq,
                    ..span
                },
                count: 0,
            });
            unread.span.first = oldest.seq;
            unread.count += ids.len();
        }
        if older.base.is_some() || !is_full {
            break;
        }
    }
    Ok(older)
}

/// Returns the newest of the steps in a part of a lane that belong to the segment with which the part begins, oldest first.
async fn newest_ids(tx: &mut Tx<'_>, span: Span) -> DbResult<Vec<StepId>> {
    const SQL: &str = "select checkpoint_id, parent_id, seq from checkpoints \
        where thread_id = $1 and lane = $2 and segment = $3 and seq >= $3 and seq <= $4 order by seq desc limit $5";
    let mut ids: Vec<StepId> = on_engine!(tx, |conn| query_as(SQL)
        .bind(span.thread.0)
        .bind(LaneColumn(span.lane))
        .bind(span.first)
        .bind(span.last)
        .bind(MAX_STEPS)
        .fetch_all(conn)
        .await)?;
    ids.reverse();
    Ok(ids)
}

/// Returns the first of these steps, oldest first.
async fn first_of(tx: &mut Tx<'_>, steps: UnreadSteps) -> DbResult<Vec<StepRow>> {
    const SQL: &str = "select checkpoint_id, parent_id, seq, segment, writes from checkpoints \
        where thread_id = $1 and lane = $2 and segment = $3 and seq >= $4 and seq <= $5 order by seq limit $6";
    Ok(on_engine!(tx, |conn| query_as(SQL)
        .bind(steps.span.thread.0)
        .bind(LaneColumn(steps.span.lane))
        .bind(steps.segment)
        .bind(steps.span.first)
        .bind(steps.span.last)
        .bind(MAX_STEPS)
        .fetch_all(conn)
        .await)?)
}

from_row! {
    struct CheckpointRow {
        lane: LaneColumn,
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

const SELECT: &str = "select checkpoint_id, lane, seq, segment, parent_id, step, source, node, run_id, writes, shown, \
    position, created_at, carried_from from checkpoints";

/// Returns a checkpoint of a thread with its state, of any lane.
pub async fn get(tx: &mut Tx<'_>, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Option<Checkpoint>> {
    const SQL: &str = concatcp!(SELECT, " where checkpoint_id = $1 and thread_id = $2");
    let row: Option<CheckpointRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(checkpoint.0)
        .bind(thread.0)
        .fetch_optional(conn)
        .await)?;
    let Some(mut row) = row else {
        return Ok(None);
    };
    restore(tx, thread, std::slice::from_mut(&mut row)).await?;
    let mut found = row.read(thread)?;
    found.state = State::clone(&*state_at(tx, thread, found.lane, checkpoint).await?);
    Ok(Some(found))
}

/// A query for a part of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryQuery {
    /// The maximum number of checkpoints.
    pub limit: i64,
    /// Only checkpoints older than this one. An unknown checkpoint has none.
    pub before: Option<CheckpointId>,
}

/// A part of a lane: an inclusive range of numbers of the thread's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The thread.
    pub thread: ThreadId,
    /// The history.
    pub lane: Lane,
    /// The number of the oldest checkpoint.
    pub first: i64,
    /// The number of the newest one.
    pub last: i64,
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

/// Returns the newest checkpoint of a lane, to be read later in the transaction, which must store nothing in the lane meanwhile. On
/// SQLite it is read together with other rows.
pub async fn newest_later(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<LaterNewest> {
    const SQL: &str = concatcp!(SELECT, " where thread_id = $1 and lane = $2 order by seq desc limit 1");
    let rows = tx
        .statement(SQL)
        .bind(thread.0)
        .bind(LaneColumn(lane))
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
    const SQL: &str = "select checkpoint_id, parent_id, seq, \
        cast(octet_length(writes) + octet_length(position) + (select coalesce(sum(held.chars), 0) from entry_blobs held \
        where held.thread_id = checkpoints.thread_id and held.seq = checkpoints.seq) as bigint) as bytes from checkpoints \
        where thread_id = $1 and lane = $2 and seq >= $3 and seq <= $4 order by seq";
    select_span(tx, SQL, span).await
}

async fn rows_between(tx: &mut Tx<'_>, span: Span) -> DbResult<Vec<CheckpointRow>> {
    const SQL: &str = concatcp!(
        SELECT,
        " where thread_id = $1 and lane = $2 and seq >= $3 and seq <= $4 order by seq"
    );
    select_span(tx, SQL, span).await
}

/// Runs `sql` with the parameters of a span: the thread, the lane, and the first and the last number.
async fn select_span<R>(tx: &mut Tx<'_>, sql: &'static str, span: Span) -> DbResult<Vec<R>>
where
    R: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    Ok(on_engine!(tx, |conn| query_as(sql)
        .bind(span.thread.0)
        .bind(LaneColumn(span.lane))
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

/// The metadata of a checkpoint, without its position, writes and state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointSummary {
    /// The checkpoint.
    pub id: CheckpointId,
    /// Its number in the log of the thread.
    pub seq: i64,
    /// Its step number in the lane.
    pub step: i64,
    /// The kind of write that made it.
    pub source: CheckpointSource,
    /// The run of the main agent that made it; none for a client's update.
    pub run: Option<RunId>,
    /// The checkpoint before it.
    pub parent: Option<CheckpointId>,
    /// The checkpoint before it, if this one is the first of a branch.
    pub fork_of: Option<CheckpointId>,
    /// The time at which it was made.
    pub created_at: Timestamp,
}

from_row! {
    struct SummaryRow {
        checkpoint_id: Uuid,
        seq: i64,
        segment: i64,
        parent_id: Option<Uuid>,
        step: i64,
        source: String,
        run_id: Option<Uuid>,
        created_at: i64,
    }
}

impl TryFrom<&SummaryRow> for CheckpointSummary {
    type Error = crate::db::DbError;

    fn try_from(row: &SummaryRow) -> DbResult<Self> {
        let cell = ColumnRef {
            table: TABLE,
            column: "source",
            id: &row.checkpoint_id,
        };
        Ok(Self {
            id: CheckpointId(row.checkpoint_id),
            seq: row.seq,
            step: row.step,
            source: source_of(&row.source).ok_or_else(|| cell.corrupt())?,
            run: row.run_id.map(RunId),
            parent: row.parent_id.map(CheckpointId),
            fork_of: row.parent_id.filter(|_| row.segment == row.seq).map(CheckpointId),
            created_at: Timestamp(row.created_at),
        })
    }
}

const SELECT_SUMMARY: &str =
    "select checkpoint_id, seq, segment, parent_id, step, source, run_id, created_at from checkpoints";

/// Returns a checkpoint of a lane without its writes.
pub async fn load_summary(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    lane: Lane,
    id: CheckpointId,
) -> DbResult<Option<CheckpointSummary>> {
    const SQL: &str = concatcp!(
        SELECT_SUMMARY,
        " where checkpoint_id = $1 and thread_id = $2 and lane = $3"
    );
    let row: Option<SummaryRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(id.0)
        .bind(thread.0)
        .bind(LaneColumn(lane))
        .fetch_optional(conn)
        .await)?;
    row.as_ref().map(CheckpointSummary::try_from).transpose()
}

/// Returns the newest checkpoint of a lane without its writes.
pub async fn newest_summary(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<Option<CheckpointSummary>> {
    newest_summary_later(tx, thread, lane).await?.read(tx).await
}

/// A checkpoint without its writes that is read later in its transaction.
pub struct LaterSummary(LaterRows<SummaryRow>);

/// Returns the newest checkpoint of a lane without its writes, to be read later in the transaction, which must store nothing in the
/// lane meanwhile. On SQLite it is read together with other rows.
pub async fn newest_summary_later(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<LaterSummary> {
    const SQL: &str = concatcp!(
        SELECT_SUMMARY,
        " where thread_id = $1 and lane = $2 order by seq desc limit 1"
    );
    let statement = tx.statement(SQL).bind(thread.0).bind(LaneColumn(lane));
    statement.fetch_later().await.map(LaterSummary)
}

impl LaterSummary {
    /// Reads the checkpoint.
    pub async fn read(self, tx: &mut Tx<'_>) -> DbResult<Option<CheckpointSummary>> {
        let row = self.0.fetch_optional(tx).await?;
        row.as_ref().map(CheckpointSummary::try_from).transpose()
    }
}

/// Returns up to `limit` checkpoints of a lane with numbers below `before`, newest first, without their writes.
pub async fn load_summaries(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    lane: Lane,
    before: i64,
    limit: i64,
) -> DbResult<Vec<CheckpointSummary>> {
    const SQL: &str = concatcp!(
        SELECT_SUMMARY,
        " where thread_id = $1 and lane = $2 and seq < $3 order by seq desc limit $4"
    );
    let rows: Vec<SummaryRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(thread.0)
        .bind(LaneColumn(lane))
        .bind(before)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    rows.iter().map(CheckpointSummary::try_from).collect()
}

/// Returns the first step of a lane after number `seq` of the log.
pub async fn next_after(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, seq: i64) -> DbResult<Option<Entry>> {
    const SQL: &str = concatcp!(
        SELECT,
        " where thread_id = $1 and lane = $2 and seq > $3 order by seq limit 1"
    );
    let row: Option<CheckpointRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(thread.0)
        .bind(LaneColumn(lane))
        .bind(seq)
        .fetch_optional(conn)
        .await)?;
    let Some(mut row) = row else {
        return Ok(None);
    };
    restore(tx, thread, std::slice::from_mut(&mut row)).await?;
    row.read(thread).map(|checkpoint| Some(checkpoint.entry))
}
