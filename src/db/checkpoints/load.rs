//! Sums up the writes of checkpoints to states.

use std::collections::HashSet;
use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, query_as};
use uuid::Uuid;

use super::{EntryColumns, Head, TABLE, lane_id, lane_of, source_of, torn};
use crate::db::engine::on_engine;
use crate::db::fold::Fold;
use crate::db::json::Cell;
use crate::db::{DbResult, Tx};
use crate::domain::checkpoint::{Checkpoint, Entry, Lane, Source};
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::machine::Position;
use crate::domain::state::State;
use crate::domain::time::Timestamp;

/// The state at `head`: what it and its ancestors wrote.
///
/// # Errors
/// [`crate::db::DbError::Corrupt`] when an ancestor is missing.
pub async fn load_state(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, head: &Head) -> DbResult<State> {
    Ok(State::clone(&*state_at(tx, thread, lane, head.id).await?))
}

/// The same, shared with everybody who reads it.
///
/// # Errors
/// As [`load_state`].
pub async fn shared_state(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, head: &Head) -> DbResult<Arc<State>> {
    state_at(tx, thread, lane, head.id).await
}

/// A step of a segment that is being summed up.
#[derive(sqlx::FromRow)]
struct StepRow {
    checkpoint_id: Uuid,
    parent_id: Option<Uuid>,
    writes: String,
}

/// The rows of the segment of a checkpoint, up to it.
macro_rules! segment {
    ($hint:literal) => {
        concat!(
            "select step.checkpoint_id, step.parent_id, step.writes from checkpoints upto \
             join checkpoints step",
            $hint,
            " on step.thread_id = $2 and step.lane = $3 and step.seq >= upto.segment and step.seq <= upto.seq \
             and step.segment = upto.segment \
             where upto.checkpoint_id = $1 and upto.thread_id = $2 and upto.lane = $3 order by step.seq"
        )
    };
}

/// The state at a checkpoint, remembered or folded; afterwards it is remembered.
async fn state_at(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, checkpoint: CheckpointId) -> DbResult<Arc<State>> {
    if let Some(state) = tx.states.get(checkpoint) {
        return Ok(state);
    }
    let (base, steps) = steps_to(tx, thread, lane, checkpoint).await?;
    let mut fold = base.map_or_else(
        || Fold::with_capacity(steps.len()),
        |state| Fold::from(State::clone(&state)),
    );
    for row in steps {
        fold.add(
            Cell {
                table: TABLE,
                column: "writes",
                id: &row.checkpoint_id,
            }
            .decode(&row.writes)?,
        );
    }
    let state = Arc::new(fold.finish());
    tx.states.put(checkpoint, Arc::clone(&state));
    Ok(state)
}

/// The steps that lead to a checkpoint, the oldest first, and the state with which they begin: that of the nearest
/// ancestor whose state is remembered, or none at the beginning of the lane.
async fn steps_to(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    lane: Lane,
    checkpoint: CheckpointId,
) -> DbResult<(Option<Arc<State>>, Vec<StepRow>)> {
    // Left to itself, SQLite takes the index without the lane and reads the steps of subagents as well.
    let sql = tx.either(segment!(" indexed by checkpoints_by_lane"), segment!(""));
    let mut steps: Vec<StepRow> = vec![];
    let mut upto = Some(checkpoint);
    while let Some(id) = upto {
        let mut rows: Vec<StepRow> = on_engine!(tx, |conn| query_as(sql)
            .bind(id.0)
            .bind(thread.0)
            .bind(lane_id(lane))
            .fetch_all(conn)
            .await)?;
        let Some(first) = rows.first() else {
            return Err(torn(id));
        };
        upto = first.parent_id.map(CheckpointId);
        let known = rows.iter().enumerate().rev().find_map(|(at, row)| {
            let state = tx.states.get(CheckpointId(row.checkpoint_id))?;
            Some((at, state))
        });
        if let Some((at, state)) = known {
            rows.drain(..=at);
            rows.append(&mut steps);
            return Ok((Some(state), rows));
        }
        rows.append(&mut steps);
        steps = rows;
    }
    Ok((None, steps))
}

