//! Sums up the writes of checkpoints to states.

use std::collections::HashMap;
use std::sync::Arc;

use sqlx::query_as;
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
    let mut fold = base.map_or_else(|| Fold::with_capacity(steps.len()), |state| Fold::from(State::clone(&state)));
    for row in steps {
        fold.add(Cell { table: TABLE, column: "writes", id: &row.checkpoint_id }.decode(&row.writes)?);
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
        let mut rows: Vec<StepRow> =
            on_engine!(tx, |conn| query_as(sql).bind(id.0).bind(thread.0).bind(lane_id(lane)).fetch_all(conn).await)?;
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
        let cell = Cell { table: TABLE, column: "position", id: &self.checkpoint_id };
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
    let row: Option<CheckpointRow> =
        on_engine!(tx, |conn| query_as(SQL).bind(checkpoint.0).bind(thread.0).fetch_optional(conn).await)?;
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

/// The checkpoints of a lane with their states, the newest first, whichever branch they are on.
///
/// Only the state before the oldest of them is folded from the beginning of the lane; the others follow from it.
pub async fn history(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, wanted: HistoryQuery) -> DbResult<Vec<Checkpoint>> {
    const ALL: &str = concat!(select!(), " where thread_id = $1 and lane = $2 order by seq desc limit $3");
    const BEFORE: &str = concat!(
        select!(),
        " where thread_id = $1 and lane = $2 \
         and seq < (select seq from checkpoints edge where edge.checkpoint_id = $4 and edge.thread_id = $1) \
         order by seq desc limit $3"
    );
    let rows: Vec<CheckpointRow> = on_engine!(tx, |conn| {
        let sql = if wanted.before.is_some() { BEFORE } else { ALL };
        let query = query_as(sql).bind(thread.0).bind(lane_id(lane)).bind(wanted.limit);
        match wanted.before {
            Some(before) => query.bind(before.0).fetch_all(conn).await,
            None => query.fetch_all(conn).await,
        }
    })?;
    let mut found = rows.into_iter().rev().map(|row| row.read(thread)).collect::<DbResult<Vec<_>>>()?;
    let mut places: HashMap<CheckpointId, usize> = HashMap::with_capacity(found.len());
    for at in 0..found.len() {
        let mut state = match found[at].entry.parent {
            None => State::default(),
            Some(parent) => match places.get(&parent) {
                Some(&place) => State::clone(&found[place].state),
                None => State::clone(&*state_at(tx, thread, lane, parent).await?),
            },
        };
        for update in &found[at].entry.writes {
            state.apply(update);
        }
        found[at].state = state;
        places.insert(found[at].entry.id, at);
    }
    found.reverse();
    Ok(found)
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
    /// The checkpoint before it, if it is the first of a branch.
    pub fork_of: Option<CheckpointId>,
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
}

/// The checkpoints of a lane whose number is below `before`, the newest first, without what they wrote.
pub async fn sketches(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, before: i64, limit: i64) -> DbResult<Vec<Sketch>> {
    const SQL: &str = "select checkpoint_id, seq, segment, parent_id, step, source, run_id from checkpoints \
        where thread_id = $1 and lane = $2 and seq < $3 order by seq desc limit $4";
    let rows: Vec<SketchRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(thread.0)
        .bind(lane_id(lane))
        .bind(before)
        .bind(limit)
        .fetch_all(conn)
        .await)?;
    let read = |row: SketchRow| {
        let cell = Cell { table: TABLE, column: "source", id: &row.checkpoint_id };
        Ok(Sketch {
            id: CheckpointId(row.checkpoint_id),
            seq: row.seq,
            step: row.step,
            source: source_of(&row.source).ok_or_else(|| cell.corrupt())?,
            run: row.run_id.map(RunId),
            fork_of: row.parent_id.filter(|_| row.segment == row.seq).map(CheckpointId),
        })
    };
    rows.into_iter().map(read).collect()
}

/// The step that came next in a lane after the place `seq` of the log.
pub async fn next_after(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, seq: i64) -> DbResult<Option<Entry>> {
    const SQL: &str = concat!(select!(), " where thread_id = $1 and lane = $2 and seq > $3 order by seq limit 1");
    let row: Option<CheckpointRow> =
        on_engine!(tx, |conn| query_as(SQL).bind(thread.0).bind(lane_id(lane)).bind(seq).fetch_optional(conn).await)?;
    row.map(|row| row.read(thread).map(|checkpoint| checkpoint.entry)).transpose()
}