#[derive(sqlx::FromRow)]
struct CheckpointRow {
    checkpoint_id: Uuid,
    lane: Uuid,
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

impl CheckpointRow {
    /// The checkpoint without its state.
    fn read(self, thread: ThreadId) -> DbResult<Checkpoint> {
        let cell = Cell {
            table: TABLE,
            column: "position",
            id: &self.checkpoint_id,
        };
        let position: Position = cell.decode(&self.position)?;
        let entry = Entry::try_from(EntryColumns {
            checkpoint_id: self.checkpoint_id,
            parent_id: self.parent_id,
            step: self.step,
            source: self.source,
            node: self.node,
            writes: self.writes,
            shown: self.shown,
        })?;
        Ok(Checkpoint {
            entry,
            thread,
            lane: lane_of(self.lane),
            run: self.run_id.map(RunId),
            seq: self.seq,
            forks: self.segment == self.seq && self.parent_id.is_some(),
            position,
            state: State::default(),
            created_at: Timestamp(self.created_at),
        })
    }
}

macro_rules! select {
    () => {
        "select checkpoint_id, lane, seq, segment, parent_id, step, source, node, run_id, writes, shown, position, created_at \
         from checkpoints"
    };
}

/// A checkpoint of a thread with its state, in whichever lane.
pub async fn get(tx: &mut Tx<'_>, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<Option<Checkpoint>> {
    const SQL: &str = concat!(select!(), " where checkpoint_id = $1 and thread_id = $2");
    let row: Option<CheckpointRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(checkpoint.0)
        .bind(thread.0)
        .fetch_optional(conn)
        .await)?;
    let Some(row) = row else {
        return Ok(None);
    };
    let mut found = row.read(thread)?;
    found.state = State::clone(&*state_at(tx, thread, found.lane, checkpoint).await?);
    Ok(Some(found))
}

/// Which part of a history is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryQuery {
    /// How many checkpoints at most.
    pub limit: i64,
    /// Only those older than this one. None are older than one that is not there.
    pub before: Option<CheckpointId>,
}

/// A part of a lane: from one number of the thread's log to another, both included.
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

/// Takes checkpoints one after the other, the oldest first.
pub trait Visit: Send {
    /// The step that left the checkpoint which comes next.
    fn step(&mut self, checkpoint: &Checkpoint);

    /// The state after that step; none when states are not read.
    fn state(&mut self, state: Option<&State>);
}

/// What is known of a row before it is read.
#[derive(sqlx::FromRow)]
struct RowSize {
    checkpoint_id: Uuid,
    parent_id: Option<Uuid>,
    seq: i64,
    bytes: i64,
}

/// How many bytes of rows are in memory at once, but for a single row that is larger.
const CHUNK_BYTES: i64 = 1 << 20;

/// Leads a visitor through a part of a lane, the oldest checkpoint first. At no time is more in memory than one state and
/// a few rows: only the state before the oldest checkpoint is folded from the beginning of the lane, the others follow
/// from it.
pub async fn walk<V: Visit>(tx: &mut Tx<'_>, span: Span, with_states: bool, visitor: &mut V) -> DbResult<()> {
    let sizes = sizes(tx, span).await?;
    let alone = sizes.len() == 1;
    // The parents of branches: their states are needed once more, and the memory of states has its own bound.
    let neighbours = sizes
        .windows(2)
        .filter(|pair| pair[1].parent_id != Some(pair[0].checkpoint_id));
    let branched: HashSet<Uuid> = neighbours.filter_map(|pair| pair[1].parent_id).collect();
    let mut current: Option<(CheckpointId, Fold)> = None;
    let mut rest = sizes.as_slice();
    while let Some(last) = rest.get(chunk_of(rest).saturating_sub(1)) {
        let rows = rows_between(
            tx,
            Span {
                first: rest[0].seq,
                last: last.seq,
                ..span
            },
        )
        .await?;
        rest = &rest[chunk_of(rest)..];
        for row in rows {
            let mut checkpoint = row.read(span.thread)?;
            visitor.step(&checkpoint);
            let id = checkpoint.entry.id;
            if !with_states {
                visitor.state(None);
            } else if alone {
                visitor.state(Some(&*state_at(tx, span.thread, span.lane, id).await?));
            } else {
                let mut fold = match (checkpoint.entry.parent, current.take()) {
                    (Some(parent), Some((newest, fold))) if newest == parent => fold,
                    (Some(parent), _) => {
                        Fold::from(State::clone(&*state_at(tx, span.thread, span.lane, parent).await?))
                    }
                    (None, _) => Fold::default(),
                };
                fold.add(std::mem::take(&mut checkpoint.entry.writes));
                if branched.contains(&id.0) {
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

/// How many of these rows are read in one go: at least one, if there are any.
fn chunk_of(rows: &[RowSize]) -> usize {
    let mut bytes = 0;
    let fitting = rows.iter().take_while(|row| {
        bytes += row.bytes;
        bytes <= CHUNK_BYTES
    });
    fitting.count().max(1).min(rows.len())
}

async fn sizes(tx: &mut Tx<'_>, span: Span) -> DbResult<Vec<RowSize>> {
    const SQL: &str = "select checkpoint_id, parent_id, seq, \
        cast(octet_length(writes) + octet_length(position) as bigint) as bytes from checkpoints \
        where thread_id = $1 and lane = $2 and seq >= $3 and seq <= $4 order by seq";
    rows_of(tx, SQL, span).await
}

async fn rows_between(tx: &mut Tx<'_>, span: Span) -> DbResult<Vec<CheckpointRow>> {
    const SQL: &str = concat!(
        select!(),
        " where thread_id = $1 and lane = $2 and seq >= $3 and seq <= $4 order by seq"
    );
    rows_of(tx, SQL, span).await
}

/// What `sql` finds within a span: its parameters are the thread, the lane, and the first and the last number.
async fn rows_of<R>(tx: &mut Tx<'_>, sql: &'static str, span: Span) -> DbResult<Vec<R>>
where
    R: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin,
{
    Ok(on_engine!(tx, |conn| query_as(sql)
        .bind(span.thread.0)
        .bind(lane_id(span.lane))
        .bind(span.first)
        .bind(span.last)
        .fetch_all(conn)
        .await)?)
}

/// The checkpoints of a lane with their states, the newest first, whichever branch they are on; all in memory.
#[cfg(test)]
pub async fn history(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, wanted: HistoryQuery) -> DbResult<Vec<Checkpoint>> {
    struct Collected(Vec<Checkpoint>);
    impl Visit for Collected {
        fn step(&mut self, checkpoint: &Checkpoint) {
            self.0.push(checkpoint.clone());
        }
        fn state(&mut self, state: Option<&State>) {
            if let (Some(last), Some(state)) = (self.0.last_mut(), state) {
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
    let found = sketches(tx, thread, lane, before, wanted.limit).await?;
    let mut all = Collected(vec![]);
    if let (Some(newest), Some(oldest)) = (found.first(), found.last()) {
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

/// How a checkpoint came to be, without what it wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sketch {
    /// The checkpoint.
    pub id: CheckpointId,
    /// Its number in the log of the thread.
    pub seq: i64,
    /// Its number in the lane.
    pub step: i64,
    /// Why it exists.
    pub source: Source,
    /// The run of the main agent in whose course it was made.
    pub run: Option<RunId>,
    /// The checkpoint before it.
    pub parent: Option<CheckpointId>,
    /// The checkpoint before it, if it is the first of a branch.
    pub fork_of: Option<CheckpointId>,
    /// When it was made.
    pub created_at: Timestamp,
}

#[derive(sqlx::FromRow)]
struct SketchRow {
    checkpoint_id: Uuid,
    seq: i64,
    segment: i64,
    parent_id: Option<Uuid>,
    step: i64,
    source: String,
    run_id: Option<Uuid>,
    created_at: i64,
}

impl TryFrom<SketchRow> for Sketch {
    type Error = crate::db::DbError;

    fn try_from(row: SketchRow) -> DbResult<Self> {
        let cell = Cell {
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

macro_rules! select_sketch {
    () => {
        "select checkpoint_id, seq, segment, parent_id, step, source, run_id, created_at from checkpoints"
    };
}

/// How a checkpoint of a lane came to be.
pub async fn sketch(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, id: CheckpointId) -> DbResult<Option<Sketch>> {
    const SQL: &str = concat!(
        select_sketch!(),
        " where checkpoint_id = $1 and thread_id = $2 and lane = $3"
    );
    let row: Option<SketchRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(id.0)
        .bind(thread.0)
        .bind(lane_id(lane))
        .fetch_optional(conn)
        .await)?;
    row.map(Sketch::try_from).transpose()
}

/// The checkpoints of a lane whose number is below `before`, the newest first, without what they wrote.
pub async fn sketches(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, before: i64, limit: i64) -> DbResult<Vec<Sketch>> {
    const SQL: &str = concat!(
        select_sketch!(),
        " where thread_id = $1 and lane = $2 and seq < $3 order by seq desc limit $4"
    );
    let rows: Vec<SketchRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(thread.0)
        .bind(lane_id(lane))
        .bind(before)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    rows.into_iter().map(Sketch::try_from).collect()
}

/// The step that came next in a lane after the place `seq` of the log.
pub async fn next_after(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, seq: i64) -> DbResult<Option<Entry>> {
    const SQL: &str = concat!(
        select!(),
        " where thread_id = $1 and lane = $2 and seq > $3 order by seq limit 1"
    );
    let row: Option<CheckpointRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(thread.0)
        .bind(lane_id(lane))
        .bind(seq)
        .fetch_optional(conn)
        .await)?;
    row.map(|row| row.read(thread).map(|checkpoint| checkpoint.entry))
        .transpose()
}
